"""Authors given as one string -> their names in reading order."""

from __future__ import annotations

import re

# What follows a comma or stands alone where a name should, and is none.
AFFILIATION = re.compile(
    r"\b(universit|hospital|institut|department|faculty|school|college|cent(?:er|re)\b|"
    r"laborator|academy|clinic|ministry|council|foundation|inc\b|ltd\b|gmbh\b)",
    re.IGNORECASE,
)
_SUFFIX = re.compile(r"(jr|sr|ii|iii|iv|md|phd|m\.d|ph\.d)\.?", re.IGNORECASE)


def author_names(text: str) -> tuple[str, ...]:
    """Names of a list whose separator is not known.

    With a semicolon, or where the commas can only lie within one name: as `turned_names`.
    Else commas part the names: "Jane Doe, Richard Roe" -> Jane Doe, Richard Roe.
    """
    if ";" in text:
        return turned_names(text)
    parts = [part for part in _parts(text) if part]
    names = [part for part in parts if not _SUFFIX.fullmatch(part)]
    if len(names) < 2:
        return (" ".join(parts),) if parts else ()
    # "Doe, Jane" has a part of one word; names in reading order have two or more.
    if len(names) == 2 and any(" " not in name for name in names):
        return turned_names(", ".join(parts))
    listed: list[str] = []
    for part in parts:
        if listed and _SUFFIX.fullmatch(part):
            listed[-1] += f" {part}"
        else:
            listed.append(part)
    return tuple(listed)


def turned_names(text: str) -> tuple[str, ...]:
    """Names of a list parted by semicolons: "Doe, Jane; King, Martin, Jr." -> Jane Doe, ...

    An entry that gives an affiliation after the name keeps its comma before it.
    """
    names = []
    for entry in text.split(";"):
        last, *rest = _parts(entry)
        place = next((i for i, part in enumerate(rest) if AFFILIATION.search(part)), len(rest))
        rest, debris = rest[:place], rest[place:]
        turned = " ".join(part for part in (*rest[:1], last, *rest[1:]) if part)
        if turned:
            names.append(", ".join([turned, *debris]))
    return tuple(names)


def _parts(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(",")]
