"""`claim2source.json`: what a model that `train/merge.py` exported cannot say in its own format."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from claim2source.encode.manifest import Manifest
from claim2source.encode.templates import Template
from claim2source.errors import InputError, UserError
from claim2source.files import write_json
from claim2source.text import Rendering

EXPORT_FILE = "claim2source.json"
_KEPT = ("base", "weights", "encoder", "rendering", "epoch", "data", "git", "versions", "format")


def write_exported(folder: Path, manifest: Manifest, more: dict[str, Any]) -> None:
    """Write where a model's weights come from and how texts are rendered for it."""
    said = asdict(manifest)
    write_json(folder / EXPORT_FILE, {**{key: said[key] for key in _KEPT}, **more})


def exported(folder: Path) -> tuple[Template | None, Rendering | None]:
    """Template and rendering of an exported model; (None, None) for any other folder."""
    path = folder / EXPORT_FILE
    if not path.is_file():
        return None, None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        return Template(**said["encoder"]["template"]), Rendering(**said["rendering"])
    except (KeyError, TypeError, ValueError, UserError) as error:
        raise InputError.at(path, why=f"a field is missing or unknown: {error}") from None
