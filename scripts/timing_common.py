"""Train a few steps with Lightning as `train/finetune.py` does, and time or profile them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch

from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.module import RetrieverModule
from scripts.measure import Clock, seconds_by


class InOrder(BatchSampler):
    """Yield every pair once, in the given order, so that two trainers see the same batches."""

    def __init__(self, pairs: int, batch_size: int) -> None:
        super().__init__(range(pairs), batch_size, epochs=1)

    def epoch_batches(self, epoch: int) -> list[np.ndarray]:
        """List the row numbers of every batch."""
        rows = np.arange(len(self.groups))
        return [rows[i : i + self.per_step] for i in range(0, len(rows), self.per_step)]


class StepTimes(pl.Callback):
    """Measure the seconds of every step, work on a GPU included."""

    def __init__(self, clock: Clock = "wall") -> None:
        self.clock: Clock = clock
        self.ends: list[float] = []

    def on_train_start(self, *_: Any) -> None:
        """Start the clock."""
        self._stamp()

    def on_train_batch_end(self, *_: Any) -> None:
        """Note the end of a step."""
        self._stamp()

    def _stamp(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(seconds_by(self.clock))

    @property
    def seconds(self) -> list[float]:
        """Give the seconds of each step."""
        return steps_between(self.ends)


class StepProfile(pl.Callback):
    """Profile one step on the CPU."""

    def __init__(self, step: int) -> None:
        self.step = step
        self._profile = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])

    def on_train_batch_start(self, *arguments: Any) -> None:
        """Start the profile at the wanted step."""
        if arguments[-1] == self.step:
            self._profile.start()

    def on_train_batch_end(self, *arguments: Any) -> None:
        """Stop the profile after the wanted step."""
        if arguments[-1] == self.step:
            self._profile.stop()

    def shares(self, most: int) -> list[tuple[str, float, int]]:
        """List the `most` operators that took longest: name, share of the own time, calls."""
        events = sorted(self._profile.key_averages(), key=lambda e: -e.self_cpu_time_total)
        total = sum(event.self_cpu_time_total for event in events) or 1.0
        return [(e.key, e.self_cpu_time_total / total, int(e.count)) for e in events[:most]]


def steps_between(ends: Sequence[float]) -> list[float]:
    """Compute the seconds between consecutive ends of steps."""
    return [later - earlier for earlier, later in zip(ends, ends[1:], strict=False)]


def fit(
    module: RetrieverModule,
    sampler: BatchSampler,
    *,
    precision: Literal["fp32", "bf16"] = "fp32",
    callbacks: Iterable[pl.Callback] = (),
    strategy: pl.strategies.Strategy | str = "auto",
    clock: Clock = "wall",
) -> list[float]:
    """Train for an epoch as `train/finetune.py` does, without logs; give seconds per step."""
    times = StepTimes(clock)
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="gpu" if module.encoder.device.type == "cuda" else "cpu",
            devices=1,
            strategy=strategy,
            precision="bf16-mixed" if precision == "bf16" else "32-true",
            gradient_clip_val=module.config.max_grad_norm or None,
            logger=False,
            callbacks=[*callbacks, times],
            use_distributed_sampler=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=0,
        )
        module.encoder.model.train()
        trainer.fit(module, BatchLoader(sampler, module.ready))
    return times.seconds
