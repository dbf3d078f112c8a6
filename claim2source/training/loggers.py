"""Log a run's numbers: to CSV always, to Weights & Biases as the config says."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from pytorch_lightning.loggers import CSVLogger, Logger

from claim2source.core.config import as_plain
from claim2source.core.files import write_json
from claim2source.core.report import Table
from claim2source.core.tables import TextTable
from claim2source.io.wandb import require_installed, wandb_mode
from claim2source.training.config import FinetuneConfig

_WANDB_FILE = "wandb.json"


class RunLog:
    """Log numbers, tables and pictures of a run; tables and pictures go to W&B only.

    A resumed run gets a CSV file named by its first step.
    """

    def __init__(self, config: FinetuneConfig, run: Path, first_step: int) -> None:
        version = f"step-{first_step:06d}"
        csv = CSVLogger(run, name="logs", version=version, flush_logs_every_n_steps=1)
        self.loggers: list[Logger] = [csv]
        mode = wandb_mode(config.wandb.mode)
        if mode != "off":
            require_installed("turn it off with --wandb.mode off")
            from pytorch_lightning.loggers import WandbLogger

            wandb = WandbLogger(
                project=config.wandb.project,
                name=config.wandb.name or run.resolve().name,
                save_dir=run,
                offline=mode == "offline",
                id=_wandb_id(run),
                resume="allow",
                config=as_plain(config),
            )
            self.loggers.append(wandb)

    def scores(self, epoch: int, table: Table, step: int) -> None:
        """Log a point of the learning curves: an epoch's MRR@5 on val, by language."""
        values = {f"val/{lang}/mrr@5": row["mrr@5"] for lang, row in table.items()}
        for logger in self.loggers:
            logger.log_metrics({"epoch": epoch, **values}, step=step)

    def table(self, key: str, table: TextTable) -> None:
        """Show a table in W&B."""
        for logger in self.loggers:
            if hasattr(logger, "log_table"):
                rows = [list(row) for row in table.rows]
                logger.log_table(key=key, columns=list(table.columns), data=rows)

    def figure(self, key: str, file: Path) -> None:
        """Show a picture in W&B."""
        for logger in self.loggers:
            if hasattr(logger, "log_image"):
                logger.log_image(key=key, images=[str(file)])

    def close(self) -> None:
        """Close the logs; later evaluations are W&B runs of their own."""
        for logger in self.loggers:
            logger.finalize("success")
            finish = getattr(getattr(logger, "experiment", None), "finish", None)
            if finish is not None:
                finish()


def _wandb_id(run: Path) -> str:
    """Return the run's id in W&B, written to a file so that a resumed run continues its page."""
    path = run / _WANDB_FILE
    if path.is_file():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    new = uuid.uuid4().hex[:8]
    write_json(path, {"id": new})
    return new
