"""Spoil a valid file: its place, its bytes, its lines, or one value of its structure."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

DEEP = 100_000
Place = tuple[str | int, ...]

# Texts that a cell, a JSON text or a word of the command line may hold.
TEXTS = (
    *("", " ", "x", "0", "null", "a b", "\x1b]0;title\x07", "\u202eabc", "\u2028", "../../up"),
    *("s00", "dev-101", "en", "<script>alert(1)</script>", "x" * 5000),
)
# JSON texts (YAML reads them too, but the last ones): wrong types, numbers and texts.
JSON_VALUES = (
    *("null", "true", "-1", "2.5", "1e999", "NaN", "12345678901234567890123", "9" * 5000),
    *map(json.dumps, TEXTS),
    *('"a\\tb\\nc"', '"\\u0000"', '"\\ud800"', "[]", "{}", '["s00", "s00"]', '{"a": {"b": 1}}'),
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP,
)
YAML_VALUES = (
    *(value for value in JSON_VALUES if len(value) < 20_000),
    *("[" * 3000 + "]" * 3000, ".nan", "no", "2020-01-01", "&a [*a]", "*missing"),
    *("!!python/object/apply:os.getcwd []", "!!binary x", "{? [a] : b}", "'open", "\x1b[31m"),
)
CELLS = (
    *TEXTS,
    *("-1", "1.0", "1e400", "nan", "9" * 5000, "١", '"open', "\x00", "\x85"),
    *("['s00', 's01']", "['s00'", "[[" * 2000, "__import__('os')", "x" * 200_000),
)
BYTES = (
    *(b"\x00", b"\xff\xfe", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"\r", b"\n\n", b"\x1b[2J"),
    *(b"{", b'"', b"\t", b"x" * 300_000),
)


@dataclass(frozen=True)
class Edit:
    """Spoil `file` by `op`: `place` picks where (modulo how many places there are), `value` what.

    A file that is a pattern stands for one of those it matches.
    It has numbers and texts only, so that a case is kept as JSON and happens again.
    """

    file: str
    op: str
    place: int = 0
    value: int = 0

    def apply(self, world: Path) -> None:
        """Spoil the file of a world; one that cannot be spoilt so stays as it is."""
        paths = sorted(world.glob(self.file)) if "*" in self.file else []
        path = paths[self.place % len(paths)] if paths else world / self.file
        if self.op in PLACES:
            # An earlier edit may have put a file where the folder was.
            with contextlib.suppress(OSError):
                PLACES[self.op](path, world)
        elif not path.is_file() or path.is_symlink():
            return
        elif self.op in CONTENTS:
            path.write_bytes(CONTENTS[self.op](path.read_bytes(), self.place, self.value))
        elif (changed := _structured(path, self.op, self.place, self.value)) is not None:
            path.write_bytes(changed)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _replaced(make: Callable[[Path], object]) -> Callable[[Path, Path], None]:
    def replace(path: Path, world: Path) -> None:
        _remove(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        make(path)

    return replace


def _folder_to_file(path: Path, world: Path) -> None:
    folder = path.parent if path.parent != world else path
    _remove(folder)
    folder.write_text("x\n")


PLACES: dict[str, Callable[[Path, Path], None]] = {
    "missing": lambda path, world: _remove(path),
    "folder": _replaced(lambda path: path.mkdir()),
    "loop": _replaced(lambda path: path.symlink_to(path.name)),
    "dangling": _replaced(lambda path: path.symlink_to("nowhere")),
    "fifo": _replaced(os.mkfifo),
    "device": _replaced(lambda path: path.symlink_to("/dev/null")),
    "file-for-folder": _folder_to_file,
}


def _at(content: bytes, position: int) -> int:
    return position % (len(content) + 1)


CONTENTS: dict[str, Callable[[bytes, int, int], bytes]] = {
    "empty": lambda content, position, value: b"",
    "truncate": lambda content, position, value: content[: _at(content, position * 97)],
    "insert": lambda content, position, value: (
        content[: _at(content, position * 97)]
        + BYTES[value % len(BYTES)]
        + content[_at(content, position * 97) :]
    ),
    "flip": lambda content, position, value: (
        bytes(
            byte ^ (1 + value % 255) if at == position * 97 % len(content) else byte
            for at, byte in enumerate(content)
        )
        if content
        else content
    ),
    "begin": lambda content, position, value: BYTES[value % len(BYTES)] + content,
    "crlf": lambda content, position, value: content.replace(b"\n", b"\r\n"),
    "utf16": lambda content, position, value: content.decode("utf-8", "replace").encode("utf-16"),
    "twice": lambda content, position, value: content + content,
}
STRUCTURED = ("drop", "set", "double", "swap-lines")


def _structured(path: Path, op: str, position: int, value: int) -> bytes | None:
    """Return a file with one line or one value spoilt; None if it is no text."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".json", ".yaml"):
            return _json(text, op, position, value, path.suffix == ".yaml").encode()
        lines = text.splitlines(keepends=True)
        if not lines:
            return None
        at = position % len(lines)
        if op == "double":
            lines.insert(at, lines[at])
        elif op == "swap-lines":
            lines[at], lines[0] = lines[0], lines[at]
        elif op == "drop" and value % 2:
            del lines[at]
        elif path.suffix == ".jsonl":
            lines[at] = _json(lines[at], op, position // len(lines), value, False) + "\n"
        else:
            lines[at] = _row(lines[at], op, position // len(lines), value)
        return "".join(lines).encode()
    # An earlier edit left no text, or no JSON.
    except (ValueError, RecursionError, yaml.YAMLError):
        return None


def _row(line: str, op: str, position: int, value: int) -> str:
    sign = "\t" if "\t" in line else " "
    cells = line.rstrip("\n").split(sign)
    at = position % len(cells)
    cells[at : at + 1] = [] if op == "drop" else [CELLS[value % len(CELLS)]]
    return sign.join(cells) + "\n"


def _json(text: str, op: str, position: int, value: int, is_yaml: bool) -> str:
    """Drop a value of a JSON or YAML text, or set another. What JSON cannot hold is put in as text."""
    values = YAML_VALUES if is_yaml else JSON_VALUES
    raw = values[value % len(values)]
    content: Any = yaml.safe_load(text) if is_yaml else json.loads(text)
    mark = "@@here@@"
    paths = list(_places(content))
    path = paths[position % len(paths)]
    if not path:
        content = None if op == "drop" else mark
    elif op == "drop":
        del _get(content, path[:-1])[path[-1]]
    else:
        _get(content, path[:-1])[path[-1]] = mark
    if is_yaml:
        return yaml.safe_dump(content, sort_keys=False).replace(f"'{mark}'", raw)
    return json.dumps(content, ensure_ascii=False).replace(f'"{mark}"', raw)


def _get(content: Any, path: Place) -> Any:
    for key in path:
        content = content[key]
    return content


def _places(content: Any, path: Place = ()) -> Iterator[Place]:
    """Yield the place of every value, the whole first."""
    yield path
    if isinstance(content, dict):
        for key, value in content.items():
            yield from _places(value, (*path, key))
    elif isinstance(content, list):
        for key, value in enumerate(content):
            yield from _places(value, (*path, key))
