"""Make a batch's tensors ahead of its step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from claim2source.models import Encoder, Tokens
from claim2source.models.packed import PackedBatch
from claim2source.models.tokens import TokenBatch, changed
from claim2source.training.batches import BatchPlan
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainBatch
from claim2source.training.gradcache import length_chunks, token_chunks


@dataclass(frozen=True)
class ReadyBatch:
    """Hold a batch as its step takes it, on the CPU.

    `distinct` are its texts, each once; `place` [texts] has the number of each of the batch's
    claims, sources, views and texts among them. `chunks` are their numbers, chunk by chunk, and
    `parts` each chunk's tensors.
    """

    batch: TrainBatch
    distinct: Sequence[Tokens]
    place: Tensor
    chunks: Sequence[Sequence[int]]
    parts: Sequence[TokenBatch | PackedBatch]

    @property
    def plan(self) -> BatchPlan:
        """Return what the batch was made of."""
        return self.batch.plan

    def pin_memory(self) -> ReadyBatch:
        """Copy the tensors to memory that a GPU reads while it computes."""
        return replace(
            changed(self, Tensor.pin_memory),
            batch=changed(self.batch, Tensor.pin_memory),
            parts=[part.pin_memory() for part in self.parts],
        )


def ready_batch(batch: TrainBatch, encoder: Encoder, config: OptimisationConfig) -> ReadyBatch:
    """Divide a batch's texts into chunks, and make their tensors.

    Each distinct text is encoded once; the gradients of its copies add up.
    """
    texts = [*batch.claims, *batch.sources, *batch.views, *batch.texts]
    number: dict[Tokens, int] = {}
    place = torch.tensor([number.setdefault(text, len(number)) for text in texts])
    distinct = list(number)
    size, budget = config.chunk_size, config.chunk_tokens
    assert size != "auto", "settled by memory_plan"
    if budget is not None:
        lengths = [len(text.ids) for text in distinct]
        chunks = token_chunks(lengths, budget, packed=encoder.packs)
    elif size is not None:
        chunks = length_chunks(distinct, size)
    else:
        chunks = list(encoder.length_batches(distinct))
    parts = [encoder.batch([distinct[row] for row in rows]) for rows in chunks]
    return ReadyBatch(batch, distinct, place, chunks, parts)
