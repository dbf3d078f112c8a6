"""Parse authors of data sets, "Doe, Jane" or "Jane Doe, Wuhan", into names in reading order."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# An affiliation behind a comma, or in the place of a name.
AFFILIATION = re.compile(
    r"\b(universi[dt]|univ\b|h[oô]pital|hospital|institut|d[eé]part[ae]?ment|dept\b|division\b|"
    r"facult|fakult|school|college|cent(?:er|re)\b|laborator|academy|clinic|ministry|council|"
    r"foundation|inc\b|ltd\b|gmbh\b)",
    re.IGNORECASE,
)
_SUFFIX = re.compile(r"(jr|sr|ii|iii|iv|2nd|3rd|md|phd|m\.d|ph\.\s?d)\.?", re.IGNORECASE)
# Compared without full stops, and only behind a given name: they are initials too.
_DEGREES = frozenset("ba bs bsc ma ms msc mba mph rn dvm mbbs facp frcp pharmd dphil drph".split())
# Only as written in small letters: "Di Wu" and "Van Nguyen" are whole names.
_PARTICLES = frozenset(
    "af al da das de del della den der des di do dos du e el la le ten ter van von y zu zum "
    "zur".split()
)


# Between the strings of a list as numpy writes it there are no commas.
_NO_COMMA = re.compile(r"(?<=['\"])\s+(?=['\"])")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_AND = re.compile(r"\s*,?\s+(?:and|&)\s+|\s*&\s*(?=[^\W\d_]+,)", re.IGNORECASE)
_AND_FIRST = re.compile(r"and\s+|&\s+(?=\S+,)", re.IGNORECASE)
_ET_AL = re.compile(r"[\s,;&]{1,4}(?:and\s+)?(?:others|et\.? al\.?)\s*$", re.IGNORECASE)
# In the name of an institution, which "and" does not divide.
_INSTITUTION = re.compile(
    r"\b(of|for|the|on|in|administration|agency|association|authority|board|bureau|commission|"
    r"committee|consortium|group|network|office|organi[sz]ation|research|services?|society|team|"
    r"trial|union)\b",
    re.IGNORECASE,
)
_INITIALS = re.compile(r"(?:[^\W\d_a-z]\.?[ -]?){1,4}")
_NO_NAMES = ("", "nan", "None")
# Longest text of authors that is read as a list of Python or JSON.
_LONGEST = 10**6


class _Entry(NamedTuple):
    text: str
    name: list[str]
    suffixes: list[str]
    affiliation: list[str]


def author_names(text: str) -> tuple[str, ...]:
    """Split a list of authors whose separator and form are unknown.

    A list of Python or JSON, and one with semicolons, "|" or "and" between entries, is read as
    `in_reading_order` does, as is one whose commas can only be within one entry. Else commas
    separate the names: "Jane Doe, Richard Roe" -> Jane Doe, Richard Roe.
    """
    text = _ET_AL.sub("", " ".join(text.replace("&amp;", "&").split()))
    if text in _NO_NAMES:
        return ()
    if (listed := _listed(text)) is not None:
        return in_reading_order(listed)
    for mark in "|;":
        if mark in text:
            entries = [entry.strip(" ,") for entry in text.split(mark)]
            return in_reading_order([name for entry in entries for name in _divided(entry)])
    entries = _divided(text.strip(" ,"))
    commas = [sum(not _SUFFIX.fullmatch(part) for part in _parts(entry)) - 1 for entry in entries]
    if len(entries) > 1 and (set(commas) == {1} or not any(commas)):
        return in_reading_order(entries)
    parts = [part for part in _parts(", ".join(entries)) if part]
    names = [part for part in parts if not _SUFFIX.fullmatch(part)]
    if len(names) < 2:
        return (" ".join(parts),) if parts else ()
    # "Doe, J., Roe, R. & Ng, A."
    given_names = names[1::2]
    are_separate = (
        len(entries) > 1 and commas[-1] == 1 or all(map(_INITIALS.fullmatch, given_names))
    )
    are_pairs = len(names) > 2 and len(names) % 2 == 0 and all(map(_is_surname, names[::2]))
    if are_pairs and are_separate:
        return tuple(f"{value} {name}" for name, value in zip(names[::2], given_names, strict=True))
    # "Doe, Jane" has a part of one word; names in reading order have two or more words, also in
    # "Jane Doe, Wuhan, China".
    within_one = len(names) == 2 and (_is_surname(names[0]) or " " not in names[1])
    if within_one or " " in names[0] and all(" " not in name for name in names[1:]):
        return in_reading_order([", ".join(parts)])
    listed_names: list[str] = []
    affiliated = False
    for part in parts:
        # "Paris, France" after a hospital is its place.
        affiliated = bool(AFFILIATION.search(part)) or affiliated and " " not in part
        if listed_names and _SUFFIX.fullmatch(part):
            listed_names[-1] += f" {part}"
        elif listed_names and affiliated:
            listed_names[-1] += f", {part}"
        else:
            listed_names.append(part)
    return tuple(listed_names)


def _listed(text: str) -> list[str] | None:
    text = text.strip()
    if not (text[:1] in "[({" and text[-1:] in "])}" and len(text) <= _LONGEST) or not text:
        return None
    try:
        items = json.loads(text)
    except (ValueError, RecursionError):
        try:
            items = ast.literal_eval(_NO_COMMA.sub(", ", text))
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            inner = text[1:-1].strip()
            if quoted := [double or single for double, single in _QUOTED.findall(inner)]:
                return quoted
            return [*author_names(inner)] if text[0] == "[" else None
    if not isinstance(items, list | tuple | set):
        return None
    if isinstance(items, set):  # in the order of the text
        items = sorted(items, key=lambda item: text.find(str(item)))
    return [name for item in items for name in [person_name(item)] if name not in _NO_NAMES]


def person_name(item: object) -> str:
    """Read the name of an entry of JSON: a text, or an object of a name or its parts."""
    if isinstance(item, str):
        return item.strip()
    if not isinstance(item, Mapping):
        return ""
    name = item.get("name") or item.get("display_name") or item.get("literal")
    parts = [item.get("given"), item.get("family")]
    return str(name) if name else " ".join(str(part) for part in parts if part)


def _divided(entry: str) -> list[str]:
    first = _AND_FIRST.match(entry)
    parts = [part for part in _AND.split(entry[first.end() if first else 0 :]) if part]
    words = [len(part.split()) for part in parts]
    is_uniform = all(n > 1 for n in words) or all(n == 1 for n in words) or len(parts) > 2
    institution = any(AFFILIATION.search(part) or _INSTITUTION.search(part) for part in parts)
    return parts if is_uniform and not institution else [entry]


def turned_names(text: str) -> tuple[str, ...]:
    """Split a list known to be "Surname, Given; ...": "King, Martin, Jr." -> Martin King Jr.

    An entry of one or of more than two parts (not counting suffixes) is not in that form: the
    text behind its first comma is not a name, and keeps the comma, as an affiliation does.
    """
    entries = (_entry(entry.strip(" ,")) for entry in text.split(";"))
    names = (_write_name(entry, turn=len(entry.name) == 2) for entry in entries)
    return tuple(name for name in names if name)


def in_reading_order(entries: Sequence[str]) -> tuple[str, ...]:
    """Turn "Surname, Given" entries of a list that may or may not be in that form.

    The list is not in that form where most texts before a first comma have two or more words:
    then nothing is turned, and "Jane Doe, Wuhan" is Jane Doe. Otherwise an entry of two parts (not
    counting suffixes and known affiliations) is turned if the first is a single surname, or the
    second looks like given names. Any other entry keeps its first comma, at which
    `claim2source.text.clean_authors` cuts it off.
    """
    split = [_entry(entry) for entry in entries]
    # An entry without a comma, such as a consortium, does not show the form of the others.
    single = [_is_surname(e.name[0]) for e in split if len(e.name) > 1 or e.affiliation]
    surnames_first = 2 * sum(single) >= len(single)
    names = (_write_name(entry, surnames_first and _is_turned(entry)) for entry in split)
    return tuple(name for name in names if name)


def _entry(text: str) -> _Entry:
    first, *rest = parts = _parts(text)
    end = next((i for i, part in enumerate(rest) if AFFILIATION.search(part)), len(rest))
    names = [first]
    suffixes: list[str] = []
    for part in rest[:end]:
        # "Doe, MD" and "Rahman Khan, Md" have a given name; "Doe, Jane, MD" has a degree.
        word = part.replace(".", "").casefold()
        ends = end > 1 and (_SUFFIX.fullmatch(part) or word in _DEGREES)
        (suffixes if ends or word in ("jr", "sr") else names).append(part)
    return _Entry(", ".join(parts), names, suffixes, rest[end:])


def _write_name(entry: _Entry, turn: bool) -> str:
    if not turn:
        return entry.text
    surname, given_name = entry.name
    return ", ".join([" ".join([given_name, surname, *entry.suffixes]), *entry.affiliation])


def _is_turned(entry: _Entry) -> bool:
    """Whether an entry is "Surname, Given", as "Doe, Jane" is and "Doe, 12" is not."""
    if len(entry.name) != 2 or not entry.name[0] or not entry.name[1]:
        return False
    first, second = entry.name
    # Footnote marks and addresses.
    if re.search(r"[\d@&*†]", second):
        return False
    return _is_surname(first) or _is_given(second)


def _is_surname(text: str) -> bool:
    """Whether a text is one word, not counting particles ("van der") and suffixes."""
    words = [word for word in text.split() if not _SUFFIX.fullmatch(word)]
    while len(words) > 1 and words[0] in _PARTICLES:
        del words[0]
    return len(words) == 1 and words[0][0].isalpha()


def _is_given(text: str) -> bool:
    words = text.split()
    large = (not word[0].islower() or word in _PARTICLES for word in words)
    return len(words) <= 4 and not words[0][0].islower() and all(large)


def _parts(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.split(",")]
