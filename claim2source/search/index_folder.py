"""Write an index to a folder with a manifest, and read it back with every part checked."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from claim2source.core.config import as_plain, make
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import atomic_folder, file_error, file_hash, write_json
from claim2source.core.validate import read_json

MANIFEST = "manifest.json"
FORMAT = 1
Settings = TypeVar("Settings")


@runtime_checkable
class SavableIndex(Protocol):
    """Write an index to a folder that `load_index` opens."""

    def save(self, folder: str | Path) -> None: ...


def write_folder(
    folder: str | Path, kind: str, write: Callable[[Path], Mapping[str, object]]
) -> None:
    """Write an index: `write` puts its files into a folder, which is then renamed to `folder`.

    The manifest holds `kind`, what `write` returns (JSON values and settings) and the files'
    sha256. Raises `InputError` if `folder` exists, is not empty and is not an index.
    """
    folder = Path(folder)
    is_empty = folder.is_dir() and not any(folder.iterdir())
    if folder.exists() and not (_is_index(folder) or is_empty):
        raise InputError(folder, reason="exists and is not an index: it is not replaced")
    with atomic_folder(folder) as temporary:
        values = write(temporary)
        files = {
            path.relative_to(temporary).as_posix(): file_hash(path)
            for path in sorted(temporary.rglob("*"))
            if path.is_file()
        }
        about = {"format": FORMAT, "index": kind, **as_plain(dict(values)), "files": files}
        write_json(temporary / MANIFEST, about)


def _is_index(folder: Path) -> bool:
    try:
        values = read_json(folder / MANIFEST, ours=False)
    except InputError:
        return False
    return isinstance(values, dict) and "index" in values


def write_strings(path: Path, strings: Iterable[str]) -> None:
    with open(path, "w", encoding="ascii", newline="\n") as file:
        file.writelines(json.dumps(string) + "\n" for string in strings)


@dataclass(frozen=True)
class IndexFolder:
    """Read the parts of a written index; everything raises `InputError` if one is not right."""

    path: Path
    kind: str
    values: Mapping[str, Any]

    @classmethod
    def open(cls, folder: str | Path, verify: bool) -> IndexFolder:
        """Read the manifest, and with `verify` compare the sha256 of all files."""
        path = Path(folder)
        if file_error(path / MANIFEST) in ("no such file", "not a directory"):
            raise InputError(path, reason=f"not an index: it has no {MANIFEST}")
        values = read_json(path / MANIFEST)
        if not isinstance(values, dict) or not isinstance(values.get("index"), str):
            raise InputError(path / MANIFEST, field="index", reason="missing: not an index")
        index = cls(path, values["index"], values)
        if index.kind == "lancedb":
            raise index.wrong("index", "made by the program index: open_index opens it")
        if values.get("format") != FORMAT:
            raise index.wrong("format", f"this version reads format {FORMAT}")
        files = values.get("files")
        if not isinstance(files, dict):
            raise index.wrong("files", "missing")
        for name, sha256 in files.items():
            if not (path / name).is_file():
                raise InputError(path / name, reason="the manifest names this file; it is missing")
            if verify and file_hash(path / name) != sha256:
                reason = "its sha256 is not the manifest's: damaged or exchanged"
                raise InputError(path / name, reason=reason)
        return index

    def wrong(self, field: str, reason: str) -> InputError:
        return InputError(self.path / MANIFEST, field=field, reason=reason)

    def settings(self, field: str, kind: type[Settings]) -> Settings:
        """Settings of the dataclass `kind`, strictly."""
        try:
            return make(kind, dict(self.values[field]))
        except (KeyError, TypeError, ValueError, UserError) as error:
            reason = " ".join(str(error).split())
            raise self.wrong(field, f"missing or not {kind.__name__}: {reason}") from None

    def count(self, field: str) -> int:
        value = self.values.get(field)
        if type(value) is not int or value < 0:
            raise self.wrong(field, f"{value!r} is not a number of {field}")
        return value

    def array(self, name: str, kind: type[np.generic], *shape: int | None) -> np.ndarray:
        """An array of the folder, memory-mapped; `shape` has None for any length."""
        path = self.path / name
        try:
            array: np.ndarray = np.lib.format.open_memmap(path, mode="r")
        except (OSError, ValueError, EOFError) as error:
            raise InputError(path, reason=f"not an array: {error}") from None
        fits = len(shape) == array.ndim and all(
            size in (None, length) for size, length in zip(shape, array.shape, strict=True)
        )
        if array.dtype != kind or not fits or not array.flags.c_contiguous:
            description = f"{array.dtype} {list(array.shape)}"
            expected = f"{np.dtype(kind)} {['any' if n is None else n for n in shape]}"
            raise InputError(path, reason=f"an array {description}, not {expected}")
        return array

    def strings(self, name: str, count: int) -> list[str]:
        path = self.path / name
        try:
            lines = path.read_text(encoding="ascii").splitlines()
            strings: list[str] = json.loads(f"[{','.join(lines)}]")
        except (OSError, ValueError) as error:
            raise InputError(path, reason=f"not one JSON string a line: {error}") from None
        if len(strings) != count or not all(isinstance(string, str) for string in strings):
            raise InputError(path, reason=f"not {count} strings, one a line")
        return strings
