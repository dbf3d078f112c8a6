"""Detect copies of a paper in several indexes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from claim2source.core.records import Source
from claim2source.data.identity import Identities, Identity
from claim2source.data.papers import Paper

# Separates a paper's id from its index's number; it is in no id and sorts before all characters.
_SIGN = "\x1f"
# Columns for `Record.read`.
FIELDS = ("title", "authors", "date", "doi", "url", "stamp")


def paper_key(index: int, paper_id: str) -> str:
    """Make the key of a paper in one of several indexes; keys sort like the ids."""
    return f"{paper_id}{_SIGN}{index:04d}"


def split_key(key: str) -> tuple[int, str]:
    """Return the number of a paper's index, and its id there; -1 if the key names no index."""
    paper_id, sign, number = key.rpartition(_SIGN)
    if not sign:
        return -1, key
    return int(number), paper_id


@dataclass(frozen=True)
class Record:
    """Identities of a paper, and the hash of its record in the index."""

    identity: Identity
    stamp: str

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Record:
        source = Source(
            row["id"],
            row["title"],
            authors=tuple(row["authors"]),
            date=row["date"],
        )
        paper = Paper(source, row["doi"], row["url"])
        identity = Identity.read(paper)
        return cls(identity, row["stamp"])


class Copies:
    """Number papers by their identities; an index has at most one copy of each."""

    def __init__(self) -> None:
        self._identities = Identities()
        self._stamps: dict[str, int] = {}
        self._keys: list[dict[int, str]] = []
        self._numbers: dict[str, int] = {}

    def place(self, key: str, record: Record) -> int:
        """Return a paper's number; a copy has the number of the first one."""
        if key in self._numbers:
            return self._numbers[key]
        index, _ = split_key(key)
        for number in self._same(record):
            keys = self._keys[number]
            if index not in keys:
                self._identities.learn(number, record.identity)
                break
        else:
            number = self._identities.add(record.identity)
            self._keys.append({})
            self._stamps.setdefault(record.stamp, number)
        self._keys[number][index] = key
        self._numbers[key] = number
        return number

    def _same(self, record: Record) -> Iterator[int]:
        stamp = record.stamp
        if stamp in self._stamps:
            yield self._stamps[stamp]
        for number, _ in self._identities.find(record.identity):
            yield number

    def all(self, key: str) -> list[str]:
        """List the copies of a paper in the order of the indexes."""
        if key not in self._numbers:
            return [key]
        number = self._numbers[key]
        own = self._keys[number]
        indexes = sorted(own)
        return [own[index] for index in indexes]
