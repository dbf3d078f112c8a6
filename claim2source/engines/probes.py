"""Choose how many partitions of an approximate index are searched, by sampled recall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

TARGET = 0.97
# Queries that recall is measured on, and how deep.
QUERIES, DEPTH = 100, 100
# Papers that a sampled query is the mean of.
MIXED = 8

Hits = Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Probes:
    """Hold the number of partitions to search, and the recall of the best `k` there."""

    probes: int
    recall: float
    k: int


def sampled_queries(vectors: np.ndarray) -> np.ndarray:
    """Make queries of the vectors of papers [n, d]: each is the mean of `MIXED` of them.

    A paper's own vector, or the mean of two, would be too easy: it lies among its neighbours, and
    posts lie far from all papers.
    """
    mixed = min(MIXED, len(vectors))
    places = np.random.default_rng(0).permutation(len(vectors) // mixed * mixed)
    means: np.ndarray = (
        vectors[places].astype(np.float32).reshape(mixed, -1, vectors.shape[1]).mean(0)
    )
    return means


def chosen_probes(
    queries: np.ndarray,
    partitions: int,
    exact: Callable[[np.ndarray, int], Hits],
    probed: Callable[[np.ndarray, int, int], Hits],
    target: float = TARGET,
    k: int = DEPTH,
) -> Probes:
    """Choose the smallest number of partitions with a mean recall of `target` at least.

    A paper counts as found that scores as the `k`th of the exact list does: ties have no order.
    All partitions are searched where fewer do not reach it.
    """
    known = [exact(query, k) for query in queries]

    def recall(probes: int) -> float:
        shares = []
        for query, truth in zip(queries, known, strict=True):
            least = truth[-1][1] - 1e-6 * max(1.0, abs(truth[-1][1]))
            found = sum(score >= least for _, score in probed(query, k, probes))
            shares.append(min(found, len(truth)) / len(truth))
        return float(np.mean(shares))

    high, found = 1, recall(min(1, partitions))
    low = 0
    while found < target and high < partitions:
        low, high = high, min(2 * high, partitions)
        found = recall(high)
    while high - low > max(1, high // 8):
        middle = (low + high) // 2
        if (share := recall(middle)) >= target:
            high, found = middle, share
        else:
            low = middle
    return Probes(high, found, k)
