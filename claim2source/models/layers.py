"""Find and set the layers of a transformers model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch


def find_layers(model: torch.nn.Module) -> torch.nn.ModuleList:
    """Find a model's stack of layers, its longest list of modules."""
    lists = []
    for part in model.modules():
        if isinstance(part, torch.nn.ModuleList):
            lists.append(part)
    no_layers = torch.nn.ModuleList()
    return max(lists, key=len, default=no_layers)


def linear_layers(
    model: torch.nn.Module,
    names: Sequence[str] = (),
) -> dict[str, torch.nn.Linear]:
    """Find a model's linear layers whose path is, or ends with, one of `names`; none: all.

    Without names the pooler's layer is left out.
    """
    layers: dict[str, torch.nn.Linear] = {}
    for path, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear):
            continue
        if names:
            is_wanted = any(f".{path}".endswith(f".{name}") for name in names)
        else:
            parts = path.split(".")
            is_wanted = "pooler" not in parts
        if is_wanted:
            layers[path] = module
    return layers


def count_weights(layers: Iterable[torch.nn.Linear]) -> int:
    """Count the layers' weights, not their tensors' elements: in 4 bits two share one."""
    return sum(layer.in_features * layer.out_features for layer in layers)


def set_dropout(model: torch.nn.Module, rate: float) -> None:
    """Set every dropout rate, also those that attention layers keep as plain numbers."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        attention_rate = getattr(module, "attention_dropout", None)
        if isinstance(attention_rate, float):
            module.attention_dropout = rate  # type: ignore[assignment]
