"""What the training benchmarks share: batches in order, timed steps, FLOPs, rates, memory."""

from __future__ import annotations

import argparse
import dataclasses
import gc
import inspect
import logging
import math
import platform
import re
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pytorch_lightning as pl
import torch

from claim2source.core.errors import UserError
from claim2source.training.batches import BatchSampler
from claim2source.training.data import PairsModule
from claim2source.training.module import RetrieverModule

# Dense bf16 FLOPs a second by words of the device's name, the first that fits; makers' sheets.
PEAKS = (
    ("gb200", 2.5e15),
    ("b200", 2.25e15),
    ("b100", 1.8e15),
    ("h200 nvl", 835e12),
    ("h200", 989e12),
    ("h100 nvl", 835e12),
    ("h100 pcie", 756e12),
    ("h100", 989e12),
    ("gh200", 989e12),
    ("a100", 312e12),
    ("a800", 312e12),
    ("l40s", 362e12),
    ("l4", 121e12),
    ("a40", 149.7e12),
    ("a30", 165e12),
    ("rtx 5090", 209.5e12),
    ("rtx 4090", 165.2e12),
    ("rtx 3090", 71e12),
)

Tuning = Literal["full", "lora"]
Config = TypeVar("Config")


class _Parser(argparse.ArgumentParser):
    """Raises what the user can mend, instead of ending the process."""

    def error(self, message: str) -> Any:
        """Called by argparse for any mistake in the words."""
        raise UserError(f"config: {message}")


def read_flat(
    kind: type[Config], argv: Sequence[str] | None, program: str, description: str
) -> Config:
    """As `read_config`, with Python's own parser: of a dataclass of numbers, lists and flags.

    For programs that run where jsonargparse is not installed. Raises `UserError` naming the key.
    """
    parser = _Parser(
        prog=program,
        description=description,
        epilog=inspect.getdoc(kind),
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for spec in dataclasses.fields(kind):  # type: ignore[arg-type]
        name, said = f"--{spec.name}", spec.metadata
        if "flag" in said:
            parser.add_argument(name, action="store_true", default=spec.default, help=said["flag"])
            parser.add_argument(f"--no_{spec.name}", action="store_false", dest=spec.name)
        elif "list_of" in said:
            assert spec.default_factory is not dataclasses.MISSING
            parser.add_argument(
                name,
                nargs="+",
                type=said["list_of"],
                default=spec.default_factory(),
                help=said["help"],
            )
        else:
            parser.add_argument(name, type=type(spec.default), default=spec.default)
    return kind(**vars(parser.parse_args(argv)))


class InOrder(BatchSampler):
    """Every pair once, in the order given, so that two trainers see the same batches."""

    def __init__(self, pairs: int, batch_size: int) -> None:
        super().__init__(range(pairs), batch_size, epochs=1)

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """Row numbers of every batch."""
        rows = np.arange(len(self.groups))
        return [rows[i : i + self.per_step] for i in range(0, len(rows), self.per_step)]


class StepTimes(pl.Callback):
    """Seconds from the end of one step to the end of the next; the first from the start."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_train_start(self, *_: Any) -> None:
        """The clock begins."""
        self._stamp()

    def on_train_batch_end(self, *_: Any) -> None:
        """A step has ended, its work on a GPU included."""
        self._stamp()

    def _stamp(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """One number a step."""
        return steps_between(self.ends)


class StepProfile(pl.Callback):
    """Profiles one step on the CPU; `table` then names the operators that took longest."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def on_train_batch_start(self, *arguments: Any) -> None:
        """Begin where the wanted step does."""
        if arguments[-1] == self.step:
            self._profile.start()

    def on_train_batch_end(self, *arguments: Any) -> None:
        """End with it."""
        if arguments[-1] == self.step:
            self._profile.stop()

    def shares(self, most: int) -> list[tuple[str, float, int]]:
        """The `most` operators that took longest: name, share of all their own time, calls."""
        events = sorted(self._profile.key_averages(), key=lambda e: -e.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in events) or 1.0
        return [(e.key, e.self_cpu_time_total / total, int(e.count)) for e in events[:most]]


def steps_between(ends: Sequence[float]) -> list[float]:
    """Differences of neighbours."""
    return [later - earlier for earlier, later in zip(ends, ends[1:], strict=False)]


def fit(
    module: RetrieverModule,
    sampler: BatchSampler,
    *,
    precision: Literal["fp32", "bf16"] = "fp32",
    callbacks: Iterable[pl.Callback] = (),
) -> list[float]:
    """Train as `claim2source.training.finetune` does, without logs; returns seconds a step."""
    times = StepTimes()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="gpu" if module.encoder.device.type == "cuda" else "cpu",
            devices=1,
            precision="bf16-mixed" if precision == "bf16" else "32-true",
            logger=False,
            callbacks=[*callbacks, times],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
        )
        module.encoder.model.train()
        trainer.fit(module, datamodule=PairsModule(sampler))
    return times.seconds


@dataclass(frozen=True)
class ModelShape:
    """A transformer's weights in its linear layers, and what its attention multiplies.

    `linear` counts the weights of linear layers outside embeddings and pooler, `adapters` those
    of LoRA, `width` is heads x head size, summed over `layers` layers.
    """

    linear: int
    adapters: int
    layers: int
    width: int

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModelShape:
        """The shape of a transformers model, with or without peft's adapters."""
        linear = adapters = 0
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and "pooler" not in name.split("."):
                if ".lora_" in name:
                    adapters += module.weight.numel()
                else:
                    linear += module.weight.numel()
        config: Any = model.config
        size = getattr(config, "head_dim", None) or (
            config.hidden_size // config.num_attention_heads
        )
        return cls(linear, adapters, config.num_hidden_layers, config.num_attention_heads * size)

    def forward(self, lengths: Sequence[int]) -> float:
        """FLOPs of texts of these lengths, each token attending to its whole text.

        2 per weight and token, and 4 * layers * width * length^2 for a text's attention
        (queries by keys, then weights by values). Padding, norms and softmax count nothing.
        """
        weights = 2 * (self.linear + self.adapters) * sum(lengths)
        return float(weights + self._attention(lengths))

    def training(self, lengths: Sequence[int], tuning: Tuning) -> float:
        """FLOPs of a step: forward, gradients by inputs, gradients by the trained weights.

        Full: 3 times the forward pass. LoRA: frozen weights have no gradient of their own, so
        4 per weight and token instead of 6; adapters and attention count 3 times. What is
        computed twice to spare memory (checkpointing, chunks) is not counted.
        """
        if tuning == "full":
            return 3 * self.forward(lengths)
        tokens = sum(lengths)
        weights = (4 * self.linear + 6 * self.adapters) * tokens
        return float(weights + 3 * self._attention(lengths))

    def _attention(self, lengths: Sequence[int]) -> int:
        return 4 * self.layers * self.width * sum(length**2 for length in lengths)


def matmul_rate(
    size: int, device: str = "cpu", dtype: torch.dtype = torch.float32, repeats: int = 5
) -> float:
    """FLOPs a second of `torch.mm` on square matrices: the machine's limit, median of repeats."""
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def seconds() -> float:
        started = time.perf_counter()
        torch.mm(left, right)
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - started

    seconds()
    return 2 * size**3 / statistics.median(seconds() for _ in range(repeats))


def own_peak() -> int:
    """Most memory this process has held, in bytes."""
    status = Path("/proc/self/status")
    if status.is_file():
        # ru_maxrss would begin at what the parent held when it started this process.
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(used if sys.platform == "darwin" else used * 1024)


def median_and_spread(values: Sequence[float], digits: int = 3) -> tuple[float, list[float]]:
    """The median, and least and most."""
    spread = [round(min(values), digits), round(max(values), digits)]
    return round(statistics.median(values), digits), spread


def alternating(sides: Sequence[Callable[[], None]], repeats: int) -> None:
    """Call every side in every repeat, each time beginning with the next one."""
    for repeat in range(repeats):
        first = repeat % len(sides)
        for side in [*sides[first:], *sides[:first]]:
            gc.collect()
            side()


def library_versions(*names: str) -> dict[str, str]:
    """Python's version and those of the named packages that are installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def peak_flops(name: str) -> float:
    """The device's dense bf16 peak by its name; infinity, so that a share is 0, where unknown."""
    found = set(re.split(r"[^a-z0-9]+", name.lower()))
    # A laptop's chip bears the name of a card that is faster.
    known = (peak for words, peak in PEAKS if found >= set(words.split()))
    return math.inf if "laptop" in found else next(known, math.inf)


def memory_growth(training: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Peak of the largest chunked batch over that of the smallest, for every setting."""
    found = []
    for compiled in (False, True):
        for checkpointing in (False, True):
            rows = [
                row
                for row in training
                if row["chunk"] is not None
                and row["peak_mb"] is not None
                and (row["compiled"], row["checkpointing"]) == (compiled, checkpointing)
            ]
            if len(rows) < 2:
                continue
            small, large = (pick(rows, key=lambda row: row["claims"]) for pick in (min, max))
            found.append(
                {
                    "checkpointing": checkpointing,
                    "compiled": compiled,
                    "batch_times": round(large["claims"] / small["claims"], 2),
                    "memory_times": round(large["peak_mb"] / small["peak_mb"], 3),
                }
            )
    return found
