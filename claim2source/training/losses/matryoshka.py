"""Matryoshka dimensions: the first d numbers of a vector are a vector too."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from claim2source.core.config import require


@dataclass(frozen=True)
class MatryoshkaConfig:
    """InfoNCE on shortened vectors, added to the one on whole vectors.

    Args:
        weight: of the mean over `dimensions` in the sum.
        dimensions: lengths that shall work by themselves, such as [256, 128]; empty: none.
    """

    weight: float = 1.0
    dimensions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        key = "losses.matryoshka"
        good = 0 <= self.weight < math.inf
        require(good, f"{key}.weight", self.weight, "0 or more, and finite")
        for size in self.dimensions:
            require(size >= 1, f"{key}.dimensions", size, "1 or more")


def shortened(vectors: Tensor, dimensions: int) -> Tensor:
    """The first `dimensions` numbers of vectors [n, d], scaled back to length 1."""
    return torch.nn.functional.normalize(vectors[:, :dimensions], dim=-1)
