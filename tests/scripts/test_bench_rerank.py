"""The benchmark of re-rankers compares equal work, and ends with its line of JSON."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets import write_beir
from claim2source.rerank.frame import Pair
from scripts.bench_rerank import BenchConfig, check_same, drawn, main, measure_qwen, report
from tests.rerank.tiny import save_cross_encoder
from tests.scripts.output import read_result
from tests.shared_data import shared


@pytest.fixture
def data(tmp_path: Path) -> Path:
    sources = tuple(Source(f"s{i}", "paper " * (i % 5 + 1), f"a {i}") for i in range(12))
    claims = tuple(Claim(f"dev-{i}", f"claim {i}", golds=("s0",)) for i in range(9))
    qrels = Qrels({claim.id: {"s0": 1} for claim in claims})
    write_beir([Dataset(claims, sources, qrels, "dev")], tmp_path / "data")
    return tmp_path / "data"


@pytest.mark.slow
def test_the_program_ends_with_one_line_of_json(
    tiny_folder: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_cross_encoder(tmp_path / "model", tiny_folder)
    main([f"--dataset={data}", f"--model={model}", "--claims=3", "--sources=5", "--repeats=2"])
    table, found = read_result(capsys.readouterr().out)
    assert (found["pairs"], found["repeats"], found["seconds"]) == (15, 2, "wall")
    assert found["largest_difference"] < 1e-4
    assert {*found["pairs_per_second"]} == {*found["profile"]}
    for parts in found["profile"].values():
        assert parts["tokenize"] + parts["model"] + parts["rest"] == pytest.approx(1, abs=0.01)
        assert 0 <= parts["padding"] < 1
    # Alone nothing is padded.
    assert found["profile"]["batch 1"]["padding"] == 0 and "CrossEncoder" in "".join(table)


def test_ratios_are_medians_against_the_default_and_the_best() -> None:
    seconds = {
        "ours": [1.0, 2.0, 4.0],
        "batch 1": [2.0, 3.0, 4.0],
        "batch 8": [0.1, 9.0, 9.0],  # once the luckiest, but not the best
        "batch 32": [3.0, 5.0, 4.0],
    }
    found = report(BenchConfig(repeats=3), seconds, 2e-7, 10)
    assert (found["ratio"], found["spread"]) == (2.5, [1.0, 3.0])
    assert (found["best_batch_size"], found["best_ratio"]) == (1, 1.5)
    assert found["best_spread"] == [1.0, 2.0] and found["pairs_per_second"]["ours"] == 5.0


def test_pairs_are_those_of_the_seed_and_other_scores_are_not_timed(data: Path) -> None:
    config = BenchConfig(dataset=data, claims=4, sources=6)
    pairs = drawn(config)
    assert len({*pairs}) == 24 and pairs == drawn(config)
    assert pairs != drawn(BenchConfig(dataset=data, claims=4, sources=6, seed=14))
    with pytest.raises(ConfigError, match="sources.*at most 12"):
        drawn(BenchConfig(dataset=data, sources=13))
    with pytest.raises(ConfigError, match="batch_sizes"):
        BenchConfig(batch_sizes=[8])
    ones = np.ones(3, dtype=np.float32)
    assert check_same(ones, ones + 5e-5) < 1e-4
    for wrong in (ones + 2e-4, ones[:2], ones * np.nan):
        with pytest.raises(UserError, match="differ"):
            check_same(ones, wrong)


def test_the_shapes_of_qwen_are_skipped_by_name_without_a_gpu() -> None:
    import torch

    pairs = [Pair("claim", "paper " * n) for n in (1, 5, 9)]
    if not torch.cuda.is_available():
        skipped = measure_qwen(BenchConfig(), pairs)["skipped"]
        assert skipped == "Qwen3-Reranker-0.6B's shapes: no GPU here"
    shared("vllm/model")
    tiny = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    tiny |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
    found = measure_qwen(BenchConfig(repeats=1), pairs, **tiny, layer_types=["full_attention"] * 2)
    assert found["ratio"] > 0 and found["largest_difference_bf16"] < 0.05
