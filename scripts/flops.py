"""Count the FLOPs of a transformer's forward pass and of a training step.

This is a module of scripts/plan.py and scripts/bench.py, not a program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from claim2source.models.layers import count_weights, linear_layers
from claim2source.training.config import RetrieverRecipe
from claim2source.training.memory_plan import adapter_weights

Tuning = Literal["full", "lora"]


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a transformer that determine its FLOPs.

    Args:
        linear: weights of linear layers outside embeddings and pooler.
        adapters: weights of LoRA's adapters.
        layers: number of layers.
        width: heads x head size of a layer.
    """

    linear: int
    adapters: int
    layers: int
    width: int

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModelShape:
        """Read the shape of a transformers model, with or without peft's adapters."""
        layers = linear_layers(model)
        adapter_layers = [layer for name, layer in layers.items() if ".lora_" in name]
        adapters = count_weights(adapter_layers)
        linear = count_weights(layers.values()) - adapters
        config: Any = model.config
        heads = config.num_attention_heads
        size = getattr(config, "head_dim", None)
        if not size:
            size = config.hidden_size // heads
        return cls(
            linear=linear,
            adapters=adapters,
            layers=config.num_hidden_layers,
            width=heads * size,
        )

    @classmethod
    def planned(cls, model: torch.nn.Module, recipe: RetrieverRecipe) -> ModelShape:
        """Read the shape of a model with the adapters that the recipe will add."""
        shape = cls.of(model)
        adapters = adapter_weights(model, recipe)
        return replace(shape, adapters=adapters)

    def forward(self, lengths: Sequence[int]) -> float:
        """Count the FLOPs of a forward pass over texts of these lengths in tokens.

        2 per weight and token, and 4 * layers * width * length^2 for a text's attention
        (queries by keys, then weights by values). Padding, norms and softmax are not counted.
        """
        tokens = sum(lengths)
        weights = 2 * (self.linear + self.adapters) * tokens
        attention = self._attention(lengths)
        return float(weights + attention)

    def training(self, lengths: Sequence[int], tuning: Tuning) -> float:
        """Count the FLOPs of a training step: forward pass, gradients of inputs and weights.

        Full: 3 times the forward pass. LoRA: frozen weights need no gradients, so 4 per weight
        and token instead of 6; adapters and attention count 3 times. What is computed twice to
        save memory (checkpointing, chunks) is not counted.
        """
        if tuning == "full":
            return 3 * self.forward(lengths)
        tokens = sum(lengths)
        weights = (4 * self.linear + 6 * self.adapters) * tokens
        attention = self._attention(lengths)
        return float(weights + 3 * attention)

    def _attention(self, lengths: Sequence[int]) -> int:
        pairs = sum(length**2 for length in lengths)
        return 4 * self.layers * self.width * pairs
