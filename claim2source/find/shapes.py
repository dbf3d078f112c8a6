"""Describe the first scores of an index's two lists by their shape, not by their size.

In both lists, the score of a post's paper is well above the scores below it; that of the best
paper about something else is not. The lead is measured relative to the first score and to the
spread of the scores below. So the encoder's scale, papers about other topics and copies of papers
have little or no effect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from claim2source.core.run import Run

# Different scores of a list that are used: a list with fewer has no shape.
DEEPEST_SHAPE = 20
NEXT, FIFTH, TENTH = 1, 4, 10
NAMES = (
    "lexical: lead over the second",
    "lexical: lead over the first ten",
    "lexical: lead in spreads",
    "lexical: lead over the second, of the list's",
    "lexical: lead over the fifth, of the list's",
    "dense: lead in spreads",
    "dense: lead over the second, of the list's",
    "dense: lead over the fifth, of the list's",
    "dense: rank of the lexical first",
    "lexical: rank of the dense first",
    "both leads",
    "both have the same first",
    "the same first: dense lead in spreads",
    "the same first: lexical lead over the first ten",
    "post in another language",
)
# Scores that differ by less than this share of the first belong to copies.
_SAME = 1e-6
# Minimal spread, as a share of the first BM25 score: few papers may share a term.
_LEAST_SPREAD = 0.02
# Minimal lead before taking the logarithm.
_STRETCH = 3.0


def shape_features(
    claim_ids: Sequence[str], lexical: Run, dense: Run, foreign: Collection[str] = ()
) -> np.ndarray:
    """Compute the shape features of claims' two lists, [claims, features] float64.

    `foreign` are the ids of claims in another language than the index's, without a translation.
    A row is NaN if fewer than `DEEPEST_SHAPE` different papers were compared with the claim.
    """
    rows = np.full((len(claim_ids), len(NAMES)), np.nan)
    for row, claim in enumerate(claim_ids):
        similarities = _different(dense, claim)
        if len(similarities) >= DEEPEST_SHAPE:
            shape = _shape(_different(lexical, claim), similarities)
            ranks = _rank(lexical, dense, claim), _rank(dense, lexical, claim)
            over_ten, in_spreads = shape[1], shape[5]
            same = float(max(ranks) == 1)
            agreement = [same, same * in_spreads, same * over_ten]
            both = over_ten * in_spreads
            rows[row] = [*shape, *np.log(ranks), both, *agreement, claim in foreign]
    return rows


def _shape(terms: np.ndarray, similarities: np.ndarray) -> list[float]:
    """Compute the features of the distinct scores of both lists, sorted from the highest."""
    # A paper without a term of the post scores 0.
    padded = np.zeros(DEEPEST_SHAPE)
    known = terms[:DEEPEST_SHAPE]
    padded[: len(known)] = known
    first = max(padded[0], np.finfo(float).tiny)
    least = _LEAST_SPREAD * first
    lead_of_ten = (padded[0] - padded[1:TENTH].mean()) / first
    return [
        (padded[0] - padded[NEXT]) / first,
        lead_of_ten,
        _in_spreads(padded, least),
        _of_list(padded, NEXT, least),
        _of_list(padded, FIFTH, least),
        _in_spreads(similarities[:DEEPEST_SHAPE], 0.0),
        _of_list(similarities, NEXT, 0.0),
        _of_list(similarities, FIFTH, 0.0),
    ]


def _in_spreads(scores: np.ndarray, least: float) -> float:
    """Return the logarithm of the first score's lead over the others, in standard deviations."""
    others = scores[1:]
    spread = max(others.std() + least, np.finfo(float).tiny)
    return float(np.log1p((scores[0] - others.mean()) / spread))


def _of_list(scores: np.ndarray, place: int, least: float) -> float:
    """Return the logarithm of the lead over a rank, relative to that rank's lead over the last."""
    rest = scores[place] - scores[DEEPEST_SHAPE - 1] + least
    lead = scores[0] - scores[place]
    return float(np.log1p(_STRETCH * lead / max(rest, np.finfo(float).tiny)))


def _different(run: Run, claim: str) -> np.ndarray:
    """List a claim's distinct scores from the highest, because copies of a paper share one."""
    rows = run.rows(claim)
    scores = np.sort(run.scores[rows].astype(np.float64))[::-1]
    if not len(scores):
        return scores
    least = _SAME * abs(scores[0])
    is_next = -np.diff(scores) > least
    return scores[np.append(True, is_next)]


def _rank(run: Run, other_run: Run, claim: str) -> int:
    """Return the rank of a list's first paper in another list, at most `DEEPEST_SHAPE`."""
    first = run.sources(claim, 1)
    scored = other_run.scored(claim)
    if not first or first[0] not in scored:
        return DEEPEST_SHAPE
    scores = _different(other_run, claim)
    least = _SAME * abs(scores[0])
    above = int((scores > scored[first[0]] + least).sum())
    return min(DEEPEST_SHAPE, above + 1)
