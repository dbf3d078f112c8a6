"""The benchmark of answers: it asks a real server, and its line of JSON holds what was measured."""

from __future__ import annotations

import pytest

from scripts.bench_find import BenchConfig, made_up, main, report
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


def test_papers_are_those_of_the_seed() -> None:
    papers = made_up(30, 1)
    assert papers == made_up(30, 1) != made_up(30, 2)
    assert len({paper.source.id for paper in papers}) == 30
    assert len({paper.source.abstract for paper in papers}) == 30


@pytest.mark.slow
def test_the_program_ends_with_one_line_of_json(
    capsys: pytest.CaptureFixture[str], minilm: object
) -> None:
    main(["--sources=50", "--requests=4", "--clients=2", "--repeats=1", "--no_sentences"])
    table, found = read_result(capsys.readouterr().out)
    assert set(found["milliseconds"]) == {"in process", "one client", "2 clients"}
    assert all(0 < one["p50_ms"] <= one["p95_ms"] for one in found["milliseconds"].values())
    assert len(table) == 4
