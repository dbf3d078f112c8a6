"""Find data sets by path, by name, or as a file of pairs."""

from __future__ import annotations

import os
from pathlib import Path

from claim2source.core.errors import InputError, did_you_mean
from claim2source.data.beir import CORPUS, QRELS, QUERIES
from claim2source.data.pair_files import is_pair_file, prepared_folder

DEMO = Path(__file__).resolve().parent / "demo"


def dataset_folder(name: str | Path) -> Path:
    """Find the folder of a data set by path or name, as `load` does.

    A file of pairs is converted to a folder in the store. Raises `InputError` if a plain name is
    not a folder, here or in CLAIM2SOURCE_DATA.
    """
    if str(name) == "demo":
        return DEMO
    folder = Path(name)
    if folder.is_file() and is_pair_file(folder):
        return prepared_folder(folder)
    if folder.is_dir() or len(folder.parts) != 1:
        return folder
    root = os.environ.get("CLAIM2SOURCE_DATA")
    if root and (Path(root) / folder).is_dir():
        return Path(root) / folder
    folder_note = "no such data set here"
    if folder.is_file():
        folder_note = "is a file, but a data set is a folder"
    root_note = "and CLAIM2SOURCE_DATA is not set"
    if root:
        root_note = f"nor in {root} (CLAIM2SOURCE_DATA)"
    near = did_you_mean(str(name), _dataset_names(root)).strip()
    advice = f"; {near}" if near else ""
    raise InputError(folder, reason=f"{folder_note}, {root_note}{advice}")


def _dataset_names(root: str | None) -> list[str]:
    """List the names of the data sets that are here and in `root`, and the demo."""
    names = [DEMO.name]
    for place in filter(None, (".", root)):
        names += sorted(path.parent.name for path in Path(place).glob(f"*/{CORPUS}"))
    return names


def dataset_files(name: str | Path) -> list[Path]:
    """List a data set's two files and its folder. Raises the errors of `dataset_folder`."""
    return [dataset_folder(name) / part for part in (CORPUS, QUERIES, QRELS)]
