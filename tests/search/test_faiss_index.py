"""Equal scores, small and empty pools, and the GPU's part of a dense search."""

from __future__ import annotations

import faiss
import numpy as np
import pytest

from claim2source.core.records import Claim
from claim2source.search import faiss_index as module
from claim2source.search.faiss_index import VectorIndex

CLAIMS = [Claim(f"c{i}", "t") for i in range(20)]


def test_equal_sources_are_ordered_by_id_and_small_or_empty_pools_are_searched() -> None:
    index = VectorIndex(["a", "b", "c"], np.ones((3, 4)))
    assert index.rank(CLAIMS[:1], np.ones((1, 4)), 2).sources("c0") == ["c", "b"]
    assert index.rank(CLAIMS[:1], np.ones((1, 4)), 9).sources("c0") == ["c", "b", "a"]
    empty = VectorIndex([], np.ones((0, 4)))
    assert len(empty.rank(CLAIMS, np.ones((20, 4)), 5)) == 0


@pytest.mark.skipif(not faiss.get_num_gpus(), reason="needs FAISS with a GPU")
def test_a_gpu_ranks_as_the_cpu_does() -> None:
    draw = np.random.default_rng(0)
    sources, asked = draw.normal(size=(300, 16)), draw.normal(size=(20, 16))
    ids = [f"s{i:03d}" for i in range(300)]
    assert module.on_gpu(sources.astype(np.float32)) is not None
    index = VectorIndex(ids, sources)
    on_gpu = index.rank(CLAIMS, asked, 12)
    index._on_gpu = None
    runs = [on_gpu, index.rank(CLAIMS, asked, 12)]
    assert [row[:2] for row in runs[0]] == [row[:2] for row in runs[1]]
