"""Measure peak memory of a training step as the batch grows 8-fold: chunked (GradCache) and plain.

A step is one forward and backward pass as the trainer makes it (`chunked_forward` or
`whole_forward`, texts packed) and one step of AdamW, without the trainer around it, in a process
of its own: claims and sources of one length, all-MiniLM-L6-v2, every weight trained. `ratio` is
the memory that the plain step adds, divided by what the chunked step adds, both with the small
batch. `growth` is the chunked step's peak with the large batch divided by that with the small
one; `growth_above_start` is the same for the memory added to the peak before the step, without
weights and libraries.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch

from claim2source.core.config import read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.tables import plain_table
from claim2source.models import ModelConfig, Tokens, resolve
from claim2source.training.gradcache import chunked_forward, length_chunks, whole_forward
from claim2source.training.losses import info_nce
from scripts.measure import circumstances, median, ratio_and_spread, require_positive, spread

GROWS = 8


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_chunks.py`.

    Args:
        model: a model's name or folder.
        batch: claims in the small batch; the large one has 8 times as many.
        chunk: texts per forward pass.
        tokens: length of every text.
        repeats: processes per measurement, in turn.
    """

    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    batch: int = 32
    chunk: int = 16
    tokens: int = 64
    repeats: int = 3

    def __post_init__(self) -> None:
        require_positive(self, "batch", "chunk", "repeats")
        require(self.tokens >= 8, "tokens", self.tokens, "8 or more")


@dataclass(frozen=True)
class Step:
    """Peak memory of a step and before it, in MiB, and its loss."""

    peak: float
    before: float
    loss: float


def step(config: BenchConfig, batch: int, chunked: bool) -> Step:
    """Take one training step in this process."""
    encoder = resolve(ModelConfig(config.model, pooling="mean", max_length=config.tokens)).encoder
    encoder.model.train().requires_grad_(True)
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    highest = int(encoder.model.config.vocab_size)
    rows = torch.randint(
        min(1000, highest // 2), highest, (2 * batch, config.tokens), generator=draw
    )
    tokens = [Tokens(tuple(row)) for row in rows.tolist()]

    def encode(picked: Sequence[int]) -> torch.Tensor:
        return encoder.vectors(encoder.batch([tokens[row] for row in picked]))

    def loss_of(vectors: torch.Tensor) -> torch.Tensor:
        masked = torch.zeros(batch, batch, dtype=torch.bool)
        return info_nce(vectors[:batch], vectors[batch:], torch.arange(batch), masked, 0.05)

    optimizer = torch.optim.AdamW(encoder.model.parameters(), lr=1e-5, fused=True)
    before = peak_memory()
    way = chunked_forward if chunked else whole_forward
    passed = way(length_chunks(tokens, config.chunk), encode, loss_of)
    passed.backward(passed.loss)
    optimizer.step()
    return Step(peak_memory() / 2**20, before / 2**20, float(passed.loss))


def step_in_process(config: BenchConfig, batch: int, chunked: bool) -> Step:
    """Take one step in a fresh process, because peaks count from a process's start."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(step, (config, batch, chunked))


def measure(config: BenchConfig) -> dict[str, Any]:
    """Measure every kind of step in turn; compute what the last line of the output holds."""
    large = config.batch * GROWS
    kinds = {
        "chunked": (config.batch, True),
        "plain": (config.batch, False),
        "chunked_large": (large, True),
    }
    steps: dict[str, list[Step]] = {name: [] for name in kinds}
    for _ in range(config.repeats):
        for name, (batch, chunked) in kinds.items():
            steps[name].append(step_in_process(config, batch, chunked))
    losses = [steps[name][0].loss for name in ("chunked", "plain")]
    # Dropout falls alike on both: the chunks are the same.
    if abs(losses[0] - losses[1]) > 1e-4 * abs(losses[1]):
        raise UserError(f"the chunked and the plain losses differ: {losses[0]} and {losses[1]}")
    peak = {name: np.array([s.peak for s in taken]) for name, taken in steps.items()}
    added = {name: np.array([s.peak - s.before for s in taken]) for name, taken in steps.items()}
    # A step that adds nothing measurable adds 0.1 MiB.
    least = np.maximum(added["chunked"], 0.1)
    growth, above = peak["chunked_large"] / peak["chunked"], added["chunked_large"] / least
    return {
        **ratio_and_spread(added["plain"] / least, digits=3),
        "growth": median(growth),
        "growth_spread": spread(growth),
        "growth_above_start": median(above),
        "growth_above_start_spread": spread(above),
        "median": {f"{name}_peak_mib": median(values, 1) for name, values in peak.items()},
        "above_start_mib": {name: median(values, 1) for name, values in added.items()},
        "repeats": config.repeats,
        "batch": config.batch,
        "large_batch": large,
        "chunk": config.chunk,
        "tokens": config.tokens,
        **circumstances("torch", "transformers"),
    }


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    rows = [
        [shown, batch, result["median"][f"{name}_peak_mib"], result["above_start_mib"][name]]
        for name, shown, batch in (
            ("chunked", f"chunks of {config.chunk}", config.batch),
            ("chunked_large", f"chunks of {config.chunk}", config.batch * GROWS),
            ("plain", "plain", config.batch),
        )
    ]
    return "\n".join(
        [
            f"one step, texts of {config.tokens} tokens, medians of {config.repeats} processes",
            plain_table(["step", "claims", "peak MiB", "above the start"], rows, digits=1),
            f"Peak of the chunked step as the batch grows {GROWS}-fold: {result['growth']:.3f} "
            f"times; of the memory above the start: {result['growth_above_start']:.3f} times.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print a table and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_chunks.py", description=__doc__ or ""
    )
    result = measure(config)
    print(as_table(config, result))
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
