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
    monkeypatch.setattr(fused, "runs_fused", lambda values, weight: weight.dtype == torch.bfloat16)
    monkeypatch.setattr(fused, "liger", lambda: Kernels(gate, rotate))


def gate(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(left.float()).to(right.dtype) * right


def rotate(*parts: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(side.bfloat16() for side in plain_rotation(*(part.float() for part in parts)))


def pair(fuse: Any, dropout: float = 0.0) -> tuple[Any, Any]:
    """A model in bfloat16 with adapters, and a copy that is fused."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 50}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "use_cache": False}
    model: Any = MistralModel(MistralConfig(**sizes, **heads))
    for name, weight in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    settings = {"target_modules": "all-linear", "init_lora_weights": False, "lora_dropout": dropout}
    model = get_peft_model(model.bfloat16(), LoraConfig(r=4, lora_alpha=12, **settings)).train()
    new = copy.deepcopy(model)
    fuse(new)
    return model, new


def outcome(model: Any, autocast: bool = True) -> list[torch.Tensor]:
    """The last layer's output, and the gradients."""
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = model(input_ids=IDS).last_hidden_state
    if output.requires_grad:
        output.float().sin().sum().backward()
    parameters = sorted(model.named_parameters())
    return [output.detach(), *(p.grad for _, p in parameters if p.grad is not None)]


def equal(model: Any, new: Any, autocast: bool = True) -> bool:
    outcomes = zip(outcome(model, autocast), outcome(new, autocast), strict=True)
    return all(torch.equal(*pairs) for pairs in outcomes)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("fuse", [prepare_for_gpu, fuse_adapters])
def test_rounding_is_no_more_than_the_layers_own(fuse: Any) -> None:
    model, new = pair(fuse)
    exact = outcome(copy.deepcopy(model).float(), False)
    theirs, ours = outcome(model), outcome(new)
    assert [part.dtype for part in ours] == [part.dtype for part in theirs]
    assert any(not torch.equal(*pairs) for pairs in zip(ours, theirs, strict=True)), "nothing fused"
    errors = torch.tensor(
        [
            [float((part.float() - right).norm() / right.norm()) for part in pairs]
            for right, *pairs in zip(exact, theirs, ours, strict=True)
        ]
    )
    before, after = errors.mean(dim=0)
    assert after < 1.1 * before and (errors[:, 1] < 2 * errors[:, 0] + 0.01).all()


@pytest.mark.usefixtures("everywhere")
def test_adapters_drop_what_peft_drops() -> None:
    for own, new in zip(*map(outcome, pair(fuse_adapters, 0.5)), strict=True):
        assert torch.nn.functional.cosine_similarity(own.flatten(), new.flatten(), 0) > 0.99


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
    assert equal(*pair(lambda model: fuse_adapters(prepare_for_gpu(model))))
