"""Find the rows of keys: a table for millions of them, of 40 bytes a key."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Bytes of a key, the sha256 of a text.
HASH_BYTES = 32
_KEY = np.dtype(f"S{HASH_BYTES}")
# Added keys lie in a dictionary (200 bytes a key) until they are this many and this share of all.
_RECENT, _SHARE = 2**16, 0.25


class KeyTable:
    """Map keys to row numbers. Of a key that is added twice the later row counts."""

    def __init__(self) -> None:
        self._keys, self._rows = np.empty(0, _KEY), np.empty(0, np.int64)
        self._recent: dict[bytes, int] = {}

    def add(self, keys: Sequence[bytes], first: int) -> None:
        """Add keys of the rows from `first` on."""
        self._recent.update(zip(keys, range(first, first + len(keys)), strict=True))
        if len(self._recent) > max(_RECENT, _SHARE * len(self._keys)):
            self._settle()

    def add_arrays(self, keys: Sequence[np.ndarray], first: int) -> None:
        """Add keys, arrays [n, 32] uint8, of the rows from `first` on."""
        self._settle()
        if keys:
            joined = np.ascontiguousarray(np.concatenate(keys)).view(_KEY).ravel()
            self._merge(joined, np.arange(first, first + len(joined)))

    def _settle(self) -> None:
        recent, self._recent = self._recent, {}
        self._merge(np.array(list(recent), _KEY), np.array(list(recent.values()), np.int64))

    def _merge(self, keys: np.ndarray, rows: np.ndarray) -> None:
        order = np.argsort(keys, kind="stable")
        keys = np.concatenate([self._keys, keys[order]])
        rows = np.concatenate([self._rows, rows[order]])
        # Two sorted parts: a stable sort merges them, older rows of a key first.
        order = np.argsort(keys, kind="stable")
        self._keys, self._rows = keys[order], rows[order]

    def find(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return the row of each key [keys] int64, -1 where there is none."""
        searched = np.array(keys, _KEY)
        rows = np.full(len(searched), -1, np.int64)
        if len(self._keys):
            slots = np.maximum(np.searchsorted(self._keys, searched, side="right") - 1, 0)
            matches = self._keys[slots] == searched
            rows[matches] = self._rows[slots[matches]]
        if self._recent:
            for i, key in enumerate(keys):
                rows[i] = self._recent.get(key, rows[i])
        return rows
