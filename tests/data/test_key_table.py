"""The table of keys returns the same as a dictionary, with less memory."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.data import store
from claim2source.data.store import HASH_BYTES, KeyTable, text_key

# Few keys, so that they repeat; zeros at the end are part of a key.
_KEYS = [bytes([i % 3]) * (HASH_BYTES - 2) + bytes([i // 3, 0]) for i in range(30)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(_KEYS), max_size=12))))
def test_it_answers_as_a_dictionary(steps: list[tuple[bool, list[bytes]]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "_RECENT", 5)
        table, reference, end = KeyTable(), dict[bytes, int](), 0
        for rebuild, keys in steps:
            if rebuild:
                table.add_arrays([np.frombuffer(key, np.uint8)[None] for key in keys], end)
            else:
                table.add(keys, end)
            reference.update(zip(keys, range(end, end + len(keys)), strict=True))
            end += len(keys)
            assert table.find(_KEYS).tolist() == [reference.get(key, -1) for key in _KEYS]
        assert table.find([]).tolist() == []


@pytest.mark.slow
def test_a_key_takes_some_forty_bytes() -> None:
    count = 200_000
    table = KeyTable()
    tracemalloc.start()
    for start in range(0, count, 20_000):
        keys = [random.Random(i).randbytes(HASH_BYTES) for i in range(start, start + 20_000)]
        table.add(keys, start)
        del keys
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 100 * count  # a dictionary of bytes takes 160 or more
    picks = [7, 199_999, 130_000]
    assert table.find([random.Random(i).randbytes(HASH_BYTES) for i in picks]).tolist() == picks
    assert table.find([text_key("none")]).tolist() == [-1]
