"""Tell which ids a table cannot hold yet: to look each batch up would read all that was written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

# Hashes that wait to be sorted in.
_RECENT = 65_536


class KnownIds:
    """Hold hashes of the ids that a writer has seen in its table; 8 bytes for each."""

    def __init__(self, parts: Iterable[Sequence[str]]) -> None:
        self._recent = set[int]()
        self._sorted = np.sort(np.concatenate([np.empty(0, np.int64), *map(_hashes, parts)]))

    def possible(self, ids: Sequence[str]) -> list[str]:
        """List the ids that may be there: all that are, and hardly another."""
        hashes, known = _hashes(ids), self._sorted
        places = np.searchsorted(known, hashes)
        there = np.append(known, 0)[places] == hashes
        there[places == len(known)] = False
        pairs = zip(ids, hashes.tolist(), there.tolist(), strict=True)
        return [key for key, number, listed in pairs if listed or number in self._recent]

    def add(self, ids: Sequence[str]) -> None:
        """Note ids that are there from now on."""
        self._recent.update(_hashes(ids).tolist())
        if len(self._recent) > _RECENT:
            recent = np.fromiter(self._recent, np.int64, len(self._recent))
            self._sorted = np.sort(np.concatenate([self._sorted, recent]))
            self._recent.clear()


def _hashes(ids: Sequence[str]) -> np.ndarray:
    return np.fromiter(map(hash, ids), np.int64, len(ids))
