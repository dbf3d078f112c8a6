"""Write and read what systems hand in for CheckThat! 2024 Task 5: evidence, and verdicts.

Evidence is a TREC run of at most five tweets a rumour, its columns parted by tabs; verdicts are
a JSON list of {"id", "predicted_label", "predicted_evidence"}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from claim2source.core.errors import InputError, Problems
from claim2source.core.files import write_json
from claim2source.core.run import Run
from claim2source.datasets.rumors import (
    LABELS,
    TWEET,
    Label,
    Rumors,
    object_row,
    read_list,
    source_id,
    tweet_id,
)
from claim2source.io.jsonl import Row
from claim2source.io.trec import read_run, write_trec_run

MOST = 5
# The organisers' qrels judge it relevant for a rumour without evidence: nothing was retrieved.
NOTHING = "-1"
_KEYS = ("id", "predicted_label", "predicted_evidence")
_EVIDENCE = (*TWEET, "score")
Verdicts = Mapping[str, Label | None]


def write_evidence(run: Run, path: str | Path, tag: str) -> None:
    """Write the evidence of every rumour, best first, at most five tweets."""
    top = run.top(MOST)
    rows = [(claim, tweet_id(source), score) for claim, source, score in top]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    write_trec_run(Run.from_rows(*columns), path, tag, separator="\t")


def write_verification(rumors: Rumors, run: Run, verdicts: Verdicts, path: str | Path) -> None:
    """Write label and evidence of every rumour; a system without verdicts has null for a label."""
    entries = [
        {
            "id": rumor.id,
            "predicted_label": verdicts.get(rumor.id),
            "predicted_evidence": [
                [*rumor.tweets[tweet_id(source)], score]
                for source, score in list(run.scored(rumor.id).items())[:MOST]
            ],
        }
        for rumor in rumors.rumors
    ]
    write_json(path, entries)


def read_evidence(path: str | Path, rumors: Rumors) -> Run:
    """Read a run of evidence; its sources are named as `Rumors.dataset` does.

    A rumour with the single tweet -1 has no evidence. Raises `InputError` with a line for each
    problem: a rumour that is not there, more than five tweets, one that is not in its timeline.
    """
    path, problems = Path(path), Problems()
    file = read_run(path)
    if file.repeated:
        problems.add(path, None, "authority_tweet_id", f"{file.repeated} rows repeat a tweet")
    ranked = {claim: list(file.run.scored(claim).items()) for claim in file.run.claim_ids}
    return _checked(ranked, path, rumors, problems)


def read_verification(path: str | Path, rumors: Rumors) -> tuple[dict[str, Label | None], Run]:
    """Read the verdict of every rumour, and the evidence that it names.

    A system without verdicts has null in all entries. Raises `InputError` with a line for each
    problem, which names the entry's place, from 0, and the field: a rumour that is missing, twice
    or not there, another label, evidence as for `read_evidence`.
    """
    path, problems = Path(path), Problems()
    labels: dict[str, Label | None] = {}
    silent: list[Row] = []
    ranked: dict[str, list[tuple[str, float]]] = {}
    for place, record in enumerate(read_list(path, problems)):
        row = object_row(record, path, problems, str(place), _KEYS)
        if row is None:
            continue
        key = row.as_id("id", row.record.get("id")) or ""
        if key in labels:
            row.complain("id", f"{key!r} is there already")
        label = row.record.get("predicted_label")
        if "predicted_label" not in row.record:
            row.complain("predicted_label", "is missing")
        elif label is None:
            silent.append(row)
        elif label not in LABELS:
            row.complain("predicted_label", f"{_shown(label)} is not one of {', '.join(LABELS)}")
        labels[key] = cast("Label | None", label)
        evidence = row.record.get("predicted_evidence")
        if not isinstance(evidence, list):
            row.complain("predicted_evidence", "is missing or not a list of tweets")
            evidence = []
        ranked[key] = []
        for number, cells in enumerate(evidence):
            where = f"predicted_evidence.{number}"
            if not isinstance(cells, list) or len(cells) != len(_EVIDENCE):
                row.complain(where, f"is not a list of {len(_EVIDENCE)}: {', '.join(_EVIDENCE)}")
                continue
            tweet, score = row.as_id(f"{where}.id", cells[1]), cells[3]
            if type(score) not in (int, float) or not math.isfinite(score):
                row.complain(f"{where}.score", f"{_shown(score)} is not a number")
            elif tweet is not None:
                ranked[key].append((tweet, float(score)))
    if any(label is not None for label in labels.values()):
        for row in silent:
            why = f"null is not one of {', '.join(LABELS)}; it must be in all entries or in none"
            row.complain("predicted_label", why)
    problems.raise_if_any()
    missing = [rumor.id for rumor in rumors.rumors if rumor.id not in labels]
    if missing:
        raise InputError.at(
            path, why=f"no entry for {len(missing)} rumours, such as {missing[0]!r}"
        )
    return labels, _checked(ranked, path, rumors, problems)


def _shown(value: object) -> str:
    """Write a value as it stands in the file, shortened."""
    return repr(value[:40]) if isinstance(value, str) else json.dumps(value)[:40]


def _checked(
    ranked: Mapping[str, list[tuple[str, float]]], path: Path, rumors: Rumors, problems: Problems
) -> Run:
    """Check rumours and tweets against the data; name the tweets as sources."""
    known = {rumor.id: rumor for rumor in rumors.rumors}
    named: dict[str, list[tuple[str, float]]] = {claim: [] for claim in known}
    for claim, tweets in ranked.items():
        if claim not in known:
            problems.add(path, None, claim, f"no such rumour in {rumors.name}")
            continue
        ids = [tweet for tweet, _ in tweets]
        if ids == [NOTHING]:
            continue
        if len(ids) > MOST:
            problems.add(path, None, claim, f"{len(ids)} tweets; {MOST} at most")
        for tweet in dict.fromkeys(ids):
            if tweet not in known[claim].tweets:
                problems.add(path, None, claim, f"tweet {tweet!r} is not in its timeline")
            elif ids.count(tweet) > 1:
                problems.add(
                    path, None, claim, f"tweet {tweet!r} is there {ids.count(tweet)} times"
                )
        named[claim] = [(source_id(claim, tweet), score) for tweet, score in tweets]
    problems.raise_if_any()
    return Run.from_lists(named)
