"""`manifest.json`: what a checkpoint is, so that it is evaluated as it was trained."""

from __future__ import annotations

import json
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from claim2source.core.config import REPOSITORY, require_one_of
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import write_json
from claim2source.models.templates import EncoderSettings, Template
from claim2source.text import Rendering

FILE = "manifest.json"
FORMAT = 1
_VERSIONED = (
    "claim2source",
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "pytorch-lightning",
    "tokenizers",
    "faiss-cpu",
    "faiss-gpu",
    "bm25s",
    "numpy",
)


@dataclass(frozen=True)
class Base:
    """The model a checkpoint starts from: its name, hub revision and weights' sha256."""

    name: str
    revision: str | None
    sha256: str


@dataclass(frozen=True)
class Weights:
    """What a checkpoint adds to its base.

    `base`: nothing (step 0). `lora`: an adapter in this folder, added at `scale`.
    `full`: a whole model in this folder, `scale` of the way from the base to what was trained
    (it is in the weights already). `sha256` is that of the safetensors file,
    `config_sha256` that of the JSON beside it that says how its weights are used. With
    `trained: query_only` they serve claims; sources are encoded by the base.
    """

    kind: Literal["base", "lora", "full"] = "base"
    sha256: str | None = None
    scale: float = 1.0
    config_sha256: str | None = None
    trained: Literal["both", "query_only"] = "both"

    def __post_init__(self) -> None:
        require_one_of("weights.kind", self.kind, ("base", "lora", "full"))
        require_one_of("weights.trained", self.trained, ("both", "query_only"))


@dataclass(frozen=True)
class Manifest:
    """Everything needed to use a checkpoint without repeating how it was trained."""

    base: Base
    weights: Weights
    encoder: EncoderSettings
    rendering: Rendering
    epoch: int = 0
    data: dict[str, Any] = field(default_factory=dict)
    scores: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    git: str | None = None
    versions: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write `manifest.json` into `folder`, atomically."""
        write_json(folder / FILE, asdict(self))

    @classmethod
    def read(cls, folder: str | Path) -> Manifest:
        """Read `manifest.json` of a checkpoint; raises `InputError` naming file and field."""
        path = Path(folder) / FILE
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputError.at(path, why="no such file; not a checkpoint of ours") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError.at(path, why=f"not JSON: {error}") from None
        if not isinstance(raw, dict) or raw.get("format") != FORMAT:
            raise InputError.at(path, field="format", why=f"this version reads format {FORMAT}")
        try:
            encoder = dict(raw.pop("encoder"))
            encoder["template"] = Template(**encoder["template"])
            return cls(
                base=Base(**raw.pop("base")),
                weights=Weights(**raw.pop("weights")),
                encoder=EncoderSettings(**encoder),
                rendering=Rendering(**raw.pop("rendering")),
                **raw,
            )
        except UserError as error:
            raise InputError.at(path, why=str(error)) from None
        except (KeyError, TypeError, ValueError) as error:
            raise InputError.at(path, why=f"a field is missing or unknown: {error}") from None


def git_state() -> str | None:
    """Commit of the checkout that runs, with "+changes" where it differs; None outside one."""
    if not (REPOSITORY / ".git").exists():
        return None
    try:
        commit = _git("rev-parse", "HEAD")
        return f"{commit}+changes" if _git("status", "--porcelain") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(REPOSITORY), *arguments],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return done.stdout.strip()


def versions() -> dict[str, str]:
    """Versions of what shapes the vectors, as installed."""
    found = {"python": platform.python_version()}
    for name in _VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
