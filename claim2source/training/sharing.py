"""Share the encoding of texts among a run's processes, through the store."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.records import Claim, Source
from claim2source.io.store import Store
from claim2source.models import Encoder, Side
from claim2source.text import Rendering
from claim2source.training.distributed import World, barrier


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
