"""Fill the fields of a text with values that cannot close the markup around their field.

`{post}` is a field, `{{post}}` is the literal text `{post}`; the rest is used to the letter.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass

from claim2source.text.control import escape_control_tokens

# Signs that look like those of a tag, and invisible characters.
_LOOK_ALIKES = str.maketrans(
    "\u2039\u3008\u27e8\u276e\u276c\u02c2\u227a\u300a\u27ea\u00ab\u1438\u29fc"
    "\u2044\u2215\u2571\u29f8\\\u2212",
    "<<<<<<<<<<<</////-",
    "\u115f\u1160\u17b4\u17b5\u2800",
)
# Placeholder for a letter or digit of another script.
WILDCARD = "\ufffd"

_FIELD = re.compile(r"\{\{([a-z_]+)\}\}|\{([a-z_]+)\}")
_TAG = re.compile(r"</?\s*([^\W\d_][\w.:-]*)[^<>\n]*>")
# Follows a possible beginning of a tag.
_TAG_BEGINS = re.compile(
    f"(?<=[<\uff1c\ufe64{''.join(chr(c) for c, to in _LOOK_ALIKES.items() if to == ord('<'))}])"
    "|(?<=&lt;)|(?<=&LT;)|(?<=&lt)(?!;)|(?<=&#60;)|(?<=&#x3c;)|(?<=&#x3C;)"
)
_TAG_NAME = re.compile(r"\s*/*\s*([\w.:\ufffd-]+)")
# Number of characters of a value that may be the name of a tag.
_LONGEST_TAG = 200
# Three or more of these characters fence a part of a prompt.
_FENCE = re.compile(r"([\"'`=#*~+|-])\1{2,}")
_FULL_WIDTH = 0xFEE0
_LABEL = re.compile(r"[^:{}]{1,60}:")
# Put before a line of a value that begins like a line of the prompt.
_MARK = "> "
_QUOTES = {'"': '"', "`": "`", "“": "”", "„": "“", "«": "»"}
# Relevant only directly around a field.
_BRACKETS = {"'": "'", "‘": "’", "[": "]", "(": ")", "<": ">"}


def field_names(text: str) -> list[str]:
    """List the distinct fields of a text."""
    names: dict[str, None] = {}
    for match in _FIELD.finditer(text):
        if match[2]:
            names[match[2]] = None
    return list(names)


def without_fields(text: str) -> str:
    """Replace the fields of a text by spaces, and `{{post}}` by the text `{post}`."""

    def replaced(match: re.Match[str]) -> str:
        return f"{{{match[1]}}}" if match[1] else " "

    return _FIELD.sub(replaced, text)


@dataclass(frozen=True)
class Guard:
    """Marks of a prompt's parts: tags, fences, labels and full lines.

    Such parts are broken up in values; other values are unchanged.
    """

    tags: frozenset[str]
    fences: frozenset[str]
    labels: tuple[str, ...]
    lines: frozenset[str]

    @classmethod
    def of(cls, text: str) -> Guard:
        labels: set[str] = set()
        lines: set[str] = set()
        for line in text.splitlines():
            label = _LABEL.match(line)
            if label is not None:
                labels.add(_letters(label[0]))
            elif not field_names(line) and any(map(str.isalnum, line)):
                lines.add(_letters(line))
        tags = frozenset(normalised(name) for name in _TAG.findall(text))
        fences = frozenset(match[1] for match in _FENCE.finditer(text))
        return cls(tags, fences, tuple(sorted(labels - {":"})), frozenset(lines))

    def fill(self, text: str, values: Mapping[str, str]) -> str:
        """Fill the fields of a prompt's text with values."""

        def filled(match: re.Match[str]) -> str:
            if match[1]:
                return f"{{{match[1]}}}"
            value = escape_control_tokens(values[match[2]].strip())
            begins_line = not _line_before(match).strip()
            return _escaped(match, self._guarded(value, begins_line))

        return _FIELD.sub(filled, text)

    def _guarded(self, value: str, begins_line: bool) -> str:
        if self.tags:
            value = self._without_tags(value)
        for sign in self.fences:
            signs = f"[{re.escape(sign)}{chr(ord(sign) + _FULL_WIDTH)}]"
            # Separates all characters of three in a row.
            value = re.sub(f"{signs}{{3,}}", lambda match: " ".join(match[0]), value)
        lines = value.splitlines(keepends=True)
        # The first line follows the text before its field.
        first = 0 if begins_line else 1
        marked = [self._marked(line) for line in lines[first:]]
        return "".join([*lines[:first], *marked])

    def _without_tags(self, value: str) -> str:
        """Separate every sign that opens a tag of the prompt, even if letters are look-alikes."""
        first, *rest = _TAG_BEGINS.split(value)
        parts = [first]
        for part in rest:
            name = _TAG_NAME.match(normalised(part[:_LONGEST_TAG]))
            if name is not None and any(_is_read_as(name[1], tag) for tag in self.tags):
                parts.append(" ")
            parts.append(part)
        return "".join(parts)

    def _marked(self, line: str) -> str:
        letters = _letters(line)
        is_forged = letters in self.lines or letters.startswith(self.labels)
        return f"{_MARK}{line}" if is_forged else line


def _is_read_as(name: str, tag: str) -> bool:
    """Whether a name looks like a tag's; a letter of another script may look like any letter."""
    if len(name) != len(tag):
        return False
    for letter, expected in zip(name, tag, strict=True):
        if letter not in (expected, WILDCARD):
            return False
    return True


def _letters(line: str) -> str:
    return re.sub(r"[\s*_#>]+", "", normalised(line))


def _line_before(match: re.Match[str]) -> str:
    return match.string[: match.start()].rpartition("\n")[2]


def _escaped(match: re.Match[str], value: str) -> str:
    """Escape the sign in a value that closes the quotes or brackets around its field."""
    before = _line_before(match)
    after = match.string[match.end() :].partition("\n")[0]
    for left, right in _QUOTES.items():
        if left == right:
            is_open = before.count(left) % 2 == 1
        else:
            is_open = before.rfind(left) > before.rfind(right)
        if is_open and right in after and not before.endswith(left * 3):
            return _with_escapes(value, right)
    for left, right in _BRACKETS.items():
        if before.endswith(left) and after.startswith(right):
            return _with_escapes(value, right)
    return value


def _with_escapes(value: str, sign: str) -> str:
    return value.replace("\\", "\\\\").replace(sign, f"\\{sign}")


def normalised(text: str) -> str:
    """Normalise a text so that look-alikes of `<` and invisible marks cannot hide a tag."""
    unescaped = unicodedata.normalize("NFKC", html.unescape(text)).casefold()
    unseen = ("Cf", "Mn", "Me", "Cc")
    visible: list[str] = []
    for c in unescaped:
        if c.isspace() or unicodedata.category(c) not in unseen:
            visible.append(c)
    mapped = "".join(visible).translate(_LOOK_ALIKES)
    return "".join(map(_ascii, mapped))


def _ascii(c: str) -> str:
    """Map a letter of another script to a wildcard; digits and dashes to ours."""
    if c.isascii():
        return c
    digit = unicodedata.decimal(c, -1)
    if digit >= 0:
        return str(digit)
    if unicodedata.category(c) == "Pd":
        return "-"
    return WILDCARD if c.isalnum() else c
