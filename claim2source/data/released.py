"""Read the 2026 paper's outputs: score JSON of its first two stages, selections of its LLM.

Score JSON: [{"query_index", "query_text", "ground_truth_pubkey", "candidates": [{"rank", "pubkey",
"embedding_score", "reranker_rank", "reranker_score", ..}]}], the claims in the order of the task's
file. Selections: {"<language>_<position in the task's file, from 0>": {"selected_paper",
"reasoning"}}; `selected_paper` counts the candidates from 1, and is null if the LLM failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np

from claim2source.core.errors import FileProblems, InputError, Problems
from claim2source.core.run import Run
from claim2source.data.jsonl import Row, parse_json
from claim2source.data.text_files import read_lines

RankedBy = Literal["reranker", "embedding"]
# Claim id -> source id -> score, best first.
_Lists = dict[str, dict[str, float]]
# Lists, golds by claim, and the number of repeated sources.
Scores = tuple[_Lists, dict[str, str], int]
# Language -> position of a claim in its file -> position of the selected source, from 1.
Selections = Mapping[str, Mapping[int, int | None]]

_SELECTION = re.compile(r"([^_\s]+)_([0-9]{1,9})")
_LARGEST = 1e37  # leaves room in float32 for breaking ties


def is_json(lines: Sequence[str]) -> bool:
    """Whether a file is a JSON list or object, which no TREC run looks like."""
    first_line = next(line for line in lines if line.strip())
    first = first_line.lstrip()
    rest = first[1:].lstrip()
    after = rest[:1]
    if first[0] == "[":
        return after in ("", "{", "[", "]")
    return first[0] == "{" and after in ("", '"', "}")


def read_scores(
    lines: Sequence[str],
    problems: FileProblems,
    ranked_by: RankedBy = "reranker",
) -> Scores:
    """Read a score JSON, ranked by its re-ranker or by its embeddings.

    Returns the lists, the golds in the file, and the number of repeated sources. Without a
    re-ranker, the embeddings rank. Candidates that the re-ranker dropped are dropped, as in the
    authors' own evaluation. Scores are the file's, if it has them; ties are broken in the file's
    order, by the smallest steps that float32 can represent.
    """
    content = parse_json(
        "".join(lines),
        problems.file,
        problems.collected,
    )
    nothing: Scores = {}, {}, 0
    if isinstance(content, dict):
        problems.add(None, None, _no_run_reason(content))
        return nothing
    if not isinstance(content, list):
        return nothing
    entries: list[_Entry] = []
    for number, raw in enumerate(content, 1):
        entries.append(_Entry(number, raw, problems))
    has_reranked = any(entry.is_reranked for entry in entries)
    by_reranker = ranked_by == "reranker" and has_reranked
    scored = _lists(entries, by_reranker)
    if not content:
        problems.add(None, None, "no claims, only an empty list")
    return scored


def _no_run_reason(content: Mapping[str, object]) -> str:
    if content and all(_SELECTION.fullmatch(key) for key in content):
        return (
            "contains selections, which are positions in another list: pass that list as the run, "
            "and this file as its selections"
        )
    return "is a JSON object; a run is a TREC file, a lab's TSV or a score JSON (a list)"


class _Entry(Row):
    def __init__(
        self,
        number: int,
        raw: object,
        problems: FileProblems,
    ) -> None:
        def complain(field: str, reason: str, kind: str = "", /) -> None:
            problems.add(None, field or None, f"entry {number}: {reason}")

        is_object = isinstance(raw, dict)
        record = raw if isinstance(raw, dict) else {}
        super().__init__(record, number, complain)
        if not is_object:
            complain("", "is not an object")
        candidates = self.record.get("candidates")
        is_list = isinstance(candidates, list)
        if is_object and not is_list:
            reason = "is missing" if candidates is None else "is not a list"
            complain("candidates", reason)

        listed = candidates if isinstance(candidates, list) else []
        self.candidates: list[tuple[int, dict[str, Any]]] = []
        for position, value in enumerate(listed):
            if isinstance(value, dict):
                self.candidates.append((position, value))
            else:
                complain(f"candidates[{position}]", "is not an object")
        self.is_reranked = any(
            candidate.get("reranker_rank") is not None for _, candidate in self.candidates
        )

    def gold(self) -> str | None:
        value = self.record.get("ground_truth_pubkey")
        # Their code writes str(None) for a claim without a known gold.
        if value in (None, "", "None"):
            return None
        return self.as_id("ground_truth_pubkey", value)

    def ranked(self, reranked: bool) -> list[tuple[str, float | None]]:
        """List the candidates by the ranks of one stage, with its scores (None if missing)."""
        rank_field = "reranker_rank" if reranked else "rank"
        score_field = "reranker_score" if reranked else "embedding_score"
        by_rank: dict[int, tuple[str, float | None]] = {}
        for position, candidate in self.candidates:
            label = f"candidates[{position}]"
            rank_label = f"{label}.{rank_field}"
            rank = candidate.get(rank_field)
            if rank is None and reranked:
                continue
            pubkey = candidate.get("pubkey")
            source = self.as_id(f"{label}.pubkey", pubkey)
            raw_score = candidate.get(score_field)
            score = self._score(f"{label}.{score_field}", raw_score)
            if type(rank) is not int or not 1 <= rank <= 10**9:
                self.complain(rank_label, "is not a rank: an integer from 1")
            elif rank in by_rank:
                reason = f"{rank} is the rank of another candidate too"
                self.complain(rank_label, reason)
            elif source is not None:
                by_rank[rank] = (source, score)

        if reranked and self.candidates and not self.is_reranked:
            self.complain("candidates", "have no reranker_rank, unlike other entries")
        ordered = [by_rank[rank] for rank in sorted(by_rank)]
        self._check_order(score_field, ordered)
        return ordered

    def _check_order(
        self,
        field: str,
        ordered: Sequence[tuple[str, float | None]],
    ) -> None:
        """Complain about the first candidate with a higher score than the one before it."""
        for (_, before), (source, after) in pairwise(ordered):
            if before is None or after is None:
                continue
            if after > before:
                reason = f"{source!r} scores higher than the candidate ranked before it"
                self.complain(field, reason)
                return

    def _score(self, field: str, value: object) -> float | None:
        if value is None:
            return None
        if type(value) not in (int, float) or not -_LARGEST <= value <= _LARGEST:  # type: ignore[operator]
            self.complain(field, "is not a finite number")
            return None
        return float(value)  # type: ignore[arg-type]


def _lists(entries: Sequence[_Entry], reranked: bool) -> Scores:
    ranked: _Lists = {}
    golds: dict[str, str] = {}
    repeated = 0
    for entry in entries:
        claim: str | None = None
        if entry.record:
            index = entry.record.get("query_index")
            claim = entry.as_id("query_index", index)
        gold = entry.gold()
        listed = entry.ranked(reranked)
        if claim is None:
            continue
        if claim in ranked:
            entry.complain("query_index", f"{claim!r} is repeated")
            continue

        distinct: dict[str, float | None] = {}
        for source, score in listed:
            distinct.setdefault(source, score)
        repeated += len(listed) - len(distinct)
        ranked[claim] = _decreasing(distinct)
        if gold is not None:
            golds[claim] = gold
    return ranked, golds, repeated


def _decreasing(scores: Mapping[str, float | None]) -> dict[str, float]:
    """Make the scores strictly decreasing; n, n - 1, ..., 1 if one is missing."""
    if None in scores.values():
        count = len(scores)
        return {source: float(count - i) for i, source in enumerate(scores)}
    falling: dict[str, float] = {}
    last = np.float32(np.inf)
    for source, score in scores.items():
        below = np.nextafter(last, np.float32(-np.inf))
        last = np.minimum(np.float32(score), below)
        falling[source] = float(last)
    return falling


def read_selections(path: Path) -> Selections:
    """Read the LLM's selections. Raises `InputError`, with a line per problem."""
    problems = Problems()
    content = parse_json(
        "".join(read_lines(path)),
        path,
        problems,
    )
    selections: dict[str, dict[int, int | None]] = {}
    if not isinstance(content, dict) and not len(problems):
        problems.add(path, None, None, "is not a JSON object of selections")
    entries = content.items() if isinstance(content, dict) else ()
    for key, value in entries:
        short_key = key[:60]
        field = f"{short_key}.selected_paper"
        name = _SELECTION.fullmatch(key)
        if name is None:
            reason = "is not <language>_<position of the claim>, such as de_0"
            problems.add(path, None, short_key, reason)
            continue

        if isinstance(value, dict) and "selected_paper" not in value:
            problems.add(path, None, field, "is missing")
        # Their older files have only the number.
        selected = value.get("selected_paper") if isinstance(value, dict) else value
        if selected is None or type(selected) is int and 1 <= selected <= 10**6:
            language = name[1]
            position = int(name[2])
            selections.setdefault(language, {})[position] = selected
        else:
            problems.add(path, None, field, "is neither null nor a position, an integer from 1")

    problems.raise_if_any()
    if not selections:
        raise InputError(path, reason="contains no selections")
    return selections


def with_selected(
    run: Run,
    path: Path,
    selections: Selections,
    language: str,
) -> Run:
    """Move the selected source of every claim to the front; the others keep their order.

    `run` has the claims of the task's file in this language, in order. A claim without a selection
    keeps its list. The selected source gets the best score plus 1, the paper's bonus. Raises
    `InputError` for a position that the list or the file does not have.
    """
    if language not in selections:
        have = ", ".join(sorted(selections))
        raise InputError(path, reason=f"no selections of {language!r} claims; there are: {have}")
    problems = Problems()
    lists: dict[str, list[tuple[str, float]]] = {}
    for claim in run.claim_ids:
        scores = run.scored(claim)
        lists[claim] = list(scores.items())
    for selected_rank, selected in selections[language].items():
        key = f"{language}_{selected_rank}"
        if selected_rank >= len(run.claim_ids):
            reason = f"the run has only {len(run.claim_ids)} claims"
            problems.add(path, None, key, reason)
            continue
        if selected is None:
            continue
        claim = run.claim_ids[selected_rank]
        listed = lists[claim]
        if selected > len(listed):
            reason = f"{selected} is beyond the {len(listed)} sources of the claim's list"
            problems.add(path, None, f"{key}.selected_paper", reason)
            continue
        _move_to_front(listed, selected - 1)
    problems.raise_if_any()
    return Run.from_lists(lists, pool=run.pool)


def _move_to_front(
    listed: list[tuple[str, float]],
    position: int,
) -> None:
    """Move the source at a position, from 0, to the front, with a score above all others."""
    best = np.float32(listed[0][1])
    plus_bonus = best + np.float32(1)
    next_above = np.nextafter(best, np.float32(np.inf))
    above = max(plus_bonus, next_above)
    source, _ = listed.pop(position)
    listed.insert(0, (source, float(above)))
