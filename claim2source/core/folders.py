"""Recognise a training run's folder, protect it from other programs, and move it aside."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from claim2source.core.config import as_plain, read_yaml
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import require_writable
from claim2source.core.lock import LOCK_FILE
from claim2source.core.validate import MOST_BYTES

MARKER = ".claim2source-run"
CONFIG_FILE = "config.yaml"
RUN_FILE = "run.json"
STATE_FILE = "state.pt"
PREVIOUS_STATE_FILE = "state.previous.pt"
CHECKPOINTS = "checkpoints"
EVALUATION = "evaluation"
_REPORTS, _SIGN = ("report.json", "compare.json"), '"split"'  # contained in their beginning
_BEGINNING = 2**16  # bytes
_CHECKPOINT_FILE = r"[^/]+\.(json|safetensors|txt|model)"
_CHECKPOINT_NAME = r"(?P<kind>epoch|soup)-(?P<number>[0-9]+)(-[0-9]+)*(-scale-[^/]+)?"
_CHECKPOINT = re.compile(_CHECKPOINT_NAME)
# All files that the trainer, its loggers and other programs write into a run's folder.
_OURS = re.compile(
    rf"""
    ({re.escape(MARKER)} | {re.escape(LOCK_FILE)} | config\.yaml | run\.json | report\.json
    | state(\.previous)?\.pt | scales\.png | wandb\.json | row\.json | mined(-epoch-\d+)?\.jsonl
    | logs/step-\d+/(metrics\.csv|hparams\.yaml) | (.+/)?wandb/.+
    | checkpoints/{_CHECKPOINT_NAME}/(\d+_\w+/)?{_CHECKPOINT_FILE}
    | interpolation/(scale-[^/]+/{_CHECKPOINT_FILE}|interpolation\.(json|png)|report\.(json|md))
    | evaluation/(.+/)?(report\.(json|md|html)|compare\.(json|md)|bm25\.yaml|claims\.html)
    | evaluation/(.+/)?groups\.(json|md|csv)
    | evaluation/(.+/)?(grid\.(json|csv)|quality\.csv|heatmap(_[^/]+)?\.png)
    | evaluation/(.+/)?runs/(.+/)?trained_on\.json
    | evaluation/(.+/)?(runs/(.+/)?[^/]+\.trec|submission_202[56]/predictions[^/]*\.tsv)
    | (.+/)?\.[^/]+\.[a-z0-9_]{{8}}\.(tmp|old)(/.+)?)
    """,
    re.VERBOSE,
)


def is_run(folder: Path) -> bool:
    """Whether a folder is one of our training runs and has scored a checkpoint.

    Runs are recognised by the trainer's marker only, since other programs write a `config.yaml`
    too. A run that was stopped before its first checkpoint was scored is not one: `is_unbegun`.
    """
    return _has_progress(folder) and _is_ours(folder)


def is_unbegun(folder: Path) -> bool:
    """Whether the trainer made this folder and was stopped before it scored a checkpoint."""
    return not _has_progress(folder) and _is_ours(folder)


def _has_progress(folder: Path) -> bool:
    trained = (folder / CHECKPOINTS).glob("epoch-[1-9]*")
    has_file = any((folder / name).exists() for name in (RUN_FILE, STATE_FILE, "mined.jsonl"))
    return has_file or any(trained)


def _is_ours(folder: Path) -> bool:
    return (folder / MARKER).is_file()


def run_settings(folder: Path) -> dict[str, object]:
    """Read a run's config; an empty one if it is missing or unreadable."""
    try:
        if (folder / CONFIG_FILE).stat().st_size > MOST_BYTES:
            return {}
        values = as_plain(read_yaml(folder / CONFIG_FILE))
    except (OSError, InputError):
        return {}
    if isinstance(values, dict):
        return values
    return {}


def checkpoints_in(run: Path) -> tuple[list[Path], list[Path]]:
    """List a run's checkpoints (epochs in order, then soups) and the other folders next to them.

    The other folders are copies that somebody made, such as `epoch-1.bak`.
    """
    epochs: list[tuple[int, str, Path]] = []
    soups: list[Path] = []
    others: list[Path] = []
    for path in sorted((run / CHECKPOINTS).glob("[!.]*/")):
        match = _CHECKPOINT.fullmatch(path.name)
        if match is None:
            others.append(path)
        elif match["kind"] == "epoch":
            epochs.append((int(match["number"]), path.name, path))
        else:
            soups.append(path)
    return [*(path for _, _, path in sorted(epochs)), *soups], others


def foreign_file(run: Path) -> str | None:
    """Find a file in a run's folder that none of our programs wrote; None if there is none."""
    return next((name for name in _files(run) if not _OURS.fullmatch(name)), None)


def _files(folder: Path) -> Iterator[str]:
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        for name in sorted([*files, *links]):
            yield Path(parent, name).relative_to(folder).as_posix()


def kept_run_reason(folder: Path) -> str | None:
    """Return the reason to keep an earlier run that was moved aside; None if it may be removed."""
    if folder.is_symlink() or not is_run(folder):
        return "is not a training run of this program"
    name = foreign_file(folder)
    return None if name is None else f"contains {name!r}, which no training run wrote"


def replaced_folder(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.replaced")


def check_aside(folder: Path, reason_to_keep: Callable[[Path], str | None]) -> None:
    """Raise `UserError` if `put_aside` would lose something, or cannot rename the folder.

    `reason_to_keep` returns the reason to keep the folder that was moved aside earlier.
    """
    target = replaced_folder(folder)
    if os.path.lexists(target) and (reason := reason_to_keep(target)) is not None:
        raise UserError(
            f"{target}: {reason}, and {folder.name} would replace it; move it away first"
        )
    if Path.cwd().is_relative_to(folder):
        raise UserError(f"{folder}: is the current folder; run the command from another one")
    if not os.access(folder.parent, os.W_OK) or os.path.ismount(folder):
        raise UserError(f"{folder}: cannot be replaced, because it cannot be renamed")


def put_aside(folder: Path) -> Path:
    """Move a folder to `NAME.replaced`, which replaces an earlier one; return the new path."""
    target = replaced_folder(folder)
    if target.exists():
        remove_folder(target)
    os.rename(folder, target)
    return target


def remove_folder(folder: Path) -> None:
    """Remove a folder; it is renamed first, so that nobody reads a half-removed folder."""
    old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}.", suffix=".old"))
    os.replace(folder, old / folder.name)
    shutil.rmtree(old)


def require_output(out: Path) -> None:
    """Raise `UserError` if an evaluation cannot write to a folder, or would replace other files."""
    target = Path(os.path.realpath(out))
    for folder in (target, *target.parents):
        subpath = target.relative_to(folder).parts
        if subpath[:1] in ((), (CHECKPOINTS,), ("logs",), ("wandb",)) and is_run(folder):
            path = folder if subpath else out
            raise UserError(
                f"{out}: is a training run, whose files would be replaced; choose another "
                f"--out, such as {path / EVALUATION}"
            )
    if (out / "manifest.json").is_file():
        raise UserError(
            f"{out}: is a checkpoint or an index; choose another --out, such as "
            f"{out.parent / EVALUATION}"
        )
    for name in _REPORTS:
        _refuse_foreign(out / name, _SIGN)
        # Markdown has no mark: it is ours if a marked file is next to it.
        if not (out / name).exists():
            _refuse_foreign((out / name).with_suffix(".md"))
    require_writable(out, "folder")


def require_output_file(out: Path, *signs: str, option: str = "--out") -> None:
    """Raise `UserError` if a file cannot be written, or is a user's or a training run's file.

    With `signs`, the beginning of an existing file must contain one of them.
    """
    if _OURS.fullmatch(out.name) and is_run(out.parent):
        raise UserError(
            f"{out}: belongs to the training run in this folder; choose another {option}"
        )
    if signs:
        _refuse_foreign(out, *signs, option=option)
    require_writable(out, "file")


def _refuse_foreign(file: Path, *signs: str, option: str = "--out") -> None:
    if not file.is_file() or not file.stat().st_size:
        return
    with open(file, "rb") as read:
        beginning = read.read(_BEGINNING).decode("utf-8", "replace")
    if not any(sign in beginning for sign in signs):
        raise UserError(
            f"{file}: would be replaced, but no program of ours wrote it; choose another {option}"
        )
