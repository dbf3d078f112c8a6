"""Bring the student's vectors to the teacher's of the same texts, without labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, get_args

from claim2source.core.config import (
    Amount,
    Between,
    Number,
    Settings,
    require,
    require_one_of,
)

if TYPE_CHECKING:
    from torch import Tensor

Unlabelled = Literal["titles", "sentences", "sources"]


@dataclass(frozen=True)
class AlignmentConfig(Settings):
    """Set how the student's vectors are brought to the teacher's (LEAF, arXiv 2509.12539).

    Of training claims, and of texts of the pool's papers that need no judgement: the student reads
    them as claims.

    Args:
        weight: of this term in the sum; 0 leaves it out.
        texts: kinds of the pool's texts: `titles`, `sentences` of abstracts, `sources` as they are
            searched; empty: claims alone.
        most: texts that are drawn of them, which the teacher encodes once; none: all.
        batch_size: texts of each batch, beside its claims; over the batches each is used in turn.
    """

    weight: Amount = 0.0
    texts: tuple[Unlabelled, ...] = ("titles", "sentences")
    most: Number | None = 10_000
    batch_size: Annotated[int, Between(1, 10**6)] = 64

    def check(self) -> None:
        key = "losses.alignment"
        for text in self.texts:
            require_one_of(f"{key}.texts", text, get_args(Unlabelled))
        distinct = len(set(self.texts)) == len(self.texts)
        require(distinct, f"{key}.texts", self.texts, "each kind once")


def alignment(claims: Tensor, texts: Tensor, targets: Tensor) -> Tensor:
    """Compute the mean squared distance of the student's vectors to the teacher's.

    `claims` [n, d] and `texts` [t, d] are the student's, `targets` [n + t, d] the teacher's. Of
    vectors of length 1 it is the mean of 2 (1 - cosine). Returns a scalar.
    """
    from torch import cat  # here: arguments are read before torch is imported

    return (cat((claims, texts)) - targets).square().sum(dim=1).mean()
