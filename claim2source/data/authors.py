"""Parse author fields such as "Doe, Jane" or "Jane Doe, Wuhan" into names in reading order."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# An affiliation after a comma, or instead of a name.
AFFILIATION = re.compile(
    r"\b(universi[dt]|univ\b|h[oô]pital|hospital|institut|d[eé]part[ae]?ment|dept\b|division\b|"
    r"facult|fakult|school|college|cent(?:er|re)\b|laborator|academy|clinic|ministry|council|"
    r"foundation|inc\b|ltd\b|gmbh\b)",
    re.IGNORECASE,
)
_SUFFIX = re.compile(r"(jr|sr|ii|iii|iv|2nd|3rd|md|phd|m\.d|ph\.\s?d)\.?", re.IGNORECASE)
# Compared without full stops, and only after a given name, since they may be initials.
_DEGREES = frozenset("ba bs bsc ma ms msc mba mph rn dvm mbbs facp frcp pharmd dphil drph".split())
# Only in lower case: "Di Wu" and "Van Nguyen" are complete names.
_PARTICLES = frozenset(
    "af al da das de del della den der des di do dos du e el la le ten ter van von y zu zum "
    "zur".split()
)


# A list that numpy printed has no commas between its strings.
_NO_COMMA = re.compile(r"(?<=['\"])\s+(?=['\"])")
_QUOTED = re.compile(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"")
_AND = re.compile(r"\s*,?\s+(?:and|&)\s+|\s*&\s*(?=[^\W\d_]+,)", re.IGNORECASE)
_AND_FIRST = re.compile(r"and\s+|&\s+(?=\S+,)", re.IGNORECASE)
_ET_AL = re.compile(r"[\s,;&]{1,4}(?:and\s+)?(?:others|et\.? al\.?)\s*$", re.IGNORECASE)
# Words of an institution's name, which is not split at "and".
_INSTITUTION = re.compile(
    r"\b(of|for|the|on|in|administration|agency|association|authority|board|bureau|commission|"
    r"committee|consortium|group|network|office|organi[sz]ation|research|services?|society|team|"
    r"trial|union)\b",
    re.IGNORECASE,
)
_INITIALS = re.compile(r"(?:[^\W\d_a-z]\.?[ -]?){1,4}")
_NO_NAMES = ("", "nan", "None")
# Keys of a name in JSON: the full name, or its parts in reading order.
_WHOLE_NAMES = (
    "name",
    "display_name",
    "literal",
    "fullName",
    "collectiveName",
    "collective_name",
)
_NAME_PARTS = (
    ("given", "dropping-particle", "non-dropping-particle", "family", "suffix"),
    ("firstName", "lastName"),
    ("first_name", "last_name"),
    ("givenName", "familyName"),
    ("first", "middle", "last", "suffix"),
)
# Longest author field that is parsed as a list of Python or JSON.
_LONGEST = 10**6


class _Entry(NamedTuple):
    text: str
    name: list[str]
    suffixes: list[str]
    affiliation: list[str]


def author_names(text: str) -> tuple[str, ...]:
    """Split a list of authors whose separator and form are unknown.

    A list of Python or JSON, a list with semicolons, "|" or "and" between its entries, and a
    single entry with commas are parsed by `in_reading_order`. Otherwise commas separate the names:
    "Jane Doe, Richard Roe" -> Jane Doe, Richard Roe.
    """
    words = text.replace("&amp;", "&").split()
    spaced = " ".join(words)
    text = _ET_AL.sub("", spaced)
    if text in _NO_NAMES:
        return ()
    listed = _listed(text)
    if listed is not None:
        return in_reading_order(listed)
    for mark in "|;":
        if mark in text:
            names = _marked_names(text, mark)
            return in_reading_order(names)
    entries = _divided(text.strip(" ,"))
    return _comma_names(entries)


def _marked_names(text: str, mark: str) -> list[str]:
    """Split a text at a mark between entries, and each entry at "and"."""
    names: list[str] = []
    for entry in text.split(mark):
        stripped = entry.strip(" ,")
        names += _divided(stripped)
    return names


def _comma_names(entries: Sequence[str]) -> tuple[str, ...]:
    """Split entries at commas, which separate names, or a surname and a given name."""
    has_several = len(entries) > 1
    commas = [_count_commas(entry) for entry in entries]
    if has_several and (set(commas) == {1} or not any(commas)):
        return in_reading_order(entries)

    joined = ", ".join(entries)
    parts = [part for part in _parts(joined) if part]
    names = [part for part in parts if not _SUFFIX.fullmatch(part)]
    if not parts:
        return ()
    if len(names) < 2:
        return (" ".join(parts),)
    ends_in_pair = has_several and commas[-1] == 1
    if _are_pairs(names, ends_in_pair):
        surnames = names[::2]
        given_names = names[1::2]
        pairs = zip(surnames, given_names, strict=True)
        return tuple(f"{given_name} {surname}" for surname, given_name in pairs)
    if _is_one_entry(names):
        entry = ", ".join(parts)
        return in_reading_order([entry])
    return _with_affiliations(parts)


def _count_commas(entry: str) -> int:
    """Count the commas of an entry, except those before a suffix."""
    names = [part for part in _parts(entry) if not _SUFFIX.fullmatch(part)]
    return len(names) - 1


def _are_pairs(names: Sequence[str], ends_in_pair: bool) -> bool:
    """Whether parts alternate between surname and given name: "Doe, J., Roe, R. & Ng, A."."""
    count = len(names)
    if count <= 2 or count % 2 == 1:
        return False
    surnames = names[::2]
    given_names = names[1::2]
    if not all(map(_is_surname, surnames)):
        return False
    return ends_in_pair or all(map(_INITIALS.fullmatch, given_names))


def _is_one_entry(names: Sequence[str]) -> bool:
    """Whether the parts between commas belong to one entry.

    "Doe, Jane" has a part of one word, but a name in reading order has two or more words, also in
    "Jane Doe, Wuhan, China".
    """
    first, *others = names
    if len(names) == 2 and (_is_surname(first) or " " not in names[1]):
        return True
    if " " not in first:
        return False
    return not any(" " in name for name in others)


def _with_affiliations(parts: Sequence[str]) -> tuple[str, ...]:
    """Add suffixes and affiliations to the names before them."""
    names: list[str] = []
    affiliated = False
    for part in parts:
        # "Paris, France" after a hospital belongs to its address.
        is_place = affiliated and " " not in part
        affiliated = is_place or AFFILIATION.search(part) is not None
        if not names:
            names.append(part)
        elif _SUFFIX.fullmatch(part):
            names[-1] += f" {part}"
        elif affiliated:
            names[-1] += f", {part}"
        else:
            names.append(part)
    return tuple(names)


def _listed(text: str) -> list[str] | None:
    """Parse a list of Python, NumPy or JSON; None if the text is not one."""
    text = text.strip()
    if not text or len(text) > _LONGEST:
        return None
    if text[0] not in "[({" or text[-1] not in "])}":
        return None
    try:
        items = _literal(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return _quoted(text)
    if not isinstance(items, list | tuple | set):
        return None
    if isinstance(items, set):  # in the order of the text
        items = sorted(items, key=lambda item: text.find(str(item)))
    names = map(person_name, items)
    return [name for name in names if name not in _NO_NAMES]


def _literal(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return ast.literal_eval(_NO_COMMA.sub(", ", text))


def _quoted(text: str) -> list[str] | None:
    """Return the quoted texts within brackets, or else the names within square brackets."""
    inner = text[1:-1].strip()
    matches = _QUOTED.findall(inner)
    quoted = [double or single for double, single in matches]
    if quoted:
        return quoted
    if text[0] != "[":
        return None
    names = author_names(inner)
    return list(names)


def person_name(item: object) -> str:
    """Return the name of an entry in JSON: a text, or an object with a name or its parts."""
    if isinstance(item, str):
        return item.strip()
    if not isinstance(item, Mapping):
        return ""
    longest: list[str] = []
    for keys in _NAME_PARTS:
        parts: list[str] = []
        for key in keys:
            value = item.get(key)
            if not value:
                continue
            words = value if isinstance(value, list) else [value]
            part = " ".join(map(str, words))
            parts.append(part)
        longest = max(longest, parts, key=len)

    if len(longest) < 2:
        for key in _WHOLE_NAMES:
            name = item.get(key)
            if isinstance(name, str) and name.strip():
                return name
    return " ".join(longest)


def _divided(entry: str) -> list[str]:
    """Split an entry at "and", unless it is part of an institution's name."""
    first = _AND_FIRST.match(entry)
    if first:
        names = entry[first.end() :]
    else:
        names = entry
    parts = [part for part in _AND.split(names) if part]
    if any(map(_is_institution, parts)):
        return [entry]
    if len(parts) > 2:
        return parts
    # Two names have several words each, two surnames one.
    counts: set[int] = set()
    for part in parts:
        words = part.split()
        counts.add(min(len(words), 2))
    are_names = len(counts) < 2 and 0 not in counts
    return parts if are_names else [entry]


def _is_institution(name: str) -> bool:
    if AFFILIATION.search(name):
        return True
    return _INSTITUTION.search(name) is not None


def turned_names(text: str) -> tuple[str, ...]:
    """Split a list known to be "Surname, Given; ...": "King, Martin, Jr." -> Martin King Jr.

    An entry that does not have two parts (not counting suffixes) is not in that form: the text
    after its first comma is not a name and keeps the comma, like an affiliation.
    """
    names: list[str] = []
    for part in text.split(";"):
        entry = _entry(part.strip(" ,"))
        has_two_parts = len(entry.name) == 2
        name = _write_name(entry, turn=has_two_parts)
        names.append(name)
    return tuple(filter(None, names))


def in_reading_order(entries: Sequence[str]) -> tuple[str, ...]:
    """Turn "Surname, Given" entries of a list that may or may not be in that form.

    The list is not in that form if most texts before a first comma have two or more words: then
    nothing is turned, and "Jane Doe, Wuhan" is Jane Doe. Otherwise an entry of two parts (not
    counting suffixes and known affiliations) is turned if the first part is a single surname or
    the second looks like given names. Any other entry keeps its first comma, at which
    `claim2source.text.clean_authors` truncates it.
    """
    split = [_entry(entry) for entry in entries]
    # An entry without a comma, such as a consortium, does not show the form of the others.
    with_comma = [entry for entry in split if len(entry.name) > 1 or entry.affiliation]
    surnames = [entry for entry in with_comma if _is_surname(entry.name[0])]
    surnames_first = 2 * len(surnames) >= len(with_comma)
    names: list[str] = []
    for entry in split:
        turn = surnames_first and _is_turned(entry)
        names.append(_write_name(entry, turn))
    return tuple(filter(None, names))


def _entry(text: str) -> _Entry:
    parts = _parts(text)
    first, *rest = parts
    end = 0
    while end < len(rest) and not AFFILIATION.search(rest[end]):
        end += 1
    names = [first]
    suffixes: list[str] = []
    for part in rest[:end]:
        # "Doe, MD" and "Rahman Khan, Md" have a given name; "Doe, Jane, MD" has a degree.
        word = part.replace(".", "").casefold()
        is_ending = end > 1 and (_SUFFIX.fullmatch(part) or word in _DEGREES)
        if is_ending or word in ("jr", "sr"):
            suffixes.append(part)
        else:
            names.append(part)
    written = ", ".join(parts)
    affiliation = rest[end:]
    return _Entry(written, names, suffixes, affiliation)


def _write_name(entry: _Entry, turn: bool) -> str:
    if not turn:
        return entry.text
    surname, given_name = entry.name
    name = " ".join([given_name, surname, *entry.suffixes])
    return ", ".join([name, *entry.affiliation])


def _is_turned(entry: _Entry) -> bool:
    """Whether an entry is "Surname, Given", as "Doe, Jane" is and "Doe, 12" is not."""
    if len(entry.name) != 2:
        return False
    first, second = entry.name
    if not first or not second:
        return False
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
    if len(words) > 4 or words[0][0].islower():
        return False
    return all(word in _PARTICLES or not word[0].islower() for word in words)


def _parts(text: str) -> list[str]:
    parts: list[str] = []
    for part in text.split(","):
        words = part.split()
        parts.append(" ".join(words))
    return parts
