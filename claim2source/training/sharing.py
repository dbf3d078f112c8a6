"""Share the encoding of texts among a run's processes, through the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from claim2source.core.records import Claim, Source
from claim2source.io.store import Store
from claim2source.models import Encoder, Side
from claim2source.text import Rendering
from claim2source.training.distributed import World, barrier, gather_values


def encode_shares(
    encoder: Encoder,
    rendering: Rendering,
    claims: Sequence[Claim],
    sources: Sequence[Source],
    store: Store,
    world: World,
) -> None:
    """Write this process's share of the vectors to the store, and wait for the others'.

    What then encodes all texts finds them there; on a machine with another store it makes the rest
    itself. Does nothing for one process, or while the weights have no name. All processes must
    call it with the same texts.
    """
    if world.size == 1 or encoder.weights is None:
        return
    sides: list[tuple[Side, list[str]]] = [
        ("claim", rendering.claim_texts(claims)),
        ("source", rendering.source_texts(sources)),
    ]
    for side, texts in sides:
        distinct = sorted(dict.fromkeys(texts), key=len)  # so that shares take equally long
        share = distinct[world.rank :: world.size]
        if share:
            progress = f"{side}s, in {world.size} processes" if world.is_first else None
            encoder.fill(share, side, store, progress=progress)
    barrier(world)


class SharedVal:
    """Encode val in shares with the checkpoints that the first process names."""

    def __init__(
        self,
        rendering: Rendering,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        store: Store,
        world: World,
    ) -> None:
        self.world = world
        self._texts = rendering, claims, sources, store, world

    def encode(self, encoder: Encoder, folder: Path, scale: float | None = None) -> None:
        """Encode with a checkpoint, at a scale or as it is; for the first process."""
        gather_values((str(folder), scale), self.world)
        encode_shares(encoder, *self._texts)

    def end(self) -> None:
        """Let the other processes go on."""
        gather_values(None, self.world)

    def follow(self, load: Callable[[Path, float | None], Encoder | None]) -> None:
        """Encode what the first process names, until it ends; for the others.

        `load` gives the checkpoint's encoder, or None where this machine does not have it.
        """
        while (asked := gather_values(None, self.world)[0]) is not None:
            folder, scale = asked
            if (encoder := load(Path(folder), scale)) is None:
                barrier(self.world)
            else:
                encode_shares(encoder, *self._texts)
