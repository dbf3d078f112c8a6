"""Find the best sums of several rankings without ranking by the sum: the threshold algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

# Rows and their scores, best first: of all rows the best so many, or those of some rows.
Ranked = tuple[np.ndarray, np.ndarray]
Ranking = Callable[[int, np.ndarray | None], Ranked]
# Rows of each ranking that are read at first, for each one that is wanted; then so many times more.
_FIRST, _MORE = 8, 4


def best_sums(rankings: Sequence[Ranking], k: int) -> Ranked:
    """Find the `k` rows with the best sums of scores, which are 0 or more; equal ones by row.

    A ranking gives the best rows of all, fewer where no more score above 0, and the scores of
    given rows. It is read until no row outside can have a better sum than the kth (Fagin, Lotem
    and Naor 2003).
    """
    depth = _FIRST * k
    while True:
        lists = [ranking(depth, None) for ranking in rankings]
        lasts = [scores[-1] if len(scores) >= depth else 0.0 for _, scores in lists]
        rows = np.unique(np.concatenate([rows for rows, _ in lists]))
        scores = np.full((len(lists), len(rows)), np.nan)
        for number, (listed, values) in enumerate(lists):
            scores[number, np.searchsorted(rows, listed)] = values
            if not lasts[number]:
                scores[number] = np.nan_to_num(scores[number])
        sums = np.nansum(scores, axis=0)
        floor = -np.partition(-sums, k - 1)[k - 1] if len(sums) >= k else 0.0
        if sum(lasts) <= floor or not any(lasts):
            break
        depth *= _MORE
    unknown = np.isnan(scores)
    possible = sums + np.array(lasts) @ unknown >= floor * (1 - 1e-6)
    for number, ranking in enumerate(rankings):
        if (missing := rows[possible & unknown[number]]).size:
            listed, values = ranking(len(missing), missing)
            sums[np.searchsorted(rows, listed)] += values
    best = np.lexsort((rows, -sums))[:k]
    return rows[best], sums[best]
