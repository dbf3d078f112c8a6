"""What every first stage has in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from claim2source.core.records import Claim, Source
from claim2source.core.run import Pool, Result

# How many times as many candidates as are wanted are sorted in one table.
_WIDEST = 4
_LAST = np.uint64(2**64 - 1)


class Retriever(Protocol):
    """Ranks the sources for every claim, at most `k` each, within the claim's candidates."""

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """The top `k` of every claim."""
        ...


def candidate_pool(claims: Sequence[Claim]) -> Pool | None:
    """Candidates of the claims that have them; None when none does."""
    pool = {c.id: frozenset(c.candidates) for c in claims if c.candidates is not None}
    return pool or None


def candidate_positions(claim: Claim, position_of: dict[str, int]) -> np.ndarray:
    """Positions of a claim's candidates in the pool; a candidate that is not there is left out."""
    found = [position_of[s] for s in claim.candidates or () if s in position_of]
    return np.array(sorted(set(found)), dtype=np.int64)


def tie_order(source_ids: Sequence[str]) -> np.ndarray:
    """Place of every source when equal scores are ordered as a `Run` does: id, descending."""
    order = np.argsort(np.array(source_ids, dtype=object), kind="stable")[::-1]
    place = np.empty(len(source_ids), dtype=np.int64)
    place[order] = np.arange(len(source_ids))
    return place


def floors_of_best(scores: np.ndarray, k: int) -> np.ndarray:
    """For each row of `scores` [rows, n] one that at least `k` (1 to n) of it reach, few more.

    Found in one pass: of many blocks' highest scores, the k-th is reached in k blocks.
    """
    blocks = 5 * k
    width = scores.shape[1] // blocks
    if width < 2:
        blocks, highest = scores.shape[1], scores
    else:
        whole = scores[:, : width * blocks]
        highest = whole.reshape(len(scores), width, blocks).max(axis=1)
    found: np.ndarray = np.partition(highest, blocks - k, axis=1)[:, blocks - k]
    return found


def sort_keys(scores: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Numbers (uint64) that sort as float32 `scores`, descending, and then as `order` does.

    One sort of numbers is several times faster than one by two keys. `order` is 0 to 2**32 - 1;
    `scores` hold no NaN.
    """
    # Adding 0 makes -0 equal to 0. A float's bits order as its value does, but for the sign.
    bits = (scores.astype(np.float32) + np.float32(0)).view(np.uint32)
    descending = np.where(bits >> 31, bits, np.uint32(0x7FFFFFFF) - bits)
    keys: np.ndarray = (descending.astype(np.uint64) << np.uint64(32)) | order.astype(np.uint64)
    return keys


def unsorted_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scores (float32) and the order (int64) that `sort_keys` was given."""
    descending = (keys >> np.uint64(32)).astype(np.uint32)
    bits = np.where(descending >> 31, descending, np.uint32(0x7FFFFFFF) - descending)
    return bits.view(np.float32), (keys & np.uint64(0xFFFFFFFF)).astype(np.int64)


def top_of_rows(
    scores: np.ndarray, kept: np.ndarray, k: int, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Best `k` of every row's `kept` columns: positions (-1: none) and scores, [rows, k] each.

    As `top_of` row by row. `scores` float32 and `kept` bool are [rows, sources], `order` is the
    sources' `tie_order`.
    """
    rows, columns = np.divmod(np.flatnonzero(kept), max(kept.shape[1], 1))
    counts = np.bincount(rows, minlength=len(scores))
    positions = np.full((len(scores), k), -1, dtype=np.int64)
    found = np.zeros((len(scores), k), dtype=np.float32)
    # A row of many ties would make the table below as wide for all.
    wide = np.flatnonzero(counts > _WIDEST * k)
    for row in wide:
        every = np.flatnonzero(kept[row])
        positions[row], found[row] = top_of(scores[row, every], every, k, order)
    if len(wide):
        narrow = counts[rows] <= _WIDEST * k
        rows, columns = rows[narrow], columns[narrow]
        counts[wide] = 0
    place = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((len(scores), max(k, int(counts.max(initial=0)))), _LAST, dtype=np.uint64)
    table[rows, place] = sort_keys(scores[rows, columns], order[columns])
    table.sort(axis=1)
    at = np.empty_like(order)
    at[order] = np.arange(len(order))
    best = table[:, :k]
    filled = best != _LAST
    found[filled], place = unsorted_keys(best[filled])
    positions[filled] = at[place]
    return positions, found


def top_of(
    scores: np.ndarray, positions: np.ndarray, k: int, order: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Best `k` of `positions` by `scores`, equal ones by `order`, padded with -1 to length `k`.

    The order decides which of equal sources are cut off, so that a deeper search only adds.
    """
    if 0 < k < len(scores):
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        kept = np.flatnonzero(scores >= least)
        scores, positions = scores[kept], positions[kept]
    best = np.lexsort((order[positions], -scores))[:k]
    pad = k - len(best)
    return (
        np.concatenate([positions[best], np.full(pad, -1, dtype=np.int64)]),
        np.concatenate([scores[best], np.zeros(pad, dtype=np.float32)]).astype(np.float32),
    )
