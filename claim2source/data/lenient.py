"""Count records that strict loading refuses and lenient loading skips."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from claim2source.core.config import flag, make, read_mapping
from claim2source.core.errors import InputError, Problems
from claim2source.data.jsonl import EMPTY, REPEATED, UNKNOWN

SETTINGS = "dataset.yaml"
TABLES = "tables"  # the name of a data set of tables
LENIENT = "load whatever is readable; omissions are counted and reported"
# Kinds of problems of judgements; those of records are `EMPTY` and `REPEATED`.
Kind = Literal["metadata", "stranger", "absent", "same", "contradicts", "decimal", "cut", "header"]

# Files, and tables, of sources and of claims.
_SOURCES, _CLAIMS = ("corpus.jsonl", "papers"), ("queries.jsonl", "posts")
_LONGEST = "repeated sources, the one with more text used"
_MESSAGES = {
    **{f"{EMPTY} {name}": "sources without title and text, skipped" for name in _SOURCES},
    **{f"{EMPTY} {name}": "claims without text, skipped" for name in _CLAIMS},
    **{f"{REPEATED} {name}": _LONGEST for name in _SOURCES},
    **{f"{REPEATED} {name}": "repeated claims, skipped" for name in _CLAIMS},
    UNKNOWN: "records with unknown keys, which were ignored",
    "metadata": "metadata fields with another meaning, ignored",
    "stranger": "judgements of unknown claims, skipped",
    "absent": "unknown golds, kept and never found",
    "same": "repeated judgements, used once",
    "contradicts": "repeated judgements with another grade, the highest kept",
    "decimal": "grades with decimals, read as whole numbers",
    "cut": "fractional grades, cut to whole numbers",
    "header": "files of judgements with another header or none, read",
}


@dataclass(frozen=True)
class DatasetFile:
    """Settings in a data set's own folder, `dataset.yaml`."""

    lenient: bool = flag(LENIENT)


def is_lenient(folder: Path, lenient: bool) -> bool:
    """Whether a data set is loaded leniently: by the argument, or by its `dataset.yaml`.

    Raises `UserError` with the key for anything else in that file.
    """
    path = folder / SETTINGS
    if not path.exists():
        return lenient
    return make(DatasetFile, read_mapping(path)).lenient or lenient


class Traits(Problems):
    """Collect problems; with `lenient`, harmless ones are only counted, by kind.

    Without a folder they are problems of tables.
    """

    def __init__(self, folder: Path | None, lenient: bool) -> None:
        super().__init__()
        self.folder, self.lenient = folder, lenient

    def add(
        self, file: str | Path, line: int | None, field: str | None, reason: str, kind: str = ""
    ) -> None:
        if field is not None and field.partition(".")[0] == "metadata":
            kind = "metadata"
        if kind in (EMPTY, REPEATED):
            kind = f"{kind} {Path(file).name}"
        if kind:
            self.count(kind, file, line)
        if not (kind and self.lenient):
            super().add(file, line, field, reason)

    def raise_if_any(self) -> None:
        """Raise `InputError` if there are problems; it names the flag if that would help."""
        try:
            super().raise_if_any()
        except InputError as error:
            if self.lenient or not self.counts or self.folder is None:
                raise
            hint = (
                f"{self.folder}: to skip {sum(self.counts.values())} of {error.total}, pass "
                f"--lenient (in training --data.lenient), or set `lenient: true` "
                f"in {self.folder / SETTINGS}"
            )
            raise InputError.of(error.problems, error.total, hint) from None

    def omission_notes(self, split: str) -> tuple[str, ...]:
        """Summarise omissions and changes in one line, with the first location of each kind."""
        if not self.counts:
            return ()
        return (f"{self.folder or TABLES}, {split}: loaded leniently: {self.summary(_MESSAGES)}",)
