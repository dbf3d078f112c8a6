"""Fused norms and adapters compute what the layers' own arithmetic does, in 16 bits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralModel
from transformers.models.mistral import modeling_mistral

from claim2source.models import fused
from claim2source.models.fused import Kernels, fuse_adapters, prepare_for_gpu

# Before a model's code is changed.
plain_rotation = modeling_mistral.apply_rotary_pos_emb
IDS = torch.arange(40).reshape(2, 20)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute on this machine's processor as on a GPU, with Liger's arithmetic."""
    monkeypatch.setattr(fused, "runs_fused", is_in_16_bits)
    monkeypatch.setattr(fused, "liger", lambda: Kernels(gate, rotate))


def is_in_16_bits(values: torch.Tensor, weight: torch.Tensor) -> bool:
    return weight.dtype == torch.bfloat16


def gate(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    activated = torch.nn.functional.silu(left.float())
    return activated.to(right.dtype) * right


def rotate(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    exact = [part.float() for part in parts]
    rotated = plain_rotation(*exact)
    return tuple(side.bfloat16() for side in rotated)


def pair(fuse: Any, dropout: float = 0.0) -> tuple[Any, Any]:
    """A model in bfloat16 with adapters, and a copy that is fused."""
    torch.manual_seed(0)
    config = MistralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        vocab_size=50,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    )
    model: Any = MistralModel(config)
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)

    lora = LoraConfig(
        r=4,
        lora_alpha=12,
        target_modules="all-linear",
        init_lora_weights=False,
        lora_dropout=dropout,
    )
    model = get_peft_model(model.bfloat16(), lora).train()
    new = copy.deepcopy(model)
    fuse(new)
    return model, new


def outcome(model: Any, autocast: bool = True) -> list[torch.Tensor]:
    """The last layer's output, and the gradients."""
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(input_ids=IDS).last_hidden_state
    if output.requires_grad:
        waves = output.float().sin()
        waves.sum().backward()

    found = [output.detach()]
    for _, parameter in sorted(model.named_parameters()):
        if parameter.grad is not None:
            found.append(parameter.grad)
    return found


def equal(model: Any, new: Any, autocast: bool = True) -> bool:
    theirs = outcome(model, autocast)
    ours = outcome(new, autocast)
    pairs = zip(theirs, ours, strict=True)
    return all(torch.equal(own, fused_one) for own, fused_one in pairs)


def relative_error(part: torch.Tensor, exact: torch.Tensor) -> float:
    """The distance from the exact values, as a share of their norm."""
    difference = part.float() - exact
    return float(difference.norm() / exact.norm())


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("fuse", [prepare_for_gpu, fuse_adapters])
def test_rounding_is_no_more_than_the_layers_own(fuse: Any) -> None:
    model, new = pair(fuse)
    exact_model = copy.deepcopy(model).float()
    exact = outcome(exact_model, False)
    theirs = outcome(model)
    ours = outcome(new)
    dtypes = [part.dtype for part in theirs]
    assert [part.dtype for part in ours] == dtypes
    pairs = zip(ours, theirs, strict=True)
    is_fused = any(not torch.equal(own, other) for own, other in pairs)
    assert is_fused, "nothing fused"

    rows = []
    for right, own, other in zip(exact, theirs, ours, strict=True):
        own_error = relative_error(own, right)
        other_error = relative_error(other, right)
        rows.append([own_error, other_error])
    errors = torch.tensor(rows)
    before, after = errors.mean(dim=0)
    assert after < 1.1 * before
    limits = 2 * errors[:, 0] + 0.01
    assert (errors[:, 1] < limits).all()


@pytest.mark.usefixtures("everywhere")
def test_adapters_drop_what_peft_drops() -> None:
    plain, fused_model = pair(fuse_adapters, 0.5)
    theirs = outcome(plain)
    ours = outcome(fused_model)
    for own, new in zip(theirs, ours, strict=True):
        similarity = torch.nn.functional.cosine_similarity(own.flatten(), new.flatten(), 0)
        assert similarity > 0.99


@pytest.mark.usefixtures("everywhere")
def test_adapters_that_are_off_merged_or_without_autocast_are_pefts_own() -> None:
    plain, new = pair(fuse_adapters)
    assert equal(plain, new, autocast=False)
    with plain.disable_adapter(), new.disable_adapter():
        assert equal(plain, new)
    for model in (plain, new):
        model.merge_adapter()
    assert equal(plain, new)


def test_a_processor_keeps_the_layers_own_arithmetic() -> None:
    def fuse(model: Any) -> Any:
        prepared = prepare_for_gpu(model)
        return fuse_adapters(prepared)

    plain, new = pair(fuse)
    assert equal(plain, new)
