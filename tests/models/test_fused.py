"""Fused norms and adapters compute what the layers' own arithmetic does, in 16 bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralModel

from claim2source.models import fused
from claim2source.models.fused import fuse_adapters, prepare_for_gpu

IDS = torch.arange(40).reshape(2, 20)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute on this machine's processor as on a GPU."""
    half = (torch.bfloat16, torch.float16)
    monkeypatch.setattr(fused, "runs_fused", lambda values, weight: weight.dtype in half)


def mistral(dropout: float | None = None) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 50}
    model: Any = MistralModel(MistralConfig(**sizes, **heads, use_cache=False))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    model = model.bfloat16()
    if dropout is not None:
        lora = LoraConfig(
            r=4,
            lora_alpha=12,
            lora_dropout=dropout,
            target_modules="all-linear",
            init_lora_weights=False,
        )
        model = get_peft_model(model, lora)
    return model.train()


def outcome(model: Any, autocast: bool = False) -> list[torch.Tensor]:
    """The last layer's output, and the gradients."""
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(input_ids=IDS).last_hidden_state
    if output.requires_grad:
        output.float().sin().sum().backward()
    named = sorted(model.named_parameters())
    return [output.detach(), *(p.grad for _, p in named if p.grad is not None)]


def errors(outcomes: list[torch.Tensor], exact: list[torch.Tensor]) -> list[float]:
    pairs = zip(outcomes, exact, strict=True)
    return [float((ours.float() - right).norm() / right.norm()) for ours, right in pairs]


def check(model: Any, fuse: Any, autocast: bool) -> None:
    """Compare with float32, and with the rounding that the layers have by themselves."""
    exact = outcome(copy.deepcopy(model).float())
    plain = copy.deepcopy(model)
    fuse(model)
    ours, theirs = outcome(model, autocast), outcome(plain, autocast)
    assert [part.dtype for part in ours] == [part.dtype for part in theirs]
    assert any(not torch.equal(*pair) for pair in zip(ours, theirs, strict=True)), "nothing fused"
    for own, other in zip(errors(ours, exact), errors(theirs, exact), strict=True):
        assert own < max(1.3 * other, 0.01)


@pytest.mark.usefixtures("everywhere")
def test_norms_round_no_more_than_the_layers_own() -> None:
    check(mistral(), prepare_for_gpu, False)
    check(mistral(), prepare_for_gpu, True)


@pytest.mark.usefixtures("everywhere")
def test_adapters_round_no_more_than_pefts_own() -> None:
    check(mistral(0.0), fuse_adapters, True)


@pytest.mark.usefixtures("everywhere")
def test_adapters_drop_what_peft_drops() -> None:
    model = mistral(0.5)
    plain = copy.deepcopy(model)
    fuse_adapters(model)
    for own, other in zip(outcome(model, True), outcome(plain, True), strict=True):
        assert torch.nn.functional.cosine_similarity(own.flatten(), other.flatten(), 0) > 0.99


@pytest.mark.usefixtures("everywhere")
def test_adapters_that_are_off_merged_or_without_autocast_are_pefts_own() -> None:
    model = mistral(0.0)
    plain = copy.deepcopy(model)
    fuse_adapters(model)
    for own, other in zip(outcome(model), outcome(plain), strict=True):
        assert torch.equal(own, other)
    with model.disable_adapter(), plain.disable_adapter():
        assert torch.equal(outcome(model, True)[0], outcome(plain, True)[0])
    for one in (model, plain):
        one.merge_adapter()
    assert torch.equal(outcome(model, True)[0], outcome(plain, True)[0])


def test_a_processor_keeps_the_layers_own_arithmetic() -> None:
    model = mistral(0.0)
    plain = copy.deepcopy(model)
    prepare_for_gpu(model)
    fuse_adapters(model)
    for own, other in zip(outcome(model, True), outcome(plain, True), strict=True):
        assert torch.equal(own, other)
