"""Copy a model to bfloat16 for a processor with instructions for it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter

AnyModel = TypeVar("AnyModel", bound=Module)


def computes_fast() -> bool:
    """Tell whether this processor has instructions for bfloat16: elsewhere it is emulated."""
    capabilities: Mapping[str, object] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16", False))


def rounded(model: AnyModel) -> AnyModel:
    """Copy a model on the CPU for inference, its weights rounded to bfloat16.

    Buffers, such as a rotary embedding's frequencies, keep their type.
    """
    weights = {id(p): Parameter(p.detach().bfloat16(), p.requires_grad) for p in model.parameters()}
    copied: AnyModel = deepcopy(model, weights)
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        _fuse(copied)
    return copied


class _FusedLinear(Linear):
    """Apply a linear layer and what follows it in one pass.

    PyTorch's own copies the bias to the output first, which takes as long as the product.
    """

    then = "none"

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = torch.ops.mkldnn._linear_pointwise(
            inputs, self.weight, self.bias, self.then, [], "none"
        )
        return output


def _fuse(model: Module) -> None:
    for part in model.modules():
        if type(part) is Linear:
            part.__class__ = _FusedLinear
    for part in [*model.modules()]:
        dense = getattr(part, "dense", None)
        if isinstance(dense, _FusedLinear) and _is_gelu(part, model):
            dense.then = "gelu"
            part.intermediate_act_fn = torch.nn.Identity()


def _is_gelu(part: Module, model: Module) -> bool:
    """Tell whether the layers of BERT and its kin apply the exact GELU behind `dense`."""
    exact = getattr(getattr(model, "config", None), "hidden_act", None) == "gelu"
    return exact and isinstance(getattr(part, "intermediate_act_fn", None), Module)
