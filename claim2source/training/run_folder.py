"""Manage the folder of a training run: its config, history, checkpoints and state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import yaml

from claim2source.core.config import as_plain, to_yaml
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import clean_leftovers, is_leftover, write_json, write_text
from claim2source.core.report import Epoch, Table
from claim2source.models.resolve import CHECKPOINTS, RUN_FILE
from claim2source.pipeline.selection import score_of
from claim2source.training.config import FinetuneConfig
from claim2source.training.state import STATE_FILE

CONFIG_FILE = "config.yaml"
MINED_FILE = "mined.jsonl"
# Settings that may change when a run is resumed: they change no optimizer step.
_FREE = (
    "resume",
    "overwrite",
    "after",
    "wandb",
    "out",
    "store",
    "device",
    "keep",
    "choose",
    "scales",
)


@dataclass
class RunFolder:
    """Locate a run's files and keep its history: one entry per evaluated epoch, 0 first."""

    path: Path
    history: list[Epoch] = field(default_factory=list)

    @classmethod
    def open(cls, config: FinetuneConfig) -> RunFolder:
        """Begin a run, or continue one with `resume`; clears what a killed process left.

        Raises `UserError` when the folder holds a run and `overwrite` is not set, and
        `ConfigError` naming the key when a resumed run was begun with another value.
        """
        path = config.out
        begun = (path / CONFIG_FILE).is_file()
        if config.resume:
            if not begun:
                raise UserError(f"{path}: no run to resume here")
            _refuse_changes(path / CONFIG_FILE, config)
            clean_leftovers(path)
            clean_leftovers(path / CHECKPOINTS)
            return cls(path, _read_history(path))
        if path.exists() and not all(is_leftover(file) for file in path.iterdir()):
            if not begun:
                raise UserError(f"{path}: not empty and not a run of ours; choose another --out")
            if not config.overwrite:
                raise UserError(f"{path}: holds a run; add --resume, --overwrite or another --out")
            shutil.rmtree(path)
        path.mkdir(parents=True, exist_ok=True)
        clean_leftovers(path)
        write_text(path / CONFIG_FILE, to_yaml(config))
        return cls(path)

    @property
    def state(self) -> Path:
        """Locate the state that the run resumes from."""
        return self.path / STATE_FILE

    @property
    def mined(self) -> Path:
        """Locate the mined negatives."""
        return self.path / MINED_FILE

    def mined_after(self, epoch: int) -> Path:
        """Locate the negatives that the model of an epoch mined."""
        return self.path / f"mined-epoch-{epoch}.jsonl"

    def checkpoint(self, epoch: int) -> Path:
        """Locate the checkpoint of an epoch; epoch 0 is the model before training."""
        return self.path / CHECKPOINTS / f"epoch-{epoch}"

    def scaled_checkpoint(self, epoch: int, scale: float) -> Path:
        """Locate an epoch's checkpoint at a scale between base (0) and trained (1)."""
        folder = self.checkpoint(epoch)
        return folder.with_name(f"{folder.name}-scale-{scale:.6g}")

    def best_epoch(self) -> int:
        """Find the epoch with the highest macro MRR@5 on val; the earliest of equals."""
        return max(self.history, key=lambda entry: (score_of(entry.val), -entry.epoch)).epoch

    def record(self, epoch: int, val: Table, loss: float | None) -> None:
        """Add an epoch's scores; a repeated epoch replaces its own and later entries."""
        self.history = [entry for entry in self.history if entry.epoch < epoch]
        self.history.append(Epoch(epoch, val, loss))
        self.write()

    def write(self, chosen: Path | None = None) -> None:
        """Write `run.json`: the history, and the chosen checkpoint at the end of the run."""
        name = None if chosen is None else chosen.name
        history = [asdict(entry) for entry in self.history]
        write_json(self.path / RUN_FILE, {"chosen": name, "history": history})

    def prune(self, keep: str) -> None:
        """With `keep: best`, delete all checkpoints but epoch 0, the best and the last."""
        if keep == "all":
            return
        needed = {0, self.best_epoch(), self.history[-1].epoch}
        for entry in self.history:
            if entry.epoch not in needed:
                shutil.rmtree(self.checkpoint(entry.epoch), ignore_errors=True)


def resumable(config: FinetuneConfig) -> bool:
    """Tell whether `config.out` holds a run that this config may resume."""
    file = config.out / CONFIG_FILE
    return file.is_file() and not _changes(file, config)


def _read_history(path: Path) -> list[Epoch]:
    try:
        history = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))["history"]
        return [Epoch(**entry) for entry in history]
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        raise InputError.at(path / RUN_FILE, field="history", why="missing or not JSON") from None


def _refuse_changes(file: Path, config: FinetuneConfig) -> None:
    for key, old, new in _changes(file, config):
        raise ConfigError(key, new, f"{old!r}, with which the run was begun")


def _changes(file: Path, config: FinetuneConfig) -> list[tuple[str, object, object]]:
    """List key, old and new value of changed settings that a resumed run may not change."""
    try:
        before = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError.at(file, why=f"not YAML: {error}") from None
    old, new, default = map(_leaves, (before, as_plain(config), as_plain(FinetuneConfig())))
    return [
        (key, was, new.get(key))
        for key in sorted(old.keys() | new.keys())
        # A setting that the run's config does not have is newer than the run.
        if key.partition(".")[0] not in _FREE
        and (was := old.get(key, default.get(key))) != new.get(key)
    ]


def _leaves(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Flatten nested settings to dotted keys."""
    flat: dict[str, object] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= _leaves(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
