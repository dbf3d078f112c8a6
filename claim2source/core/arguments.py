"""Check arguments of the library: one clear line names the argument and what is expected."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeVar

from claim2source.core.errors import ConfigError, InputError

Kind = TypeVar("Kind")
A_PATH = "a path"


def whole_number(value: object, key: str, least: int = 1) -> int:
    """Return a count as an int. Raises `ConfigError` if it is not a whole number, or too small."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or int(value) < least:  # type: ignore[call-overload]
        allowed = f"a whole number, {least} or more"
        raise ConfigError(key, value, allowed)
    return int(value)  # type: ignore[call-overload, no-any-return]


def is_digits(text: str) -> bool:
    """Whether a text consists of ASCII digits; digits of other scripts are not allowed."""
    return text.isascii() and text.isdecimal()


def require_path(value: object, key: str, allowed: str = A_PATH) -> None:
    """Raise `ConfigError` unless a value is a path."""
    if not isinstance(value, str | Path):
        name = type(value).__name__
        raise ConfigError(key, name, allowed)


def require_kind(
    value: object,
    kind: type | tuple[type, ...],
    name: str,
    wanted: str,
) -> None:
    """Raise `InputError` unless a value has one of the types `kind`."""
    if not isinstance(value, kind):
        reason = f"is {_a(value)}; wanted: {wanted}"
        raise InputError(name, reason=reason)


def records(
    values: Any,
    kinds: type[Kind] | tuple[type[Kind], ...],
    name: str,
    wanted: str,
) -> Sequence[Kind]:
    """Check that an argument is a collection of records, and return it as a sequence.

    Raises `InputError` for a table, a mapping or a single record, and for an item of another type.
    """
    is_table = hasattr(values, "columns") or hasattr(values, "column_names")
    is_plain = isinstance(values, str | bytes | Mapping)
    is_one = is_plain or isinstance(values, kinds)
    if is_table or is_one or not isinstance(values, Iterable):
        reason = f"is {_a(values)}; wanted: {wanted}"
        raise InputError(name, reason=reason)

    listed: Sequence[Kind]
    if isinstance(values, list | tuple):
        listed = values
    else:
        listed = list(values)
    for number, item in enumerate(listed):
        if not isinstance(item, kinds):
            reason = f"is {_a(item)}; wanted: {wanted}"
            raise InputError(f"{name}[{number}]", reason=reason)
    return listed


def _a(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    starts_with_vowel = name[:1] in "aeiouAEIOU"
    article = "an" if starts_with_vowel else "a"
    return f"{article} {name}"
