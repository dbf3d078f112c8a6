"""Read JSON lines; problems are collected with file, line and field."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.data.text_files import id_error, text_error, text_lines

# Kinds of problems whose records a lenient reader skips.
EMPTY = "empty"
REPEATED = "repeated"
UNKNOWN = "unknown"
_KINDS = {
    dict: "an object",
    list: "a list",
    str: "text",
    bool: "a truth value",
}


class Records(ABC):
    """Read the records of a file or table; remember the ids, and whether all were readable."""

    def __init__(self, path: Path, problems: Problems) -> None:
        self.path = path
        self.problems = problems
        self.seen: dict[str, int] = {}
        self.complete = True

    @abstractmethod
    def records(self) -> Iterator[Row]:
        """Yield every record that can be read."""

    def rows(self, repeated: bool = False) -> Iterator[Row]:
        """Yield every record with a new id; with `repeated` also those with a repeated id."""
        for row in self.records():
            key = row.as_id("_id", row.record.get("_id"))
            if key is None:
                self.complete = False
                continue
            first_line = self.seen.setdefault(key, row.line)
            is_new = first_line == row.line
            if not is_new:
                row.complain("_id", f"{key!r} is already on line {first_line}", REPEATED)
            if is_new or repeated:
                row.key = key
                yield row


class JsonLines(Records):
    """Read the records of a JSON-lines file."""

    def records(self) -> Iterator[Row]:
        """Yield every line that is a JSON object."""
        for line, text in text_lines(self.path, self.problems):
            if text is None:
                self.complete = False
                continue
            if not text.strip():
                continue
            row = _parsed_row(text, self.path, self.problems, line)
            if row is None:
                self.complete = False
            else:
                yield row


def json_records(
    path: Path,
    problems: Problems,
    lines: Iterator[tuple[int, str | None]] | None = None,
) -> Iterator[Row]:
    """Yield the objects of JSON lines, or of one JSON document: an object or a list of them.

    A document is read into memory. `lines` are the file's lines if they are already read.
    """
    if lines is None:
        lines = text_lines(path, problems)
    begin: list[tuple[int, str]] = []
    for number, text in lines:
        if text is not None and text.strip():
            begin.append((number, text))
        if len(begin) == 2 or text is None:
            break

    if _is_document(begin):
        lines_before = begin[0][0] - 1
        blank = "\n" * lines_before  # for correct line numbers in errors
        document = "".join(text or "" for _, text in chain(begin, lines))
        yield from _document_rows(blank + document, path, problems)
        return

    for number, line in chain(begin, lines):
        if line is None or not line.strip():
            continue
        row = _parsed_row(line, path, problems, number)
        if row is not None:
            yield row


def _is_document(begin: Sequence[tuple[int, str]]) -> bool:
    """Whether the first lines that are not blank belong to one JSON value."""
    if not begin:
        return False
    _, first_line = begin[0]
    first = first_line.strip()
    if first.startswith("["):
        return True
    if not first.startswith("{"):
        return False
    # Neither of a document's first two lines is JSON by itself.
    return not any(_is_object(text) for _, text in begin)


def _document_rows(
    document: str,
    path: Path,
    problems: Problems,
) -> Iterator[Row]:
    value = parse_json(document, path, problems)
    if value is None:
        return
    records = value if isinstance(value, list) else [value]
    for position, record in enumerate(records, start=1):
        name = f"record {position}"
        row = parse_row(record, path, problems, position, name)
        if row is not None:
            yield row


def _parsed_row(
    text: str,
    path: Path,
    problems: Problems,
    line: int,
) -> Row | None:
    before = len(problems)
    record = parse_json(text, path, problems, line)
    if len(problems) > before:
        return None
    return parse_row(record, path, problems, line)


def parse_row(
    record: object,
    path: Path,
    problems: Problems,
    line: int,
    name: str = "",
) -> Row | None:
    """Make a row from an object; problems have its line or, in a document, its name."""

    def complain(field: str | None, reason: str, kind: str = "") -> None:
        label = ": ".join(part for part in (name, field) if part)
        problem_line = None if name else line
        problems.add(
            path,
            problem_line,
            label or None,
            reason,
            kind,
        )

    if isinstance(record, dict):
        return Row(record, line, complain, name)
    complain(None, "is not a JSON object")
    return None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def parse_json(
    text: str,
    path: Path,
    problems: Problems,
    line: int | None = None,
) -> object:
    """Parse JSON; if it is broken, add a problem (at `line`, or the error's line) and return None.

    A repeated key in an object is a problem too, since one of its values would be lost.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except _RepeatedKey as error:
        problems.add(path, line, str(error), "is repeated in one JSON object")
    except json.JSONDecodeError as error:
        error_line = line or error.lineno
        problems.add(path, error_line, None, f"broken JSON: {error.msg}")
    except ValueError:
        problems.add(path, line, None, "broken JSON: a number is too long")
    except RecursionError:
        problems.add(path, line, None, "broken JSON: nested too deeply")
    return None


class _RepeatedKey(Exception):
    """Report a repeated key of an object."""


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values = dict(pairs)
    if len(values) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise _RepeatedKey(repeated)
    return values


# Arguments: a field, the reason and, optionally, the kind of problem.
Complain = Callable[..., None]


class Row:
    """One record; a wrong field is reported through `complain` and treated as empty."""

    def __init__(
        self,
        record: Mapping[str, object],
        line: int,
        complain: Complain,
        name: str = "",
    ) -> None:
        self.record = record
        self.line = line
        self.complain = complain
        self.location: int | str = name or line
        self.key = ""
        meta = record.get("metadata")
        if meta is not None and not isinstance(meta, dict):
            complain("metadata", f"is {_kind(meta)}, not an object")
        self.meta: Mapping[str, object] = meta if isinstance(meta, dict) else {}

    def as_id(self, field: str, value: object) -> str | None:
        """Check an id (text, or an integer, which becomes text); else complain, return None."""
        if type(value) is int:
            return str(value)
        if value is None:
            is_id_field = field in ("_id", "id")
            hint = f"; there are: {', '.join(self.record)}" if is_id_field else ""
            self.complain(field, f"is missing{hint}")
            return None
        reason = id_error(value) if isinstance(value, str) else _not_text(value)
        if reason:
            self.complain(field, reason)
            return None
        return str(value)

    def text(self, field: str) -> str:
        """Return the text of a field (`metadata.x`: in the metadata); "" if it is missing."""
        name = field.removeprefix("metadata.")
        fields = self.record if name == field else self.meta
        value = fields.get(name)
        if value is None:
            return ""
        if name in ("date", "publish_time") and type(value) is int:
            return str(value)
        return self.as_text(field, value)

    def as_text(self, field: str, value: object) -> str:
        """Return a value if it is a text; else complain and return ""."""
        reason = text_error(value) if isinstance(value, str) else _not_text(value)
        if reason:
            self.complain(field, reason)
            return ""
        return str(value)

    def require_text(self, field: str) -> str:
        """Return the text of a field of the record; complain if it is missing or blank."""
        value = self.record.get(field)
        if value is None:
            self.complain(field, "is missing", EMPTY)
        elif isinstance(value, str) and not value.strip():
            self.complain(field, "is empty", EMPTY)
        return self.text(field)

    def require_either(self, field: str, alternative: str) -> None:
        """Complain if both fields are missing or blank."""
        values = (self.record.get(field), self.record.get(alternative))
        if all(map(_is_blank, values)):
            self.complain(field, f"is empty, and so is {alternative}", EMPTY)

    def check_keys(
        self,
        fields: Sequence[str],
        of_metadata: Sequence[str],
    ) -> None:
        """Complain about an unknown key if a field of the record is missing.

        `of_metadata` are the keys that belong in metadata.
        """
        known = (*fields, "metadata")
        unexpected = [key for key in self.record if key not in known]
        missing = [field for field in fields if self.record.get(field) is None]
        stray = [key for key in unexpected if key in of_metadata]
        if not missing:
            unexpected = []
        if "metadata" not in self.record and stray:
            missing.append("metadata")
            unexpected = list(dict.fromkeys([*unexpected, *stray]))
        if missing and unexpected:
            listed_fields = ", ".join(fields)
            listed_metadata = ", ".join(of_metadata)
            listed_missing = " and ".join(missing)
            allowed = f"{listed_fields}, and metadata with {listed_metadata}"
            reason = f"is unknown, and {listed_missing} missing; a record has {allowed}"
            self.complain(", ".join(unexpected), reason, UNKNOWN)

    def list_field(self, field: str) -> list[object] | None:
        """Return a list in the metadata; None if it is missing, or wrong, which is reported."""
        value = self.meta.get(field)
        if value is None or isinstance(value, list):
            return value
        self.complain(f"metadata.{field}", f"is {_kind(value)}, not a list")
        return None


def _is_blank(value: object) -> bool:
    return value is None or isinstance(value, str) and not value.strip()


def _not_text(value: object) -> str:
    return f"is {_kind(value)}, not text"


def _kind(value: object) -> str:
    if value is None:
        return "null"
    return _KINDS.get(type(value), "a number")
