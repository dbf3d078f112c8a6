"""Approximate indexes against the exact one, the GPU's part, and runs that are not made twice."""

from __future__ import annotations

from dataclasses import replace

import faiss
import numpy as np
import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim
from claim2source.core.run import IndexNotes, Run
from claim2source.retrieve import IndexConfig, VectorIndex
from claim2source.retrieve import faiss_index as module

RNG = np.random.default_rng(0)
IDS = [f"s{i:03d}" for i in range(300)]
SOURCES = RNG.normal(size=(300, 16)).astype(np.float32)
ASKED = RNG.normal(size=(20, 16)).astype(np.float32)
CLAIMS = [Claim(f"c{i}", "t") for i in range(20)]
HNSW = IndexConfig("hnsw")
# 4-bit codes: 16 centres to train, which takes no time.
IVF = IndexConfig("ivf_pq", cells=6, probes=6, parts=4, code_bits=4)
EXACT = VectorIndex(IDS, SOURCES).rank(CLAIMS, ASKED, 12)


def overlap(run: Run, k: int) -> float:
    """Mean share of the exact first `k` that are among `run`'s first `k`."""
    return float(
        np.mean([len(set(run.sources(c.id, k)) & set(EXACT.sources(c.id, k))) / k for c in CLAIMS])
    )


@pytest.mark.parametrize("config", [HNSW, IVF], ids=["hnsw", "ivf_pq"])
def test_an_approximate_index_scores_exactly_and_says_what_it_finds(config: IndexConfig) -> None:
    index = VectorIndex(IDS, SOURCES, config)
    run = index.rank(CLAIMS, ASKED, 12)
    for i, claim in enumerate(CLAIMS):
        scores = run.scored(claim.id)
        assert len(scores) == 12
        for source, score in scores.items():
            assert score == pytest.approx(float(SOURCES[IDS.index(source)] @ ASKED[i]), abs=1e-4)
    notes = index.notes(CLAIMS, ASKED, run).as_json()
    assert notes["claims"] == 20
    assert notes["recall@10"] == pytest.approx(overlap(run, 10))
    assert notes["recall@12"] == pytest.approx(overlap(run, 12))
    assert notes["recall@10"] > 0.8


def test_recall_falls_where_little_is_looked_at_and_is_one_for_the_exact_list() -> None:
    index = VectorIndex(IDS, SOURCES, replace(IVF, probes=1, refine=1))
    run = index.rank(CLAIMS, ASKED, 12)
    notes = index.notes(CLAIMS, ASKED, run).as_json()
    assert notes["recall@10"] == pytest.approx(overlap(run, 10)) and notes["recall@10"] < 0.7
    exact = {"kind": "ivf_pq", "claims": 20, "recall@10": 1, "recall@12": 1}
    assert index.notes(CLAIMS, ASKED, EXACT).as_json() == exact
    vector_index = VectorIndex(IDS, SOURCES, replace(HNSW, compared=7))
    assert vector_index.notes(CLAIMS, ASKED, EXACT).compared == 7
    none = VectorIndex(IDS, SOURCES, replace(HNSW, compared=0))
    assert none.notes(CLAIMS, ASKED, EXACT) == IndexNotes("hnsw", compared=0)


@pytest.mark.parametrize("config", [HNSW, IVF], ids=["hnsw", "ivf_pq"])
def test_candidates_are_searched_exactly(config: IndexConfig) -> None:
    pool = tuple(IDS[5:25])
    claims = [
        Claim("bound", "t", candidates=pool),
        Claim("free", "t"),
        Claim("no", "t", candidates=()),
    ]
    index = VectorIndex(IDS, SOURCES, config)
    run = index.rank(claims, ASKED[:3], 12)
    expected = sorted(pool, key=lambda s: -float(SOURCES[IDS.index(s)] @ ASKED[0]))[:12]
    assert run.sources("bound") == expected
    assert len(run.sources("free")) == 12 and run.sources("no") == []
    # Only the free claim says anything of the index.
    assert index.notes(claims, ASKED[:3], run).as_json()["claims"] == 1


def test_equal_sources_are_ordered_by_id_and_small_or_empty_pools_are_searched() -> None:
    index = VectorIndex(["a", "b", "c"], np.ones((3, 4)), HNSW)
    assert index.rank(CLAIMS[:1], np.ones((1, 4)), 2).sources("c0") == ["c", "b"]
    assert index.rank(CLAIMS[:1], np.ones((1, 4)), 9).sources("c0") == ["c", "b", "a"]
    empty = VectorIndex([], np.ones((0, 4)), IVF)
    assert len(empty.rank(CLAIMS, np.ones((20, 4)), 5)) == 0
    run = empty.rank(CLAIMS, np.ones((20, 4)), 5)
    assert empty.notes(CLAIMS, np.ones((20, 4)), run) == IndexNotes("ivf_pq", compared=0)


def test_what_cannot_be_built_is_refused() -> None:
    with pytest.raises(ConfigError, match="index.kind.*15 sources cannot train 16"):
        VectorIndex(IDS[:15], SOURCES[:15], IVF)
    with pytest.raises(ConfigError, match="index.parts.*divisor of 16"):
        VectorIndex(IDS, SOURCES, replace(IVF, parts=5))


@pytest.mark.skipif(not faiss.get_num_gpus(), reason="needs FAISS with a GPU")
def test_a_gpu_ranks_as_the_cpu_does() -> None:
    """Lists that it cannot return, graphs and other codes are searched on the CPU."""
    on_gpu = VectorIndex(IDS, SOURCES)
    assert module.on_gpu(SOURCES, None, IndexConfig()) is not None
    assert [row[:2] for row in on_gpu.rank(CLAIMS, ASKED, 12)] == [row[:2] for row in EXACT]
    codes = module.build_index(SOURCES, IVF)
    for index, config in ((None, HNSW), (None, IndexConfig(gpu=False)), (codes, IVF)):
        assert module.on_gpu(SOURCES, index, config) is None
