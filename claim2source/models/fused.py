"""Compute what is between a layer's matrix products in fewer passes over GPU memory, in 16 bits.

The products take two thirds of a layer's time. Activations and rotations use Liger's kernels,
if liger-kernel is installed (extra `gpu`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import Identity, functional

_FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
# Norms that multiply the normalised value by their weight.
_NORMS = {f"{family}RMSNorm" for family in _FAMILIES}
_MLPS = {f"{family}MLP" for family in _FAMILIES}


@dataclass(frozen=True)
class Kernels:
    """Kernels: gate, up -> SiLU(gate) * up; query, key, cosines, sines -> query, key."""

    gate: Callable[[Tensor, Tensor], Tensor]
    rotate: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


@cache
def liger() -> Kernels | None:
    """Load Liger's kernels, if they are installed."""
    if find_spec("liger_kernel") is None or find_spec("triton") is None:
        return None
    from liger_kernel.ops import LigerRopeFunction, LigerSiLUMulFunction

    return Kernels(LigerSiLUMulFunction.apply, LigerRopeFunction.apply)


def prepare_for_gpu(model: Any) -> Any:
    """Have a model's norms, activations and rotations run as one kernel each on a GPU in 16 bits.

    The entire process uses flash attention: cuDNN's attention plans every new batch shape for
    milliseconds, which is longer than it computes.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    for module in model.modules():
        kind = type(module)
        if not kind.__module__.startswith("transformers.models."):
            continue  # a model's own code may compute something else
        name = kind.__name__
        if name in _NORMS:
            module.forward = partial(_norm, module)
        elif name in _MLPS and module.config.hidden_act == "silu":
            module.forward = partial(_gated, module)
            code: Any = sys.modules[kind.__module__]
            plain = code.apply_rotary_pos_emb
            if not isinstance(plain, partial):
                code.apply_rotary_pos_emb = partial(_rotated, plain)
    return model


def fuse_adapters(model: Any) -> None:
    """Have LoRA add in place when a GPU trains under autocast.

    It adds to its base's output, and to the gradient of the base's input.
    """
    from peft.tuners.lora import Linear

    layers: list[Any] = [module for module in model.modules() if type(module) is Linear]
    for layer in layers:
        layer.forward = partial(_adapted, layer)


def runs_fused(values: Tensor, weight: Tensor) -> bool:
    """Whether a GPU computes with this weight in 16 bits."""
    kinds = (torch.bfloat16, torch.float16)
    return values.is_cuda and weight.dtype in kinds


def _norm(module: Any, hidden: Tensor) -> Tensor:
    weight = module.weight
    if hidden.dtype != weight.dtype or not runs_fused(hidden, weight):
        output: Tensor = type(module).forward(module, hidden)
        return output
    epsilon = module.variance_epsilon
    with torch.autocast(hidden.device.type, enabled=False):
        return functional.rms_norm(hidden, weight.shape, weight, epsilon)


def _gated(module: Any, hidden: Tensor) -> Tensor:
    gate = module.gate_proj(hidden)
    up = module.up_proj(hidden)
    kernels = liger() if runs_fused(gate, up) else None
    if kernels:
        inner = kernels.gate(gate, up)
    else:
        inner = module.act_fn(gate) * up
    down: Tensor = module.down_proj(inner)
    return down


def _rotated(
    plain: Any,
    query: Tensor,
    key: Tensor,
    cosines: Tensor,
    sines: Tensor,
    *rest: Any,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    kernels = liger()
    has_more = bool(rest or named)
    if has_more or kernels is None or not runs_fused(query, key):
        rotated: tuple[Tensor, Tensor] = plain(
            query,
            key,
            cosines,
            sines,
            *rest,
            **named,
        )
        return rotated
    return kernels.rotate(query, key, cosines, sines)


def _adapted(
    module: Any,
    values: Tensor,
    *arguments: Any,
    **options: Any,
) -> Tensor:
    """Compute W x + B (s A x): add within the last product, scale the narrow matrix."""
    has_more = bool(arguments or options)
    if has_more or not _adds_in_place(module, values):
        output: Tensor = type(module).forward(module, values, *arguments, **options)
        return output
    base = module.base_layer
    (name,) = module.active_adapters
    dtype = base.weight.dtype
    narrow = module.lora_A[name].weight.to(dtype)
    wide = module.lora_B[name].weight.to(dtype)
    with torch.autocast(values.device.type, enabled=False):
        values = values.to(dtype)
        scale = module.scaling[name]
        dropout = module.lora_dropout[name]
        drops = not isinstance(dropout, Identity) and dropout.p
        is_frozen = not base.weight.requires_grad
        if is_frozen and not drops:
            return _Adapted.apply(values, base.weight, base.bias, narrow, wide, scale)  # type: ignore[no-any-return,no-untyped-call]
        result = functional.linear(values, base.weight, base.bias)
        between = functional.linear(dropout(values), narrow)
        between = (between * scale).flatten(0, -2)
        width = result.shape[-1]
        rows = result.view(-1, width)
        summed = rows.addmm_(between, wide.t())
        return summed.view(result.shape)


def _adds_in_place(module: Any, values: Tensor) -> bool:
    """Whether a layer has one adapter, and a GPU computes with it in 16 bits under autocast."""
    names = module.active_adapters
    if len(names) != 1 or names[0] not in module.lora_A:
        return False
    if module.disable_adapters or module.merged:
        return False
    kind = values.device.type
    weight = module.base_layer.weight
    if not torch.is_autocast_enabled(kind):
        return False
    if torch.get_autocast_dtype(kind) != weight.dtype:
        return False
    return runs_fused(values, weight)


class _Adapted(torch.autograd.Function):
    """Compute W x + b + B (s A x) of a frozen W, and the input's gradient in one tensor."""

    @staticmethod
    def forward(
        ctx: Any,
        values: Tensor,
        weight: Tensor,
        bias: Any,
        narrow: Tensor,
        wide: Tensor,
        scale: Any,
    ) -> Tensor:
        result = functional.linear(values, weight, bias)
        between = functional.linear(values, narrow)
        between = (between * scale).flatten(0, -2)
        width = result.shape[-1]
        rows = result.view(-1, width)
        rows.addmm_(between, wide.t())
        ctx.save_for_backward(values, weight, narrow, wide, between)
        ctx.scale = scale
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, narrow, wide, between = ctx.saved_tensors
        rows = gradients[0].flatten(0, -2)
        inner = (rows @ wide) * ctx.scale
        of_input = None
        if ctx.needs_input_grad[0]:
            of_input = (rows @ weight).addmm_(inner, narrow).view(values.shape)
        of_narrow = inner.t() @ values.flatten(0, -2)
        of_wide = rows.t() @ between
        return of_input, None, None, of_narrow, of_wide, None
