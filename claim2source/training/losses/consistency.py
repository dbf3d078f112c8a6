"""Pull a claim's original and translation together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from claim2source.core.config import Amount, Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class ConsistencyConfig(Settings):
    """Weight the agreement of original, translation and both together, as views of one claim.

    Args:
        weight: of this term in the sum; 0 leaves it out.
    """

    weight: Amount = 0.0


def consistency(claims: Tensor, views: Tensor, owners: Tensor) -> Tensor:
    """Sum 1 - cosine of each view and its claim, divided by the number of claims.

    `claims` [n, d], `views` [v, d] (v may be 0), `owners` [v] the row of each view's claim.
    Returns a scalar.
    """
    from torch.nn.functional import cosine_similarity

    cosine = cosine_similarity(views, claims[owners], dim=1)
    return (1 - cosine).sum() / len(claims)
