"""Compare training with sentence-transformers' trainer: pairs per second at equal loss, memory.

Both sides train the same model on the same batches with dropout 0 in fp32: ours with Lightning
and RetrieverModule, theirs with SentenceTransformerTrainer and MultipleNegativesRankingLoss (or
its cached version). A cell is TEXTS_TUNING_LOSS, such as ct25_full_plain. TEXTS: ct25 (claims and
papers of ct25) or short (claims and titles of the demo); TUNING: full or lora; LOSS: plain or
cached. `ratio` is that of ct25_full_plain.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast, get_args

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from claim2source.core.config import flag, list_field, read_config, require, require_one_of
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.tables import Cell, plain_table
from claim2source.training.model_shape import Tuning
from scripts.data_folder import data_folder
from scripts.flops import matmul_rate
from scripts.measure import (
    Clock,
    circumstances,
    ratio_and_spread,
    require_positive,
    run_again,
    take_turns,
)
from scripts.timing_common import StepProfile
from scripts.timing_trainers import (
    Material,
    Recipe,
    Steps,
    Texts,
    Work,
    material,
    run_ours,
    run_peer,
    same_losses,
    step_work,
)

CELLS = [
    f"{texts}_{tuning}_{loss}"
    for texts in get_args(Texts)
    for tuning in get_args(Tuning)
    for loss in ("plain", "cached")
]
# These take a quarter of an hour on a small machine; --all_cells adds the others.
DEFAULT_CELLS = [CELLS[0], *CELLS[4:]]


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_training.py`.

    Args:
        model: a model's name or folder; mean pooling.
        batch_size: pairs per step.
        max_length: tokens per text.
        chunk: texts per forward pass of the cached losses.
        temperature: of the loss; the peer's scale is 1 / temperature.
        learning_rate: of AdamW, with cosine decay.
        repeats: trainings by each side in turn.
        warmup: steps of each training before the timed ones.
        steps: timed steps of each training.
        seed: of the draw of pairs.
        tolerance: largest relative difference of the first step's losses.
        matmul: size of the square matrices that measure the machine's limit.
        operators: number of operators in the profile.
        clock: `wall`, or on a busy machine `cpu`: the seconds that all threads of this process
            compute.
        ct25: folder of ct25 in BEIR layout; default: ct25 in CLAIM2SOURCE_DATA.
        only: only print one side's peak memory in one cell (the program runs itself with it).
    """

    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    batch_size: int = 32
    max_length: int = 256
    chunk: int = 16
    temperature: float = 0.05
    learning_rate: float = 5e-5
    repeats: int = 5
    warmup: int = 1
    steps: int = 2
    seed: int = 13
    tolerance: float = 1e-3
    matmul: int = 1536
    operators: int = 12
    clock: Clock = "wall"
    ct25: Path | None = None
    only: Literal["ours", "peer"] | None = None
    cells: list[str] = list_field(DEFAULT_CELLS, help="cells to time: " + ", ".join(CELLS))
    all_cells: bool = flag("time all cells (about twice as long)")
    peaks: bool = flag("measure peak memory, each side in a process of its own", True)
    ablate: bool = flag("time ours with its pieces switched off one by one, and nothing else")

    def __post_init__(self) -> None:
        require_positive(self, "repeats", "warmup", "steps", "chunk", "matmul", "operators")
        require(self.batch_size >= 2, "batch_size", self.batch_size, "2 or more")
        require(self.tolerance > 0, "tolerance", self.tolerance, "above 0")
        require(bool(self.cells), "cells", self.cells, ", ".join(CELLS))
        for cell in self.cells:
            require_one_of("cells", cell, CELLS)
        require(self.only is None or len(self.cells) == 1, "only", self.only, "with one cell alone")

    @property
    def pairs(self) -> int:
        """Number of pairs of one training."""
        return self.batch_size * (self.warmup + self.steps)

    @property
    def chosen(self) -> list[str]:
        """The cells to time, in their order."""
        return [cell for cell in CELLS if self.all_cells or cell in self.cells]

    def recipe(self, cell: str) -> Recipe:
        """Give the settings of both sides in a cell."""
        _, tuning, loss = cell.split("_")
        return Recipe(
            self.model,
            cast(Tuning, tuning),
            self.chunk if loss == "cached" else None,
            self.batch_size,
            self.max_length,
            self.temperature,
            self.learning_rate,
            clock=self.clock,
        )

    def material(self, cell: str) -> Material:
        """Draw a cell's pairs."""
        folder = self.ct25 or data_folder("ct25")
        return material(cast(Texts, cell.split("_")[0]), folder, self.pairs, self.seed)


@dataclass
class Timings:
    """A cell's work per step, its trainings, and the machine's limit measured in each repeat."""

    work: Work
    ours: list[Steps] = field(default_factory=list)
    peer: list[Steps] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def ours_seconds(self, warmup: int) -> list[float]:
        """Compute seconds per step by repeat, including our tokenizing before the first step."""
        return [
            statistics.mean(steps.seconds[warmup:]) + steps.preparing / len(steps.seconds)
            for steps in self.ours
        ]

    def peer_seconds(self, warmup: int) -> list[float]:
        """Compute seconds per step by repeat."""
        return [statistics.mean(steps.seconds[warmup:]) for steps in self.peer]


def time_cell(config: BenchConfig, cell: str) -> Timings:
    """Train with both sides in turn. Raises `UserError` where their first losses differ."""
    pairs, recipe = config.material(cell), config.recipe(cell)
    timings = Timings(step_work(pairs, recipe))

    def train(run: Callable[[Material, Recipe], Steps], trainings: list[Steps]) -> None:
        trainings.append(run(pairs, recipe))
        if timings.ours and timings.peer:
            ours, peer = timings.ours[-1], timings.peer[-1]
            same_losses(ours.losses, peer.losses, config.tolerance)
            if ours.trained != peer.trained:
                raise UserError(f"{cell}: {ours.trained} weights trained, not {peer.trained}")

    def limit() -> None:
        timings.limits.append(matmul_rate(config.matmul, clock=config.clock))

    ours, peer = partial(train, run_ours, timings.ours), partial(train, run_peer, timings.peer)
    take_turns([ours, peer, limit], config.repeats)
    return timings


@dataclass(frozen=True)
class Peak:
    """Peak memory of a process in MB, and what it held before the first step."""

    peak_mb: float
    before_mb: float


def cell_result(
    config: BenchConfig, timings: Timings, peaks: dict[str, Peak] | None
) -> dict[str, Any]:
    """Compute what the last line holds of a cell."""
    ours, peer = timings.ours_seconds(config.warmup), timings.peer_seconds(config.warmup)
    result = ratio_and_spread([p / o for o, p in zip(ours, peer, strict=True)], digits=3)
    result["median"] = result["ratio"]
    limit = statistics.median(timings.limits)
    first, other = timings.ours[0].losses, timings.peer[0].losses
    work = timings.work
    for side, seconds in (("ours", ours), ("peer", peer)):
        middle = statistics.median(seconds)
        result[f"{side}_pairs_per_second"] = round(config.batch_size / middle, 3)
        result[f"{side}_share_of_limit"] = round(work.flops / middle / limit, 4)
    result |= {
        "limit_gflops": round(limit / 1e9, 2),
        "step_gflop": round(work.flops / 1e9, 2),
        "real_tokens": round(work.real_tokens, 1),
        "ours_padded_tokens": round(work.ours_padded, 1),
        "peer_padded_tokens": round(work.peer_padded, 1),
        "ours_first_loss": first[0],
        "peer_first_loss": other[0],
        "loss_difference": same_losses(first, other, config.tolerance),
        "ours_last_loss": first[-1],
        "peer_last_loss": other[-1],
        "trained_weights": timings.ours[0].trained,
    }
    if peaks is not None:
        for side, peak in peaks.items():
            result[f"{side}_peak_mb"] = peak.peak_mb
            result[f"{side}_before_mb"] = peak.before_mb
        result["peak_ratio"] = round(peaks["ours"].peak_mb / peaks["peer"].peak_mb, 3)
    return result


def peaks_of(config: BenchConfig, cell: str) -> dict[str, Peak]:
    """Measure the peak memory of each side in a fresh process that trains two steps."""
    keys = ("model", "batch_size", "max_length", "chunk", "seed")
    options = ["--cells", cell, *(f"--{key}={getattr(config, key)}" for key in keys)]
    options += ["--warmup=1", "--steps=1", *([f"--ct25={config.ct25}"] if config.ct25 else [])]
    return {
        side: Peak(
            **run_again(__file__, [f"--only={side}", *options], f"peak memory of {side}, {cell}")
        )
        for side in ("ours", "peer")
    }


def own_peak(config: BenchConfig) -> Peak:
    """Train with one side in this process, and measure its peak memory."""
    cell = config.cells[0]
    run = run_ours if config.only == "ours" else run_peer
    before = run(config.material(cell), config.recipe(cell)).before
    return Peak(round(peak_memory(gpu=False) / 2**20, 1), round(before / 2**20, 1))


def profile_ours(config: BenchConfig, cell: str) -> list[tuple[str, float, int]]:
    """Find the operators that take longest in the last step of a training with ours."""
    profile = StepProfile(config.warmup + config.steps - 1)
    run_ours(config.material(cell), config.recipe(cell), callbacks=[profile])
    return profile.shares(config.operators)


def report(
    config: BenchConfig, cells: dict[str, dict[str, Any]], profile: list[tuple[str, float, int]]
) -> dict[str, Any]:
    """Compute what the last line holds; `ratio` is null where its cell was not timed."""
    headline = cells.get(CELLS[0], {})
    return {
        "ratio": headline.get("ratio"),
        "spread": headline.get("spread"),
        "median": headline.get("median"),
        **cells,
        "not_run": [cell for cell in CELLS if cell not in cells],
        "profile": [[name, round(share, 4), calls] for name, share, calls in profile],
        **settings_and_versions(config),
    }


def settings_and_versions(config: BenchConfig) -> dict[str, Any]:
    """Report the settings, versions and load of the measurement."""
    return {
        "repeats": config.repeats,
        "clock": config.clock,
        "steps": config.steps,
        "batch_size": config.batch_size,
        "max_length": config.max_length,
        "chunk": config.chunk,
        "threads": torch.get_num_threads(),
        **circumstances(
            "torch",
            "transformers",
            "peft",
            "pytorch-lightning",
            "sentence-transformers",
            "accelerate",
            "datasets",
        ),
    }


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    columns = ["", "ratio", "spread", "pairs/s", "theirs", "% of mm", "theirs", "MB", "theirs"]
    columns += ["tokens", "padded", "theirs", "first loss", "theirs"]
    rows: list[list[Cell]] = []
    for cell in CELLS:
        found = result.get(cell)
        if found is None:
            continue
        rows.append(
            [
                cell,
                found["ratio"],
                "{:.2f} - {:.2f}".format(*found["spread"]),
                found["ours_pairs_per_second"],
                found["peer_pairs_per_second"],
                100 * found["ours_share_of_limit"],
                100 * found["peer_share_of_limit"],
                _rounded(found.get("ours_peak_mb")),
                _rounded(found.get("peer_peak_mb")),
                _rounded(found["real_tokens"]),
                _rounded(found["ours_padded_tokens"]),
                _rounded(found["peer_padded_tokens"]),
                f"{found['ours_first_loss']:.5f}",
                f"{found['peer_first_loss']:.5f}",
            ]
        )
    lines = [
        f"{config.batch_size} pairs a step, at most {config.max_length} tokens a text, median of "
        f"{config.repeats} repeats of {config.steps} steps after {config.warmup} by the "
        f"{config.clock} clock; fp32, dropout 0",
        plain_table(columns, rows, digits=2),
        "ratio: theirs / ours in seconds a step, including our tokenizing. % of mm: FLOPs per",
        "second of the texts' real tokens, in % of what torch.mm reaches here in fp32. MB: peak of",
        "a process that trains 2 steps. tokens, padded: per step.",
        f"one of our steps in {next(c for c in CELLS if c in result)}, time by operator:",
        plain_table(
            ["operator", "%", "calls"],
            [[name, 100 * share, calls] for name, share, calls in result["profile"]],
            digits=1,
        ),
    ]
    if result["not_run"]:
        lines.append(f"not run (--all_cells): {', '.join(result['not_run'])}")
    return "\n".join([*lines, f"Load average: {result['load_average']}"])


def _rounded(value: float | None) -> int | None:
    return None if value is None else round(value)


def main(argv: Sequence[str] | None = None) -> None:
    """Train with both sides in turn, print a table and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_training.py", description=__doc__ or ""
    )
    if config.only is not None:
        print(json.dumps(asdict(own_peak(config))))
        return
    if config.ablate:
        from scripts.timing_pieces import ablation, ablation_table

        plain = [cell for cell in config.chosen if cell.endswith("plain")]
        timed = ablation(
            {cell: (config.material(cell), config.recipe(cell)) for cell in plain},
            seed=config.seed,
            warmup=config.warmup,
            repeats=config.repeats,
            tolerance=config.tolerance,
        )
        result = timed | settings_and_versions(config)
        print(ablation_table(result))
        print(json.dumps(result))
        return
    started = time.perf_counter()
    cells = {}
    for cell in config.chosen:
        config.material(cell)  # missing data fails now, not after minutes
    for cell in config.chosen:
        peaks = peaks_of(config, cell) if config.peaks else None
        cells[cell] = cell_result(config, time_cell(config, cell), peaks)
        print(f"{cell}: ratio {cells[cell]['ratio']}", file=sys.stderr, flush=True)
    result = report(config, cells, profile_ours(config, config.chosen[0]))
    result["seconds"] = round(time.perf_counter() - started, 1)
    print(as_table(config, result))
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
