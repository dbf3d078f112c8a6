"""Encoding a data set's texts by several processes, each its share, into one store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from claim2source.core.run import Cost
from claim2source.io.store import Store
from claim2source.models.encoder import Encoder
from claim2source.models.templates import Side

# Texts that go to one process together: few, so that long and short ones are spread evenly.
BLOCK = 64


@dataclass(frozen=True)
class Filled:
    """What one process did: its distinct texts, those it had to encode, and their cost."""

    texts: int
    encoded: int
    cost: Cost

    @property
    def found(self) -> int:
        """Texts whose vectors were there already."""
        return self.texts - self.encoded


def texts_of_process(texts: Sequence[str], rank: int, size: int) -> list[str]:
    """The distinct texts that process `rank` of `size` encodes: every `size`-th block, by length.

    It depends on nothing but the texts: processes agree on it whatever the store holds as each
    of them starts, and a run that goes on with as many processes divides the work as before.
    """
    ordered = sorted(set(texts), key=lambda text: (-len(text), text))
    blocks = [ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK)]
    # Back and forth: straight on, the first process would get the longer block of every round.
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
) -> Filled:
    """Encode this process's share of `texts` into the store. Raises `UserError` as `fill` does."""
    mine = texts_of_process(texts, rank, size)
    encoded, cost = encoder.fill(mine, side, store, progress=progress)
    return Filled(len(mine), encoded, cost)
