"""Re-rank by details that distinguish similar papers: quantities, places and populations.

A paper's score increases with each detail that it shares with the post, by more if fewer of the
post's candidates share it. The weights were chosen on training posts of six data sets; docs/log.md
has the figures, and what did not help.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

import numpy as np

from claim2source.core.config import Between, Settings
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.stages.pairs import DEEPEST, ranked_by
from claim2source.text.quantities import Kind, Quantity, quantities
from claim2source.text.subjects import Subjects, subjects

# Weights of the details that a source shares with a claim, in ranges of the list's scores.
_QUANTITY = 0.2
_PLACE = 0.15
_POPULATION = 0.1
# Sources of each claim's list that are compared.
DEPTH = 30
# Weights are in units of the score range of a list this deep.
_RANGE_DEPTH = 100
# Smaller values in posts are not rounded values of papers, except for multiples.
_SMALLEST_ROUNDED = 10
_SMALLEST_MULTIPLE = 1.5
# Ratios that posts may write as changes in per cent, and those that they may invert.
_LARGEST_CHANGE = 2
_SMALLEST_INVERSE = 0.1
# Languages with word lists; for other languages the post's translation is also used.
_READ = ("en", "de", "fr")
# Texts whose details are cached.
_MOST_TEXTS = 4_096
# Increased if the same texts give other details.
_FORMAT = 1


class TextDetails(NamedTuple):
    """Quantities, places and populations of a text; a year is not a quantity."""

    quantities: frozenset[Quantity]
    places: frozenset[str]
    populations: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Details(Settings):
    """Raise the scores of sources that share a claim's quantities, places and populations.

    A claim without such details keeps its ranking.

    Args:
        depth: number of first sources to compare, up to 2,000; the others keep their order below.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = DEPTH
    identity: ClassVar[Mapping[str, object]] = {"format": _FORMAT}

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Re-rank the first `depth` sources of every claim."""
        by_id = {source.id: source for source in sources}
        ranked = rank_by_details(claims, by_id, run, self.depth)
        return Result(ranked)


def rank_by_details(
    claims: Sequence[Claim],
    sources: Mapping[str, Source],
    run: Run,
    depth: int = DEPTH,
) -> Run:
    """Re-rank the first `depth` sources of every claim; ones not in `sources` keep their rank."""
    ranked: dict[str, list[tuple[str, float]]] = {}
    for claim in claims:
        before = run.scored(claim.id)
        values = list(before.values())
        scores = np.array(values, dtype=np.float64)
        first_ids = list(before)[:depth]
        first = [sources.get(key) for key in first_ids]

        details = read_claim(claim)
        lift = score_details(details, first)
        if not lift.any():
            ranked[claim.id] = list(before.items())
            continue

        spread = scores[0] - scores[:_RANGE_DEPTH][-1]
        scores[: len(first)] += (spread or 1.0) * lift
        ranked[claim.id] = ranked_by(before, scores)
    return Run.from_lists(ranked, pool=run.pool)


def read_claim(claim: Claim) -> TextDetails:
    """Extract a claim's details, also from its translation if its language has no word lists."""
    details = _read_details(claim.text, claim.lang)
    if not claim.translation or claim.lang in _READ:
        return details
    translated = _read_details(claim.translation, "en")
    return TextDetails(
        details.quantities | translated.quantities,
        details.places | translated.places,
        details.populations | translated.populations,
    )


@lru_cache(maxsize=_MOST_TEXTS)
def _read_details(text: str, language: str) -> TextDetails:
    values: list[Quantity] = []
    for value in quantities(text, language):
        if value.kind != "year":
            values.append(value)
    places, populations = subjects(text)
    return TextDetails(frozenset(values), places, populations)


def score_details(own: TextDetails, sources: Sequence[Source | None]) -> np.ndarray:
    """Score a claim's candidates by the details that they share with it, [sources]."""
    texts: list[str] = []
    for source in sources:
        text = ""
        if source is not None:
            text = f"{source.title}. {source.abstract}"
        texts.append(text)

    scores = np.zeros(len(sources))
    if own.quantities:
        values = [_source_quantities(text) for text in texts]
        scores += _QUANTITY * _shared(own.quantities, values)
    if own.places:
        places = [_source_subjects(text).places for text in texts]
        scores += _PLACE * _shared(own.places, places)
    if own.populations:
        populations = [_source_subjects(text).populations for text in texts]
        scores += _POPULATION * _shared(own.populations, populations)
    return scores


def _shared(
    details: frozenset[Quantity] | frozenset[str],
    papers: Sequence[frozenset[Quantity] | frozenset[str]],
) -> np.ndarray:
    """Sum the rarity of each paper's details, [papers].

    A detail of all papers counts 0; a detail of a single one of many papers counts almost 1.
    """
    total = np.zeros(len(papers))
    most = len(papers) + 1
    for detail in sorted(details):
        has_detail = [detail in paper for paper in papers]
        shared = np.array(has_detail, dtype=bool)
        rarity = np.log(most / (shared.sum() + 1))
        total += shared * rarity / np.log(most)
    return total


@lru_cache(maxsize=_MOST_TEXTS)
def _source_subjects(text: str) -> Subjects:
    return subjects(text)


@lru_cache(maxsize=_MOST_TEXTS)
def _source_quantities(text: str) -> frozenset[Quantity]:
    """Extract a source's quantities and the forms in which posts may write them."""
    found: set[Quantity] = set()
    for quantity in quantities(text):
        forms = _ways_to_write(*quantity)
        found.update(forms)
    return frozenset(found)


def _ways_to_write(value: float, kind: Kind) -> Iterator[Quantity]:
    """Yield a quantity itself, rounded, and a ratio as a change: 0.63 as 37 %, 0.27 as 3.7 times.

    Only a paper's values are rounded: "37 %" in a post may mean 36.8 %, but not the reverse.
    """
    yield Quantity(value, kind)
    is_ratio = kind == "times"
    smallest = _SMALLEST_MULTIPLE if is_ratio else _SMALLEST_ROUNDED
    if value >= smallest:
        yield from _rounded(value, kind)
    if not is_ratio:
        return

    yield Quantity(value, "number")
    if value < _LARGEST_CHANGE:
        change = 100 * abs(1 - value)
        per_cent = float(round(change))
        yield Quantity(per_cent, "percent")
    if _SMALLEST_INVERSE < value < 1:
        inverse = 1 / value
        yield from _rounded(inverse, kind)


def _rounded(value: float, kind: Kind) -> Iterator[Quantity]:
    for digits in (0, 1):
        rounded = round(value, digits)
        yield Quantity(rounded, kind)
