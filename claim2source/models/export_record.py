"""`claim2source.json`: what a model that `train/merge.py` exported cannot say in its own format."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import write_json
from claim2source.models.manifest import Base, Manifest, Weights
from claim2source.models.templates import Template
from claim2source.text import Rendering

EXPORT_FILE = "claim2source.json"
_KEPT = ("base", "weights", "encoder", "rendering", "epoch", "data", "git", "versions", "format")


def write_export_record(folder: Path, manifest: Manifest, more: dict[str, Any]) -> None:
    """Write where a model's weights come from and how texts are rendered for it."""
    said = asdict(manifest)
    write_json(folder / EXPORT_FILE, {**{key: said[key] for key in _KEPT}, **more})


@dataclass(frozen=True)
class ExportRecord:
    """What an export says: how texts are written for it, and the base that it was tuned from.

    Where `claims_only`, that base encodes the sources.
    """

    template: Template
    rendering: Rendering
    base: Base
    claims_only: bool


def read_export_record(folder: Path) -> ExportRecord | None:
    """What an exported model says of itself; None for any other folder."""
    path = folder / EXPORT_FILE
    if not path.is_file():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return ExportRecord(
            Template(**said["encoder"]["template"]),
            Rendering(**said["rendering"]),
            Base(**said["base"]),
            Weights(**said["weights"]).trained == "query_only",
        )
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise InputError.at(path, why=f"a field is missing or unknown: {error}") from None
