"""What all benchmarks share: medians of ratios, alternation, the machine's limit, refusals."""

from __future__ import annotations

import importlib
import statistics
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.models import ModelConfig, Template
from scripts import flops, measure
from scripts.measure import circumstances, ratio_and_spread, run_again, take_turns


def test_sides_take_turns_at_beginning() -> None:
    order: list[str] = []
    take_turns([lambda: order.append("a"), lambda: order.append("b")], 3)
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_ratios_are_medians_with_their_spread() -> None:
    assert ratio_and_spread([3.0, 1.0, 2.004]) == {"ratio": 2.0, "spread": [1.0, 3.0]}
    assert ratio_and_spread([1.5], "x_", 3) == {"x_ratio": 1.5, "x_spread": [1.5, 1.5]}


def test_versions_are_those_of_installed_packages() -> None:
    assert circumstances("numpy", "no-such-package")["versions"].keys() == {"python", "numpy"}


@pytest.mark.parametrize(("pick", "seconds"), [(statistics.median, 2.0), (min, 1.0)])
def test_the_limit_is_two_size_cubed_over_the_time(
    pick: Any, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter([0.0, 1.0, 0.0, 4.0, 0.0, 2.0])  # the warm-up is not timed
    monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
    assert flops.matmul_rate(10, repeats=3, pick=pick) == 2 * 1000 / seconds


@pytest.mark.slow
def test_what_a_fresh_process_could_not_do_is_one_line() -> None:
    with pytest.raises(UserError, match="^peak of ours: .*chunks"):
        run_again("scripts/bench_chunks.py", ["--chunks=1"], "peak of ours")


@pytest.mark.parametrize(
    ("script", "keys"),
    {
        "bm25": ["documents", "claims", "repeats", "sample", "words"],
        "chunks": ["batch", "chunk", "repeats", "tokens"],
        "encode": ["documents", "claims", "repeats", "batch_size"],
        "gpu": ["plain_batch", "chunk", "steps", "lora_r", "documents", "tokens", "batches"],
        "mining": ["documents", "claims", "repeats", "dimensions", "words"],
        "statistics": ["systems", "claims", "repeats", "peer_systems"],
        "training": ["repeats", "warmup", "steps", "chunk", "batch_size", "tolerance"],
    }.items(),
)
def test_nothing_to_measure_is_refused(script: str, keys: list[str]) -> None:
    config = importlib.import_module(f"scripts.bench_{script}").BenchConfig
    for key in keys:
        with pytest.raises(ConfigError, match=key):
            config(**{key: [] if key == "batches" else 0})
    beyond = {
        "bm25": {"claims": 3, "sample": 4},
        "encode": {"model": ModelConfig(template=Template(claim="query: "))},
        "mining": {"documents": 100},
        "statistics": {"systems": 2, "peer_systems": 2},
        "training": {"only": "ours"},
    }
    if script in beyond:
        with pytest.raises(ConfigError, match=[*beyond[script]][-1]):
            config(**beyond[script])
