"""Compute norms and adapters in fewer passes over a GPU's memory, in 16 bits.

A layer's products take two thirds of its time there, and what lies between them the rest.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

# Norms that multiply the normalised value by their weight.
_NORMS = {f"{family}RMSNorm" for family in ("Llama", "Mistral", "Qwen2", "Qwen3")}


def prepare_for_gpu(model: Any) -> Any:
    """Have a model's RMS norms run as one kernel where a GPU computes in 16 bits, not as seven.

    Attention is left to flash attention in the whole process: cuDNN's plans each new shape of a
    batch for milliseconds, longer than it computes.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    for module in model.modules():
        if type(module).__name__ in _NORMS:
            module.forward = partial(_norm, module)
    return model


def fuse_adapters(model: Any) -> None:
    """Have LoRA's layers add to their base's output in place where a GPU trains under autocast."""
    from peft.tuners.lora import Linear

    layers: list[Any] = [module for module in model.modules() if type(module) is Linear]
    for layer in layers:
        layer.forward = partial(_adapted, layer)


def runs_fused(values: Tensor, weight: Tensor) -> bool:
    """Tell whether a GPU computes with this weight in 16 bits."""
    return values.is_cuda and weight.dtype in (torch.bfloat16, torch.float16)


def _norm(module: Any, hidden: Tensor) -> Tensor:
    weight = module.weight
    if hidden.dtype != weight.dtype or not runs_fused(hidden, weight):
        output: Tensor = type(module).forward(module, hidden)
        return output
    with torch.autocast(hidden.device.type, enabled=False):
        return functional.rms_norm(hidden, weight.shape, weight, module.variance_epsilon)


def _adapted(module: Any, values: Tensor, *arguments: Any, **options: Any) -> Tensor:
    """Compute W x + B (s A x): the sum within the last product, the scale where it is narrow."""
    base, kind, names = module.base_layer, values.device.type, module.active_adapters
    if not (
        len(names) == 1
        and names[0] in module.lora_A
        and not (module.disable_adapters or module.merged or arguments or options)
        and torch.is_autocast_enabled(kind)
        and torch.get_autocast_dtype(kind) == base.weight.dtype
        and runs_fused(values, base.weight)
    ):
        output: Tensor = type(module).forward(module, values, *arguments, **options)
        return output
    name, dtype = names[0], base.weight.dtype
    with torch.autocast(kind, enabled=False):
        values = values.to(dtype)
        result = functional.linear(values, base.weight, base.bias)
        narrow = functional.linear(
            module.lora_dropout[name](values), module.lora_A[name].weight.to(dtype)
        )
        narrow = (narrow * module.scaling[name]).flatten(0, -2)
        rows = result.view(-1, result.shape[-1])
        return rows.addmm_(narrow, module.lora_B[name].weight.to(dtype).t()).view(result.shape)
