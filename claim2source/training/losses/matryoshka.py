"""Shorten vectors to their first numbers (Matryoshka representations)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from claim2source.core.config import Between, Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class MatryoshkaConfig(Settings):
    """Set InfoNCE on shortened vectors, added to InfoNCE on whole vectors.

    Args:
        dimensions: lengths at which vectors must also work, such as [256, 128]; the mean over
            them is added; empty: none.
    """

    dimensions: tuple[Annotated[int, Between(1, 10**5)], ...] = ()


def shortened(vectors: Tensor, dimensions: int) -> Tensor:
    """Cut vectors [n, d] to their first `dimensions` numbers, scaled back to length 1."""
    from torch.nn.functional import normalize

    return normalize(vectors[:, :dimensions], dim=-1)
