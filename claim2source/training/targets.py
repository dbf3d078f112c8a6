"""Check the layers that `lora.targets` names before anything is mined or trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from claim2source.core.errors import ConfigError
from claim2source.models.layers import linear_layers
from claim2source.training.config import TrainingRecipe

KEY = "lora.targets"
# Layers whose deltas are products B A, which exports and sums of checkpoints can add.
_ADAPTED = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, Conv1D)


def check_targets(model: Any, recipe: TrainingRecipe, output: Callable[[], Tensor]) -> None:
    """Raise `ConfigError` for a target whose adapter is impossible, unused or not exported.

    `output` runs the model on a short text: a layer without influence on it would not be trained.
    """
    if recipe.tuning == "full" or not recipe.lora.targets:
        return
    layers = {name: _find_layers(model, name) for name in recipe.lora.targets}
    names = ", ".join(_linear_names(model))
    allowed = f"layers of this model: {names}"
    for name, found in layers.items():
        if not found:
            raise ConfigError(KEY, name, allowed)
        for layer in found.values():
            _check_kind(name, layer, allowed)
    used = _find_used(layers.values(), output)
    for name, found in layers.items():
        is_unused = used.isdisjoint(found)
        if is_unused:
            reason = "this model's output does not depend on it, so it would not be trained"
            raise ConfigError(KEY, name, f"{allowed} ({reason})")


def _linear_names(model: nn.Module) -> list[str]:
    names: set[str] = set()
    for path in linear_layers(model):
        name = path.rsplit(".", 1)[-1]
        names.add(name)
    return sorted(names)


def _find_layers(model: nn.Module, name: str) -> dict[str, nn.Module]:
    """Find the layers of a target as peft does: by the path or its end."""
    end = f".{name}"
    found = {}
    for path, layer in model.named_modules():
        if path == name or path.endswith(end):
            found[path] = layer
    return found


def _check_kind(
    name: str,
    layer: nn.Module,
    allowed: str,
) -> None:
    if isinstance(layer, _ADAPTED):
        return
    kind = type(layer).__name__
    reason = f"{kind} layers get no adapter"
    if isinstance(layer, nn.Embedding):
        reason = "adapters of embeddings cannot be summed, or exported with tied weights"
    raise ConfigError(KEY, name, f"{allowed} ({reason})")


def _find_used(
    targets: Iterable[Mapping[str, nn.Module]],
    output: Callable[[], Tensor],
) -> set[str]:
    """Find the paths of the layers that the output depends on, by their gradient."""
    probes: dict[str, Tensor] = {}
    handles = []
    for found in targets:
        for path, layer in found.items():
            hook = _Probe(path, probes)
            handle = layer.register_forward_hook(hook)
            handles.append(handle)
    try:
        with torch.enable_grad():
            total = output().float().square().sum()
        if not probes or not total.requires_grad:
            return set()
        inputs = list(probes.values())
        gradients = torch.autograd.grad(total, inputs, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    used: set[str] = set()
    for path, gradient in zip(probes, gradients, strict=True):
        if gradient is not None:
            used.add(path)
    return used


class _Probe:
    """Add a zero tensor to a layer's output; its gradient shows whether the output is used."""

    def __init__(self, path: str, probes: dict[str, Tensor]) -> None:
        self.path = path
        self.probes = probes

    def __call__(
        self,
        layer: nn.Module,
        inputs: object,
        output: Tensor,
    ) -> Tensor:
        zero = self.probes.get(self.path)
        if zero is None:
            zero = torch.zeros(
                (),
                device=output.device,
                dtype=output.dtype,
                requires_grad=True,
            )
            self.probes[self.path] = zero
        return output + zero
