"""Log every optimizer step: its losses, and how much went through."""

from __future__ import annotations

import time
from typing import Any

import pytorch_lightning as pl

from claim2source.core.memory import peak_memory
from claim2source.training.state import skipped_steps
from claim2source.training.steps import TrainingModule


class Throughput(pl.Callback):
    """Log losses, claims and tokens per second and memory of every optimizer step.

    Lightning gets the same numbers, so that other callbacks can monitor them.
    """

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: pl.LightningModule, *arguments: Any
    ) -> None:
        """Log the step that this batch closed."""
        assert isinstance(module, TrainingModule)
        if not module.window.closed:
            return
        window, step, world = module.window, module.step, trainer.world_size
        seconds = max(time.perf_counter() - window.started, 1e-9)
        values = {
            "loss": step.terms["loss"],
            **window.taught_counts(),
            **{
                name if name in module.measures else f"loss/{name}": value
                for name, value in step.terms.items()
                if name != "loss"
            },
            "learning_rate": step.rate,
            "gradient_norm": step.norm,
            "skipped_steps": skipped_steps(module.losses),
            "claims_per_second": world * window.claims / seconds,
            "real_tokens_per_second": world * window.real / seconds,
            "padded_tokens_per_second": world * window.padded / seconds,
            "peak_memory_mib": peak_memory() / 2**20,
        }
        # By our own count of steps: it goes on where a run resumes.
        for logger in trainer.loggers:
            logger.log_metrics(values, step=module.steps_done)
        module.log_dict({name: float(value) for name, value in values.items()}, logger=False)
