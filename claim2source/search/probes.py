"""Choose how many partitions of an approximate index to search, by sampled recall."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

TARGET = 0.97
# Queries for measuring recall, and its depth.
QUERIES = 100
DEPTH = 100
# The number of partitions is chosen on every fourth of them.
_STEP = 4
# Papers per sampled query, which is their mean.
GROUP_SIZE = 8
# Cosine of a sampled query with that mean: the best papers are as far from it as from posts.
NEARNESS = 0.25
# Scores that differ by less are equal: engines round inner products of float16 differently.
_ROUNDING = 1e-5


def sampled_queries(vectors: np.ndarray) -> np.ndarray:
    """Make queries from the vectors of papers [n, d]: means of `GROUP_SIZE` of them, plus noise.

    A paper's own vector, or a mean, would be too easy: it is near its neighbours, while posts are
    far from all papers.
    """
    group_size = min(GROUP_SIZE, len(vectors))
    group_count = len(vectors) // group_size
    count = group_count * group_size
    draw = np.random.default_rng(0)
    rows = draw.permutation(count)
    drawn = vectors[rows].astype(np.float32)
    dimensions = vectors.shape[1]
    groups = drawn.reshape(group_size, -1, dimensions)
    means: np.ndarray = groups.mean(0)
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    smallest = np.finfo(np.float32).tiny
    means /= np.maximum(lengths, smallest)

    noise_source = np.random.default_rng(1)
    noise = noise_source.standard_normal(means.shape, dtype=np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    noise_share = (1 - NEARNESS**2) ** 0.5
    queries: np.ndarray = NEARNESS * means + noise_share * noise
    return queries


def best_scores(
    queries: np.ndarray,
    vectors: Iterable[np.ndarray],
    k: int = DEPTH,
) -> np.ndarray:
    """Compute the `k` best inner products of each query, [queries, k], in one pass over vectors.

    `vectors` are arrays [n, d]; with fewer than k of them in all there are fewer columns.
    """
    shape = (len(queries), 0)
    best = np.empty(shape, np.float32)
    for part in vectors:
        scores = queries @ part.astype(np.float32, copy=False).T
        best = np.concatenate([best, scores], axis=1)
        if best.shape[1] > k:
            best = -np.partition(-best, k - 1, axis=1)[:, :k]
    return best


def chosen_probes(
    best: np.ndarray,
    partitions: int,
    probed: Callable[[int, int], Sequence[np.ndarray]],
    has_codes: bool = False,
) -> tuple[int, float]:
    """Choose about the smallest number of partitions with a mean recall of at least `TARGET`.

    Returns it with the recall of the best `k`. With `has_codes`, partitions hold codes, which lose
    papers in all partitions, too: the target is then a share of the recall of all partitions. They
    lose far fewer papers of posts, whose scores differ more than those of sampled queries.

    `best` are the true scores [queries, k]; `probed` returns scores for a number of partitions, of
    each query, or of every `step`-th. The number is chosen on some queries, and all of them must
    reach the target with it. A paper with the score of the kth counts as found, because ties have
    no order. All partitions are searched if fewer do not reach the target.
    """
    k = best.shape[1]
    floors = best.min(axis=1)
    sizes = np.abs(floors)
    floors -= _ROUNDING * np.maximum(1, sizes)

    def recall(probes: int, step: int) -> float:
        lists = probed(probes, step)
        some_floors = floors[::step]
        counts = []
        for lowest, scores in zip(some_floors, lists, strict=True):
            is_found = scores >= lowest
            counts.append(is_found.sum())
        found = np.minimum(counts, k)
        return float(found.mean() / k)

    target = TARGET
    if has_codes:
        target *= recall(partitions, 1)

    low = 0
    high = min(1, partitions)
    while high < partitions and recall(high, _STEP) < target:
        low = high
        high = min(2 * high, partitions)

    while high - low > max(1, high // 8):
        middle = (low + high) // 2
        if recall(middle, _STEP) >= target:
            high = middle
        else:
            low = middle

    reached = recall(high, 1)
    while reached < target and high < partitions:
        more = max(1, high // 8)
        high = min(high + more, partitions)
        reached = recall(high, 1)
    return high, reached
