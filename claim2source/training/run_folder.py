"""The folder of a training run: what it was asked, where it stands, what it kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from claim2source.core.config import as_plain, to_yaml
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import clean_leftovers, is_leftover, write_json, write_text
from claim2source.evaluation.retrieval import mean_of
from claim2source.models.resolve import RUN_FILE
from claim2source.training.checkpoint import STATE_FILE, epoch_folder
from claim2source.training.config import FinetuneConfig

CONFIG_FILE = "config.yaml"
MINED_FILE = "mined.jsonl"
REPORT_FILE = "report.json"
# Settings that may differ between a run and its resumption: they change no step of the training.
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
    """Paths of a run and its history: one entry per evaluated epoch, 0 first."""

    path: Path
    history: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(cls, config: FinetuneConfig) -> RunFolder:
        """Begin a run, or take one up again with `resume`.

        Raises `UserError` when the folder holds a run that was not to be replaced, and
        `ConfigError` naming the key when a resumed run was begun with another value. What a
        killed process left half written is cleared away.
        """
        path = config.out
        begun = (path / CONFIG_FILE).is_file()
        if config.resume:
            if not begun:
                raise UserError(f"{path}: no run to resume here")
            _refuse_changes(path / CONFIG_FILE, config)
            for folder in (path, epoch_folder(path, 0).parent):
                clean_leftovers(folder)
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
        """The state a run resumes from."""
        return self.path / STATE_FILE

    @property
    def mined(self) -> Path:
        """Its mined negatives."""
        return self.path / MINED_FILE

    def mined_after(self, epoch: int) -> Path:
        """Negatives that the model of an epoch mined."""
        return self.path / f"mined-epoch-{epoch}.jsonl"

    @property
    def report(self) -> Path:
        """Its final report."""
        return self.path / REPORT_FILE

    def checkpoint(self, epoch: int) -> Path:
        """The checkpoint of an epoch."""
        return epoch_folder(self.path, epoch)

    def scaled_checkpoint(self, epoch: int, scale: float) -> Path:
        """An epoch's checkpoint between the base and what was trained."""
        folder = self.checkpoint(epoch)
        return folder.with_name(f"{folder.name}-scale-{scale:.6g}")

    def best_epoch(self) -> int:
        """The epoch with the highest macro MRR@5 on val; the earliest of equals."""
        best = max(self.history, key=lambda entry: (mean_of(entry["val"]), -entry["epoch"]))
        return int(best["epoch"])

    def record(self, epoch: int, val: Mapping[str, Any], loss: float | None) -> None:
        """Add an epoch's scores, replacing those of an epoch that is done again."""
        self.history = [entry for entry in self.history if entry["epoch"] < epoch]
        self.history.append({"epoch": epoch, "val": dict(val), "loss": loss})
        self.write()

    def write(self, chosen: Path | None = None) -> None:
        """Write `run.json`: the history, and the chosen checkpoint once there is one."""
        name = None if chosen is None else chosen.name
        write_json(self.path / RUN_FILE, {"chosen": name, "history": self.history})

    def prune(self, keep: str) -> None:
        """With `keep: best`, drop checkpoints that are neither step 0, the best, nor the last."""
        if keep == "all":
            return
        needed = {0, self.best_epoch(), self.history[-1]["epoch"]}
        for entry in self.history:
            if entry["epoch"] not in needed:
                shutil.rmtree(self.checkpoint(entry["epoch"]), ignore_errors=True)


def resumable(config: FinetuneConfig) -> bool:
    """Whether the run in `config.out` was begun, and with settings that let this one go on."""
    file = config.out / CONFIG_FILE
    return file.is_file() and not _changes(file, config)


def _read_history(path: Path) -> list[dict[str, Any]]:
    try:
        return list(json.loads((path / RUN_FILE).read_text(encoding="utf-8"))["history"])
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError):
        raise InputError.at(path / RUN_FILE, field="history", why="missing or not JSON") from None


def _refuse_changes(file: Path, config: FinetuneConfig) -> None:
    for key, old, new in _changes(file, config):
        raise ConfigError(key, new, f"{old!r}, with which the run was begun")


def _changes(file: Path, config: FinetuneConfig) -> list[tuple[str, Any, Any]]:
    """Key, value before and now of every setting that a resumed run may not change."""
    try:
        before = yaml.safe_load(file.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise InputError.at(file, why=f"not YAML: {error}") from None
    now = as_plain(config)
    for key in _FREE:
        before.pop(key, None)
        now.pop(key, None)
    return _differences("", before, now)


def _differences(prefix: str, before: Any, now: Any) -> list[tuple[str, Any, Any]]:
    if isinstance(before, dict) and isinstance(now, dict):
        found: list[tuple[str, Any, Any]] = []
        for key in sorted(before.keys() | now.keys()):
            name = f"{prefix}.{key}" if prefix else key
            found += _differences(name, before.get(key), now.get(key))
        return found
    return [] if before == now else [(prefix, before, now)]
