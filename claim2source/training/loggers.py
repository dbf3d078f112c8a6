"""Log a run's numbers: to CSV always, to Weights & Biases as the config says."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import CSVLogger, Logger

from claim2source.core.config import as_plain
from claim2source.core.errors import UserError
from claim2source.core.files import write_json
from claim2source.core.report import Table
from claim2source.io.wandb import wandb_mode
from claim2source.training.config import FinetuneConfig

_WANDB_FILE = "wandb.json"


def make_loggers(config: FinetuneConfig, run: Path, first_step: int) -> list[Logger]:
    """Create the loggers of a run; a resumed run gets a CSV file named by its first step."""
    csv = CSVLogger(run, name="logs", version=f"step-{first_step:06d}", flush_logs_every_n_steps=1)
    mode = wandb_mode(config.wandb.mode)
    if mode == "off":
        return [csv]
    try:
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
    except ModuleNotFoundError:
        raise UserError(
            "wandb is not installed: pip install wandb, or turn it off with --wandb.mode off"
        ) from None
    return [csv, wandb]


def end_loggers(loggers: Sequence[Logger]) -> None:
    """Close the run's logs; later evaluations are W&B runs of their own."""
    for logger in loggers:
        logger.finalize("success")
        finish = getattr(getattr(logger, "experiment", None), "finish", None)
        if finish is not None:
            finish()


def log_table(
    loggers: Sequence[Logger], key: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    """Show a table in W&B; the CSV logger takes numbers only."""
    for logger in loggers:
        if hasattr(logger, "log_table"):
            logger.log_table(key=key, columns=list(columns), data=[list(row) for row in rows])


def log_figure(loggers: Sequence[Logger], key: str, file: Path) -> None:
    """Show a picture in W&B."""
    for logger in loggers:
        if hasattr(logger, "log_image"):
            logger.log_image(key=key, images=[str(file)])


def log_scores(loggers: Sequence[Logger], epoch: int, table: Table, step: int) -> None:
    """Log a point of the learning curves: an epoch's MRR@5 on val, by language."""
    values = {f"val/{lang}/mrr@5": row["mrr@5"] for lang, row in table.items()}
    for logger in loggers:
        logger.log_metrics({"epoch": epoch, **values}, step=step)


def _wandb_id(run: Path) -> str:
    """Return the run's id in W&B, written to a file so that a resumed run continues its page."""
    path = run / _WANDB_FILE
    if path.is_file():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    new = uuid.uuid4().hex[:8]
    write_json(path, {"id": new})
    return new
