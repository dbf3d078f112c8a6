"""The benchmark runs, compares equal work, and ends with its line of JSON."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from claim2source.core.errors import UserError
from scripts import bench_bm25, measure
from scripts.bench_bm25 import BenchConfig, Timing, check_same, made_up, main, report
from tests.scripts.output import read_result

SMALL = BenchConfig(documents=40, claims=30, repeats=3, sample=4, words=500)


def test_the_program_ends_with_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--documents=60", "--claims=40", "--repeats=3", "--sample=5", "--words=500"])
    table, found = read_result(capsys.readouterr().out)
    assert (found["repeats"], found["documents"], found["claims"]) == (3, 60, 40)
    assert set(found["versions"]) == {"python", "numpy", "bm25s", "rank_bm25"}
    assert found["peak_memory_mb"] > 10
    assert "extrapolated from 5 of 40" in found["peer_search"]
    assert any("rank_bm25" in line for line in table)
    assert any("Peak memory" in line for line in table)


def test_ratios_are_medians_over_repeats_of_the_peer_over_ours() -> None:
    timings = [
        Timing(1.0, 1.0, 2.0, 2.0, 10.0, 90.0),  # 50 and 25
        Timing(1.0, 3.0, 4.0, 4.0, 20.0, 220.0),  # 60 and 30
        Timing(0.5, 0.5, 1.0, 0.0, 1.0, 9.0),  # 10 and 10
    ]
    found = report(SMALL, timings, 2**20)
    assert found["ratio"] == 50
    assert found["spread"] == [10, 60]
    assert found["terms_ratio"] == 25
    assert found["terms_spread"] == [10, 30]
    assert found["index_ratio"] == 10
    assert found["search_ratio"] == pytest.approx(73.33)
    assert found["median"]["ours_seconds"] == 2
    assert found["median"]["peer_seconds"] == 100


def test_the_peers_search_is_extrapolated(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, claims = made_up(SMALL)
    searched: list[str] = []
    clock = iter([0.0, 1.0, 10.0, 12.0])
    monkeypatch.setattr(bench_bm25, "search_peer", lambda peer, text: searched.append(text))
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert bench_bm25.time_peer(sources, claims, 4) == (1.0, 2.0 / 4 * 30)
    assert searched == [claim.text for claim in claims[:4]]


def test_texts_are_those_of_the_seed_and_as_long_as_real_ones() -> None:
    sources, claims = made_up(SMALL)
    assert made_up(SMALL) == (sources, claims)
    assert made_up(replace(SMALL, seed=14)) != (sources, claims)
    assert (len(sources), len(claims)) == (40, 30)
    lengths = [len(source.abstract.split()) for source in sources]
    assert 120 <= min(lengths) <= max(lengths) <= 280
    assert 170 < np.mean(lengths) < 230
    assert all(15 <= len(claim.text.split()) <= 35 for claim in claims)
    assert len({word for source in sources for word in source.abstract.split()}) > 200


def test_other_scores_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    sources, claims = made_up(SMALL)
    check_same(sources, claims)
    monkeypatch.setattr(bench_bm25, "WHITESPACE", replace(bench_bm25.WHITESPACE, b=0.7))
    with pytest.raises(UserError, match="differ"):
        check_same(sources, claims)
