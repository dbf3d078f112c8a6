"""Run by test_gather.py, one process a rank: the averaged gradients of one batch to a file."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from claim2source.datasets import load
from claim2source.mining import MinedRow, Negative
from claim2source.models import ModelConfig, resolve
from claim2source.text import Rendering
from claim2source.training.batches import BatchSampler
from claim2source.training.config import FinetuneConfig, OptimisationConfig
from claim2source.training.data import BaseVectors, TrainingPairs
from claim2source.training.losses import (
    ConsistencyConfig,
    DistillationConfig,
    InfoNCEConfig,
    KeepBaseConfig,
    LossesConfig,
    LossInputs,
    MatryoshkaConfig,
    false_negatives,
)
from claim2source.training.module import RetrieverModule

PER_BATCH = 16


def every_loss() -> LossesConfig:
    return LossesConfig(
        info_nce=InfoNCEConfig(both_ways=True, false_negative_margin=0.01),
        distillation=DistillationConfig(0.5, Path("unused"), "kl", 2.0),
        keep_base=KeepBaseConfig(0.3, {"de": 1.0, "en": 0.2}),
        consistency=ConsistencyConfig(0.7),
        matryoshka=MatryoshkaConfig(0.4, (8, 16)),
    )


def main(model: str, data: str, chunk: str, out: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if world > 1:
        dist.init_process_group("gloo", rank=rank, world_size=world)
    encoder = resolve(ModelConfig(name=model, pooling="mean", max_length=24)).encoder
    train, rendering = load(data, "train"), Rendering("bilingual", "metadata")
    ids = [source.id for source in train.sources]
    rows = [
        # Neighbours share negatives, so that two processes want the same source.
        MinedRow(
            c.id,
            c.golds[0],
            tuple(
                Negative(ids[(i // 2 + k) % 36], 0.5, "both")
                for k in (25, 26)
                if ids[(i // 2 + k) % 36] not in c.golds
            ),
        )
        for i, c in enumerate(train.claims)
    ]
    teacher = {
        row.claim: {row.positive: 3.0, **{n.source: float(i) for i, n in enumerate(row.negatives)}}
        for row in rows[::2]
    }
    base = BaseVectors(encoder, rendering, train.claims, train.sources, None)  # type: ignore[arg-type]
    # Away from the base, or keeping close to it would ask for nothing.
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in encoder.model.parameters():
            weight.add_(torch.randn_like(weight) * 0.02)
    encoder.weights = None
    losses = every_loss()
    pairs = TrainingPairs(
        train, rows, encoder, rendering, 2, losses=losses, base=base, teacher=teacher
    )
    plan = next(
        iter(
            BatchSampler(pairs.groups(), PER_BATCH // world, epochs=1, rank=rank, world_size=world)
        )
    )
    chunk_size = None if chunk == "none" else int(chunk)
    optimisation = replace(OptimisationConfig(), temperature=0.05, chunk_size=chunk_size)
    module: Any = RetrieverModule(
        encoder, pairs, optimisation, losses, 1, lambda epoch: None, lambda: None
    )
    module.manual_backward = lambda loss: loss.backward()
    encoder.model.requires_grad_(True)
    encoder.model.eval()  # dropout differs by process
    found: list[int] = []
    real = module._inputs

    def count_false_negatives(*arguments: Any) -> LossInputs:
        inputs: LossInputs = real(*arguments)
        own = inputs.claims, inputs.sources, inputs.positives
        found.append(int((false_negatives(*own, 0.01) & ~inputs.masked).sum()))
        return inputs

    module._inputs = count_false_negatives
    terms = module._backward(pairs.batch(plan))
    read = {n: p for n, p in encoder.model.named_parameters() if p.grad is not None}
    module._trainer = SimpleNamespace(world_size=world)
    module._reduce_gradients(list(encoder.model.parameters()))
    gradients = {name: parameter.grad for name, parameter in read.items()}
    loss = terms["loss"].clone()
    if world > 1:
        dist.all_reduce(loss)
        loss /= world
    if rank == 0:
        values = {name: float(value) for name, value in terms.items()}
        made = {"loss": loss, "gradients": gradients, "terms": values, "false_negatives": found}
        torch.save(made, out)
    if world > 1:
        dist.destroy_process_group()
    assert FinetuneConfig  # the config must be importable on its own


if __name__ == "__main__":
    main(*sys.argv[1:])
