"""Manage a training run's folder: its config, history, checkpoints and state."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from claim2source import __version__
from claim2source.core.config import as_plain, to_yaml
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import (
    clean_leftovers,
    file_hash,
    is_leftover,
    require_writable,
    same_file,
    write_json,
    write_text,
)
from claim2source.core.folders import (
    CHECKPOINTS,
    CONFIG_FILE,
    MARKER,
    PREVIOUS_STATE_FILE,
    RUN_FILE,
    STATE_FILE,
    check_aside,
    is_run,
    is_unbegun,
    kept_run_reason,
    put_aside,
    run_settings,
)
from claim2source.core.lock import LOCK_FILE, FolderLock
from claim2source.core.report import Epoch
from claim2source.core.validate import read_json, validated
from claim2source.models.manifest import NEW_SINCE_0_2
from claim2source.search.choose import choice_score
from claim2source.training.config import RunConfig
from claim2source.training.loss_list import differing_losses

MINED_FILE = "mined.jsonl"
# Settings that may change when a run is resumed, because they affect no optimizer step.
_FREE = "resume overwrite after wandb out store device keep choose rule".split()
_SEEN_SHARE = "data.val_seen_share"
# Runs of versions 0.1 and 0.2 do not have this.
_NEWEST = f"optimisation.{NEW_SINCE_0_2}"


@dataclass
class RunFile:
    """Contents of `run.json`: one entry of `history` per evaluated epoch, 0 first.

    `chosen` names the checkpoint of a finished run. `begun_with` are the hashes of the inputs
    outside the folder that determine losses and choice. `steps` is the number of optimizer steps
    in the last saved state, `skipped_steps` the number of skipped ones.
    """

    chosen: str | None
    history: list[Epoch]
    begun_with: dict[str, str | None] = field(default_factory=dict)
    steps: int | None = None
    skipped_steps: int = 0

    @classmethod
    def read(cls, run: Path) -> RunFile:
        """Read a run's file. Raises `InputError` if there is none, or it is damaged."""
        file = run / RUN_FILE
        if not file.exists():
            raise InputError(file, reason="is missing, and without it no epoch can be chosen")
        return validated(cls, read_json(file), file)


@dataclass
class RunFolder:
    """Locate a run's files, and keep the contents of `run.json`.

    `find` changes nothing; `begin` makes the folder, once all inputs are checked. A folder is
    locked from either call until `release`. `config` has the settings that the run records, with
    the share of seen papers' claims in val: a resumed run keeps the share that it began with,
    whatever its rule of choice is now. `mined` is the file of the training negatives. `damaged`:
    the newest saved state cannot be read.
    """

    path: Path
    config: RunConfig = field(default_factory=RunConfig)
    file: RunFile = field(default_factory=lambda: RunFile(None, []))
    resumes: bool = False
    replaces: bool = False
    lock: FolderLock | None = None
    damaged: bool = False
    mined: Path = field(init=False)

    def __post_init__(self) -> None:
        self.mined, config = self.path / MINED_FILE, self.config
        data = replace(config.data, val_seen_share=config.held_out_seen)
        self.config = replace(config, data=data)

    @classmethod
    def find(cls, config: RunConfig, *, lock: bool = True) -> RunFolder:
        """Find the run to continue or replace, or the folder of a new one; change nothing.

        Raises `UserError` if the folder is not ours, is in use, or has a run that is neither
        resumed nor replaced, and `ConfigError` with the key if a resumed run began with another
        value.
        """
        path, exists = config.out, is_run(config.out)
        resumes, replaces = exists and config.resume, exists and config.overwrite
        run = cls(path, config, resumes=resumes, replaces=replaces)
        folder = _resolved(path)
        require_writable(folder, "folder")
        if not exists and not is_unbegun(path):
            _require_free(path, config)
            return run
        if exists and not (config.resume or config.overwrite):
            raise UserError(f"{path}: has a run; add --resume, --overwrite or another --out")
        if lock:
            run.lock = FolderLock(folder)
        try:
            if run.replaces:
                _refuse_inputs_within(folder, _named_settings(config))
                check_aside(folder, kept_run_reason)
            if run.resumes:
                run._continue(config)
        except BaseException:
            run.release()
            raise
        return run

    def _continue(self, config: RunConfig) -> None:
        """Read the run's history, and check that it continues with the same settings."""
        begun, wanted = run_settings(self.path), as_plain(config)
        losses = begun.pop("losses", None), wanted.pop("losses", None)
        before = _flattened(begun)
        if _NEWEST not in before:
            reason = "is missing, damaged or of an earlier version: the run cannot be resumed"
            raise InputError(
                self.path / CONFIG_FILE, reason=f"{reason}; start again with --overwrite"
            )
        settings, defaults = _flattened(wanted), _flattened(as_plain(type(config)()))
        if losses[1] is not None:
            self._require_losses(*losses)
        share = before.get(_SEEN_SHARE)
        if config.data.val_seen_share is None and isinstance(share, int | float):
            settings[_SEEN_SHARE] = share
            self.config = replace(config, data=replace(config.data, val_seen_share=share))
        for key in sorted(before.keys() | settings.keys()):
            # A setting that the run's config lacks is newer than the run.
            old, new = before.get(key, defaults.get(key)), settings.get(key)
            if old != new and key.partition(".")[0] not in _FREE:
                raise ConfigError(key, new, f"{old!r}, with which the run was begun")
        self.file = RunFile.read(self.path)
        if not self.is_finished:
            # The state has its own, once it is read.
            self.file.steps, self.file.skipped_steps = None, 0
        if self.is_finished or self.state.is_file():
            self.check_history(0)

    def _require_losses(self, before: object, now: object) -> None:
        """Raise `UserError` if a resumed run has other losses; 1.0 wrote them as a mapping."""
        try:
            differing = list(differing_losses(before, now))
        except ConfigError as error:
            raise InputError(self.path / CONFIG_FILE, None, error.key, error.reason) from None
        for key, old, new in differing:
            raise ConfigError(key, new, f"{old!r}, with which the run was begun")

    def begin(self) -> None:
        """Make the folder, or remove a killed process's files; move a replaced run aside."""
        folder = _resolved(self.path)
        if self.replaces:
            target = put_aside(folder)
            if self.lock is not None:
                self.lock.path = target / LOCK_FILE
            print(f"{self.path}: the earlier run is now in {target}", flush=True)
            self.release()
        folder.mkdir(parents=True, exist_ok=True)
        if self.lock is None:
            self.lock = FolderLock(folder)
        if not self.resumes:
            if is_run(folder):
                raise UserError(f"{self.path}: another process has just started a run here")
            write_text(folder / MARKER, f"A training run of Claim2Source {__version__}.\n")
            write_text(folder / CONFIG_FILE, to_yaml(self.config))
        clean_leftovers(folder)
        clean_leftovers(folder / CHECKPOINTS)
        if self.damaged:
            # The next save must keep this state, not the damaged one.
            same_file(previous_state(self.state), self.state)

    @property
    def stopped_text(self) -> str:
        if self.file.steps is not None:
            return f"stopped at step {self.file.steps}; continue with --resume"
        if self.file.history:
            return "stopped before the first step was saved; continue with --resume"
        return "stopped before anything was scored; start it again"

    def release(self) -> None:
        if self.lock is not None:
            self.lock.release()
            self.lock = None

    @property
    def state(self) -> Path:
        return self.path / STATE_FILE

    @property
    def has_state(self) -> bool:
        return self.state.is_file() or previous_state(self.state).is_file()

    @property
    def is_finished(self) -> bool:
        """Whether the run has been reported, so that it has no state to resume from."""
        return self.resumes and self.file.chosen is not None and not self.has_state

    def require_inputs(self, begun_with: dict[str, str | None]) -> None:
        """Set the inputs of a new run. Raises `UserError` if a resumed run began with others."""
        for name, sha256 in self.file.begun_with.items():
            if begun_with.get(name) != sha256:
                reason = f"the {name} has changed since the run began"
                raise UserError(f"{reason}; start again with --overwrite or another --out")
        self.file.begun_with = begun_with

    def remove_states(self) -> None:
        """Remove the saved states of a finished run: two copies of weights and optimizer."""
        for path in (previous_state(self.state), self.state):
            path.unlink(missing_ok=True)

    @property
    def mined_sha256(self) -> str | None:
        """Hash the training negatives; None before there are any."""
        return file_hash(self.mined) if self.mined.is_file() else None

    def checkpoint(self, epoch: int) -> Path:
        """Locate the checkpoint of an epoch; epoch 0 is the model before training."""
        return self.path / CHECKPOINTS / f"epoch-{epoch}"

    def best_trained(self) -> int:
        """Find the trained epoch with the best score on val; the earliest of equals."""

        def score(entry: Epoch) -> float:
            return choice_score(entry.val) if entry.score is None else entry.score

        history = self.file.history
        among = [entry for entry in history if entry.epoch] or history
        return max(among, key=lambda entry: (score(entry), -entry.epoch)).epoch

    def check_history(self, epochs_done: int) -> None:
        """Raise `InputError` if the history lacks an epoch before the saved state."""
        recorded = {entry.epoch for entry in self.file.history}
        for epoch in range(epochs_done + 1):
            if epoch not in recorded:
                reason = f"epoch {epoch} is missing, but the run was trained beyond it"
                raise InputError(self.path / RUN_FILE, field="history", reason=reason)

    def record(self, entry: Epoch) -> None:
        """Add an epoch's scores; a repeated epoch replaces its own entry and later ones."""
        earlier = [epoch for epoch in self.file.history if epoch.epoch < entry.epoch]
        self.file.history = [*earlier, entry]
        self.write()

    def write(self, checkpoint: Path | None = None) -> None:
        """Write `run.json`: the history, and the chosen checkpoint at the end of the run."""
        self.file.chosen = None if checkpoint is None else checkpoint.name
        write_json(self.path / RUN_FILE, asdict(self.file))

    def prune(self, chosen_epoch: int) -> None:
        """Delete all checkpoints except those that can still be chosen.

        These are epoch 0, the best trained one, the last one and `chosen_epoch`.
        """
        history = self.file.history
        epochs = {0, chosen_epoch, self.best_trained(), history[-1].epoch}
        for entry in history:
            if entry.epoch not in epochs:
                shutil.rmtree(self.checkpoint(entry.epoch), ignore_errors=True)


def previous_state(path: Path) -> Path:
    return path.with_name(PREVIOUS_STATE_FILE)


def _resolved(path: Path) -> Path:
    """Resolve links, so that they still point to the run when another replaces it."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise InputError(path, reason="cannot be used: its links lead nowhere") from None


def _require_free(path: Path, config: RunConfig) -> None:
    """Raise `UserError` if there is no run to resume, or if files are not ours."""
    if config.resume:
        raise UserError(f"{path}: no run to resume here")
    for file in path.iterdir() if path.exists() else ():
        if not is_leftover(file) and file.name != LOCK_FILE:
            raise UserError(f"{path}: not empty and not a run of ours; choose another --out")


def _refuse_inputs_within(folder: Path, settings: Mapping[str, object]) -> None:
    for key, value in settings.items():
        if key in ("out", "store"):
            continue
        for name in value if isinstance(value, list) else [value]:
            if not isinstance(name, str) or not os.path.exists(name):
                continue
            if Path(name).resolve().is_relative_to(folder):
                raise ConfigError(key, name, "a path outside the run that is replaced")


def _named_settings(config: RunConfig) -> dict[str, object]:
    """Return all settings by their keys, including those of losses."""
    settings = as_plain(config)
    losses: dict[str, object] = {}
    for loss in settings.get("losses", ()):
        losses |= loss
    return _flattened({**settings, "losses": losses})


def _flattened(config: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        flat |= _flattened(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
