"""The benchmark runs, compares equal work, and ends with its line of JSON."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest

from claim2source.core.errors import UserError
from scripts import bench_mining
from scripts.bench_mining import (
    BenchConfig,
    Timing,
    as_table,
    check_same,
    made_up,
    report,
    seconds,
)
from tests.scripts.output import read_result
from tests.shared_data import REPOSITORY

SMALL = BenchConfig(documents=150, claims=60, repeats=3, dimensions=16, words=500)


@pytest.mark.slow
def test_texts_that_were_made_are_not_counted_as_mining(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does what making them left behind hide it."""
    held: list[np.ndarray] = []
    many = replace(SMALL, documents=20_000, claims=20_000, memory="ours")
    monkeypatch.setattr(bench_mining, "mine_ours", lambda *_: None)
    assert bench_mining.growth(many) < 8 * 2**20
    monkeypatch.setattr(bench_mining, "mine_ours", lambda *_: held.append(np.ones(2**23)))
    assert 60 * 2**20 < bench_mining.growth(many) < 80 * 2**20


@pytest.mark.slow
def test_the_program_ends_with_one_line_of_json() -> None:
    arguments = ["--documents=150", "--claims=40", "--repeats=3", "--dimensions=16", "--words=500"]
    ran = subprocess.run(
        [sys.executable, str(REPOSITORY / "scripts" / "bench_mining.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
    )
    assert ran.returncode == 0, ran.stderr
    table, found = read_result(ran.stdout)
    assert (found["repeats"], found["documents"], found["claims"]) == (3, 150, 40)
    assert set(found["memory_mb"]) == {"ours", "peer"}
    for counts in found["memory_mb"].values():
        assert list(counts) == ["10", "40"] and all(mb > 0 for mb in counts.values())
    assert {"sentence-transformers", "numpy", "torch"} <= set(found["versions"])
    assert any("sentence-transformers" in line for line in table)


def test_ratios_are_medians_over_repeats_of_the_peer_over_ours() -> None:
    timings = [Timing(1.0, 0.5, 2.0), Timing(4.0, 1.0, 4.0), Timing(1.0, 1.0, 5.0)]
    found = report(SMALL, timings, {"ours": {"1": 2.0}})
    assert (found["ratio"], found["spread"]) == (2, [1, 5])
    assert (found["dense_ratio"], found["dense_spread"]) == (4, [4, 5])
    assert found["median"] == {"hybrid_seconds": 1, "dense_seconds": 1, "peer_seconds": 4}


def test_on_a_busy_machine_only_computing_counts() -> None:
    busy = replace(SMALL, clock="cpu")
    assert seconds(busy, lambda: time.sleep(0.2)) < 0.1 < seconds(SMALL, lambda: time.sleep(0.2))
    result = report(busy, [Timing(1.0, 0.5, 2.0)], {})
    assert result["clock"] == "cpu" and "cpu clock" in as_table(busy, result)


def test_inputs_are_those_of_the_seed_and_like_real_ones() -> None:
    inputs = made_up(SMALL)
    assert made_up(SMALL).dataset == inputs.dataset
    assert (made_up(SMALL).claims == inputs.claims).all()
    assert made_up(replace(SMALL, seed=14)).dataset != inputs.dataset
    assert inputs.claims.dtype == inputs.sources.dtype == np.float32
    assert np.allclose(np.linalg.norm(inputs.claims, axis=1), 1, atol=1e-5)
    assert all(len(claim.golds) == 1 for claim in inputs.dataset.claims)
    lengths = [len(source.abstract.split()) for source in inputs.dataset.sources]
    assert 120 <= min(lengths) <= max(lengths) <= 281
    assert len({claim.text for claim in inputs.dataset.claims}) == 60


def test_both_sides_choose_the_same_and_else_nothing_is_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    inputs = made_up(SMALL)
    check_same(inputs)
    monkeypatch.setattr(bench_mining, "DENSE", replace(bench_mining.DENSE, first_rank=3))
    with pytest.raises(UserError, match="differ"):
        check_same(inputs)
