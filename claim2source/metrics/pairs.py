"""Test all pairs of systems at once: which differ, which ranks are possible, who is tied.

Every pair has the paired randomisation test of `significance`, by gold paper. All pairs meet the
same flips, so that the correction knows how far their tests depend on each other: it is
Westfall and Young's step-down correction by the largest statistic of every flip (max-T), which
finds more than Holm's method where systems are alike. The chance that it separates any pair of
equal systems is `alpha`.

From the pairs follow simultaneous intervals of ranks (Mogstad, Romano, Shaikh and Wilhelm 2024)
and the groups of systems of which no two are separated (Piepho 2004).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from claim2source.metrics.significance import (
    TIE,
    chunks,
    claim_weights,
    group_sums,
    numbered_groups,
)

_STEP = 1e-7  # in standard errors: above rounding, below any difference that matters


@dataclass(frozen=True, slots=True)
class AllPairs:
    """Tests of all pairs of systems, corrected together.

    `differences` and `p_values` are [systems, systems] float64: row minus column, and p after the
    correction (1 on the diagonal). `least_p` is the smallest p that a pair of these papers could
    have before the correction.
    """

    differences: np.ndarray
    p_values: np.ndarray
    least_p: float
    repeats: int
    groups: int

    def better(self, alpha: float = 0.05) -> np.ndarray:
        """Return whether the row's system is better than the column's, [systems, systems]."""
        is_separated = self.p_values <= alpha
        return is_separated & (self.differences > 0)


def compare_pairs(
    values: np.ndarray,
    groups: np.ndarray,
    strata: np.ndarray | None = None,
    repeats: int = 10_000,
    seed: int = 0,
) -> AllPairs:
    """Test every pair of systems on `values` [systems, claims] by the same flips.

    A pair's statistic is the sum of its differences by group, divided by the root of their sum of
    squares, which no flip changes. With `strata` (languages) the means are macro averages. Raises
    ValueError as `paired_randomisations` does.
    """
    scores = np.asarray(values, np.float64)
    index, size = numbered_groups(scores, groups, repeats)
    weights = claim_weights(strata, scores.shape[1])
    sums = group_sums(scores * weights, index, size)

    first, second = np.triu_indices(len(sums), 1)
    differences = np.zeros(len(first))
    norms = np.zeros(len(first))
    papers = 0
    rounding = TIE * np.abs(sums).max()
    start = 0
    for row, own in enumerate(sums):
        gaps = own - sums[row + 1 :]
        gaps[np.abs(gaps) <= rounding] = 0
        end = start + len(gaps)
        differences[start:end] = gaps.sum(axis=1)
        squares = (gaps**2).sum(axis=1)
        norms[start:end] = np.sqrt(squares)
        differing = (gaps != 0).sum(axis=1)
        papers = max(papers, int(differing.max(initial=0)))
        start = end

    p_values = _step_down(
        sums,
        first,
        second,
        differences,
        norms,
        repeats,
        seed,
    )
    halvings = min(papers, 1000)
    exact = float(np.ldexp(2.0, -halvings))
    least = max(exact, 1 / (repeats + 1))
    return AllPairs(
        differences=_square(differences, -differences, 0.0, len(sums)),
        p_values=_square(p_values, p_values, 1.0, len(sums)),
        least_p=min(least, 1.0),
        repeats=repeats,
        groups=size,
    )


def _step_down(
    sums: np.ndarray,
    first: np.ndarray,
    second: np.ndarray,
    differences: np.ndarray,
    norms: np.ndarray,
    repeats: int,
    seed: int,
) -> np.ndarray:
    """Return the corrected p of every pair: [pairs] float64."""
    inverse = np.zeros(len(norms))
    np.divide(1.0, norms, out=inverse, where=norms > 0)
    observed = np.abs(differences) * inverse
    # A pair is compared with the largest statistic of those that are no clearer than itself.
    order = np.argsort(observed, kind="stable")
    left = first[order]
    right = second[order]
    scale = inverse[order]
    threshold = observed[order] - _STEP
    # What all systems share cancels in every difference.
    varying = np.ascontiguousarray((sums - sums.mean(axis=0)).T)
    is_varying = np.ptp(sums, axis=0) > 0
    varying = varying[is_varying]

    rng = np.random.default_rng(seed)
    count = np.zeros(len(order), dtype=np.int64)
    width = max(len(order), *varying.shape)
    for rows in chunks(repeats, width):
        signs = rng.integers(0, 2, size=(rows, len(varying)), dtype=np.int8)
        flipped = (2.0 * signs - 1.0) @ varying
        statistic = np.abs(flipped[:, left] - flipped[:, right]) * scale
        largest = np.maximum.accumulate(statistic, axis=1)
        is_extreme = largest >= threshold
        count += np.count_nonzero(is_extreme, axis=0)

    p_sorted = (count + 1) / (repeats + 1)
    # No pair is clearer than one with a larger statistic.
    from_clearest = np.maximum.accumulate(p_sorted[::-1])
    p_values = np.ones(len(order))
    p_values[order] = from_clearest[::-1]
    return p_values


def _square(
    upper: np.ndarray,
    lower: np.ndarray,
    diagonal: float,
    size: int,
) -> np.ndarray:
    """Fill a matrix from its upper triangle, row by row, and the mirrored lower one."""
    matrix = np.full((size, size), diagonal)
    rows, columns = np.triu_indices(size, 1)
    matrix[rows, columns] = upper
    matrix[columns, rows] = lower
    return matrix


def rank_intervals(better: np.ndarray) -> np.ndarray:
    """Return the best and the worst possible rank of every system: [systems, 2] int64.

    `better` [systems, systems] is `AllPairs.better`: nobody who is better can rank lower.
    """
    best = 1 + better.sum(axis=0)
    worst = len(better) - better.sum(axis=1)
    return np.stack([best, worst], axis=1)


def tied_groups(separated: np.ndarray) -> list[list[int]]:
    """List the largest groups of systems of which no two are `separated`: [systems, systems].

    Every system is in one or more of them. Groups with earlier systems come first.
    """
    groups = [frozenset(range(len(separated)))]
    pairs = np.nonzero(np.triu(separated, 1))
    for one, other in zip(*pairs, strict=True):
        kept = []
        halves = []
        for group in groups:
            if one in group and other in group:
                halves.append(group - {one})
                halves.append(group - {other})
            else:
                kept.append(group)
        for half in halves:
            is_covered = any(half <= group for group in kept)
            if not is_covered:
                kept.append(half)
        groups = kept
    members: list[list[int]] = []
    for group in groups:
        members.append(sorted(int(system) for system in group))
    return sorted(members)
