"""Measure peak memory of a training step as the batch grows 8-fold: chunked (GradCache) and plain.

A step is the trainer's forward and backward pass and a step of AdamW, in its own process: claims
and sources of 64 tokens, all-MiniLM-L6-v2, every weight trained. `ratio` is the memory that the
plain step adds, divided by what the chunked step adds, both with the small batch.
`growth_ratio` is the chunked step's peak with the large batch divided by that with the small one;
`growth_above_start_ratio` is the same for the memory that the step adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from claim2source.core.config import Number
from claim2source.core.machine import peak_memory
from scripts.benches import common
from scripts.benches.common import SEED, Bench, Measured, Watch, measured_ratio, median

GROWS = 8
CHUNK = 16
TOKENS = 64


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py chunks`.

    Args:
        batch: claims in the small batch; the large one has 8 times as many.
    """

    batch: Number = 32


def run(config: Config) -> Measured:
    kinds = {
        "chunked": (config.batch, True),
        "plain": (config.batch, False),
        "chunked_large": (config.batch * GROWS, True),
    }
    context = get_context("spawn")
    with ProcessPoolExecutor(1, context, max_tasks_per_child=1) as pool:
        sides = {}
        for name, kind in kinds.items():
            sides[name] = partial(pool.submit, step, config, *kind)
        steps = Watch().take_turns(sides, config.repeats)

    peak = {}
    added = {}
    losses = {}
    for name, jobs in steps.items():
        peaks, before, loss = np.array([job.result() for job in jobs]).T
        peak[name] = peaks
        added[name] = peaks - before
        losses[name] = loss
    # Dropout is the same on both sides, because the chunks are.
    common.largest_difference(
        losses["chunked"],
        losses["plain"],
        3e-4,
        "losses of chunks",
    )

    chunked = np.maximum(added["chunked"], 0.1)  # a step that adds nothing measurable
    plain_by_chunked = added["plain"] / chunked
    growth = peak["chunked_large"] / peak["chunked"]
    growth_above_start = added["chunked_large"] / chunked
    return {
        **measured_ratio(plain_by_chunked),
        **measured_ratio(growth, "growth_"),
        **measured_ratio(growth_above_start, "growth_above_start_"),
        "peak_mib": {name: median(values, 1) for name, values in peak.items()},
    }


def step(
    config: Config,
    batch: int,
    chunked: bool,
) -> tuple[float, float, float]:
    """Take a training step in this process; return its peak MiB, the MiB before, and the loss."""
    import torch

    from claim2source.models import ModelConfig, Tokens, resolve
    from claim2source.training.data import length_chunks
    from claim2source.training.losses import info_nce
    from claim2source.training.module import GradCache

    model_config = ModelConfig(
        common.MINILM,
        pooling="mean",
        max_length=TOKENS,
    )
    encoder = resolve(model_config).encoder
    encoder.model.train().requires_grad_(True)
    torch.manual_seed(SEED)
    draw = torch.Generator().manual_seed(SEED)
    highest = int(encoder.model.config.vocab_size)
    shape = (2 * batch, TOKENS)
    rows = torch.randint(1000, highest, shape, generator=draw)
    tokens = [Tokens(tuple(row)) for row in rows.tolist()]

    def encode(picked: Sequence[int]) -> torch.Tensor:
        texts = [tokens[row] for row in picked]
        return encoder.vectors(encoder.batch(texts))

    def batch_loss(vectors: torch.Tensor) -> torch.Tensor:
        claims = vectors[:batch]
        sources = vectors[batch:]
        golds = torch.arange(batch)
        masked = torch.zeros(batch, batch, dtype=torch.bool)
        return info_nce(claims, sources, golds, masked, 0.05)

    optimizer = torch.optim.AdamW(
        encoder.model.parameters(),
        lr=1e-5,
        fused=True,
    )
    before = peak_memory()
    lengths = [len(text.ids) for text in tokens]
    chunks = length_chunks(lengths, CHUNK)
    cache = GradCache(chunks, encode, batch_loss, not chunked)
    loss = cache.forward()
    cache.backward(loss)
    optimizer.step()
    peak = peak_memory()
    return peak / 2**20, before / 2**20, loss.item()
