"""Encode a data set into the store: `accelerate launch eval/encode.py --model.name M --dataset D`.

The processes divide the texts by length. Texts in the store are not encoded again, so a stopped
run resumes. Evaluation with the same model, rendering and `vectors` then finds every vector in
the store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from claim2source.core.config import list_field, read_config, require
from claim2source.core.errors import report_once, run_program
from claim2source.core.files import require_writable
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.evaluation.options import StoreOptions
from claim2source.models import ModelConfig, Side, resolve
from claim2source.models.hub import require_model
from claim2source.models.local import with_local_models
from claim2source.text import Rendering

# Texts assigned to a process at a time: few, so that long and short texts are spread evenly.
BLOCK = 64


# The keys that people need first.
COMMON = (
    "dataset",
    "splits",
    "model.name",
    "model.pooling",
    "model.max_length",
    "rendering.claims",
    "rendering.sources",
    "store",
    "device",
)


@dataclass(frozen=True)
class EncodeConfig(StoreOptions):
    """Settings of `eval/encode.py`.

    Args:
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`; or a file of
            pairs.
        model: `model.name` is a checkpoint, a training run's folder (its chosen epoch) or a model;
            the other keys apply to models that are not a checkpoint of ours.
        rendering: text of claims and sources for such models; a checkpoint has its own.
    """

    dataset: str = "demo"
    splits: list[str] = list_field(["dev"], help="splits whose claims are encoded")
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None

    def check(self) -> None:
        require(bool(self.splits), "splits", self.splits, "one split or more")


@report_once()
def main(argv: Sequence[str] | None = None) -> None:
    """Encode this process's part of the sources and claims, and print its counts."""
    config = read_config(
        EncodeConfig, argv, program="eval/encode.py", description=__doc__ or "", common=COMMON
    )
    encode(config)


@with_local_models
def encode(config: EncodeConfig) -> None:
    require_model(config.model)
    # torch is imported after the arguments have been checked.
    import torch

    from claim2source.core.machine import use_cores
    from claim2source.training.launcher import LaunchedSettings, launched_world

    store = Store(config.store)
    require_writable(store.root, "folder")
    world = launched_world(settings=LaunchedSettings(config.device))
    use_cores(world.local_size)
    if not world.is_first:
        # Lenient loading warns of skipped records only once.
        logging.getLogger("claim2source.data").setLevel(logging.ERROR)
    splits = [load(config.dataset, split, lenient=config.lenient) for split in config.splits]
    if config.device != "cpu" and torch.cuda.is_available():
        torch.cuda.set_device(world.local_rank % torch.cuda.device_count())
    resolved = resolve(config.model, config.device)
    rendering = resolved.rendering_for(config.rendering)
    claims = [claim for split in splits for claim in split.claims]
    texts: dict[Side, list[str]] = {
        "source": rendering.source_texts(splits[0].sources),
        "claim": rendering.claim_texts(claims),
    }
    process = f"process {world.rank + 1} of {world.size}: " if world.size > 1 else ""
    for side in texts:
        mine = process_texts(texts[side], world.rank, world.size)
        # One progress bar is enough: the other processes have as many texts.
        progress = f"{side}s" if world.is_first else None
        encoded, cost = resolved.encoder.fill(mine, side, store, progress=progress)
        print(
            f"{process}{side}s: {len(mine)} distinct texts, {len(mine) - encoded} already in "
            f"the store, {encoded} encoded in {cost.seconds:.1f} s ({cost.tokens} tokens)",
            flush=True,
        )


def process_texts(texts: Sequence[str], rank: int, size: int) -> list[str]:
    """List the distinct texts that process `rank` of `size` encodes: blocks of similar length.

    The division depends only on the texts. So processes agree on it whatever is in the store, and
    a resumed run with as many processes divides the work as before.
    """
    ordered = sorted(set(texts), key=lambda text: (-len(text), text))
    blocks = [ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK)]
    # Back and forth: else the first process would get the longer block of every round.
    order = [*range(size), *reversed(range(size))]
    mine = [block for number, block in enumerate(blocks) if order[number % (2 * size)] == rank]
    return [text for block in mine for text in block]


if __name__ == "__main__":
    run_program(main)
