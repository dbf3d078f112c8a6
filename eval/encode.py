"""Encode a data set into the store: `accelerate launch eval/encode.py --model.name M --dataset D`.

The processes share the texts out by length; what the store holds already is not encoded again,
so a stopped run goes on where it was. Evaluation with the same model, rendering and `vectors`
then finds every vector there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch

from claim2source.core.config import list_field, read_config, require
from claim2source.core.errors import run_program
from claim2source.core.threads import use_cores
from claim2source.datasets import load
from claim2source.evaluation.retrieval import rendering_of
from claim2source.io.store import Store, VectorType
from claim2source.models import ModelConfig, Side, resolve
from claim2source.models.multi_process import Filled, fill_store
from claim2source.text import Rendering
from claim2source.training.launch import World, launched_world


@dataclass(frozen=True)
class EncodeConfig:
    """Settings of `eval/encode.py`.

    Args:
        dataset: folder in BEIR layout, or `demo`.
        model: a checkpoint, the folder of a training run (its chosen epoch) or a model, by
            `model.name`, and how a model that is no checkpoint of ours is read.
        rendering: representation for such a model; a checkpoint has its own.
        store: folder of the store of vectors and runs; none: the user's cache.
        vectors: float32, or float16 to keep vectors in half the room.
        device: none takes the GPUs if there are some, one a process.
    """

    dataset: str = "demo"
    splits: list[str] = list_field(str, ["dev"], help="splits whose claims are encoded")
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None
    store: Path | None = None
    vectors: VectorType = "float32"
    device: Literal["cpu", "cuda"] | None = None

    def __post_init__(self) -> None:
        require(bool(self.splits), "splits", self.splits, "one split or more")


def main(argv: Sequence[str] | None = None) -> None:
    """Encode this process's share of sources and claims, and say what that was."""
    config = read_config(EncodeConfig, argv, program="eval/encode.py", description=__doc__ or "")
    world = launched_world()
    use_cores(world.local_size)
    splits = [load(config.dataset, split) for split in config.splits]
    if config.device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    resolved = resolve(config.model, config.device)
    rendering = rendering_of(resolved, config.rendering)
    store = Store(config.store, config.vectors)
    claims = [claim for split in splits for claim in split.claims]
    sides = {
        "source": rendering.source_texts(splits[0].sources),
        "claim": rendering.claim_texts(claims),
    }
    sides_in_turn: tuple[Side, ...] = ("source", "claim")
    for side in sides_in_turn:
        # One bar: the other processes have as much to do.
        progress = f"{side}s" if world.is_first else None
        done = fill_store(
            resolved.encoder, sides[side], side, store, world.rank, world.size, progress
        )
        print(line(side, done, world), flush=True)


def line(side: str, done: Filled, world: World) -> str:
    """What one process did on one side."""
    who = f"process {world.rank + 1} of {world.size}: " if world.size > 1 else ""
    return (
        f"{who}{side}s: {done.texts} distinct texts, {done.found} in the store already, "
        f"{done.encoded} encoded in {done.cost.seconds:.1f} s ({done.cost.tokens} tokens)"
    )


if __name__ == "__main__":
    run_program(main)
