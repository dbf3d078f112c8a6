"""Vectors in memory rank like an exhaustive comparison, and are replaced by partitions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from lancedb.index import IvfFlat

from claim2source.search import divided as in_memory
from claim2source.search.engine import Engine
from claim2source.search.probes import chosen_probes
from tests.search.engines import NEAR, WIDTH, Corpus, read_any_manifest


@pytest.mark.slow
def test_the_first_of_equal_papers_are_those_of_a_longer_list(tmp_path: Path) -> None:
    corpus = Corpus.drawn(120)
    corpus = replace(corpus, vectors=np.repeat(corpus.vectors[:6], 20, axis=0))
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    engine.upsert(corpus.rows(range(120)))
    engine.build()
    everything = engine.dense(np.ones(WIDTH), 120)
    for k in (1, 7, 30, 110):
        assert engine.dense(np.ones(WIDTH), k) == everything[:k]
    engine.close()


@pytest.mark.slow
def test_wide_vectors_are_compared_where_they_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    engine.upsert(Corpus.drawn(120).rows(range(120)))
    engine.build()
    held = engine.dense(np.ones(WIDTH), 9)
    engine.close()
    monkeypatch.setattr(in_memory, "_MOST_BYTES", 4 * 120 * WIDTH - 1)
    reader = Engine.open(tmp_path / "index")
    found = reader.dense(np.ones(WIDTH), 9)
    assert [key for key, _ in found] == [key for key, _ in held]
    assert [score for _, score in found] == pytest.approx([score for _, score in held], abs=NEAR)
    assert not reader._in_memory.is_small


@pytest.mark.slow
def test_an_older_index_of_one_partition_is_divided_once_it_is_large(tmp_path: Path) -> None:
    corpus = Corpus.drawn(110)
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    engine.upsert(corpus.rows(range(70)))
    engine.build()
    # As the version before built it.
    engine._table.create_index("vector", config=IvfFlat(distance_type="dot", num_partitions=1))
    engine.note(partitions=1, probes=1, trained=70)
    assert len(engine.dense(np.ones(WIDTH), 80)) == 70
    engine.exact_below = 100
    engine.upsert(corpus.rows(range(70, 110)))
    engine.build()
    assert engine.manifest.partitions == 10
    assert len(engine.dense(np.ones(WIDTH), 110)) == 110
    engine.close()


@pytest.mark.slow
def test_quantised_vectors_rank_as_full_ones(tmp_path: Path) -> None:
    corpus = Corpus.drawn(400)
    engine = Engine.create(tmp_path / "index", read_any_manifest(), exact_below=100)
    engine.quantised_from = 300
    engine.upsert(corpus.rows(range(400)))
    engine.build()
    assert engine.manifest.refined and engine.manifest.recall >= 0.97
    query = np.random.default_rng(1).normal(size=WIDTH)
    exact = dict(engine.dense(query, 400, exact=True))
    found = engine.dense(query, 20)
    best = sorted(exact, key=lambda key: -exact[key])[:20]
    assert len({key for key, _ in found} & set(best)) >= 18
    # They are scored in full.
    assert [score for _, score in found] == pytest.approx(
        [exact[key] for key, _ in found], abs=NEAR
    )
    engine.close()
    reader = Engine.open(tmp_path / "index")
    assert reader.dense(query, 20) == found


@pytest.mark.slow
def test_an_index_with_codes_grows_and_shrinks_without_losing_papers(tmp_path: Path) -> None:
    corpus = Corpus.drawn(1200)
    engine = Engine.create(tmp_path / "index", read_any_manifest(), exact_below=100)
    engine.quantised_from = 300

    def recall() -> float:
        shares = []
        for seed in range(10):
            query = np.random.default_rng(seed).normal(size=WIDTH)
            best = {key for key, _ in engine.dense(query, 10, exact=True)}
            shares.append(len(best & {key for key, _ in engine.dense(query, 10)}) / len(best))
        return float(np.mean(shares))

    def codes() -> str:
        (uuid,) = (i.index_uuid for i in engine._table.list_indices() if i.columns == ["vector"])
        return str(uuid)

    engine.upsert(corpus.rows(range(900)))
    engine.build()
    first = codes()
    assert recall() > 0.9
    engine.build()  # nothing has changed
    assert codes() == first
    engine.upsert(corpus.rows(range(900, 1200)))
    engine.delete([f"p{i}" for i in range(50)])
    engine.build()
    assert codes() != first and recall() > 0.9
    engine.close()


def test_partitions_are_chosen_by_what_codes_can_find_at_most() -> None:
    """Codes that lose a tenth in all partitions do not have all of them searched."""
    best = np.arange(20.0)[None].repeat(8, axis=0)
    searched: list[int] = []

    def probed(probes: int, step: int) -> list[np.ndarray]:
        searched.append(probes)
        found = 18 if probes >= 30 else 0
        return [np.arange(20.0 - found, 20.0)] * len(best[::step])

    assert chosen_probes(best, 200, probed) == (200, 0.9)
    searched.clear()
    probes, recall = chosen_probes(best, 200, probed, has_codes=True)
    assert 30 <= probes <= 36 and recall == 0.9
