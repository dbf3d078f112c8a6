"""Read a setting that is a list of named objects, from YAML and from flags."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Self


class NamedParts(ABC):
    """Base of a setting that is a list of objects, each written as `{NAME: {its settings}}`.

    `known` are the classes with a short name, whose keys `--help` explains. A flag
    `--KEY.NAME.SETTING` changes one object of the list, or adds it; NAME may be a dotted path.
    """

    known: ClassVar[Mapping[str, type]] = {}

    @classmethod
    @abstractmethod
    def read(cls, key: str, value: object) -> Self:
        """Make the objects from a YAML list. Raises `UserError`."""

    @classmethod
    @abstractmethod
    def changed(cls, listed: list[Any], changes: Mapping[str, Any]) -> list[Any]:
        """Change the named objects of a list; add those that are missing."""

    @abstractmethod
    def as_plain(self) -> list[Any]:
        """Return the list in the form of a config."""


def parts_kind(hint: object) -> type[NamedParts] | None:
    """Return the class of a setting that is a list of named objects; None for any other."""
    if isinstance(hint, type) and issubclass(hint, NamedParts):
        return hint
    return None


def flag_path(key: str, hint: object) -> list[str]:
    """Split a flag's key at its dots, but keep the dotted path of an object in a list.

    `hint` is the type of the key's first part.
    """
    first, *rest = key.split(".")
    if len(rest) > 2 and parts_kind(hint) is not None:
        return [first, ".".join(rest[:-1]), rest[-1]]
    return [first, *rest]
