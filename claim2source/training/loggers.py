"""Log a run's numbers: to CSV always, to Weights & Biases as the config says."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger

from claim2source.core.config import as_plain
from claim2source.core.report import MACRO, Epoch
from claim2source.core.tables import TextTable
from claim2source.io.wandb import Tracker, TrainingPage, as_wandb, group_above, wandb_mode
from claim2source.training.run_folder import RunFolder

# The name that Lightning's own logger gives it: a resumed run's curves go on.
_STEP = "trainer/global_step"


class RunLog:
    """Log numbers and tables of a run; tables go to W&B only.

    A resumed run gets a CSV file named by its first step. They are opened when first used.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run = run

    @cached_property
    def loggers(self) -> list[Logger]:
        """Open the CSV file, and the page in W&B."""
        folder, version = self.run.path, f"step-{self.run.saved_steps or 0:06d}"
        csv = CSVLogger(folder, name="logs", version=version, flush_logs_every_n_steps=1)
        mode = wandb_mode(self.run.config.wandb.mode)
        if mode == "off":
            return [csv]
        # A resumed run's page goes on.
        config, page = self.run.config.wandb, TrainingPage.read(folder)
        page = page or TrainingPage(uuid.uuid4().hex[:8])
        name = config.name or folder.resolve().name
        group = (
            page.group
            or os.environ.get("WANDB_RUN_GROUP")
            or group_above(folder.resolve().parent)
            or f"{name}-{page.id}"  # two runs may have one name
        )
        TrainingPage(page.id, config.project, name, group).write(folder)
        settings = as_plain(self.run.config)
        tracker = Tracker(
            mode, folder, id=page.id, resume="allow", job_type="train", config=settings
        )
        return [csv, WandbPage(tracker)]

    def scores(self, entry: Epoch, step: int) -> None:
        """Log a point of the learning curves: an epoch's MRR@5 on val, by language and part."""
        values = {f"val/{lang}/mrr@5": row["mrr@5"] for lang, row in entry.val.items()}
        for part, table in entry.parts.items():
            values[f"val/{part} papers/mrr@5"] = table[MACRO]["mrr@5"]
        for logger in self.loggers:
            logger.log_metrics({"epoch": entry.epoch, **values}, step=step)

    def table(self, key: str, table: TextTable) -> None:
        for page in self._pages:
            page.log({key: as_wandb(table)})

    def close(self) -> None:
        """Close the logs; later evaluations are W&B runs of their own."""
        for logger in self.loggers:
            logger.finalize("success")
        for page in self._pages:
            page.close()

    @property
    def _pages(self) -> list[Tracker]:
        return [logger.page for logger in self.loggers if isinstance(logger, WandbPage)]


class WandbPage(Logger):
    """Log Lightning's numbers to a W&B run that never stops the training."""

    def __init__(self, page: Tracker) -> None:
        super().__init__()
        self.page = page
        page.define_steps(_STEP)

    @property
    def name(self) -> str:
        return "wandb"

    @property
    def version(self) -> str:
        return "0"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Log nothing: the config was given when the run began."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.page.log(dict(metrics) if step is None else {**metrics, _STEP: step})
