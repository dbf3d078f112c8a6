"""The GPU benchmark runs the trainer's own code, on a tiny model here, and counts rightly."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft.tuners.tuners_utils import BaseTunerLayer

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.training.state import trainable_weights
from scripts import bench_gpu
from scripts.bench_gpu import BenchConfig, Setting, main, make_encoder, memory_growth
from scripts.flops import peak_flops
from scripts.gpu_recipe import train_seeds
from scripts.measure import read_flat
from tests.scripts.output import read_result
from tests.shared_data import REPOSITORY
from tests.training.small import arguments, small_setup

SMALL = BenchConfig(
    tiny=True,
    tokens=12,
    negatives=2,
    plain_batch=2,
    chunk=4,
    steps=1,
    documents=9,
    document_tokens=10,
    batches=[2, 4],
    compiled=False,
    variants=False,
    seeded=False,
)
# The same as words.
WORDS = [
    "--tiny",
    "--tokens=12",
    "--negatives=2",
    "--plain_batch=2",
    "--chunk=4",
    "--steps=1",
    "--documents=9",
    "--document_tokens=10",
    "--no_compiled",
    "--no_variants",
    "--no_seeded",
    "--batches",
    "2",
    "4",
]


def table_of(**parts: Any) -> str:
    """The table of a result with these parts."""
    result = {"training": [], "encoding": {"documents": 1, "mean_tokens": 1.0}, "memory": []}
    result |= {"variants": [], "recipe": None}
    known = {"device": "x", "peak_flops": 1e15, "matmul_flops": 1e14, "load_average": []}
    return bench_gpu.as_table(SMALL, result | known | parts)


def test_without_a_gpu_it_says_so_and_ends_well(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    main([])
    table, found = read_result(capsys.readouterr().out)
    assert any("no GPU here" in line for line in table)
    assert found == {"ratio": None, "device": None}


@pytest.mark.slow
def test_the_tiny_run_ends_with_its_json(capsys: pytest.CaptureFixture[str]) -> None:
    main(WORDS)
    table, found = read_result(capsys.readouterr().out)
    assert found["ratio"] is None  # a CPU's peak is not known
    assert found["peak_flops"] is None
    rows = found["training"]
    shape = [(row["claims"], row["chunk"], row["checkpointing"]) for row in rows]
    assert shape == [
        (2, None, False),
        (2, 4, False),
        (4, 4, False),
        (2, None, True),
        (2, 4, True),
        (4, 4, True),
    ]
    for row in rows:
        tokens = 12 * row["claims"] * (1 + 3)
        assert row["tokens_per_second"] == pytest.approx(tokens / row["seconds"], rel=0.05)
        assert row["share"] == row["hardware_share"] == 0
        assert row["peak_mb"] > 50
        assert 0 < row["loss"] < 50
    # Checkpointing computes the forward pass once more, chunks that of all but the last one:
    # of 8 and of 16 texts, in chunks of 4.
    more = [row["hardware_flops_per_second"] / row["flops_per_second"] - 1 for row in rows]
    assert 0.3 < more[3] < 0.5
    passes = [0, 1 / 2, 3 / 4, 1, 1 + 1 / 2, 1 + 3 / 4]
    assert more == pytest.approx([more[3] * times for times in passes])
    assert found["encoding"]["documents"] == 9
    assert found["encoding"]["merged"]["documents_per_second"] > 0
    assert found["encoding"]["adapter"]["documents_per_second"] > 0
    assert [grown["batch_times"] for grown in found["memory"]] == [2, 2]
    assert any("unknown" in line for line in table)


def test_adapters_copy_no_input_in_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """In every forward pass of the trainer, those of chunks and of checkpointing among them."""
    real, seen = BaseTunerLayer._cast_input_dtype, []

    def note(layer: Any, x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        found: torch.Tensor = real(layer, x, dtype)
        seen.append(found.dtype)
        return found

    monkeypatch.setattr(BaseTunerLayer, "_cast_input_dtype", note)
    bench_gpu.train(SMALL, Setting(2, 4, True, False))
    # Two steps of 7 layers in 2 blocks: 2 chunks, of which one is encoded twice, and each layer
    # once more in the backward pass.
    assert len(seen) == 2 * 7 * 2 * (3 + 2) and set(seen) == {torch.bfloat16}


@pytest.mark.slow
def test_a_compiled_model_trains_to_the_same_loss() -> None:
    config = replace(SMALL, lora_dropout=0.0)
    plain = bench_gpu.time_training(config, Setting(2, 4, True, False))
    compiled = bench_gpu.time_training(config, Setting(2, 4, True, True))
    assert "failed" not in compiled
    assert compiled["loss"] == pytest.approx(plain["loss"], rel=0.05)


@pytest.mark.parametrize("fails", ["merged", "adapter"])
def test_running_out_of_memory_when_encoding_costs_nothing_else(
    fails: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encode, calls = bench_gpu.Encoder.encode, [0]

    def full(self: Any, *arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] == {"merged": 1, "adapter": 3}[fails]:
            raise torch.cuda.OutOfMemoryError("too large")
        return encode(self, *arguments, **named)

    monkeypatch.setattr(bench_gpu.Encoder, "encode", full)
    found = bench_gpu.time_encoding(SMALL)
    (other,) = {"merged", "adapter"} - {fails}
    assert "too large" in found[fails]["failed"] and found[fails]["documents_per_second"] is None
    assert found[other]["documents_per_second"] > 0
    result = bench_gpu.with_shares({"training": [], "variants": [], "encoding": found}, 1e15)
    assert f"encoding, {fails}: " in table_of(**result)
    # Each row was printed when it was finished.
    said = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[:1] == "{"]
    assert [row["weights"] for row in said] == ["merged", "adapter"]


def test_the_ratio_is_of_what_the_trainer_can_do() -> None:
    rows = [
        {"compiled": False, "share": 0.3},
        {"compiled": False, "share": 0.4},
        {"compiled": True, "share": 0.6},
        {"compiled": True},
    ]
    assert bench_gpu.best_share(rows, False) == 0.4
    assert bench_gpu.best_share(rows, True) == 0.6
    assert bench_gpu.best_share(rows[3:], True) is None


def test_rows_are_whole_batches_and_chunks_with_and_without() -> None:
    found = bench_gpu.settings_of(replace(SMALL, compiled=True))
    assert len(found) == len(set(found)) == 2 * 2 * 3
    assert {s.chunk for s in found} == {None, 4}
    assert {s.batch for s in found if s.chunk is None} == {2}


def test_every_variant_is_a_row_that_is_measured_or_says_why_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a CPU chunks by memory alone; what a variant asks the trainer for is seen."""
    asked: dict[str, Any] = {}
    real = bench_gpu.adapt

    def note(encoder: Any, recipe: Any) -> None:
        asked[setting.variant] = recipe
        real(encoder, recipe)

    monkeypatch.setattr(bench_gpu, "adapt", note)
    settings = bench_gpu.variants_of(replace(SMALL, variants=True))
    assert [one.variant for one in settings] == list(bench_gpu.VARIANTS)
    assert {one.batch for one in settings} == {4} and bench_gpu.variants_of(SMALL) == []
    rows = {}
    for setting in settings:
        rows[setting.variant] = bench_gpu.time_training(SMALL, setting)
    assert "failed" not in rows["auto"] and rows["auto"]["tokens_per_second"] > 0
    assert rows["auto"]["chunk"] == "auto" and asked["auto"].optimisation.chunk_size is None
    if find_spec("bitsandbytes") is None:
        assert "bitsandbytes" in rows["qlora"]["failed"]
    if find_spec("flash_attn") is None:
        assert "flash" in rows["flash_attention_2"]["failed"].lower()
    for row in rows.values():
        assert ("failed" in row) is (row["tokens_per_second"] is None)
    table = table_of(variants=list(rows.values()))
    assert "flash_attention_2" in table


@pytest.mark.slow
def test_the_recipe_is_trained_with_each_seed(tmp_path: Path) -> None:
    model, data = small_setup(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    words = arguments(model, data, tmp_path / "unused", optimisation__epochs=1)
    values = dict(word.removeprefix("--").split("=", 1) for word in words)
    values = {key: value for key, value in values.items() if key not in ("out", "wandb.mode")}
    nested: dict[str, Any] = {}
    for key, value in values.items():
        group, _, last = key.rpartition(".")
        (nested.setdefault(group, {}) if group else nested)[last] = yaml.safe_load(value)
    recipe.write_text(yaml.safe_dump(nested))
    found = train_seeds(str(recipe), [1, 2], "--threads=1")
    assert [row["seed"] for row in found["runs"]] == [1, 2] and found["metric"] == "mrr@5"
    scores = [row["score"] for row in found["runs"]]
    assert all(0 <= score <= 1 for score in scores)
    assert found["mean"] == pytest.approx(sum(scores) / 2)
    assert found["deviation"] == pytest.approx(abs(scores[0] - scores[1]) / 2**0.5)


def test_a_recipe_that_cannot_be_trained_says_why() -> None:
    found = train_seeds("no.yaml", [7])
    (row,) = found["runs"]
    assert row["score"] is None and "no.yaml" in row["failed"]
    assert found["mean"] is None and found["deviation"] is None
    assert any("seed 7: " in line for line in bench_gpu.recipe_lines(found))


def test_weights_are_bf16_and_adapters_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def look(module: Any, sampler: Any, *, precision: str, strategy: str) -> list[float]:
        seen["module"], seen["precision"] = module, precision
        return [1.0, 2.0]

    monkeypatch.setattr(bench_gpu, "fit", look)
    module: Any = None
    with pytest.raises(IndexError):  # no step was made: there is no last loss
        bench_gpu.time_training(SMALL, Setting(2, 4, True, False))
    module = seen["module"]
    assert seen["precision"] == "bf16"
    trained = trainable_weights(module.model)
    # Seven linear layers a block, two blocks, A and B.
    assert len(trained) == 7 * 2 * 2
    assert {p.dtype for p in trained.values()} == {torch.float32}
    frozen = [p for p in module.model.parameters() if not p.requires_grad]
    assert {p.dtype for p in frozen} == {torch.bfloat16}
    assert module.config.chunk_size == 4 and module.config.gradient_checkpointing
    assert any(getattr(part, "gradient_checkpointing", False) for part in module.model.modules())
    batch = module.pairs.batch(next(iter(bench_gpu.InOrder(len(module.pairs), 2))))
    texts = [*batch.claims, *batch.sources]
    assert len(batch.claims) == 2 and len(batch.sources) == 6
    assert {len(text.ids) for text in texts} == {12}
    assert len(set(texts)) == 8


def test_the_model_attends_both_ways_and_padding_changes_nothing() -> None:
    encoder = make_encoder(SMALL)
    hidden: list[torch.Tensor] = []
    for last in (9, 11):
        for padding in ([], [0]):
            ids = torch.tensor([[5, 6, 7, last, *padding]])
            mask = torch.tensor([[1] * 4 + [0] * len(padding)])
            output = encoder.model(input_ids=ids, attention_mask=mask)
            hidden.append(output.last_hidden_state[0, 0].float())
    assert torch.allclose(hidden[0], hidden[1], atol=2e-2)
    assert not torch.allclose(hidden[0], hidden[2], atol=1e-4)


def test_peaks_by_name_and_none_where_unknown() -> None:
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H200 NVL") == 835e12
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA L40S") == 362e12
    assert peak_flops("NVIDIA L4") == 121e12
    assert peak_flops("NVIDIA GB200") == 2.5e15
    # No name that merely begins like a known one.
    for name in ("NVIDIA L40", "NVIDIA RTX A4000", "NVIDIA RTX 4090 Laptop GPU"):
        assert math.isinf(peak_flops(name))
    assert math.isinf(peak_flops("Some Card"))


def test_shares_are_of_the_peak() -> None:
    row = {"flops_per_second": 4e14, "hardware_flops_per_second": 6e14}
    result = {
        "training": [dict(row), {"seconds": None}],
        "variants": [dict(row)],
        "encoding": {"merged": {"flops_per_second": 5e14}, "adapter": {"flops_per_second": 2e14}},
    }
    found = bench_gpu.with_shares(result, 1e15)
    assert (found["training"][0]["share"], found["training"][0]["hardware_share"]) == (0.4, 0.6)
    assert "share" not in found["training"][1] and found["variants"][0]["share"] == 0.4
    assert found["encoding"]["merged"]["share"] == 0.5
    assert (
        bench_gpu.with_shares(
            {"training": [dict(row)], "variants": [], "encoding": {"merged": {}, "adapter": {}}},
            math.inf,
        )["training"][0]["share"]
        == 0
    )


def test_memory_growth_compares_the_ends_of_one_setting() -> None:
    def row(claims: int, peak: float | None, checkpointing: bool, chunk: int | None = 4) -> Any:
        return {
            "claims": claims,
            "peak_mb": peak,
            "checkpointing": checkpointing,
            "compiled": False,
            "chunk": chunk,
        }

    rows = [
        row(4, 900.0, True, None),
        row(8, 100.0, True),
        row(16, 102.0, True),
        row(64, 110.0, True),
        row(8, 200.0, False),
        row(64, None, False),
    ]
    assert memory_growth(rows) == [
        {"checkpointing": True, "compiled": False, "batch_times": 8, "memory_times": 1.1}
    ]


def test_running_out_of_memory_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("too large")

    monkeypatch.setattr(bench_gpu, "train", full)
    row = bench_gpu.time_training(SMALL, Setting(64, None, False, False))
    assert row["peak_mb"] is None and row["claims"] == 64 and "too large" in row["failed"]
    assert "whole" in table_of(training=[row])


def test_what_the_compiler_cannot_do_costs_no_other_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(config: BenchConfig, setting: Setting) -> dict[str, Any]:
        if setting.compiled:
            raise RuntimeError("no kernel\nand a long trace")
        raise ValueError("a fault of ours")

    monkeypatch.setattr(bench_gpu, "train", fail)
    row = bench_gpu.time_training(SMALL, Setting(64, None, False, True))
    assert row["failed"] == "RuntimeError: no kernel" and row["tokens_per_second"] is None
    table = table_of(training=[row], memory=memory_growth([row | {"chunk": 4}]))
    assert "row 1: RuntimeError: no kernel" in table
    with pytest.raises(ValueError, match="a fault of ours"):
        bench_gpu.time_training(SMALL, Setting(64, None, False, False))


@pytest.mark.slow
def test_it_runs_without_any_library_that_training_does_not_need() -> None:
    absent = (
        "faiss",
        "datasets",
        "wandb",
        "ir_measures",
        "sentence_transformers",
        "bm25s",
        "Stemmer",
        "jsonargparse",
        "pyarrow",
    )
    code = (
        f"import sys\nsys.path[:0] = [{str(REPOSITORY)!r}]\n"
        f"sys.modules |= dict.fromkeys({absent})\n"  # an import of any of them raises
        f"import scripts.bench_gpu\nscripts.bench_gpu.main({WORDS})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(json.loads(done.stdout.splitlines()[-1])["training"]) == 6


def test_its_words_are_read_as_by_every_other_program() -> None:
    for words in (WORDS, [], ["--lora_dropout", "0", "--compiled", "--seed=7"]):
        found = read_flat(BenchConfig, words, "p", "d")
        assert found == read_config(BenchConfig, words, program="p", description="d")
    for words, said in (
        (["--chunk=x"], "--chunk: .*'x'"),
        (["--chunks=2"], "--chunks=2"),
        (["--chunk=0"], "chunk"),
        (["--batches"], "--batches"),
        (["--tin"], "--tin"),
    ):
        with pytest.raises(UserError, match=said):
            read_flat(BenchConfig, words, "p", "d")


@pytest.mark.slow
def test_the_training_module_needs_no_library_of_retrieval_or_of_the_command_line() -> None:
    """Importable where there is nothing but torch, transformers, peft and lightning."""
    code = (
        "import sys\n"
        "for name in ('bm25s', 'Stemmer', 'jsonargparse', 'faiss', 'ir_measures', 'pyarrow'):\n"
        "    sys.modules[name] = None\n"  # an import of it raises
        "import claim2source.training.module\n"
        "from claim2source.training.config import FinetuneConfig\n"
        "print(FinetuneConfig().optimisation.epochs)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "3"
