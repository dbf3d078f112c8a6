"""Select the best sources of every claim from arrays of scores, with ties broken by id."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from claim2source.core.records import Claim
from claim2source.core.run import Pool, Run

# A row with at most so many times `k` candidates is sorted in one table with the others.
_WIDEST = 4
_LARGEST_KEY = np.uint64(2**64 - 1)
# All bits of a float32 except its sign.
_LARGEST_BITS = np.uint32(0x7FFFFFFF)
# Bits of a key below those of its score, and their mask: the order of equal scores.
_ORDER_BITS = np.uint64(32)
_ORDER_MASK = np.uint64(0xFFFFFFFF)


def candidate_pool(claims: Sequence[Claim]) -> Pool | None:
    """Return the candidates of the claims that have some; None if none has."""
    pool: dict[str, frozenset[str]] = {}
    for claim in claims:
        candidates = claim.candidates
        if candidates is not None:
            pool[claim.id] = frozenset(candidates)
    return pool or None


class SourceIds:
    """Ids of an index's sources, sorted once for all searches.

    `order` [sources] is the position of every source in a `Run`'s order of equal scores: by id,
    descending. Raises ValueError on an id that repeats.
    """

    def __init__(self, ids: Sequence[str]) -> None:
        self.ids = list(ids)
        count = len(self.ids)
        self.position_of = {source: i for i, source in enumerate(self.ids)}

        listed = np.array(self.ids, dtype=object)
        places = np.argsort(listed, kind="stable")
        self.vocabulary = listed[places]
        later = self.vocabulary[1:]
        earlier = self.vocabulary[:-1]
        if (later == earlier).any():
            raise ValueError("a source id repeats")

        codes = np.empty(count, dtype=np.int64)
        codes[places] = np.arange(count)
        highest_code = count - 1
        self.order = highest_code - codes
        # Position -1, no source, has code -1.
        self._codes = np.append(codes, -1)

    def __len__(self) -> int:
        return len(self.ids)

    def candidates(self, claim: Claim) -> np.ndarray:
        """Return the positions of a claim's candidates, ascending; unknown ids are left out."""
        candidates = set(claim.candidates or ())
        allowed = candidates.difference(claim.excluded)
        return self._locate(allowed)

    def excluded(self, claim: Claim) -> np.ndarray:
        """Return the positions of the sources that are excluded for a claim, ascending."""
        return self._locate(claim.excluded)

    def _locate(self, sources: Collection[str]) -> np.ndarray:
        positions = {self.position_of.get(source, -1) for source in sources}
        positions.discard(-1)
        ascending = sorted(positions)
        return np.array(ascending, dtype=np.int64)

    def run(
        self,
        claims: Sequence[Claim],
        positions: np.ndarray,
        scores: np.ndarray,
    ) -> Run:
        """Build a run from positions (-1: none) and scores, [claims, k] each."""
        claim_ids = [claim.id for claim in claims]
        codes = self._codes[positions]
        return Run.from_codes(
            claim_ids,
            self.vocabulary,
            codes,
            scores,
            pool=candidate_pool(claims),
        )


def top_k_floors(
    scores: np.ndarray,
    k: int,
) -> np.ndarray:
    """Return for each row of `scores` [rows, n] a threshold that at least `k` (1 to n) reach.

    It is the k-th highest of many blocks' maxima: one pass instead of a partition of the row.
    """
    columns = scores.shape[1]
    blocks = 5 * k
    width = columns // blocks
    if width < 2:
        blocks = columns
        highest = scores
    else:
        covered = scores[:, : width * blocks]
        blocked = covered.reshape(len(scores), width, blocks)
        highest = blocked.max(axis=1)

    place = blocks - k
    partitioned = np.partition(highest, place, axis=1)
    floors: np.ndarray = partitioned[:, place]
    return floors


def sort_keys(
    scores: np.ndarray,
    order: np.ndarray,
) -> np.ndarray:
    """Pack scores and order into uint64s that sort by float32 score, descending, then `order`.

    One sort of numbers is several times faster than a sort by two keys. `order` is 0 to
    2**32 - 1; `scores` have no NaN.
    """
    # Adding 0 makes -0 equal to 0. A float's bits order as its value does, except for the sign.
    without_sign = scores.astype(np.float32) + np.float32(0)
    bits = without_sign.view(np.uint32)
    is_negative = bits >> 31
    descending = np.where(is_negative, bits, _LARGEST_BITS - bits)
    high = descending.astype(np.uint64) << _ORDER_BITS
    keys: np.ndarray = high | order.astype(np.uint64)
    return keys


def unsorted_keys(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Unpack `sort_keys`: the scores (float32) and the order (int64)."""
    descending = (keys >> _ORDER_BITS).astype(np.uint32)
    is_negative = descending >> 31
    bits = np.where(is_negative, descending, _LARGEST_BITS - descending)
    scores = bits.view(np.float32)
    low = keys & _ORDER_MASK
    return scores, low.astype(np.int64)


def take_top_rows(
    scores: np.ndarray,
    mask: np.ndarray,
    k: int,
    order: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Select the best `k` of every row's `mask` columns: positions (-1: none), scores [rows, k].

    Equals `take_top` row by row. `scores` float32 and `mask` bool are [rows, sources], `order` is
    that of `SourceIds`.
    """
    cells = np.flatnonzero(mask)
    sources = max(mask.shape[1], 1)
    rows, columns = np.divmod(cells, sources)
    counts = np.bincount(rows, minlength=len(scores))
    shape = (len(scores), k)
    positions = np.full(shape, -1, dtype=np.int64)
    tops = np.zeros(shape, dtype=np.float32)

    # A row with many ties would make the table below as wide for all rows.
    widest = _WIDEST * k
    wide = np.flatnonzero(counts > widest)
    for row in wide:
        row_columns = np.flatnonzero(mask[row])
        row_scores = scores[row, row_columns]
        row_positions, row_tops = take_top(
            row_scores,
            row_columns,
            k,
            order,
        )
        positions[row] = row_positions
        tops[row] = row_tops
    if len(wide):
        narrow = counts[rows] <= widest
        cells = cells[narrow]
        rows = rows[narrow]
        columns = columns[narrow]
        counts[wide] = 0

    # The candidates of all rows are sorted in one table.
    table = _empty_table(counts, k)
    places = _places_in_rows(counts)
    cell_scores = scores.ravel()[cells]
    cell_order = order[columns]
    table[rows, places] = sort_keys(cell_scores, cell_order)
    table.sort(axis=1)
    best = table[:, :k]
    filled = best != _LARGEST_KEY
    best_scores, best_order = unsorted_keys(best[filled])

    position_at = np.empty_like(order)
    position_at[order] = np.arange(len(order))
    positions[filled] = position_at[best_order]
    tops[filled] = best_scores
    return positions, tops


def _empty_table(counts: np.ndarray, k: int) -> np.ndarray:
    """Make a table of the largest key, for rows of so many candidates and at least `k` columns."""
    most = int(counts.max(initial=0))
    width = max(k, most)
    shape = (len(counts), width)
    return np.full(shape, _LARGEST_KEY, dtype=np.uint64)


def _places_in_rows(counts: np.ndarray) -> np.ndarray:
    """Number the candidates of each row from 0, row after row."""
    ends = np.cumsum(counts)
    starts = ends - counts
    total = int(counts.sum())
    places: np.ndarray = np.arange(total)
    places -= np.repeat(starts, counts)
    return places


def take_top(
    scores: np.ndarray,
    positions: np.ndarray,
    k: int,
    order: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Select the best `k` of `positions` by `scores`, ties by `order`; pad with -1 to length `k`.

    Ties at the cut are also broken by order, so that a deeper search only adds sources.
    """
    if 0 < k < len(scores):
        place = len(scores) - k
        threshold = np.partition(scores, place)[place]
        rows = np.flatnonzero(scores >= threshold)
        scores = scores[rows]
        positions = positions[rows]

    tie_order = order[positions]
    descending = np.lexsort((tie_order, -scores))
    best = descending[:k]
    missing = k - len(best)
    no_positions = np.full(missing, -1, dtype=np.int64)
    no_scores = np.zeros(missing, dtype=np.float32)
    best_positions = positions[best]
    best_scores = scores[best]
    top_positions = np.concatenate([best_positions, no_positions])
    top_scores = np.concatenate([best_scores, no_scores])
    return top_positions, top_scores.astype(np.float32)
