"""Peak memory of a training step as the batch grows 8-fold: chunked (GradCache) and plain.

Each measurement is one forward and backward pass as the trainer's step makes it
(`chunked_backward` or `whole_backward`, texts packed) and one step of AdamW, without the trainer
around it, in a process of its own: claims and sources of one length, all-MiniLM-L6-v2, every
weight trained. `ratio` is the plain step's memory above the start over the chunked step's, both
at the small batch; `growth` is the chunked step's peak at the large batch over that at the small
one; `growth_above_start` is the same of the memory above the peak before the step, which leaves
out the weights and the libraries.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch

from claim2source.core.config import read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.tables import plain_table
from claim2source.models import ModelConfig, Tokens, resolve
from claim2source.training.chunked import chunked_backward, whole_backward
from claim2source.training.losses import info_nce
from claim2source.training.module import length_chunks

GROWS = 8


@dataclass(frozen=True)
class BenchConfig:
    """What to measure.

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
        for key in ("batch", "chunk", "repeats"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        require(self.tokens >= 8, "tokens", self.tokens, "8 or more")


def step(config: BenchConfig, batch: int, chunked: bool) -> dict[str, float]:
    """One step; peak memory in MiB, of it before the step, and the loss."""
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
    way = chunked_backward if chunked else whole_backward
    loss = way(length_chunks(tokens, config.chunk), encode, loss_of, lambda value: value.backward())
    optimizer.step()
    return {"peak": peak_memory() / 2**20, "before": before / 2**20, "loss": float(loss)}


def _in_process(config: BenchConfig, batch: int, chunked: bool) -> dict[str, float]:
    """`step` in a process of its own: peaks are of a process's whole life."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(step, (config, batch, chunked))


def measure(config: BenchConfig) -> dict[str, Any]:
    """All measurements, in turn."""
    large = config.batch * GROWS
    cells = {
        "chunked": (config.batch, True),
        "plain": (config.batch, False),
        "chunked_large": (large, True),
    }
    found: dict[str, list[dict[str, float]]] = {name: [] for name in cells}
    for _ in range(config.repeats):
        for name, (batch, chunked) in cells.items():
            found[name].append(_in_process(config, batch, chunked))
    losses = [found[name][0]["loss"] for name in ("chunked", "plain")]
    # Dropout falls alike on both: the chunks are the same.
    if abs(losses[0] - losses[1]) > 1e-4 * abs(losses[1]):
        raise UserError(f"the chunked and the plain losses differ: {losses[0]} and {losses[1]}")
    peaks = {name: statistics.median(r["peak"] for r in rows) for name, rows in found.items()}
    above = {name: [row["peak"] - row["before"] for row in rows] for name, rows in found.items()}
    # A step that adds nothing measurable adds 0.1 MiB.
    ratios = [p / max(c, 0.1) for p, c in zip(above["plain"], above["chunked"], strict=True)]
    growths = [
        one["peak"] / other["peak"]
        for one, other in zip(found["chunked_large"], found["chunked"], strict=True)
    ]
    above_start = [
        one / max(other, 0.1)
        for one, other in zip(above["chunked_large"], above["chunked"], strict=True)
    ]
    return {
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(min(ratios), 3), round(max(ratios), 3)],
        "growth": round(statistics.median(growths), 4),
        "growth_spread": [round(min(growths), 4), round(max(growths), 4)],
        "growth_above_start": round(statistics.median(above_start), 4),
        "growth_above_start_spread": [round(min(above_start), 4), round(max(above_start), 4)],
        "median": {f"{name}_peak_mib": round(value, 1) for name, value in peaks.items()},
        "above_start_mib": {n: round(statistics.median(v), 1) for n, v in above.items()},
        "repeats": config.repeats,
        "batch": config.batch,
        "large_batch": large,
        "chunk": config.chunk,
        "tokens": config.tokens,
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("torch", "transformers")},
        },
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """The same for a person."""
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
            f"Peak of the chunked step as the batch grows {GROWS}-fold: "
            f"{result['growth']:.3f} times; of what lies above the start: "
            f"{result['growth_above_start']:.3f} times.",
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
