"""Count a model's FLOPs, and find what the device reaches: peaks by name, torch.mm's rate."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from scripts.measure import timed

# Dense bf16 FLOPs per second from the makers' sheets, by words of the device's name; the first
# match counts.
PEAKS = (
    ("gb200", 2.5e15),
    ("b200", 2.25e15),
    ("b100", 1.8e15),
    ("h200 nvl", 835e12),
    ("h200", 989e12),
    ("h100 nvl", 835e12),
    ("h100 pcie", 756e12),
    ("h100", 989e12),
    ("gh200", 989e12),
    ("a100", 312e12),
    ("a800", 312e12),
    ("l40s", 362e12),
    ("l4", 121e12),
    ("a40", 149.7e12),
    ("a30", 165e12),
    ("rtx 5090", 209.5e12),
    ("rtx 4090", 165.2e12),
    ("rtx 3090", 71e12),
)

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
        linear = adapters = 0
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and "pooler" not in name.split("."):
                if ".lora_" in name:
                    adapters += module.weight.numel()
                else:
                    linear += module.weight.numel()
        config: Any = model.config
        size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        return cls(linear, adapters, config.num_hidden_layers, config.num_attention_heads * size)

    def forward(self, lengths: Sequence[int]) -> float:
        """Count the FLOPs of a forward pass over texts of these lengths in tokens.

        2 per weight and token, and 4 * layers * width * length^2 for a text's attention
        (queries by keys, then weights by values). Padding, norms and softmax are not counted.
        """
        weights = 2 * (self.linear + self.adapters) * sum(lengths)
        return float(weights + self._attention(lengths))

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
        return float(weights + 3 * self._attention(lengths))

    def _attention(self, lengths: Sequence[int]) -> int:
        return 4 * self.layers * self.width * sum(length**2 for length in lengths)


def matmul_rate(
    size: int,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    repeats: int = 5,
    pick: Callable[[Iterable[float]], float] = statistics.median,
) -> float:
    """Measure FLOPs per second of `torch.mm` on square matrices: the machine's limit.

    `pick` chooses among the seconds of the repeats.
    """
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def multiply() -> None:
        torch.mm(left, right)
        if device != "cpu":
            torch.cuda.synchronize()

    multiply()
    return 2 * size**3 / pick([timed(multiply)[0] for _ in range(repeats)])


def peak_flops(name: str) -> float:
    """Look up a device's dense bf16 peak; infinity where unknown, so that shares are 0."""
    found = set(re.split(r"[^a-z0-9]+", name.lower()))
    # A laptop's chip has the name of a faster card.
    known = (peak for words, peak in PEAKS if found >= set(words.split()))
    return math.inf if "laptop" in found else next(known, math.inf)
