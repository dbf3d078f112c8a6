"""Read the 2026 paper's own outputs: score JSON of its two first stages, selections of its LLM.

Score JSON: [{"query_index", "query_text", "ground_truth_pubkey", "candidates": [{"rank", "pubkey",
"embedding_score", "reranker_rank", "reranker_score", ..}]}], the claims in the order of the task's
file. Selections: {"<language>_<place in the task's file, from 0>": {"selected_paper",
"reasoning"}}, where `selected_paper` counts the candidates from 1; null where the LLM failed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Interval

from claim2source.core.errors import FileProblems, InputError, Problems
from claim2source.core.run import Run
from claim2source.core.validate import validated
from claim2source.io.jsonl import parse_json
from claim2source.io.text_files import read_lines, why_not_id

RankedBy = Literal["reranker", "embedding"]
# Claim id -> source id -> score, best first.
_Lists = dict[str, dict[str, float]]
# Language -> place of a claim in its file -> place of the selected source, from 1.
Selections = Mapping[str, Mapping[int, int | None]]

_SELECTION = re.compile(r"([^_\s]+)_([0-9]{1,9})")
_Rank = Annotated[int, Interval(ge=1, le=10**9)]
# float32 has room above it for ties.
_Score = Annotated[float, Interval(ge=-1e37, le=1e37)]


@dataclass(frozen=True)
class _Candidate:
    pubkey: str | int
    rank: _Rank | None = None
    embedding_score: _Score | None = None
    reranker_rank: _Rank | None = None
    reranker_score: _Score | None = None

    def ranked(self, reranked: bool) -> tuple[int | None, float | None]:
        """Return rank and score by one stage."""
        if reranked:
            return self.reranker_rank, self.reranker_score
        return self.rank, self.embedding_score


@dataclass(frozen=True)
class _Selection:
    selected_paper: _Rank | None


@dataclass(frozen=True)
class _Entry:
    query_index: str | int
    candidates: list[_Candidate]
    ground_truth_pubkey: str | int | None = None

    @property
    def is_reranked(self) -> bool:
        """Tell whether a re-ranker ran."""
        return any(candidate.reranker_rank is not None for candidate in self.candidates)


def is_json(lines: Sequence[str]) -> bool:
    """Tell whether a file holds a JSON list or object; no line of a TREC run begins like one."""
    first = next(line for line in lines if line.strip()).lstrip()
    rest = first[1:].lstrip()
    return (
        first[0] == "[" and rest[:1] in ("", "{", "[", "]") or first[0] == "{" and rest[:1] in '"}'
    )


def read_scores(
    lines: Sequence[str], problems: FileProblems, ranked_by: RankedBy = "reranker"
) -> tuple[_Lists, dict[str, str], int]:
    """Read a score JSON: ranked by its re-ranker, or as its embeddings ranked before.

    Returns its lists, the golds that it names, and the count of repeated sources.

    Where no re-ranker ran the embeddings rank. Candidates that the re-ranker left out are left
    out, as the authors' own evaluation does. Scores are the file's, where it has them; tied ones
    are lowered by as little as float32 can hold, since the file's order counts.
    """
    content = parse_json("".join(lines), problems.file, problems.collected)
    ranked: _Lists = {}
    golds: dict[str, str] = {}
    repeated = 0
    if isinstance(content, dict):
        problems.add(None, None, _why_no_run(content))
    if content == []:
        problems.add(None, None, "no claims, only an empty list")
    problems.collected.raise_if_any()
    entries = validated(list[_Entry], content, problems.file)
    reranked = ranked_by == "reranker" and any(entry.is_reranked for entry in entries)
    for number, entry in enumerate(entries):
        claim, gold = str(entry.query_index), entry.ground_truth_pubkey
        listed = _listed(entry, reranked, number, problems)
        if why := f"{claim!r} is another entry's too" if claim in ranked else why_not_id(claim):
            problems.add(None, f"{number}.query_index", why)
        distinct: dict[str, float | None] = {}
        for source, score in listed:
            distinct.setdefault(source, score)
        repeated += len(listed) - len(distinct)
        ranked[claim] = _decreasing(distinct)
        # Their code writes str(None) for a claim whose gold is not known.
        golds |= {} if gold in (None, "", "None") else {claim: str(gold)}
    return ranked, golds, repeated


def _listed(
    entry: _Entry, reranked: bool, number: int, problems: FileProblems
) -> list[tuple[str, float | None]]:
    """List the candidates by the ranks of one stage, with its scores (None: not given)."""
    field = f"{number}.candidates"
    by_rank: dict[int, tuple[str, float | None]] = {}
    for i, candidate in enumerate(entry.candidates):
        rank, score = candidate.ranked(reranked)
        source = str(candidate.pubkey)
        if why := why_not_id(source):
            problems.add(None, f"{field}.{i}.pubkey", why)
        if rank in by_rank:
            problems.add(None, f"{field}.{i}", f"rank {rank} is another candidate's too")
        elif rank is not None:
            by_rank[rank] = source, score
        elif not reranked:
            problems.add(None, f"{field}.{i}.rank", "is missing")
    if reranked and entry.candidates and not entry.is_reranked:
        problems.add(None, field, "have no reranker_rank, which other entries have")
    ordered = [by_rank[rank] for rank in sorted(by_rank)]
    for (_, before), (source, after) in pairwise(ordered):
        if before is not None and after is not None and after > before:
            why = f"{source!r} scores higher than the candidate ranked before it"
            problems.add(None, field, why)
            break
    return ordered


def _why_no_run(content: Mapping[str, object]) -> str:
    if content and all(_SELECTION.fullmatch(key) for key in content):
        return (
            "holds selections, which are places in another list: give that list as the run, and "
            "this file as its selections"
        )
    return "is a JSON object; a run is a TREC file, a lab's TSV or a score JSON, which is a list"


def _decreasing(scores: Mapping[str, float | None]) -> dict[str, float]:
    """Keep the scores, each below the one before; n, n - 1, ..., 1 where one is not given."""
    if None in scores.values():
        return {source: float(len(scores) - i) for i, source in enumerate(scores)}
    falling: dict[str, float] = {}
    last = np.float32(np.inf)
    for source, score in scores.items():
        last = np.minimum(np.float32(score), np.nextafter(last, np.float32(-np.inf)))
        falling[source] = float(last)
    return falling


def read_selections(path: Path) -> Selections:
    """Read the LLM's selections. Raises `InputError` with a line for each problem."""
    problems = Problems()
    content = parse_json("".join(read_lines(path)), path, problems)
    problems.raise_if_any()
    # Their older files hold the bare number.
    values = validated(dict[str, _Selection | _Rank | None], content, path)
    selections: dict[str, dict[int, int | None]] = {}
    for key, value in values.items():
        selected = value.selected_paper if isinstance(value, _Selection) else value
        if (name := _SELECTION.fullmatch(key)) is None:
            problems.add(path, None, key[:60], "is no <language>_<place of the claim>, as de_0")
        else:
            selections.setdefault(name[1], {})[int(name[2])] = selected
    problems.raise_if_any()
    if not selections:
        raise InputError(path, why="holds no selections")
    return selections


def with_selected(run: Run, path: Path, selections: Selections, language: str) -> Run:
    """Move the selected source of every claim to the front; the others keep their order.

    `run` has the claims of the task's file of this language, in order. A claim without a selection
    keeps its list. The selected source gets the best score and 1, the paper's bonus. Raises
    `InputError` for a place that a list, or the file, does not have.
    """
    if language not in selections:
        have = ", ".join(sorted(selections))
        raise InputError(path, why=f"no selections of {language!r} claims; there are: {have}")
    problems = Problems()
    lists = {claim: list(run.scored(claim).items()) for claim in run.claim_ids}
    for selected_rank, selected in selections[language].items():
        key = f"{language}_{selected_rank}"
        if selected_rank >= len(run.claim_ids):
            problems.add(path, None, key, f"the run has {len(run.claim_ids)} claims only")
        elif selected is not None:
            listed = lists[run.claim_ids[selected_rank]]
            if selected > len(listed):
                why = f"{selected} is beyond the {len(listed)} sources of the claim's list"
                problems.add(path, None, f"{key}.selected_paper", why)
            else:
                best = np.float32(listed[0][1])
                above = max(best + np.float32(1), np.nextafter(best, np.float32(np.inf)))
                listed.insert(0, (listed.pop(selected - 1)[0], float(above)))
    problems.raise_if_any()
    return Run.from_lists(lists, pool=run.pool)
