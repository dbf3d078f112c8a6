"""Encode a data set into the store: `accelerate launch eval/encode.py --model.name M --dataset D`.

The processes divide the texts by length. Texts that the store holds are not encoded again, so that
a stopped run goes on where it was. Evaluation with the same model, rendering and `vectors` then
finds every vector there.
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
from claim2source.io.store import Store, VectorType
from claim2source.models import ModelConfig, Side, resolve
from claim2source.models.multi_process import EncodedPart, fill_store
from claim2source.text import Rendering
from claim2source.training.launch import World, launched_world


@dataclass(frozen=True)
class EncodeConfig:
    """Settings of `eval/encode.py`.

    Args:
        dataset: folder in BEIR layout, or `demo`.
        model: a checkpoint, the folder of a training run (its chosen epoch) or a model, by
            `model.name`; its other keys are for models that are no checkpoint of ours.
        rendering: how claims and sources are rendered for such models; a checkpoint has its own.
        store: folder of the store of vectors and runs; none: the user's cache.
        vectors: float32, or float16 for half the size.
        device: none takes the GPUs, one for every process, where there are any.
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
    """Encode this process's part of the sources and claims, and print its counts."""
    config = read_config(EncodeConfig, argv, program="eval/encode.py", description=__doc__ or "")
    world = launched_world()
    use_cores(world.local_size)
    splits = [load(config.dataset, split) for split in config.splits]
    if config.device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    resolved = resolve(config.model, config.device)
    rendering = resolved.rendering_for(config.rendering)
    store = Store(config.store, config.vectors)
    claims = [claim for split in splits for claim in split.claims]
    texts: dict[Side, list[str]] = {
        "source": rendering.source_texts(splits[0].sources),
        "claim": rendering.claim_texts(claims),
    }
    for side in texts:
        # One progress bar: the other processes have as many texts.
        progress = f"{side}s" if world.is_first else None
        part = fill_store(
            resolved.encoder, texts[side], side, store, world.rank, world.size, progress
        )
        print(line(side, part, world), flush=True)


def line(side: Side, part: EncodedPart, world: World) -> str:
    """Summarise what one process encoded of one side."""
    process = f"process {world.rank + 1} of {world.size}: " if world.size > 1 else ""
    return (
        f"{process}{side}s: {part.texts} distinct texts, {part.reused} in the store already, "
        f"{part.encoded} encoded in {part.cost.seconds:.1f} s ({part.cost.tokens} tokens)"
    )


if __name__ == "__main__":
    run_program(main)
