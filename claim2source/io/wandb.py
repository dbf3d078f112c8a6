"""Log tables of an evaluation to Weights & Biases; find out whether there is a key."""

from __future__ import annotations

import importlib.util
import netrc
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import urlparse

from claim2source.core.errors import UserError
from claim2source.core.tables import TextTable

Tracking = Literal["off", "offline", "online"]
PROJECT = "claim2source"


def wandb_mode(asked: str) -> Tracking:
    """Resolve `auto`: WANDB_MODE where it is set, else online where there is a key."""
    if asked != "auto":
        return cast(Tracking, asked)
    mode = os.environ.get("WANDB_MODE")
    if mode == "disabled":
        return "off"
    return "online" if mode != "offline" and has_key() else "offline"


def has_key() -> bool:
    """Tell whether a W&B key is in the environment or in netrc."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def require_installed(instead: str) -> None:
    """Raise `UserError` where wandb is not installed; `instead` says how to do without it."""
    if importlib.util.find_spec("wandb") is None:
        raise UserError(f"wandb is not installed: pip install wandb, or {instead}")


def require_tracking(asked: Tracking) -> None:
    """Raise `UserError` where W&B is asked for but not possible; call it before the work."""
    if asked == "off":
        return
    require_installed("leave --wandb off")
    if asked == "online" and not has_key():
        raise UserError("wandb: online needs a key (run `wandb login`); or --wandb offline")


def log_tables(
    asked: Tracking,
    tables: Mapping[str, TextTable],
    *,
    folder: Path,
    program: str,
    config: Mapping[str, object],
) -> None:
    """Log tables to a W&B run named as `folder`, unless tracking is off.

    Raises `UserError` where W&B fails.
    """
    if asked == "off":
        return
    import wandb

    try:
        run = wandb.init(
            project=PROJECT,
            name=folder.resolve().name,
            dir=folder,
            job_type=program,
            config=dict(config),
            mode=asked,
        )
        run.log({table_key(name): as_wandb(table) for name, table in tables.items()})
        run.finish()
    except wandb.errors.Error as error:
        raise UserError(f"wandb: {error}; the tables are in {folder}") from None


def as_wandb(table: TextTable) -> Any:
    """Convert to a `wandb.Table`, whose columns may mix numbers and texts."""
    import wandb

    rows = [list(row) for row in table.rows]
    return wandb.Table(columns=list(table.columns), data=rows, allow_mixed_types=True)


def table_key(name: str) -> str:
    """Turn a name into a W&B key: lower-case letters, digits and underscores."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")
