"""Scores apart by what a claim is like: language, gold seen or not, length, #, @, numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.records import Claim, Dataset, Qrels, sorted_languages
from claim2source.evaluation.metrics import Scores
from claim2source.evaluation.ranks import BUCKETS, NOT_FOUND, bucket_of
from claim2source.evaluation.significance import bootstrap_intervals, gold_groups

HASHTAG = re.compile(r"(?<![\w#])#\w+")
MENTION = re.compile(r"(?<![\w@])@\w+")
# Digits on their own or with separators; not those inside a word such as "covid19".
NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*(?![\w])")
# Last word count of a bin; the last bin is open.
_LENGTHS = (15, 25, 40)


@dataclass(frozen=True)
class Slice:
    """Claims that share a trait: `by` names the trait, `part` its value."""

    by: str
    part: str
    claim_ids: frozenset[str]


@dataclass(frozen=True)
class SliceScore:
    """A metric of one system over one slice, with its 95 % interval by gold paper."""

    by: str
    part: str
    system: str
    value: float
    low: float
    high: float
    claims: int
    papers: int


def slices_of(claims: Sequence[Claim], seen_golds: frozenset[str] | None = None) -> list[Slice]:
    """Slices of the claims that have a gold; parts without claims are left out.

    `seen_golds` are the golds of training; without them there is no slice by them.
    """
    judged = [claim for claim in claims if claim.golds]
    languages = sorted_languages(claim.lang for claim in judged)
    traits: list[tuple[str, Callable[[Claim], str], Sequence[str]]] = [
        ("language", lambda claim: claim.lang, languages),
        ("words", _length, (*(_length_name(i) for i in range(len(_LENGTHS) + 1)),)),
        ("hashtags", lambda claim: _count(HASHTAG, claim), ("0", "1", "2+")),
        ("mentions", lambda claim: _count(MENTION, claim), ("0", "1", "2+")),
        ("numbers", lambda claim: _count(NUMBER, claim), ("0", "1", "2+")),
    ]
    if seen_golds is not None:
        seen = seen_golds

        def known(claim: Claim) -> str:
            return "unseen" if seen.isdisjoint(claim.golds) else "seen"

        traits.insert(1, ("gold in training", known, ("seen", "unseen")))
    return [
        found
        for by, trait, parts in traits
        for found in _parts(by, {claim.id: trait(claim) for claim in judged}, parts)
    ]


def rank_slices(claim_ids: Sequence[str], ranks: np.ndarray, by: str = "rank") -> list[Slice]:
    """Slices by the bucket in which a system (the baseline, say) has the gold."""
    named = {claim: bucket_of(rank) for claim, rank in zip(claim_ids, ranks, strict=True)}
    return _parts(by, named, (*BUCKETS, NOT_FOUND))


def _parts(by: str, part_of: Mapping[str, str], parts: Iterable[str]) -> list[Slice]:
    found = [
        Slice(by, part, frozenset(c for c, named in part_of.items() if named == part))
        for part in parts
    ]
    return [part for part in found if part.claim_ids]


def _count(pattern: re.Pattern[str], claim: Claim) -> str:
    number = len(pattern.findall(claim.text))
    return str(number) if number < 2 else "2+"


def _length(claim: Claim) -> str:
    words = len(claim.text.split())
    return _length_name(sum(words > last for last in _LENGTHS))


def _length_name(number: int) -> str:
    if number == len(_LENGTHS):
        return f"over {_LENGTHS[-1]}"
    return f"{_LENGTHS[number - 1] + 1 if number else 1}-{_LENGTHS[number]}"


def language_strata(claims: Sequence[Claim], claim_ids: Sequence[str]) -> np.ndarray:
    """Number of each claim's language, [claims]: strata for the macro average."""
    number = {lang: i for i, lang in enumerate(sorted_languages(c.lang for c in claims))}
    language = {claim.id: number[claim.lang] for claim in claims}
    return np.array([language[claim] for claim in claim_ids], dtype=np.int64)


def breakdown(
    systems: Mapping[str, Scores],
    metric: str,
    dataset: Dataset,
    slices: Sequence[Slice],
    *,
    repeats: int = 10_000,
    seed: int = 0,
) -> list[SliceScore]:
    """Every system over every slice, and over all: macro (the lab's AVG) and micro.

    The systems must have scored the same claims in the same order; a slice with none of them
    is left out. Raises ValueError on other claims.
    """
    claim_ids, values = score_matrix(systems, metric)
    strata = language_strata(dataset.claims, claim_ids)
    whole = Slice("all", "macro", frozenset(claim_ids))
    rows = _scored(whole, systems, values, claim_ids, dataset.qrels, strata, repeats, seed)
    for part in (Slice("all", "micro", whole.claim_ids), *slices):
        rows += _scored(part, systems, values, claim_ids, dataset.qrels, None, repeats, seed)
    return rows


def score_matrix(systems: Mapping[str, Scores], metric: str) -> tuple[tuple[str, ...], np.ndarray]:
    """The claims, and a metric of every system as [systems, claims].

    Raises ValueError when the systems were not scored on the same claims in the same order.
    """
    if not systems:
        raise ValueError("no systems")
    first = next(iter(systems.values())).claim_ids
    for name, scores in systems.items():
        if scores.claim_ids != first:
            raise ValueError(f"{name} was scored on other claims than the first system")
    return first, np.stack([scores[metric] for scores in systems.values()])


def _scored(
    part: Slice,
    systems: Mapping[str, Scores],
    values: np.ndarray,
    claim_ids: Sequence[str],
    qrels: Qrels,
    strata: np.ndarray | None,
    repeats: int,
    seed: int,
) -> list[SliceScore]:
    kept = np.array([claim in part.claim_ids for claim in claim_ids], dtype=bool)
    if not kept.any():
        return []
    inside = values[:, kept]
    groups = gold_groups(qrels, [c for c, keep in zip(claim_ids, kept, strict=True) if keep])
    within = None if strata is None else strata[kept]
    intervals = bootstrap_intervals(inside, groups, within, repeats, seed)
    means = inside.mean(axis=1) if within is None else _macro(inside, within)
    papers = len(np.unique(groups))
    return [
        SliceScore(
            part.by, part.part, name, float(mean), float(low), float(high), int(kept.sum()), papers
        )
        for name, mean, (low, high) in zip(systems, means, intervals, strict=True)
    ]


def _macro(values: np.ndarray, strata: np.ndarray) -> np.ndarray:
    return np.mean([values[:, strata == s].mean(axis=1) for s in np.unique(strata)], axis=0)
