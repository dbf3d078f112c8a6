"""A step's memory against what autograd keeps, and the settings chosen by it."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from transformers import BertConfig, BertModel, MistralConfig, MistralModel, PreTrainedModel

from claim2source.core import machine
from claim2source.core.errors import ConfigError
from claim2source.models import ModelConfig
from claim2source.training import memory_plan
from claim2source.training.checkpoint import without_copies
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from claim2source.training.finetune import finetune
from claim2source.training.memory_plan import (
    GIB,
    LEAST_CHUNK,
    USABLE,
    Memory,
    bytes_per_token,
    plan_memory,
    plan_memory_here,
    tokens_at_once,
)
from scripts.plan import SHAPES
from tests.refusals import refused
from tests.training.small import losses_of, power_cut, small_config, small_setup

DRAW = torch.Generator().manual_seed(0)
IDS = torch.randint(0, 100, (4, 128), generator=DRAW)


def storages(
    model: PreTrainedModel, ids: torch.Tensor, autocast: bool, copies: bool = True
) -> dict[int, tuple[int, torch.dtype, tuple[int, ...]]]:
    """Bytes, type and shape of each storage that autograd keeps beside the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, tuple[int, torch.dtype, tuple[int, ...]]] = {}
    tensors: list[torch.Tensor] = []  # a freed address would be used again

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        if address not in weights:
            tensors.append(tensor)
            shape = tuple(tensor.shape)
            sizes[address] = storage.nbytes(), tensor.dtype, shape
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
        nullcontext() if copies else without_copies(model),
    ):
        output = model(input_ids=ids).last_hidden_state
    assert output.requires_grad
    return sizes


def a_layer(make: Any, autocast: bool, copies: bool = True) -> float:
    """Bytes of a token in one layer: the difference of three layers and one."""
    sums = []
    for layers in (1, 3):
        kept = storages(make(layers), IDS, autocast, copies)
        total = sum(size for size, _, _ in kept.values())
        sums.append(total)
    one_layer, three_layers = sums
    return (three_layers - one_layer) / 2 / IDS.numel()


def mistral(layers: int, dropout: float, hidden: int = 256) -> PreTrainedModel:
    """GritLM's proportions at a small scale, in bf16, with adapters in fp32."""
    mistral_config = MistralConfig(
        vocab_size=100,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    torch.manual_seed(0)
    model = MistralModel(mistral_config).to(torch.bfloat16)
    peft_config = PeftConfig(
        r=4,
        lora_dropout=dropout,
        target_modules="all-linear",
        init_lora_weights=False,
    )
    return get_peft_model(model, peft_config).train()  # type: ignore[return-value, arg-type]


def bert(layers: int) -> PreTrainedModel:
    bert_config = BertConfig(
        vocab_size=100,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=layers,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return BertModel(bert_config, add_pooling_layer=False).train()


def lora_config(dropout: float = 0.0, **options: Any) -> FinetuneConfig:
    return FinetuneConfig(
        lora=LoraConfig(dropout=dropout),
        model=ModelConfig("x", dtype="bfloat16"),
        optimisation=OptimisationConfig(precision="bf16", **options),
    )


@pytest.mark.parametrize(
    ("dropout", "autocast"),
    [
        (0.0, True),
        (0.1, True),
        (0.0, False),
    ],
)
def test_a_decoders_layer_keeps_what_is_said(dropout: float, autocast: bool) -> None:
    """Without autocast adapters copy their inputs."""
    config = lora_config(dropout)
    if not autocast:
        config = replace(config, optimisation=OptimisationConfig())

    def make(layers: int) -> PreTrainedModel:
        return mistral(layers, dropout)

    measured = a_layer(make, autocast, copies=False)
    plain_config = mistral(1, 0.0).config
    plain_model = MistralModel(plain_config)
    predicted = bytes_per_token(plain_model, config)
    assert predicted == pytest.approx(measured, rel=0.03)


def test_an_encoders_layer_keeps_what_is_said() -> None:
    config = FinetuneConfig(tuning="full", model=ModelConfig("x"))
    predicted = bytes_per_token(bert(1), config)
    measured = a_layer(bert, False)
    assert predicted == pytest.approx(measured, rel=0.03)


def gradients(checkpointing: bool, copies: bool) -> tuple[float, dict[str, torch.Tensor]]:
    model = mistral(2, 0.0, hidden=64)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    with (
        torch.autocast("cpu", torch.bfloat16),
        nullcontext() if copies else without_copies(model),
    ):
        hidden = model(input_ids=IDS).last_hidden_state
        loss = hidden.float().sin().mean()
        loss.backward()
    gradient_of = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            gradient_of[name] = parameter.grad
    assert gradient_of
    assert all("lora_" in name for name in gradient_of)
    return float(loss.detach()), gradient_of


@pytest.mark.parametrize("checkpointing", [False, True])
def test_without_copies_loss_and_gradients_are_the_same_bits(checkpointing: bool) -> None:
    loss, expected = gradients(checkpointing, True)
    loss_without, ours = gradients(checkpointing, False)
    assert loss == loss_without
    assert all(torch.equal(expected[name], ours[name]) for name in expected)
    assert any(gradient.abs().max() > 0 for gradient in expected.values())


def test_outside_of_autocast_adapters_get_their_inputs_in_fp32() -> None:
    """Mining and val run without autocast: a bf16 input would not fit fp32 weights."""
    model = mistral(1, 0.0, hidden=64)
    expected = model(input_ids=IDS).last_hidden_state
    with without_copies(model):
        hidden = model(input_ids=IDS).last_hidden_state
        assert torch.equal(hidden, expected)
    with torch.autocast("cpu", torch.bfloat16), without_copies(model):
        pass
    hidden = model(input_ids=IDS).last_hidden_state
    assert torch.equal(hidden, expected)


@pytest.fixture(scope="module")
def gritlm() -> PreTrainedModel:
    shape = SHAPES["GritLM/GritLM-7B"][1]
    with torch.device("meta"):
        config = MistralConfig(**shape)
        return MistralModel(config)


def auto(chunk: Any = "auto", checkpointing: Any = "auto", **extra: Any) -> FinetuneConfig:
    batches = {"batch_size": 64, "negatives": 7}
    name = "chunk_tokens" if chunk == "auto" else "chunk_size"
    options = {name: chunk} | batches | extra
    return lora_config(gradient_checkpointing=checkpointing, **options)


def plan_of(model: PreTrainedModel, config: FinetuneConfig, gib: float) -> tuple[Any, Any, bool]:
    """Texts and tokens of a chunk, and checkpointing; reported settings really fit."""
    found = plan_memory(config, model, 512, gib * GIB)
    train = found.recipe.optimisation
    really_fits = found.memory.total <= USABLE * gib * GIB
    assert found.fits is really_fits
    checkpointing = train.gradient_checkpointing
    assert isinstance(checkpointing, bool)
    assert train.chunk_tokens != "auto"
    return train.chunk_size, train.chunk_tokens, checkpointing


def test_chunks_or_checkpointing_by_the_devices_memory(gritlm: PreTrainedModel) -> None:
    # 64 x 9 texts of 512 tokens take 1,620 GiB.
    assert plan_of(gritlm, auto(), 2000) == (None, None, False)
    assert plan_of(gritlm, auto(), 131) == (None, 18_432, False)
    assert plan_of(gritlm, auto(), 24) == (None, 1024, False)
    # 1,024 tokens do not fit beside the weights: layers are computed again.
    tight = (13.8 + 900 * 5.625 / 1024) / USABLE
    texts, tokens, checkpointing = plan_of(gritlm, auto(), tight)
    assert checkpointing
    assert texts is None
    assert tokens > LEAST_CHUNK
    # A small batch fits as a whole with checkpointing.
    finetune_config = auto(batch_size=2, negatives=1)
    assert plan_of(gritlm, finetune_config, tight) == (None, None, True)
    assert plan_of(gritlm, finetune_config, 131) == (None, None, False)


def test_what_is_asked_for_is_left(gritlm: PreTrainedModel) -> None:
    # Checkpointing, so that much larger chunks fit; a fixed chunk, and then checkpointing.
    checkpointed = auto(checkpointing=True)
    texts, tokens, checkpointing = plan_of(gritlm, checkpointed, 131)
    assert texts is None
    assert tokens > 200_000
    assert checkpointing
    assert plan_of(gritlm, auto(chunk=16), 131) == (16, None, False)
    assert plan_of(gritlm, auto(chunk=64), 131) == (64, None, True)
    fixed_tokens = auto(chunk=None, chunk_tokens=32_768)
    assert plan_of(gritlm, fixed_tokens, 131) == (None, 32_768, True)
    # Both, if both are requested.
    both = auto(chunk=16, checkpointing=True)
    assert plan_of(gritlm, both, 131) == (16, None, True)
    # No checkpointing: a chunk is one text at least, if that fits or not.
    no_checkpointing = auto(checkpointing=False)
    assert plan_of(gritlm, no_checkpointing, 14) == (None, 512, False)
    found = plan_memory(no_checkpointing, gritlm, 512, 14 * GIB)
    assert not found.fits


def test_smaller_weights(gritlm: PreTrainedModel) -> None:
    def memory(**changes: Any) -> Memory:
        config = auto(chunk=16, checkpointing=False)
        changed = replace(config, **changes)
        tokens = tokens_at_once(changed, 512)
        return Memory.of(gritlm, changed, tokens)

    full = memory()
    model = ModelConfig("x", dtype="bfloat16")
    four = memory(tuning="qlora", model=model)
    queries_and_outputs = 2 * 4096**2
    keys_and_values = 2 * 4096 * 1024
    feed_forward = 3 * 4096 * 14_336
    linear = 32 * (queries_and_outputs + keys_and_values + feed_forward)
    saved = full.weights - four.weights
    assert saved == pytest.approx((2 - 0.56) * linear)


def test_processes_share_the_machines_memory(
    gritlm: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_plan, "machine_memory", lambda: 262 * GIB)
    found = plan_memory_here(auto(), gritlm, 512, processes=2)
    assert found.recipe.optimisation.chunk_tokens == 18_432
    assert found.auto == ("chunk_tokens", "gradient_checkpointing")
    rerun = plan_memory_here(found.recipe, gritlm, 512, 20)
    assert rerun.recipe == found.recipe
    assert rerun.auto == ()
    with refused(ConfigError, "optimisation.chunk_tokens: 'auto' ", "13.1 GiB"):
        plan_memory_here(auto(), gritlm, 512, processes=20)


@pytest.mark.slow
def test_a_run_says_what_it_chose_and_trains_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine with little memory trains in chunks; the losses are those of whole batches."""
    model, data = small_setup(tmp_path)
    plain = tmp_path / "plain"
    extra: dict[str, Any] = {
        "optimisation__batch_size": 38,
        "optimisation__dropout": 0,
    }
    finetune(small_config(model, data, plain, **extra))
    assert "memory: " not in capsys.readouterr().out

    extra |= {
        "optimisation__chunk_tokens": "auto",
        "optimisation__gradient_checkpointing": "auto",
    }
    # The weights with AdamW's moments, and 1,100 tokens in two layers.
    a_token = 2 * 4 * (32 * 6 + 2 * 64 + 2 * 32)
    loaded = BertModel.from_pretrained(model)
    weights = sum(parameter.numel() for parameter in loaded.parameters())
    device = (weights * 16 + 1100 * a_token) / USABLE
    monkeypatch.setattr(memory_plan, "machine_memory", lambda: int(device))
    chosen = tmp_path / "auto"
    finetune(small_config(model, data, chosen, **extra))
    lines = capsys.readouterr().out.splitlines()
    output = [line for line in lines if line.startswith("memory: ")]
    assert len(output) == 1
    assert "chunks of 1,024 tokens, no checkpointing" in output[0]
    expected = losses_of(plain)
    ours = losses_of(chosen)
    assert len(expected) > 2
    assert ours == pytest.approx(expected, rel=1e-4)
    manifest = chosen / "checkpoints" / "epoch-1" / "manifest.json"
    record = json.loads(manifest.read_text())
    optimisation = record["config"]["optimisation"]
    assert optimisation["chunk_tokens"] == 1024
    settings = (chosen / "config.yaml").read_text()
    assert "chunk_tokens: auto" in settings

    # It also resumes on a device with other memory.
    cut = tmp_path / "cut"
    with power_cut(lambda state: state.steps_done == 2):
        finetune(small_config(model, data, cut, **extra))
    monkeypatch.setattr(memory_plan, "machine_memory", lambda: 262 * GIB)
    finetune(small_config(model, data, cut, resume=True, **extra))
    assert losses_of(cut) == pytest.approx(ours, rel=1e-4)


def test_a_containers_limit_is_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine_total = machine.machine_memory()
    assert machine_total > 2**28
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(machine, "_LIMITS", (limit,))
    for text, expected in (
        ("max\n", machine_total),
        ("268435456\n", 2**28),
    ):
        limit.write_text(text)
        assert machine.machine_memory() == expected or text == "max\n"


def test_a_measured_chunk_sets_the_tokens_of_all() -> None:
    """Gradients that came with the chunk stay, AdamW's moments are still to come."""
    measured = Memory.measured(
        1000,
        10 * GIB,
        13 * GIB,
        GIB,
        GIB // 4,
    )
    a_token = 2 * GIB / 1000
    assert measured == Memory(10 * GIB, 3 * GIB, a_token, 1000)
    # 76 - 10 - 1 - 2 = 63 GiB of 2 GiB for a thousand tokens.
    assert measured.chunk(76 * GIB, 512) == 31_500 // 512 * 512
    assert measured.chunk(12 * GIB, 512) == 512


def test_adapters_inputs_are_counted_by_ends_of_paths_too() -> None:
    """As peft reads `lora.targets`: `self.query` is every layer's query."""
    model = bert(1)
    inputs = []
    for target in ("query", "self.query", "uery"):
        lora = LoraConfig(dropout=0.1, targets=(target,))
        config = replace(lora_config(0.1), lora=lora)
        inputs.append(bytes_per_token(model, config))
    assert inputs[0] == inputs[1] > inputs[2]
