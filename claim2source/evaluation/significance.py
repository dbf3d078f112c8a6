"""Is a difference more than chance? Tests that resample gold papers, not claims.

Claims about the same paper are not independent: a system that knows the paper gets all of
them right. So signs are flipped, and samples drawn, by group of claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.records import Qrels

# Doubles held at once by one chunk of repeats: 16 MB.
_CHUNK = 2_000_000
# Relative to the sum of the magnitudes: well above rounding, well below any real step.
_TIE = 1e-10


@dataclass(frozen=True, slots=True)
class PairedTest:
    """A paired randomisation test: mean(a) - mean(b), two-sided p, and how it was made."""

    difference: float
    p_value: float
    repeats: int
    groups: int


def gold_groups(qrels: Qrels, claim_ids: Sequence[str]) -> np.ndarray:
    """Group number of every claim, [claims] int64: claims joined by a shared gold.

    With several golds a claim may join papers: groups are the connected components. Numbers
    follow first appearance; a claim without a gold is a group of its own.
    """
    parent = list(range(len(claim_ids)))

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    first_with: dict[str, int] = {}
    for i, claim in enumerate(claim_ids):
        for gold in qrels.golds(claim):
            one, other = sorted((root(i), root(first_with.setdefault(gold, i))))
            parent[other] = one
    number: dict[int, int] = {}
    groups = [number.setdefault(root(i), len(number)) for i in range(len(claim_ids))]
    return np.array(groups, dtype=np.int64)


def paired_randomisation(
    a: np.ndarray, b: np.ndarray, groups: np.ndarray, repeats: int = 10_000, seed: int = 0
) -> PairedTest:
    """Two-sided paired randomisation test of per-claim scores `a` and `b`, [claims] each.

    Each repeat swaps a and b in every group (`gold_groups`) or not, at even odds; the
    statistic is the mean difference over claims. p = (count of |statistic| >= |observed|
    + 1) / (repeats + 1). Raises ValueError on arrays of other shapes or values not finite.
    """
    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    index, size = _grouped(first, groups, repeats)
    _grouped(second, groups, repeats)
    sums = np.bincount(index, weights=first - second, minlength=size)
    observed = float(sums.sum())
    # A group without a difference weighs nothing whatever its sign.
    flipped = sums[sums != 0]
    least = abs(observed) - _TIE * float(np.abs(sums).sum())
    rng = np.random.default_rng(seed)
    count = 0
    for rows in _chunks(repeats, len(flipped)):
        signs = rng.integers(0, 2, size=(rows, len(flipped)), dtype=np.int8)
        statistic = (2.0 * signs - 1.0) @ flipped
        count += int(np.count_nonzero(np.abs(statistic) >= least))
    return PairedTest(observed / len(first), (count + 1) / (repeats + 1), repeats, size)


def bootstrap_interval(
    values: np.ndarray,
    groups: np.ndarray,
    repeats: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> tuple[float, float]:
    """Percentile interval (low, high) of the mean of per-claim `values`, [claims].

    Each repeat draws as many groups as there are, with replacement; its mean is the sum over
    the claims drawn by their number. Raises ValueError as `paired_randomisation` does, and on
    a level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    scores = np.asarray(values, np.float64)
    index, size = _grouped(scores, groups, repeats)
    sums = np.bincount(index, weights=scores, minlength=size)
    counts = np.bincount(index, minlength=size)
    rng = np.random.default_rng(seed)
    means = []
    for rows in _chunks(repeats, size):
        drawn = rng.integers(0, size, size=(rows, size))
        means.append(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1))
    outside = (1 - level) / 2
    low, high = np.quantile(np.concatenate(means), [outside, 1 - outside])
    return float(low), float(high)


def _grouped(values: np.ndarray, groups: np.ndarray, repeats: int) -> tuple[np.ndarray, int]:
    """Groups renumbered from 0 without gaps, and their number; checks the arguments."""
    if values.ndim != 1 or not len(values) or np.shape(groups) != values.shape:
        raise ValueError("scores and groups must be arrays [claims] of one length, not empty")
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    distinct, index = np.unique(groups, return_inverse=True)
    return index, len(distinct)


def _chunks(repeats: int, width: int) -> Iterator[int]:
    """Sizes of chunks of repeats that keep [rows, width] doubles bounded."""
    step = max(1, _CHUNK // max(width, 1))
    for start in range(0, repeats, step):
        yield min(step, repeats - start)
