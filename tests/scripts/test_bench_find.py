"""The benchmark of answers: it asks a real server, and its line of JSON holds what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from claim2source.datasets.papers import Paper
from claim2source.engines import Engine
from claim2source.engines.rows import split
from claim2source.retrieve import BM25Config
from claim2source.retrieve.analyser import Analyser
from scripts.bench_find import BenchConfig, Drawn, Exact, growth, main, report
from tests.engines.engines import WIDTH, Corpus, manifest_of
from tests.scripts.output import read_result


def test_ratios_are_of_the_95th_percentiles_in_process_over_http() -> None:
    measured = {
        "in process": [[1.0, 2.0], [1.0, 1.0], [3.0, 3.0]],
        "one client": [[2.0, 4.0], [2.0, 2.0], [3.0, 3.0]],
        "8 clients": [[9.0, 9.0], [8.0, 8.0], [10.0, 10.0]],
    }
    found = report(BenchConfig(requests=2, repeats=3), measured)
    assert (found["ratio"], found["spread"]) == (0.5, [0.5, 1.0])
    assert found["milliseconds"]["8 clients"] == {"p50_ms": 9000.0, "p95_ms": 9000.0}
    assert found["milliseconds"]["in process"] == {"p50_ms": 1500.0, "p95_ms": 1950.0}


def test_growth_is_from_a_size_to_the_next() -> None:
    sizes = [
        {
            "sources": papers,
            "write_seconds": papers / 2,
            "build_seconds": papers / 2,
            "disk_mb": papers,
            "memory_before_mb": 5,
            "memory_built_mb": 5 + papers // 10,
            "server_mb": 7,
            "milliseconds": {"one client": {"p95_ms": papers**0.5}},
        }
        for papers in (100, 400, 1600)
    ]
    grown = {"papers": 4, "p95": 2, "seconds": 4, "disk": 4, "memory_of_building": 4}
    assert growth(sizes) == [grown | {"memory_of_the_server": 1}] * 2
    assert growth(sizes[:1]) == []


def test_papers_and_their_terms_are_those_of_the_seed() -> None:
    def papers(seed: int) -> list[Paper]:
        return [paper for part, _, _ in Drawn(30, seed).parts() for paper in part]

    assert papers(1) == papers(1) != papers(2)
    assert len({paper.source.abstract for paper in papers(1)}) == 30
    drawn = Drawn(30, 1)
    drawn.vectors = np.random.default_rng(0).normal(size=(len(drawn.sentences), 8))
    (rows,) = drawn.rows(sentences=True)
    analysed = Analyser(BM25Config()).sources([paper.source for paper in rows.papers])
    assert rows.terms == [" ".join(terms) for terms in analysed]
    assert rows.sentences is not None
    for paper, vectors in zip(rows.papers, rows.sentences, strict=True):
        texts = split(paper)
        assert len(texts) == len(vectors) >= 6
        row = drawn.sentences.index(texts[0])
        np.testing.assert_allclose(vectors[0], drawn.vectors[row], atol=1e-2)


def test_recall_is_counted_against_all_vectors(tmp_path: Path) -> None:
    corpus = Corpus.drawn(300)
    engine = Engine.create(tmp_path / "idx", manifest_of())
    exact = Exact(np.random.default_rng(1).normal(size=(5, WIDTH)).astype(np.float32), k=20)
    for start in range(0, 300, 70):
        exact.see(corpus.vectors[start : start + 70])
    engine.upsert(corpus.rows(range(150)))
    expected = [
        len(set(np.argsort(-corpus.dense(query))[:20]) & set(range(150))) / 20
        for query in exact.queries
    ]
    share = exact.recall(engine, 20)
    assert share == pytest.approx(np.mean(expected)) and 0.2 < share < 0.8
    engine.upsert(corpus.rows(range(150, 300)))
    assert exact.recall(engine, 20) == exact.recall(engine, 5) == 1
    engine.close()


@pytest.mark.slow
def test_the_program_ends_with_one_line_of_json(
    capsys: pytest.CaptureFixture[str], minilm: object
) -> None:
    main(["--sources", "40", "80", "--requests=4", "--clients=2", "--repeats=1"])
    _, found = read_result(capsys.readouterr().out)
    assert len(found["growth"]) == 1
    for one in found["sizes"]:
        assert set(one["milliseconds"]) == {"in process", "one client", "2 clients"}
        assert all(0 < way["p50_ms"] <= way["p95_ms"] for way in one["milliseconds"].values())
        assert one["recall@100"] == 1 and one["cpu_ms"] > 0
