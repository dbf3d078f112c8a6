"""Run by test_gather.py, one process a rank: the averaged gradients of one batch to a file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from claim2source.data.loading import load
from claim2source.models.layers import set_dropout
from claim2source.text import Rendering
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import BaseVectors, TrainingPairs
from claim2source.training.distributed import chosen_strategy
from claim2source.training.launcher import World
from claim2source.training.loss_list import Losses
from claim2source.training.losses import Consistency, Distillation, InfoNCE, KeepBase
from claim2source.training.module import RetrieverModule
from tests.training.own_losses import Uniformity
from tests.training.small import mined_row, recipe_of, small_encoder
from tests.training.test_module import Gradients, quiet_trainer

PER_BATCH = 16


EVERY_LOSS = Losses(
    [
        InfoNCE(),
        Distillation(0.5, Path("unused"), 2.0),
        KeepBase(0.3, {"de": 1.0, "en": 0.2}),
        Consistency(0.7),
        Uniformity(0.4),
    ]
)


def main(model: str, data: str, chunk: str, freeze: str, out: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world)
    encoder = small_encoder(Path(model))
    train, rendering = load(data, "train"), Rendering("bilingual", "metadata")
    ids = [source.id for source in train.sources]
    rows = [
        # Neighbours share negatives, so that two processes use the same source.
        mined_row(
            c.id, c.golds[0], *sorted({ids[(i // 2 + k) % 36] for k in (25, 26)} - {*c.golds})
        )
        for i, c in enumerate(train.claims)
    ]
    teacher = {
        row.claim: {row.positive: 3.0, **{n.source: float(i) for i, n in enumerate(row.negatives)}}
        for row in rows[::2]
    }
    base = BaseVectors.encode(encoder, rendering, train, None)  # type: ignore[arg-type]
    # Away from the base, so that keep_base has a gradient.
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in encoder.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    encoder.weights = None
    losses = EVERY_LOSS
    recipe = recipe_of(2, rendering, losses)
    pairs = TrainingPairs(train, rows, encoder, recipe, base=base, teacher=teacher)
    # The last weight is not used by any loss, and one matrix is not trained.
    encoder.model.requires_grad_(True)
    frozen = encoder.model.get_input_embeddings().weight.requires_grad_(freeze != "embeddings")
    sampler = BatchSampler(
        pairs.groups(), PER_BATCH // world, epochs=1, rank=rank, world_size=world, accumulation=2
    )
    optimisation = replace(
        OptimisationConfig(),
        temperature=0.05,
        chunk_size=None if chunk == "none" else int(chunk),
        max_grad_norm=0,
    )
    module: Any = RetrieverModule(encoder, pairs, optimisation, losses, 1)
    set_dropout(encoder.model, 0.0)  # it differs by process
    gradients = Gradients()
    trainer = quiet_trainer(
        max_steps=1,
        accumulate_grad_batches=2,
        devices=world,
        strategy=chosen_strategy("ddp", World(world, world, rank)),
        callbacks=gradients,
        use_distributed_sampler=False,
    )
    trainer.fit(module, BatchLoader(sampler, module.collate))
    (values,) = gradients.steps
    assert (frozen.grad is None) and ("embeddings.word_embeddings.weight" in values) is (
        freeze != "embeddings"
    )
    if rank == 0:
        torch.save({"gradients": values, "terms": dict(module.window.means)}, out)
    if world > 1 and dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
