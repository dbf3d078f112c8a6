"""Get values from JSON of unknown form; a missing value, or one of another type, is empty."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from claim2source.data.jsonl import Row


def as_list(value: object) -> list[object]:
    """Return a list unchanged, an object as a list of one, and anything else as an empty list."""
    if isinstance(value, Mapping):
        return [value]
    if isinstance(value, list):
        return value
    return []


def nested(value: object, *keys: str) -> object:
    """Return the value at a path of nested keys; None if it is missing."""
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def plain_text(value: object, *keys: str) -> str:
    """Return the text or number at a path of keys; "" if missing or of another type."""
    found = nested(value, *keys)
    if isinstance(found, bool):
        return ""
    if isinstance(found, str | int):
        return str(found)
    return ""


def first_text(row: Row, *fields: str) -> str:
    """Return the text of the first field that has one; of a list, the first text."""
    for field in fields:
        value = row.record.get(field)
        if isinstance(value, list):
            value = next(filter(None, value), None)
        if value in (None, "", 0):
            continue
        if type(value) is int:
            return str(value)
        return row.as_text(field, value)
    return ""


def texts_in(value: object) -> list[str]:
    """List the texts in a list, or a single text."""
    if isinstance(value, str):
        return [value] if value.strip() else []
    texts: list[str] = []
    for item in as_list(value):
        if isinstance(item, str) and item.strip():
            texts.append(item)
    return texts


def date_text(value: object) -> str:
    """Write {"date-parts": [[2020, 5, 12]]} as a date, or return the text that replaces it."""
    dates = as_list(nested(value, "date-parts"))
    parts = as_list(dates[0]) if dates else []
    if parts and all(parts):
        year, *rest = map(str, parts)
        padded = [part.zfill(2) for part in rest]
        return "-".join([year, *padded])
    for key in ("raw", "literal"):
        text = plain_text(value, key)
        if text:
            return text
    return plain_text({"date": value}, "date")


def most_exact(dates: Iterable[str]) -> str:
    """Choose the first date, or a more precise one that begins with it: "2020", "2020-05"."""
    listed = list(filter(None, dates))
    if not listed:
        return ""
    first = listed[0]
    finer = [date for date in listed if date.startswith(first)]
    return max(finer, key=len)
