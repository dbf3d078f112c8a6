"""Test differences, and compute intervals of means, by resampling gold papers, not claims.

Claims about one paper are not independent: a system that finds the paper gets all of them right.
So signs are flipped, and samples drawn, by group of claims. Many systems are tested together: the
flips and draws are made once and applied to all systems in one matrix product.

`strata` (a number per claim, its language) turns every mean into the macro average, the mean of
the strata's means. Without strata, a mean is over claims.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

_CHUNK = 2_000_000  # doubles held at once by one chunk of repeats: 16 MB
TIE = 1e-10  # relative to the sum of magnitudes: above rounding, below any real step
_SHAPES = "scores and groups must be arrays [claims] of one length, not empty"


@dataclass(frozen=True, slots=True)
class PairedTest:
    """Paired randomisation test: mean(a) - mean(b), two-sided p, and the test's settings."""

    difference: float
    p_value: float
    repeats: int
    groups: int


@dataclass(frozen=True, slots=True)
class PairedTests:
    """Paired randomisation tests of many differences by the same flips.

    `differences`, `p_values` and `least_p` are [systems] float64. `least_p` is the smallest
    possible p: the larger of 1 / (repeats + 1) and 2 / 2^n, if n groups differ at all.
    """

    differences: np.ndarray
    p_values: np.ndarray
    least_p: np.ndarray
    repeats: int
    groups: int


def claim_weights(
    strata: np.ndarray | None,
    claims: int,
) -> np.ndarray:
    """Return weights [claims] whose weighted sum is the mean, or the macro average of strata."""
    index, number = _stratified(strata, claims)
    counts = np.bincount(index, minlength=number).astype(np.float64)
    own_counts = counts[index]
    return 1 / (number * own_counts)


def paired_randomisation(
    a: np.ndarray,
    b: np.ndarray,
    groups: np.ndarray,
    repeats: int = 10_000,
    seed: int = 0,
) -> PairedTest:
    """Test per-claim scores `a` and `b`, [claims] each, by two-sided paired randomisation.

    Each repeat swaps a and b in every group (`gold_groups`) with probability 1/2; the statistic is
    the mean difference over claims. p = (count of |statistic| >= |observed| + 1) / (repeats + 1).
    Raises ValueError for arrays of other shapes or values that are not finite.
    """
    first = np.asarray(a, np.float64)
    second = np.asarray(b, np.float64)
    if first.ndim != 1 or first.shape != second.shape:
        raise ValueError(_SHAPES)
    differences = (first - second)[None]
    test = paired_randomisations(differences, groups, repeats=repeats, seed=seed)
    return PairedTest(
        difference=float(test.differences[0]),
        p_value=float(test.p_values[0]),
        repeats=test.repeats,
        groups=test.groups,
    )


def paired_randomisations(
    differences: np.ndarray,
    groups: np.ndarray,
    strata: np.ndarray | None = None,
    repeats: int = 10_000,
    seed: int = 0,
) -> PairedTests:
    """Test `differences` [systems, claims] of many systems with the same flips.

    Each p equals that of `paired_randomisation` for the system; raises ValueError as it does.
    """
    values = np.asarray(differences, np.float64)
    index, size = numbered_groups(values, groups, repeats)
    claims = values.shape[1]
    weights = claim_weights(strata, claims)
    sums = group_sums(values * weights, index, size)
    observed = sums.sum(axis=1)
    magnitudes = np.abs(sums).sum(axis=1)
    rounding = TIE * magnitudes
    threshold = np.abs(observed) - rounding
    # A group without a difference contributes nothing, whatever its sign.
    differs = sums != 0
    is_used = differs.any(axis=0)
    flipped = np.ascontiguousarray(sums[:, is_used].T)

    rng = np.random.default_rng(seed)
    count = np.zeros(len(values), dtype=np.int64)
    width = max(flipped.shape)
    for rows in chunks(repeats, width):
        signs = rng.integers(0, 2, size=(rows, len(flipped)), dtype=np.int8)
        statistic = (2.0 * signs - 1.0) @ flipped
        is_extreme = np.abs(statistic) >= threshold
        count += np.count_nonzero(is_extreme, axis=0)

    halvings = np.minimum(differs.sum(axis=1), 1000)
    exact = np.ldexp(2.0, -halvings)
    sampled = 1 / (repeats + 1)
    least = np.maximum(exact, sampled)
    return PairedTests(
        differences=observed,
        p_values=(count + 1) / (repeats + 1),
        least_p=np.minimum(least, 1.0),
        repeats=repeats,
        groups=size,
    )


def enough_repeats(tests: int, alpha: float = 0.05) -> int:
    """Return the number of repeats with which the smallest of `tests` p-values can survive Holm.

    Holm multiplies the smallest p by the number of tests, so 1 / (repeats + 1) must be below
    alpha / tests. The result is ten times as large, so that a p at that border is a count of ten.
    """
    wanted = 10 * max(tests, 1) / alpha
    return math.ceil(round(wanted, 6)) - 1


def clustered_t_test(
    differences: np.ndarray,
    groups: np.ndarray,
    strata: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return t and two-sided p, [systems] each, of mean differences clustered by group.

    With one claim per group this is the paired t-test, otherwise its cluster-robust form, with
    groups - 1 degrees of freedom. Both are NaN without a variance: if a stratum (without strata:
    the claims) has a single group, or all differences within each stratum are equal.
    """
    from scipy import stats

    values = np.asarray(differences, np.float64)
    index, size = numbered_groups(values, groups)
    claims = values.shape[1]
    part, number = _stratified(strata, claims)
    unknown = np.full(len(values), np.nan)
    for stratum in range(number):
        is_in = part == stratum
        own_groups = np.unique(index[is_in])
        if len(own_groups) < 2:
            return unknown, unknown.copy()

    counts = np.bincount(part, minlength=number)
    means = group_sums(values, part, number) / counts
    weights = claim_weights(strata, claims)
    residuals = values - means[:, part]
    errors = group_sums(residuals * weights, index, size)
    squares = (errors**2).sum(axis=1)
    freedom = size - 1
    spread = np.sqrt(size / freedom * squares)

    # Because of rounding, a constant difference has a tiny variance.
    largest = np.abs(values).max(axis=1)
    has_spread = spread > TIE * largest
    overall = means.mean(axis=1)
    t = np.divide(overall, spread, out=unknown, where=has_spread)
    tail = stats.t.sf(np.abs(t), freedom)
    p = 2 * tail
    return t, p


def standard_errors(
    differences: np.ndarray,
    groups: np.ndarray,
    weights: np.ndarray,
) -> np.ndarray:
    """Return standard errors [systems] of weighted sums of `differences`, by group.

    These are the standard deviations of the sums if every group's sign is flipped at random, as in
    `paired_randomisation`: a single group never makes a difference of more than one. Raises
    ValueError as it does.
    """
    values = np.asarray(differences, np.float64)
    index, size = numbered_groups(values, groups)
    sums = group_sums(values * weights, index, size)
    squares = (sums**2).sum(axis=1)
    errors: np.ndarray = np.sqrt(squares)
    return errors


def bootstrap_intervals(
    values: np.ndarray,
    groups: np.ndarray,
    strata: np.ndarray | None = None,
    repeats: int = 10_000,
    seed: int = 0,
    level: float = 0.95,
) -> np.ndarray:
    """Compute percentile intervals [systems, 2] of the means of `values` [systems, claims].

    Each repeat draws as many groups as there are, with replacement, for all systems; its mean is
    the sum over the drawn claims divided by their number. A stratum without a drawn claim is
    omitted from that draw's average. Raises ValueError as `paired_randomisation` does, and for a
    level outside (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be between 0 and 1, got {level}")
    scores = np.asarray(values, np.float64)
    index, size = numbered_groups(scores, groups, repeats)
    part, number = _stratified(strata, scores.shape[1])
    sums: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    for stratum in range(number):
        is_in = part == stratum
        own_sums = group_sums(scores * is_in, index, size)
        sums.append(own_sums.T)
        own_index = index[is_in]
        counts.append(np.bincount(own_index, minlength=size))

    means: list[np.ndarray] = []
    width = max(size, len(scores))
    for times in draw_groups(size, repeats, seed, width):
        rows = len(times)
        total = np.zeros((rows, len(scores)))
        present = np.zeros(rows)
        for stratum_sums, stratum_counts in zip(sums, counts, strict=True):
            claims = times @ stratum_counts
            drawn = np.maximum(claims, 1)
            total += (times @ stratum_sums) / drawn[:, None]
            present += claims > 0
        means.append(total / present[:, None])
    outside = (1 - level) / 2
    limits = [outside, 1 - outside]
    samples = np.concatenate(means)
    bounds = np.quantile(samples, limits, axis=0)
    return bounds.T


def draw_groups(
    size: int,
    repeats: int,
    seed: int,
    width: int,
) -> Iterator[np.ndarray]:
    """Draw `size` of `size` groups with replacement; yield counts, [rows, size] float64.

    The repeats are chunked such that `width` doubles fit for each of them.
    """
    rng = np.random.default_rng(seed)
    for rows in chunks(repeats, width):
        indices = rng.integers(0, size, size=(rows, size))
        offsets = np.arange(rows)[:, None] * size
        indices += offsets
        times = np.bincount(indices.ravel(), minlength=rows * size)
        by_repeat = times.reshape(rows, size)
        yield by_repeat.astype(np.float64)


def numbered_groups(
    values: np.ndarray,
    groups: np.ndarray,
    repeats: int = 1,
) -> tuple[np.ndarray, int]:
    """Check the arguments; return groups renumbered from 0 without gaps, and their number."""
    if values.ndim != 2 or not values.size:
        raise ValueError(_SHAPES)
    if np.shape(groups) != values.shape[-1:]:
        raise ValueError(_SHAPES)
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    distinct, index = np.unique(groups, return_inverse=True)
    return index, len(distinct)


def _stratified(
    strata: np.ndarray | None,
    claims: int,
) -> tuple[np.ndarray, int]:
    if strata is None:
        return np.zeros(claims, dtype=np.int64), 1
    if np.shape(strata) != (claims,):
        raise ValueError("strata must be an array [claims]")
    distinct, index = np.unique(strata, return_inverse=True)
    return index, len(distinct)


def group_sums(
    values: np.ndarray,
    index: np.ndarray,
    size: int,
) -> np.ndarray:
    sums: list[np.ndarray] = []
    for row in values:
        own = np.bincount(index, weights=row, minlength=size)
        sums.append(own)
    return np.stack(sums)


def chunks(repeats: int, width: int) -> Iterator[int]:
    """Split `repeats` into chunks whose [rows, width] doubles stay within `_CHUNK`."""
    most_rows = _CHUNK // max(width, 1)
    step = max(1, most_rows)
    for start in range(0, repeats, step):
        yield min(step, repeats - start)
