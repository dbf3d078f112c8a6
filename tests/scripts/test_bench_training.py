"""The training benchmark compares equal work, counts FLOPs rightly, and ends with its JSON."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, MistralConfig, MistralModel

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.memory import peak_memory
from claim2source.models.packed import PackedBatch
from claim2source.training.data import TrainingPairs
from claim2source.training.model_shape import ModelShape
from claim2source.training.module import RetrieverModule
from scripts import bench_training, timing_common, timing_pieces, timing_trainers
from scripts.bench_training import (
    CELLS,
    DEFAULT_CELLS,
    BenchConfig,
    Peak,
    Timings,
    cell_result,
    main,
)
from scripts.timing_common import InOrder
from scripts.timing_trainers import Material, Recipe, Steps, Work, material, run_ours, same_losses
from tests.scripts.output import read_result


@pytest.fixture(scope="module")
def tiny(save_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """A BERT of 16 dimensions with random weights."""
    return str(save_tiny(tmp_path_factory.mktemp("tiny")))


def recipe(model: str, **changes: Any) -> Recipe:
    plain = Recipe(model, "full", None, 4, 32, 0.1, 1e-3)
    return replace(plain, **changes)


def options(model: str, *more: str) -> list[str]:
    return [
        f"--model={model}",
        "--batch_size=4",
        "--max_length=32",
        "--chunk=3",
        "--steps=1",
        "--matmul=32",
        "--cells",
        *more,
    ]


def steps(seconds: list[float], losses: list[float] | None = None, preparing: float = 0.0) -> Steps:
    return Steps(seconds, losses or [1.0] * len(seconds), preparing, 10, 0)


@pytest.mark.slow
def test_both_trainers_take_the_same_steps_and_the_last_line_is_json(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers")
    main([*options(tiny, "short_full_plain", "short_lora_cached"), "--repeats=2", "--no_peaks"])
    table, found = read_result(capsys.readouterr().out)
    assert found["ratio"] is None  # its cell was not timed
    assert set(found["not_run"]) == set(CELLS) - {"short_full_plain", "short_lora_cached"}
    for name in ("short_full_plain", "short_lora_cached"):
        cell = found[name]
        assert cell["spread"][0] <= cell["ratio"] <= cell["spread"][1]
        assert cell["loss_difference"] < 1e-4
        # The second step's loss tells whether both moved the weights alike.
        assert cell["ours_last_loss"] == pytest.approx(cell["peer_last_loss"], rel=1e-3)
        assert cell["ours_last_loss"] != cell["ours_first_loss"]
        assert cell["ours_padded_tokens"] >= cell["real_tokens"]
        assert cell["peer_padded_tokens"] >= cell["real_tokens"]
        assert "ours_peak_mb" not in cell
    full, lora = (
        found[f"short_{name}"]["trained_weights"] for name in ("full_plain", "lora_cached")
    )
    assert full != lora
    assert found["profile"][0][1] >= found["profile"][-1][1] > 0
    assert {"torch", "sentence-transformers"} <= set(found["versions"])
    assert any("short_lora_cached" in line for line in table)
    assert any("operator" in line for line in table)


@pytest.mark.slow
def test_peaks_are_measured_in_processes_of_their_own(
    tiny: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers")
    main([*options(tiny, "short_full_plain"), "--repeats=1"])
    cell = read_result(capsys.readouterr().out)[1]["short_full_plain"]
    for side in ("ours", "peer"):
        assert 50 < cell[f"{side}_before_mb"] <= cell[f"{side}_peak_mb"]
    assert cell["peak_ratio"] == pytest.approx(
        cell["ours_peak_mb"] / cell["peer_peak_mb"], abs=1e-3
    )


@pytest.mark.slow
def test_a_process_does_not_inherit_its_parents_peak() -> None:
    large = np.ones(60 * 2**20)  # 480 MB
    code = "import torch; from claim2source.core.memory import peak_memory; print(peak_memory())"
    code = f"import sys; sys.path[:0] = {sys.path!r}; {code}"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert peak_memory() > large.nbytes
    assert int(child.stdout) < peak_memory()
    assert int(child.stdout) > 20 * 2**20


@pytest.mark.slow
def test_other_losses_stop_the_benchmark(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = BenchConfig(
        model=tiny,
        batch_size=4,
        max_length=32,
        steps=1,
        repeats=1,
        matmul=32,
        cells=["short_full_plain"],
    )
    monkeypatch.setattr(bench_training, "run_ours", lambda *_: steps([1.0, 1.0], [2.0, 1.0]))
    monkeypatch.setattr(bench_training, "run_peer", lambda *_: steps([1.0, 1.0], [2.003, 1.0]))
    with pytest.raises(UserError, match=r"first batch differ: ours 2\.0"):
        bench_training.time_cell(config, "short_full_plain")
    assert bench_training.time_cell(replace(config, tolerance=2e-3), "short_full_plain")
    monkeypatch.setattr(
        bench_training, "run_peer", lambda *_: replace(steps([1.0, 1.0], [2.0, 1.0]), trained=9)
    )
    with pytest.raises(UserError, match="10 weights trained, not 9"):
        bench_training.time_cell(config, "short_full_plain")


def test_losses_are_compared_relatively_and_nan_is_no_equal() -> None:
    assert same_losses([2.0], [2.001], 1e-3) == pytest.approx(0.001 / 2.001)
    for ours in (1.99, 2.01, float("nan")):
        with pytest.raises(UserError, match="differ"):
            same_losses([ours], [2.0], 1e-3)


def test_ratios_are_of_timed_steps_and_charge_our_tokenising() -> None:
    config = BenchConfig(batch_size=4, warmup=1, steps=2, repeats=3)
    timings = Timings(Work(6e9, 100.0, 110.0, 150.0))
    for ours, peer in [(1.0, 3.0), (2.0, 3.0), (1.0, 4.0)]:
        # The warm-up's 50 seconds count nowhere; 0.3 s of tokenising are 0.1 a step.
        timings.ours.append(steps([50.0, ours - 0.1, ours - 0.1], preparing=0.3))
        timings.peer.append(steps([70.0, peer - 1, peer + 1]))
    timings.limits = [12e9, 60e9, 12e9]
    found = cell_result(config, timings, None)
    assert found["ratio"] == 3
    assert found["spread"] == [1.5, 4]
    assert found["ours_pairs_per_second"] == 4
    assert found["peer_pairs_per_second"] == pytest.approx(4 / 3, abs=1e-3)
    assert found["ours_share_of_limit"] == 0.5
    assert found["peer_share_of_limit"] == pytest.approx(1 / 6, abs=1e-4)
    peaks = {"ours": Peak(90.0, 1.0), "peer": Peak(100.0, 2.0)}
    assert cell_result(config, timings, peaks)["peak_ratio"] == 0.9


def test_pairs_are_distinct_and_those_of_the_seed() -> None:
    pairs = material("short", None, 60, 13)
    assert pairs == material("short", None, 60, 13)
    assert pairs.rows != material("short", None, 60, 14).rows
    assert len(pairs.claims) == len(pairs.sources) == 60
    assert len(set(pairs.claims)) == len(set(pairs.sources)) == 60
    claims = {claim.id: claim for claim in pairs.dataset.claims}
    assert all(claims[row.claim].golds[0] == row.positive for row in pairs.rows)
    # Short: nothing but titles.
    assert max(len(text.split()) for text in pairs.sources) < 60
    assert not any("Abstract" in text or "Venue" in text for text in pairs.sources)
    with pytest.raises(UserError, match="are needed"):
        material("short", None, 10_000, 13)


def test_without_ct25_the_benchmark_says_where_it_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAIM2SOURCE_DATA", str(tmp_path))
    with pytest.raises(UserError, match="CLAIM2SOURCE_DATA"):
        main(["--no_peaks"])


def test_batches_come_in_order() -> None:
    plans = list(InOrder(7, 3))
    assert [plan.rows for plan in plans] == [(0, 1, 2), (3, 4, 5), (6,)]
    assert all(plan.closes_window and plan.window == 1 for plan in plans)
    assert InOrder(7, 3).optimizer_steps == len(InOrder(7, 3)) == 3


def test_flops_of_a_bert_by_hand() -> None:
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 32, "num_hidden_layers": 3}
    shape = ModelShape.of(BertModel(BertConfig(num_attention_heads=2, **sizes)))
    # Four of 8 x 8 for attention, two of 8 x 32; the pooler's is not needed for a vector.
    assert shape == ModelShape(3 * (4 * 64 + 2 * 256), 0, 3, 8)
    linear = shape.linear
    assert shape.forward([5, 2]) == 2 * linear * 7 + 4 * 3 * 8 * (25 + 4)
    assert shape.training([5, 2], "full") == 3 * shape.forward([5, 2])


def test_flops_with_adapters_leave_out_the_frozen_weights_gradients() -> None:
    from peft import LoraConfig, get_peft_model

    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
    model = MistralModel(MistralConfig(num_attention_heads=2, num_key_value_heads=1, **sizes))
    linear = 2 * 64 + 2 * 32 + 3 * 128
    assert ModelShape.of(model) == ModelShape(linear, 0, 1, 8)
    tuned = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    adapters = 2 * (2 * 16 + 2 * 12 + 3 * 24)
    shape = ModelShape.of(tuned)
    assert shape == ModelShape(linear, adapters, 1, 8)
    assert shape.training([3], "lora") == 3 * (4 * linear + 6 * adapters) + 3 * 4 * 8 * 9


def test_padding_is_counted_as_each_side_pads(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = material("short", None, 4, 13)
    encoder = timing_trainers.resolve(recipe(tiny).model_config, "cpu").encoder
    claims = [len(t.ids) for t in encoder.tokenize(pairs.claims, "claim")]
    sources = [len(t.ids) for t in encoder.tokenize(pairs.sources, "source")]
    work = timing_trainers.step_work(pairs, recipe(tiny))
    assert work.real_tokens == sum(claims + sources)
    assert work.peer_padded == 4 * max(claims) + 4 * max(sources)
    assert work.ours_padded == work.real_tokens  # packed
    by_chunk = timing_trainers.step_work(pairs, recipe(tiny, chunk=3))
    assert by_chunk.ours_padded == by_chunk.real_tokens
    monkeypatch.setattr("claim2source.models.encoder.can_pack", lambda *_: False)
    padded = timing_trainers.step_work(pairs, recipe(tiny))
    assert padded.real_tokens < padded.ours_padded <= 8 * max(claims + sources)
    lengths = sorted(claims + sources, reverse=True)
    by_chunk = timing_trainers.step_work(pairs, recipe(tiny, chunk=3))
    assert by_chunk.ours_padded == 3 * lengths[0] + 3 * lengths[3] + 2 * lengths[6]
    assert work.flops > by_chunk.flops * 0.99
    assert work.flops == pytest.approx(
        ModelShape.of(encoder.model).training(claims + sources, "full")
    )


@pytest.mark.parametrize("tuning", [pytest.param("full", marks=pytest.mark.slow), "lora"])
def test_every_variant_of_the_ablation_trains_alike(tiny: str, tuning: Any) -> None:
    pairs = timing_trainers.with_negatives(material("short", None, 8, 13), 3, 1)
    assert all(len(row.negatives) == 3 for row in pairs.rows)
    assert {n.origin for row in pairs.rows for n in row.negatives} == {"bm25", "random"}
    assert all(row.positive not in {n.source for n in row.negatives} for row in pairs.rows)
    found = {
        way.name: way.run().losses
        for way in timing_pieces.variants(pairs, recipe(tiny, tuning=tuning))
    }
    expected = found.pop("as it is")
    assert len(expected) == 2 and expected[0] != expected[1]
    assert len(found) == 6
    for losses in found.values():
        assert losses == pytest.approx(expected, rel=1e-4)


def test_a_piece_that_is_off_is_off(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = timing_trainers.with_negatives(material("short", None, 8, 13), 3, 1)
    seen: dict[str, list[list[int]]] = {}
    fused: dict[str, Any] = {}
    current = ""
    packed: set[str] = set()
    vectors = timing_trainers.Encoder.vectors
    step = RetrieverModule.optimizer_step

    def spy(self: Any, batch: Any) -> Any:
        if isinstance(batch, PackedBatch):
            packed.add(current)
            owners = torch.bincount(batch.owners)
            lengths = owners.tolist()
        else:
            lengths = batch.attention_mask.sum(dim=1).tolist()
        seen.setdefault(current, []).append(lengths)
        return vectors(self, batch)

    def spy_step(self: Any, *arguments: Any) -> None:
        fused[current] = self.optimizers().optimizer.param_groups[0]["fused"]
        step(self, *arguments)

    monkeypatch.setattr(timing_trainers.Encoder, "vectors", spy)
    monkeypatch.setattr(timing_trainers.Encoder, "_token_budget", lambda self: 100)
    monkeypatch.setattr("claim2source.models.encoder._ROW_TOKENS", 100)
    monkeypatch.setattr(RetrieverModule, "optimizer_step", spy_step)
    for way in timing_pieces.variants(pairs, recipe(tiny, batch_size=8)):
        current = way.name
        way.run()
    assert packed == {"as it is", "texts that repeat encoded again", "AdamW not fused"}
    assert len(seen["as it is"]) > 3
    assert all(sum(part[:-1]) <= 100 for part in seen["as it is"])
    plain = seen["padded, not packed"]
    assert all(part == sorted(part, reverse=True) for part in plain) and len(plain) > 3
    unsorted = seen["padded, not sorted by length"]
    assert any(part != sorted(part, reverse=True) for part in unsorted)
    assert all(len(part) * max(part) <= 100 for part in plain + unsorted)
    sides = seen["one batch of claims, one of sources"]
    assert len(sides) == 2 and len(sides[0]) == 8
    assert len(seen["one batch of everything"]) == 1
    texts = {name: sum(map(len, parts)) for name, parts in seen.items()}
    assert texts.pop("texts that repeat encoded again") == 8 + 8 * 4
    assert len(set(texts.values())) == 1 and texts["as it is"] < 8 + 8 * 4
    assert fused.pop("AdamW not fused") is False
    assert set(fused.values()) == {True}


@pytest.mark.slow
def test_the_ablation_prints_every_variant(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    main([*options(tiny, "short_full_plain", "short_full_cached"), "--repeats=1", "--ablate"])
    _, found = read_result(capsys.readouterr().out)
    ways = found["short_full_plain_4_negatives"]
    assert "short_full_cached" not in str(found)
    assert ways["as it is"]["times_as_long"] == 1
    assert found["ratio"] == ways["one batch of claims, one of sources"]["times_as_long"]


@pytest.mark.slow
def test_a_variant_with_another_loss_stops_the_ablation(
    tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(TrainingPairs):
        def batch(self, plan: Any) -> Any:
            batch = super().batch(plan)
            return replace(batch, positives=batch.positives.flip(0))

    monkeypatch.setattr(timing_pieces, "Repeated", Wrong)
    with pytest.raises(UserError, match="encoded again: loss"):
        main([*options(tiny, "short_full_plain"), "--repeats=1", "--ablate"])


def test_our_side_has_no_dropout_and_the_recipes_temperature(tiny: str) -> None:
    pairs = material("short", None, 8, 13)
    first = run_ours(pairs, recipe(tiny)).losses
    assert first == run_ours(pairs, recipe(tiny)).losses
    assert first != run_ours(pairs, recipe(tiny, temperature=0.2)).losses
    half = Material(pairs.dataset, pairs.rows[:4])
    assert run_ours(half, recipe(tiny)).losses[0] == pytest.approx(first[0])


def test_cells_are_named_or_all() -> None:
    assert CELLS[0] == "ct25_full_plain" and len(CELLS) == 8
    assert BenchConfig().chosen == DEFAULT_CELLS == [CELLS[0], *CELLS[4:]]
    assert BenchConfig(all_cells=True).chosen == CELLS
    assert BenchConfig(cells=[CELLS[5], CELLS[2]]).chosen == [CELLS[2], CELLS[5]]
    with pytest.raises(ConfigError, match="cells"):
        BenchConfig(cells=["ct25"])
    found = BenchConfig(temperature=0.1, chunk=7).recipe("short_lora_cached")
    assert (found.tuning, found.chunk, found.temperature) == ("lora", 7, 0.1)
    assert BenchConfig(chunk=7).recipe("ct25_full_plain").chunk is None


def test_a_profile_is_of_one_step(tiny: str) -> None:
    pairs = material("short", None, 12, 13)
    one = timing_common.StepProfile(2)
    run_ours(pairs, recipe(tiny), callbacks=[one])
    shares = one.shares(1000)
    assert sum(share for _, share, _ in shares) == pytest.approx(1)
    calls = {name: count for name, _, count in shares}
    # Six linear layers a block, two blocks, a pooler: each once forward.
    assert calls["aten::linear"] == 13
    assert torch.is_grad_enabled()
