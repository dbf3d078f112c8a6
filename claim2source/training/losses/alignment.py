"""Bring the student's vectors to the teacher's of the same texts, without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from claim2source.core.config import Amount, Number, Settings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class AlignmentConfig(Settings):
    """Set how the student's vectors are brought to the teacher's (LEAF, arXiv 2509.12539).

    Of training claims, and of titles and sentences of the pool's papers, which need no judgement:
    the student reads them as claims.

    Args:
        weight: of this term in the sum; 0 leaves it out.
        most: titles and sentences that are drawn, which the teacher encodes once; none: all.
    """

    weight: Amount = 0.0
    most: Number | None = 10_000


def alignment(claims: Tensor, texts: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean squared distance of the student's vectors to the teacher's.

    `claims` [n, d] and `texts` [t, d] are the student's, `targets` [n + t, d] the teacher's. Of
    vectors of length 1 it is the mean of 2 (1 - cosine). Returns a scalar.
    """
    from torch import cat  # here: arguments are read before torch is imported

    return (cat((claims, texts)) - targets).square().sum(dim=1).mean()
