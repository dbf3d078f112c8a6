"""Measure peak memory of a training step as the batch grows 8-fold: chunked (GradCache) and plain.

A step is one forward and backward pass as the trainer makes it (`chunked_forward` or
`whole_forward`, texts packed) and one step of AdamW, without the trainer around it, in a process
of its own: claims and sources of one length, all-MiniLM-L6-v2, every weight trained. `ratio` is
the memory that the plain step adds, divided by what the chunked step adds, both with the small
batch. `growth_ratio` is the chunked step's peak with the large batch divided by that with the small
one; `growth_above_start_ratio` is the same for the memory added to the peak before the step,
without weights and libraries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from claim2source.core.config import Number
from claim2source.core.memory import peak_memory
from scripts.benches import common
from scripts.benches.common import Bench, Measured, median, ratio_of

GROWS, CHUNK, TOKENS = 8, 16, 64


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py chunks`.

    Args:
        model: a model's name or folder; texts have 64 tokens, and chunks 16 texts.
        batch: claims in the small batch; the large one has 8 times as many.
    """

    model: str = common.MINILM
    batch: Number = 32


def run(config: Config) -> Measured:
    kinds = {
        "chunked": (config.batch, True),
        "plain": (config.batch, False),
        "chunked_large": (config.batch * GROWS, True),
    }
    steps: dict[str, list[tuple[float, float, float]]] = {name: [] for name in kinds}
    for name in common.turns(list(kinds), config.repeats):
        steps[name].append(common.in_fresh_process(step, config, *kinds[name]))
    by_kind = {name: np.array(taken).T for name, taken in steps.items()}
    peak = {name: peaks for name, (peaks, _, _) in by_kind.items()}
    added = {name: peaks - before for name, (peaks, before, _) in by_kind.items()}
    # Dropout falls alike on both: the chunks are the same.
    common.largest_difference(by_kind["chunked"][2], by_kind["plain"][2], 3e-4, "losses of chunks")
    least = np.maximum(added["chunked"], 0.1)  # a step that adds nothing measurable
    return {
        **ratio_of(added["plain"] / least),
        **ratio_of(peak["chunked_large"] / peak["chunked"], "growth_"),
        **ratio_of(added["chunked_large"] / least, "growth_above_start_"),
        "peak_mib": {name: median(values, 1) for name, values in peak.items()},
    }


def step(config: Config, batch: int, chunked: bool) -> tuple[float, float, float]:
    """Take a training step in this process; give peak memory in MiB, that before, and the loss."""
    import torch

    from claim2source.models import ModelConfig, Tokens, resolve
    from claim2source.training.gradcache import chunked_forward, length_chunks, whole_forward
    from claim2source.training.losses import info_nce

    encoder = resolve(ModelConfig(config.model, pooling="mean", max_length=TOKENS)).encoder
    encoder.model.train().requires_grad_(True)
    torch.manual_seed(config.seed)
    draw = torch.Generator().manual_seed(config.seed)
    highest = int(encoder.model.config.vocab_size)
    shape = (2 * batch, TOKENS)
    rows = torch.randint(min(1000, highest // 2), highest, shape, generator=draw)
    tokens = [Tokens(tuple(row)) for row in rows.tolist()]

    def encode(picked: Sequence[int]) -> torch.Tensor:
        return encoder.vectors(encoder.batch([tokens[row] for row in picked]))

    def loss_of(vectors: torch.Tensor) -> torch.Tensor:
        masked = torch.zeros(batch, batch, dtype=torch.bool)
        return info_nce(vectors[:batch], vectors[batch:], torch.arange(batch), masked, 0.05)

    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=1e-5, fused=True)
    before = peak_memory()
    way = chunked_forward if chunked else whole_forward
    passed = way(length_chunks(tokens, CHUNK), encode, loss_of)
    passed.backward(passed.loss)
    optimizer.step()
    return peak_memory() / 2**20, before / 2**20, passed.loss.item()
