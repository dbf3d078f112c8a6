"""Where a run's numbers go: CSV always, Weights & Biases as the config says."""

from __future__ import annotations

import json
import netrc
import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pytorch_lightning.loggers import CSVLogger

from claim2source.config import as_plain
from claim2source.errors import UserError
from claim2source.files import write_json
from claim2source.training.config import FinetuneConfig

_WANDB_FILE = "wandb.json"


def make_loggers(config: FinetuneConfig, run: Path, first_step: int) -> list[Any]:
    """The loggers of a run; a resumed one gets a CSV of its own, named by its first step."""
    csv = CSVLogger(run, name="logs", version=f"step-{first_step:06d}", flush_logs_every_n_steps=1)
    mode = wandb_mode(config.wandb.mode)
    if mode == "off":
        return [csv]
    try:
        from pytorch_lightning.loggers import WandbLogger

        logger = WandbLogger(
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
    return [csv, logger]


def log_table(loggers: Sequence[Any], key: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Show a table in W&B; the CSV logger takes numbers only."""
    for logger in loggers:
        if hasattr(logger, "log_table"):
            logger.log_table(key=key, columns=columns, data=rows)


def wandb_mode(asked: str) -> str:
    """`online`, `offline` or `off`; `auto` is online exactly when a key is there."""
    if asked != "auto":
        return asked
    if os.environ.get("WANDB_MODE") in ("disabled", "offline"):
        return {"disabled": "off", "offline": "offline"}[os.environ["WANDB_MODE"]]
    return "online" if _has_key() else "offline"


def _has_key() -> bool:
    """Whether a key is in the environment or in netrc; it is not read out."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def _wandb_id(run: Path) -> str:
    """The run's id at W&B, kept so that a resumed run goes on in the same page."""
    path = run / _WANDB_FILE
    if path.is_file():
        return str(json.loads(path.read_text(encoding="utf-8"))["id"])
    made = uuid.uuid4().hex[:8]
    write_json(path, {"id": made})
    return made
