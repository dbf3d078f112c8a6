"""Score slices of the claims (language, length, ..), and rank the first gold of every claim."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.records import Claim, Dataset, Qrels, sorted_languages
from claim2source.core.run import Run
from claim2source.core.tables import Cell, TextTable
from claim2source.datasets.grouping import gold_groups
from claim2source.metrics.metrics import Scores, evaluate, language_strata
from claim2source.metrics.significance import bootstrap_intervals

HASHTAG = re.compile(r"(?<![\w#])#\w+")
MENTION = re.compile(r"(?<![\w@])@\w+")
# Digits on their own or with separators; not those inside a word such as "covid19".
NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*(?![\w])")
_LENGTHS = {"1-15": 15, "16-25": 25, "26-40": 40, "over 40": np.inf}  # last word count

# First and last rank of every bucket; what is deeper or absent is "101+" or "not found".
BUCKETS: Mapping[str, tuple[int, float]] = {
    "1": (1, 1),
    "2-5": (2, 5),
    "6-10": (6, 10),
    "11-50": (11, 50),
    "51-100": (51, 100),
    "101+": (101, np.inf),
}
NOT_FOUND = "not found"
_UNCUT = "mrr@1000000"
Changes = Mapping[str, Mapping[str, int]]


@dataclass(frozen=True)
class Slice:
    """Hold claims that share a trait: `by` names the trait, `part` its value."""

    by: str
    part: str
    claim_ids: frozenset[str]


@dataclass(frozen=True)
class SliceScore:
    """Hold a metric of one system over one slice, with its 95 % interval by gold paper."""

    by: str
    part: str
    system: str
    value: float
    low: float
    high: float
    claims: int
    papers: int


def slices_of(claims: Sequence[Claim], seen_golds: frozenset[str] | None = None) -> list[Slice]:
    """Slice the claims that have a gold by every trait; parts without claims are left out.

    `seen_golds` are the golds of training; without them there is no slice by them.
    """
    judged = [claim for claim in claims if claim.golds]

    def count(pattern: re.Pattern[str]) -> Callable[[Claim], str]:
        return lambda claim: ("0", "1", "2+")[min(len(pattern.findall(claim.text)), 2)]

    def length(claim: Claim) -> str:
        words = len(claim.text.split())
        return next(name for name, last in _LENGTHS.items() if words <= last)

    def seen(claim: Claim) -> str:
        return "unseen" if (seen_golds or frozenset()).isdisjoint(claim.golds) else "seen"

    languages = sorted_languages(claim.lang for claim in judged)
    traits: list[tuple[str, Callable[[Claim], str], Iterable[str]]] = [
        ("language", lambda claim: claim.lang, languages),
        ("gold in training", seen, ("seen", "unseen")),
        ("words", length, _LENGTHS),
        ("hashtags", count(HASHTAG), ("0", "1", "2+")),
        ("mentions", count(MENTION), ("0", "1", "2+")),
        ("numbers", count(NUMBER), ("0", "1", "2+")),
    ]
    return [
        part
        for by, trait, parts in traits
        if by != "gold in training" or seen_golds is not None
        for part in _parts(by, {claim.id: trait(claim) for claim in judged}, parts)
    ]


def rank_slices(claim_ids: Sequence[str], ranks: np.ndarray, by: str = "rank") -> list[Slice]:
    """Slice claims by the bucket of ranks in which a system has the gold."""
    buckets = {claim: bucket_of(rank) for claim, rank in zip(claim_ids, ranks, strict=True)}
    return _parts(by, buckets, (*BUCKETS, NOT_FOUND))


def _parts(by: str, part_of: Mapping[str, str], parts: Iterable[str]) -> list[Slice]:
    members = {part: frozenset(c for c, p in part_of.items() if p == part) for part in parts}
    return [Slice(by, part, claims) for part, claims in members.items() if claims]


def breakdown(
    systems: Mapping[str, Scores],
    metric: str,
    dataset: Dataset,
    slices: Sequence[Slice],
    *,
    repeats: int = 10_000,
    seed: int = 0,
) -> list[SliceScore]:
    """Score every system over every slice, and over all: macro (the lab's AVG) and micro.

    The systems must have scored the same claims in the same order; a slice with none of them
    is left out. Raises ValueError on other claims, or no systems.
    """
    if not systems:
        raise ValueError("no systems")
    claim_ids = next(iter(systems.values())).claim_ids
    if other := [name for name, scores in systems.items() if scores.claim_ids != claim_ids]:
        raise ValueError(f"{other[0]} was scored on other claims than the first system")
    values = np.stack([scores[metric] for scores in systems.values()])
    everything = frozenset(claim_ids)
    rows: list[SliceScore] = []
    for part in (Slice("all", "macro", everything), Slice("all", "micro", everything), *slices):
        inside = np.array([claim in part.claim_ids for claim in claim_ids], dtype=bool)
        if not inside.any():
            continue
        claims = [claim for claim in claim_ids if claim in part.claim_ids]
        macro = (part.by, part.part) == ("all", "macro")
        strata = language_strata(dataset.claims, claims) if macro else None
        groups, selected = gold_groups(dataset.qrels, claims), values[:, inside]
        intervals = bootstrap_intervals(selected, groups, strata, repeats, seed)
        # Not by `claim_weights`: these are to be the reports' numbers to the last digit.
        each = [strata == s for s in np.unique(strata)] if strata is not None else [slice(None)]
        means = np.mean([selected[:, one].mean(axis=1) for one in each], axis=0)
        size = len(claims), len(np.unique(groups))
        rows += [
            SliceScore(part.by, part.part, name, float(mean), float(low), float(high), *size)
            for name, mean, (low, high) in zip(systems, means, intervals, strict=True)
        ]
    return rows


def slices_table(slices: Sequence[SliceScore]) -> TextTable:
    """Tabulate slices: a row for each, a column of value and interval for each system."""
    cells: dict[tuple[str, str], dict[str, SliceScore]] = {}
    for score in slices:
        cells.setdefault((score.by, score.part), {})[score.system] = score
    systems = list(dict.fromkeys(score.system for score in slices))
    rows: list[list[Cell]] = [
        [
            *(by, part, row[systems[0]].claims, row[systems[0]].papers),
            *(f"{s.value:.4f} [{s.low:.3f}, {s.high:.3f}]" for s in row.values()),
        ]
        for (by, part), row in cells.items()
    ]
    return TextTable(["by", "part", "claims", "papers", *systems], rows)


@dataclass(frozen=True)
class RankSummary:
    """Summarise the ranks of the first gold over claims.

    `mean` is over the claims whose gold is in the run (None: there are none), `median` over
    all, an absent gold being below every rank (None: more than half are absent). `buckets`
    counts claims, absent ones under "not found".
    """

    claims: int
    found: int
    mean: float | None
    median: float | None
    buckets: Mapping[str, int]


def first_ranks(
    run: Run, qrels: Qrels, claim_ids: Sequence[str] | None = None
) -> tuple[tuple[str, ...], np.ndarray]:
    """Return claim ids and the rank of each one's first gold, [claims] float64, inf if absent.

    Raises as `evaluate` does, whose reciprocal rank this is.
    """
    scores = evaluate(run, qrels, [_UNCUT], claim_ids)
    with np.errstate(divide="ignore"):
        return scores.claim_ids, np.round(1 / scores[_UNCUT])


def bucket_of(rank: float) -> str:
    """Name the bucket that a rank falls into; an infinite one is "not found"."""
    if not np.isfinite(rank):
        return NOT_FOUND
    return next(name for name, (first, last) in BUCKETS.items() if first <= rank <= last)


def summarise(ranks: np.ndarray) -> RankSummary:
    """Compute mean, median and buckets of ranks [claims]. Raises ValueError when there are none."""
    if not len(ranks):
        raise ValueError("no ranks to summarise")
    found = ranks[np.isfinite(ranks)]
    median = float(np.median(ranks))
    buckets = [bucket_of(rank) for rank in ranks]
    return RankSummary(
        claims=len(ranks),
        found=len(found),
        mean=float(found.mean()) if len(found) else None,
        median=median if np.isfinite(median) else None,
        buckets={name: buckets.count(name) for name in (*BUCKETS, NOT_FOUND)},
    )


def bucket_changes(before: np.ndarray, after: np.ndarray) -> Changes:
    """Count claims by bucket before and bucket after, for two systems' ranks of the same claims.

    Raises ValueError where the numbers of claims differ.
    """
    if before.shape != after.shape:
        raise ValueError(f"ranks of {len(before)} and of {len(after)} claims")
    names = (*BUCKETS, NOT_FOUND)
    changes = {name: dict.fromkeys(names, 0) for name in names}
    for first, second in zip(before, after, strict=True):
        changes[bucket_of(first)][bucket_of(second)] += 1
    return changes


def changes_table(changes: Changes, corner: str = "") -> TextTable:
    """Tabulate claims by bucket: rows before, columns after."""
    rows: list[list[Cell]] = [[before, *row.values()] for before, row in changes.items()]
    return TextTable([corner, *changes], rows)
