"""Print text from users' files without letting it control the terminal."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence

# C0 and C1 controls, DEL, marks that change the direction of text, line and paragraph
# separators, a BOM within text, annotation marks, halves of surrogate pairs.
_UNSAFE = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff]"
)
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 200
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = 8


def one_line(value: object, **facts: object) -> str:
    """Make a `__repr__`: the class's name with a few facts, on one short line."""
    listed = ", ".join(f"{name}={_SHORT.repr(fact)}" for name, fact in facts.items())
    return f"{type(value).__name__}({listed})"


def printable(text: str) -> str:
    r"""Escape control characters as in Python (`\x1b`), except line breaks."""
    return _UNSAFE.sub(_escaped, text)


def printable_line(text: str) -> str:
    """Escape text as `printable` does, and turn line breaks into spaces."""
    return printable(" ".join(text.split("\n")))


def shortened(line: str, limit: int = 600) -> str:
    """Cut the middle out of a long line: its beginning has the location, its end the values."""
    if len(line) <= limit:
        return line
    return f"{line[: limit * 2 // 3]} [..] {line[len(line) - limit // 3 :]}"


def listed(names: Sequence[str], limit: int = 3) -> str:
    """Join the first names and count the others: "a, b, c and 2 more"."""
    remainder = f" and {len(names) - limit} more" if len(names) > limit else ""
    return f"{', '.join(names[:limit])}{remainder}"


def say(text: str) -> None:
    """Print `printable` text on stdout at once."""
    print(printable(text), flush=True)


def _escaped(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
