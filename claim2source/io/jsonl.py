"""Reading text files line by line; what is wrong is noted with its file, line and field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from claim2source.core.errors import Problems
from claim2source.io.text_files import text_lines, why_not_id, why_not_text


class JsonLines:
    """A JSON-lines file being read: the ids seen, and whether all of them could be read."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.path, self.problems = path, problems
        self.seen: dict[str, int] = {}
        self.whole = True

    def records(self) -> Iterator[Row]:
        """Every line that is a JSON object."""
        for line, text in text_lines(self.path, self.problems):
            if text is not None and not text.strip():
                continue
            row = None if text is None else self._parsed(line, text)
            if row is None:
                self.whole = False
            else:
                yield row

    def rows(self) -> Iterator[Row]:
        """Every record that has an id of its own."""
        for row in self.records():
            key = row.as_id("_id", row.record.get("_id"))
            if key is None:
                self.whole = False
            elif key in self.seen:
                row.complain("_id", f"{key!r} is already on line {self.seen[key]}")
            else:
                self.seen[key] = row.line
                row.key = key
                yield row

    def _parsed(self, line: int, text: str) -> Row | None:
        try:
            record = json.loads(text)
        except ValueError as error:
            why = error.msg if isinstance(error, json.JSONDecodeError) else "a number is too long"
            self.problems.add(self.path, line, None, f"broken JSON: {why}")
            return None
        except RecursionError:
            self.problems.add(self.path, line, None, "broken JSON: nested too deeply")
            return None
        if not isinstance(record, dict):
            self.problems.add(self.path, line, None, "is not a JSON object")
            return None
        return Row(record, line, lambda field, why: self.problems.add(self.path, line, field, why))


class Row:
    """One record; what is wrong with a field is noted and an empty value given instead."""

    def __init__(
        self, record: dict[str, Any], line: int, complain: Callable[[str, str], None]
    ) -> None:
        self.record, self.line, self.complain = record, line, complain
        self.key = ""
        meta = record.get("metadata")
        if meta is not None and not isinstance(meta, dict):
            complain("metadata", f"is {_kind(meta)}, not an object")
        self.meta: dict[str, Any] = meta if isinstance(meta, dict) else {}

    def as_id(self, field: str, value: Any) -> str | None:
        """An id: text, or an integer turned into text; else None, and noted."""
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if value is None:
            why: str | None = "is missing"
        else:
            why = why_not_id(value) if isinstance(value, str) else _not_text(value)
        if why:
            self.complain(field, why)
            return None
        return str(value)

    def text(self, field: str) -> str:
        """The text of a field, `metadata.x` for one of the metadata; "" where there is none."""
        name = field.removeprefix("metadata.")
        value = (self.record if name == field else self.meta).get(name)
        if name == "date" and isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        return self.as_text(field, "" if value is None else value)

    def as_text(self, field: str, value: Any) -> str:
        """A text; else "", and noted."""
        why = why_not_text(value) if isinstance(value, str) else _not_text(value)
        if why:
            self.complain(field, why)
            return ""
        return str(value)

    def list_field(self, field: str) -> list[Any] | None:
        """A list of the metadata; None where there is none, or something else, and noted."""
        value = self.meta.get(field)
        if value is None or isinstance(value, list):
            return value
        self.complain(f"metadata.{field}", f"is {_kind(value)}, not a list")
        return None


def _not_text(value: Any) -> str:
    return f"is {_kind(value)}, not text"


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")
