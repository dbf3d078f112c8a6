"""Encode a data set's texts into one store by several processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from claim2source.core.run import Cost
from claim2source.io.store import Store
from claim2source.models.config import Side
from claim2source.models.encoder import Encoder

# Texts assigned to a process at a time: few, so that long and short ones are spread evenly.
BLOCK = 64


@dataclass(frozen=True)
class EncodedPart:
    """One process's distinct texts, how many of them it had to encode, and their cost."""

    texts: int
    encoded: int
    cost: Cost

    @property
    def reused(self) -> int:
        """Number of texts whose vectors the store had already."""
        return self.texts - self.encoded


def texts_of_process(texts: Sequence[str], rank: int, size: int) -> list[str]:
    """List the distinct texts that process `rank` of `size` encodes: blocks of like length.

    The division depends on the texts alone, so that processes agree on it whatever the store
    holds, and a resumed run of as many processes divides the work as before.
    """
    ordered = sorted(set(texts), key=lambda text: (-len(text), text))
    blocks = [ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK)]
    # Back and forth, or the first process would get the longer block of every round.
    mine = [
        block
        for number, block in enumerate(blocks)
        if (number % size if number // size % 2 == 0 else size - 1 - number % size) == rank
    ]
    return [text for block in mine for text in block]


def fill_store(
    encoder: Encoder,
    texts: Sequence[str],
    side: Side,
    store: Store,
    rank: int = 0,
    size: int = 1,
    progress: str | None = None,
) -> EncodedPart:
    """Encode this process's part of `texts` into the store. Raises `UserError` as `fill` does."""
    mine = texts_of_process(texts, rank, size)
    encoded, cost = encoder.fill(mine, side, store, progress=progress)
    return EncodedPart(len(mine), encoded, cost)
