"""Log a run's numbers: to CSV always, to Weights & Biases as the config says."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger

from claim2source.core.config import as_plain
from claim2source.core.files import write_json
from claim2source.core.report import MACRO, Epoch
from claim2source.core.tables import TextTable
from claim2source.io.wandb import Tracker, as_wandb, wandb_mode
from claim2source.training.config import RunConfig

_WANDB_FILE = "wandb.json"
# The name that Lightning's own logger gives it: a resumed run's curves go on.
_STEP = "trainer/global_step"


class RunLog:
    """Log numbers, tables and pictures of a run; tables and pictures go to W&B only.

    A resumed run gets a CSV file named by its first step.
    """

    def __init__(self, config: RunConfig, run: Path, first_step: int) -> None:
        version = f"step-{first_step:06d}"
        csv = CSVLogger(run, name="logs", version=version, flush_logs_every_n_steps=1)
        self.loggers: list[Logger] = [csv]
        mode = wandb_mode(config.wandb.mode)
        if mode != "off":
            wandb = config.wandb
            page = Tracker(
                mode,
                run,
                project=wandb.project,
                name=wandb.name,
                id=_wandb_id(run),
                resume="allow",
                config=as_plain(config),
            )
            self.loggers.append(WandbPage(page))

    def scores(self, entry: Epoch, step: int) -> None:
        """Log a point of the learning curves: an epoch's MRR@5 on val, by language and part."""
        values = {f"val/{lang}/mrr@5": row["mrr@5"] for lang, row in entry.val.items()}
        for part, table in entry.parts.items():
            values[f"val/{part} papers/mrr@5"] = table[MACRO]["mrr@5"]
        for logger in self.loggers:
            logger.log_metrics({"epoch": entry.epoch, **values}, step=step)

    def table(self, key: str, table: TextTable) -> None:
        """Show a table in W&B."""
        for page in self._pages:
            page.log({key: as_wandb(table)})

    def figure(self, key: str, file: Path) -> None:
        """Show a picture in W&B."""
        for page in self._pages:
            page.log_figure(key, file)

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
        """Name the logger."""
        return "wandb"

    @property
    def version(self) -> str:
        """Return the version: a run has one page."""
        return "0"

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Log nothing: the config was given when the run began."""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers over the optimizer steps."""
        self.page.log(dict(metrics) if step is None else {**metrics, _STEP: step})


def _wandb_id(run: Path) -> str:
    """Return the run's id in W&B, written to a file so that a resumed run continues its page."""
    path = run / _WANDB_FILE
    if path.is_file():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    new = uuid.uuid4().hex[:8]
    write_json(path, {"id": new})
    return new
