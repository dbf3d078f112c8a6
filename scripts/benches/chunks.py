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
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        sides = {name: partial(pool.submit, step, config, *kind) for name, kind in kinds.items()}
        steps = Watch().take_turns(sides, config.repeats)
    by_kind = {}
    for name, jobs in steps.items():
        by_kind[name] = np.array([job.result() for job in jobs]).T
    peak = {name: peaks for name, (peaks, _, _) in by_kind.items()}
    added = {name: peaks - before for name, (peaks, before, _) in by_kind.items()}
    # Dropout is the same on both sides, because the chunks are.
    common.largest_difference(by_kind["chunked"][2], by_kind["plain"][2], 3e-4, "losses of chunks")
    chunked = np.maximum(added["chunked"], 0.1)  # a step that adds nothing measurable
    return {
        **measured_ratio(added["plain"] / chunked),
        **measured_ratio(peak["chunked_large"] / peak["chunked"], "growth_"),
        **measured_ratio(added["chunked_large"] / chunked, "growth_above_start_"),
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

    encoder = resolve(ModelConfig(common.MINILM, pooling="mean", max_length=TOKENS)).encoder
    encoder.model.train().requires_grad_(True)
    torch.manual_seed(SEED)
    draw = torch.Generator().manual_seed(SEED)
    highest = int(encoder.model.config.vocab_size)
    rows = torch.randint(1000, highest, (2 * batch, TOKENS), generator=draw)
    tokens = [Tokens(tuple(row)) for row in rows.tolist()]

    def encode(picked: Sequence[int]) -> torch.Tensor:
        return encoder.vectors(encoder.batch([tokens[row] for row in picked]))

    def batch_loss(vectors: torch.Tensor) -> torch.Tensor:
        masked = torch.zeros(batch, batch, dtype=torch.bool)
        return info_nce(vectors[:batch], vectors[batch:], torch.arange(batch), masked, 0.05)

    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=1e-5, fused=True)
    before = peak_memory()
    chunks = length_chunks([len(text.ids) for text in tokens], CHUNK)
    cache = GradCache(chunks, encode, batch_loss, not chunked)
    loss = cache.forward()
    cache.backward(loss)
    optimizer.step()
    return peak_memory() / 2**20, before / 2**20, loss.item()
