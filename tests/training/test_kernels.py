"""Kernels of training: refused where they cannot run, and the same numbers where they can."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from claim2source.core.errors import ConfigError, UserError
from claim2source.models import Encoder, EncoderSettings
from claim2source.training.adapt import adapt
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from claim2source.training.kernels import (
    check_kernels,
    compile_model,
    make_optimizer,
    use_liger,
)
from tests.models.test_packed import encoder_of, model_of, tokens_of

PLACE = "claim2source.training.kernels"


def config_of(**train: Any) -> FinetuneConfig:
    return FinetuneConfig(lora=LoraConfig(dropout=0.0), optimisation=OptimisationConfig(**train))


class OnGpu(Encoder):
    """An encoder that says it is on a GPU."""

    @property
    def device(self) -> torch.device:
        return torch.device("cuda")


def on_gpu(kind: str) -> Encoder:
    return OnGpu(model_of(kind), None, EncoderSettings(), None)  # type: ignore[arg-type]


def test_a_cpu_has_no_such_kernels() -> None:
    encoder = encoder_of(model_of("mistral"))
    with pytest.raises(ConfigError, match=r"liger_kernels: True .*false: they need a GPU"):
        check_kernels(config_of(liger_kernels=True), encoder)
    check_kernels(config_of(), encoder)


@pytest.mark.parametrize(
    ("train", "said"),
    [
        (
            {"optimizer": "adamw_8bit"},
            r"adamw_8bit needs .*bitsandbytes: pip .*claim2source\[gpu\]",
        ),
        ({"liger_kernels": True}, r"needs the package liger-kernel: pip .*claim2source\[liger\]"),
        ({"compile": True}, "optimisation.compile needs the package triton"),
    ],
)
def test_a_package_that_is_absent_is_named(
    train: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{PLACE}.find_spec", lambda name: None)
    with pytest.raises(UserError, match=said):
        check_kernels(config_of(**train), on_gpu("mistral"))
    monkeypatch.setattr(f"{PLACE}.find_spec", lambda name: object())
    check_kernels(config_of(**train), on_gpu("mistral"))


def test_a_model_without_such_kernels_names_those_that_have_some() -> None:
    with pytest.raises(ConfigError, match="bert models have none, only llama, mistral"):
        check_kernels(config_of(liger_kernels=True), on_gpu("bert"))


def test_without_a_compiler_nothing_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{PLACE}.shutil.which", lambda name: None)
    with pytest.raises(ConfigError, match=r"compile: True .*no C\+\+ compiler"):
        check_kernels(config_of(compile=True), encoder_of(model_of("bert")))


def test_states_in_8_bits_are_read_again_and_go_the_same_way() -> None:
    pytest.importorskip("bitsandbytes", reason="pip install '.[gpu]'")
    ends = []
    for kind in ("adamw", "adamw_8bit"):
        weight = torch.nn.Parameter(torch.linspace(-1, 1, 8192).reshape(64, 128))
        groups: list[dict[str, object]] = [{"params": [weight], "weight_decay": 0.1}]
        config = OptimisationConfig(learning_rate=0.01, optimizer=kind)  # type: ignore[arg-type]
        optimizer = make_optimizer(groups, config)
        for step in range(4):
            weight.grad = torch.linspace(2, -1, 8192).reshape(64, 128) * (step + 1)
            optimizer.step()
            saved = optimizer.state_dict()
            optimizer = make_optimizer(groups, config)
            optimizer.load_state_dict(saved)
        types = {v.dtype for v in optimizer.state[weight].values() if isinstance(v, torch.Tensor)}
        assert (torch.uint8 in types) is (kind == "adamw_8bit")
        assert optimizer.param_groups[0]["weight_decay"] == 0.1
        ends.append(weight.detach())
    moved = (ends[0] - torch.linspace(-1, 1, 8192).reshape(64, 128)).abs().mean()
    assert (ends[0] - ends[1]).abs().mean() < 0.05 * moved


def gradients(encoder: Encoder) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    batch = encoder.collate(tokens_of())
    vectors = encoder.vectors(batch)
    (vectors * torch.arange(vectors.numel()).reshape(vectors.shape).sin()).sum().backward()
    found = {n: p.grad for n, p in encoder.model.named_parameters() if p.grad is not None}
    assert found
    return vectors.detach(), found


@pytest.mark.slow
def test_a_compiled_model_has_the_same_vectors_and_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With adapters; names of weights stay, and nothing is packed.

    The backend is torch's own for tests: compiling C++ takes minutes.
    """
    traced = partial(compile_model, backend="aot_eager")
    monkeypatch.setattr("claim2source.training.adapt.compile_model", traced)
    plain, compiled = encoder_of(model_of("mistral")), encoder_of(model_of("mistral"))
    for encoder, train in ((plain, {}), (compiled, {"compile": True})):
        torch.manual_seed(0)
        adapt(encoder, config_of(**train))
    assert plain.packs and not compiled.packs
    expected, theirs = gradients(plain)
    found, ours = gradients(compiled)
    assert torch.allclose(found, expected, atol=1e-5)
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[n], theirs[n], rtol=1e-3, atol=1e-4) for n in ours)


def test_ligers_kernels_replace_a_models_own_and_leave_later_models_alone() -> None:
    """Their numbers are compared where there is a GPU."""
    pytest.importorskip("liger_kernel.transformers", reason="pip install '.[liger]'")
    from transformers.models.mistral import modeling_mistral

    before = dict(vars(modeling_mistral))
    plain, fused = encoder_of(model_of("gritlm")), encoder_of(model_of("gritlm"))
    use_liger(fused.model)
    assert dict(vars(modeling_mistral)) == before
    layer = fused.model.layers[0]
    for part in (
        layer.mlp,
        layer.input_layernorm,
        layer.post_attention_layernorm,
        fused.model.norm,
    ):
        assert "liger_kernel" in part.forward.__func__.__module__
    assert type(fused.model).forward is type(plain.model).forward
    assert fused.model.state_dict().keys() == plain.model.state_dict().keys()
    if torch.cuda.is_available():
        results = []
        for encoder in (plain, fused):
            encoder.model.to("cuda")
            vectors = encoder.vectors(encoder.collate(tokens_of()).to("cuda"))
            (
                vectors * torch.arange(vectors.numel()).reshape(vectors.shape).sin().cuda()
            ).sum().backward()
            results.append((vectors.detach(), encoder.model.layers[0].mlp.up_proj.weight.grad))
        for one, other in zip(*results, strict=True):
            assert torch.allclose(one, other, rtol=1e-3, atol=1e-3)
