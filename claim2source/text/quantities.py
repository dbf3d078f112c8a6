"""Extract quantities from texts: numbers, percentages, multiples and years, in three languages.

Digits, signs and words in English, German and French give the same value and kind: "37 %" and
"siebenunddreißig Prozent"; "3.7x" and "3,7-fach"; "one in three", "ein Drittel" and "un tiers".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

from claim2source.core.records import nfkc
from claim2source.text.clean import LINK, without_unseen

Kind = Literal["number", "percent", "times", "year"]


class Quantity(NamedTuple):
    """Value and kind of a quantity: 37 % is 37 of the kind `percent`."""

    value: float
    kind: Kind


_UNITS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen",
    "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf dreizehn vierzehn "
    "fünfzehn sechzehn siebzehn achtzehn neunzehn",
    "zéro un deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize",
)
_TENS = {
    20: "twenty zwanzig vingt vingts",
    30: "thirty dreißig dreissig trente",
    40: "forty vierzig quarante",
    50: "fifty fünfzig cinquante",
    60: "sixty sechzig soixante",
    70: "seventy siebzig septante",
    80: "eighty achtzig huitante octante",
    90: "ninety neunzig nonante",
}
_LARGE = {
    12: "dozen dutzend douzaine",
    100: "hundred hundert cent cents",
    1_000: "thousand tausend mille",
    1_000_000: "million millions millionen",
    1_000_000_000: "billion billions milliarde milliarden milliard milliards",
}
_HUNDRED, _THOUSAND = 100, 1_000
_JOINTS = ("and", "und", "et")
# In German the tens follow the units, after "und".
_UND = -1
_GERMAN_PARTS = sorted(
    f"{_UNITS[1]} {' '.join(_TENS.values())} hundert tausend und".split(), key=len, reverse=True
)
_PART = re.compile("|".join(_GERMAN_PARTS))
_WORD = re.compile(r"[^\W\d_]+")
_MULTIPLE_END = re.compile(r"(?<=\w\w)(?:fold|mal|fache?[nmrs]?)$")
_PERCENT_WORD = re.compile(r"\b(?:per\s?cent|percent\w*|pct|prozent\w*|pour\s?cents?)\b")
_HANDLE = re.compile(r"(?<![\w@])@\w+")
_CONFIDENCE = re.compile(
    r"\b9[059](?:[.,]\d)?\s?%[\s-]*(?:ci|cri|ki|ic|confidence|credible|konfidenz\w*)\b"
)
_ONE = "one|an?|eine[rsnm]?|ein|une?"
# Denominators by the words of fractions; those in `_BARE` need no number before them.
_FRACTIONS = {
    3: "third thirds drittel dritteln drittels tiers",
    4: "quarter quarters viertel vierteln viertels quart quarts",
    5: "fifth fifths fünftel fünfteln fünftels cinquième cinquièmes",
    6: "sixth sixths sechstel sechsteln sechstels sixième sixièmes",
    8: "eighth eighths achtel achteln achtels huitième huitièmes",
    10: "tenth tenths zehntel zehnteln zehntels dixième dixièmes",
}
_BARE = re.compile(r"\w+tel[ns]?|tiers|quart")
_EVERY = {2: "zweite", 3: "dritte", 4: "vierte", 5: "fünfte", 6: "sechste", 10: "zehnte"}
_FACTORS = {
    2: r"doubl(?:e[drs]?|ing|é\w{0,2}|er)|twice|verdopp\w+|doppelt\w*",
    3: r"tripl(?:e[drs]?|ing|é\w{0,2}|er)|trebl\w+|verdreifach\w*",
    4: r"quadrupl\w+|vervierfach\w*",
    5: r"quintupl\w+|verfünffach\w*",
    10: r"décupl\w+|verzehnfach\w*",
}


def _denominators() -> dict[str, int]:
    denominators: dict[str, int] = {}
    for number, words in _FRACTIONS.items():
        denominators.update(dict.fromkeys(words.split(), number))
    return denominators


_DENOMINATORS = _denominators()
_SIGNS = [
    # Three in ten, une personne sur trois, 2/3.
    rf"(?<![\d.,])(?P<part>\d+|{_ONE})(?:\s+(?:(?!(?:in|of|von|sur)\b)[^\W\d_]+\s+)?(?:in|out\s+of|of|von|sur)"
    r"\s+|\s?/\s?)(?P<whole>\d+)\b(?![.,/]\d|\s*%)",
    rf"(?:(?P<count>\d+|{_ONE})[\s-]+)?(?P<fraction>{'|'.join(_DENOMINATORS)})\b",
    rf"jede[rsnm]?\s+(?P<every>{'|'.join(_EVERY.values())})[nrsm]?\b",
    r"(?P<half>half|halv(?:e[ds]?|ing)|halbe?[nrsm]?|halbier\w+|hälfte\w?|moitié)\b"
    r"(?![\s-](?:an?\s)?(?:hour|stunde|year|jahr|life|day|tag))",
    *(rf"(?P<times{number}>{words})\b(?!-?\s?blind)" for number, words in _FACTORS.items()),
]
_PHRASE = re.compile(rf"\b(?:{'|'.join(_SIGNS)})")
# A cheap test of whether a phrase is possible.
_MAY_HAVE_PHRASE = re.compile(
    r"third|quarter|fifth|sixth|eighth|tenth|tel\b|tel[ns]\b|tiers|quart|ième|jede|hal[bvf]|hälfte"
    r"|moitié|doubl|twice|dopp|tripl|trebl|fach|drupl|tupl|cupl|\d\s?/\s?\d|\b(?:in|of|von|sur)\s+\d"
)
# The Lancet's decimal points: 37·5 %.
_RAISED_POINT = re.compile(r"(?<=\d)[·∙⋅](?=\d)")
_SPACES, _MARK = re.compile(r"[ '’]"), re.compile(r"[.,]")
# Thousands are separated by spaces, apostrophes, points or commas.
_NUMBER = re.compile(
    r"(?<![\w.,])(?<![^\W\d_]-)"
    r"(?:\d{1,3}(?:[ '’]\d{3})+(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)*|[.,]\d+)"
)
_SCALE = re.compile(
    r"\s?(?:(?P<thousand>thousand|tausend|mille|k)|(?P<million>millions?|millionen|mio|mn)"
    r"|(?P<billion>billions?|milliarden?|milliards?|mrd|bn))\b"
)
_SCALES = {"thousand": 1e3, "million": 1e6, "billion": 1e9}
_AFTER_PERCENT = re.compile(r"\s*-?\s*(?:%|percentage|prozentpunkt\w*)")
_AFTER_TIMES = re.compile(r"\s*-?\s*(?:[x×](?!\w)|(?:fold|times|mal|fache?[nmrs]?|fois)\b)")
# "Rate ratio of 3.7" is 3.7 times.
_RATIOS = tuple(
    f"{name}{joint}"
    for name in "ratio|verhältnis|risque relatif|relative risk|relatives risiko|factor|faktor|"
    "facteur| hr|(hr| rr|(rr| irr|(irr| aor|(aor| ahr|(ahr| or =|(or =| or=|(or=".split("|")
    for joint in ("", " of", " was", " von", " de", " =", "=", ":")
)
_TIMES_BEFORE = ("×", *_RATIOS)
_BEFORE = 30
# Units may follow a number directly; other letters make it a name, such as 3D and 5th.
_UNIT = re.compile(
    r"(?:[x×%]|fold|mal|fache?[nmrs]?|[kmcnµμ]?[glm]|mmol|mmhg|h|hrs?|mins?|s|ms|yrs?|kj|kcal|"
    r"[kmg]?wh?|k?hz|db|°?[cf]|mio|mrd|k|bn|mn)?(?!\w)"
)
_RANGE = re.compile(r"\s*(?:[-–—~]|to|bis|à|a|and|und|et|or|oder|ou|vs\.?|versus|gegen|contre)\s*")
_YEARS = range(1900, 2100)
# "3 in 10", but not "3 in 312 schools".
_MOST_OF = 100
# Longer words are not cached, and none is a number.
_LONGEST_WORD = 80
# More digits are an identifier.
_MOST_DIGITS = 12


def _word_values() -> Mapping[str, int]:
    values: dict[str, int] = {}
    for words in _UNITS:
        for value, word in enumerate(words.split()):
            values.setdefault(word, value)
    for numbers in (_TENS, _LARGE):
        for value, listed in numbers.items():
            values.update(dict.fromkeys(listed.split(), value))
    return values | {"une": 1, "eine": 1, "eins": 1, "zwo": 2, "und": _UND}


_VALUES = _word_values()


def quantities(text: str, lang: str = "en") -> tuple[Quantity, ...]:
    """Extract the distinct quantities of a text.

    `lang` decides what "1,234" means: over a thousand in English, a bit more than one in other
    languages. Signs are ignored, and so are numbers within names (COVID-19), dates, addresses and
    handles, and the level of a confidence interval. A range gives both of its ends.

    Example:
        >>> quantities("dreimal so viele, 37 Prozent", "de") == quantities("3x as many, 37%")
        True
    """
    plain = " ".join(without_unseen(nfkc(text)).lower().replace("\u2044", "/").split())
    plain = _RAISED_POINT.sub(".", plain)
    plain = _HANDLE.sub(" ; ", LINK.sub(" ; ", plain))
    plain = _CONFIDENCE.sub(" ; ", _PERCENT_WORD.sub("%", plain))
    plain = _digits_for_words(plain)
    found: list[Quantity] = []
    if _MAY_HAVE_PHRASE.search(plain):
        plain = _PHRASE.sub(lambda match: _read_phrase(match, found), plain)
    found += _read_numbers(plain, lang)
    return tuple(dict.fromkeys(found))


def _digits_for_words(text: str) -> str:
    """Replace numbers in words by digits: "dreimal" becomes "3mal"."""
    words = list(_WORD.finditer(text))
    pieces: list[str] = []
    end = position = 0
    while position < len(words):
        number = None
        if _word_parts(words[position][0])[0]:
            number = _read_words(text, words, position)
        if number is None:
            position += 1
            continue
        after, digits = number
        pieces += [text[end : words[position].start()], digits]
        end = words[after - 1].end()
        position = after
    return "".join([*pieces, text[end:]])


def _read_words(text: str, words: Sequence[re.Match[str]], position: int) -> tuple[int, str] | None:
    """Parse the number at a word; return the next position and its digits with "mal" or "fold"."""
    start = words[position].start()
    first = _word_parts(words[position][0])[0][0]
    follows_digit = text[max(0, start - 2) : start].rstrip()[-1:].isdigit()
    if first == _UND or (follows_digit and first in _LARGE):
        return None
    number = _Number()
    after, end_of_multiple, joined = position, "", False
    for at in range(position, len(words)):
        if at > position and text[words[at - 1].end() : words[at].start()] not in (" ", "-"):
            break
        if words[at][0] in _JOINTS:
            joined = True
            continue
        parts, suffix = _word_parts(words[at][0])
        if not parts or not number.add(parts, joined):
            break
        after, end_of_multiple, joined = at + 1, suffix, False
        if suffix:
            break
    end = words[after - 1].end()
    if after == position or number.value < 2 or text[end : end + 1].isdigit():
        return None
    return after, f"{number.value}{end_of_multiple}"


class _Number:
    """Add up a number that is spelled in words."""

    def __init__(self) -> None:
        self._thousands = self._rest = self._last = 0

    @property
    def value(self) -> int:
        return self._thousands + self._rest

    def add(self, parts: Sequence[int], joined: bool) -> bool:
        """Add a word's parts; return False, without changes, if they begin another number."""
        before = self._thousands, self._rest, self._last
        for part in parts:
            if part == _UND:
                joined = True
                continue
            within = len(parts) > 1
            if not self._add(part, joined, within):
                self._thousands, self._rest, self._last = before
                return False
            joined = False
        return True

    def _add(self, part: int, joined: bool, within: bool) -> bool:
        if part >= _THOUSAND:
            if self._last >= part or joined:
                return False
            self._thousands += max(self._rest, 1) * part
            self._rest = 0
        elif part == _HUNDRED:
            if self._rest >= _HUNDRED or joined:
                return False
            self._rest = max(self._rest, 1) * _HUNDRED
        elif part == 20 and self._last == 4 and not within:
            self._rest += 80 - 4  # quatre-vingts
            part = 80
        elif not self.value or self._last >= _HUNDRED or self._continues(part, joined, within):
            self._rest += part
        else:
            return False
        self._last = part
        return True

    def _continues(self, part: int, joined: bool, within: bool) -> bool:
        """Whether a part continues tens and units: twenty-one, soixante-douze, einundzwanzig."""
        last = self._last
        if last < 10:
            return within and joined and part >= 20
        if last == 10:
            return part in (7, 8, 9)  # dix-sept
        if last % 10 or part >= 20:
            return False
        if joined:
            return part in (1, 11)  # vingt et un
        return part < 10 or last in (60, 80)


def _word_parts(word: str) -> tuple[tuple[int, ...], str]:
    """Split a word into values, such as 3 and 100, and its "mal", "fach" or "fold"."""
    return _known_parts(word) if len(word) <= _LONGEST_WORD else ((), "")


@lru_cache(maxsize=50_000)
def _known_parts(word: str) -> tuple[tuple[int, ...], str]:
    stem = _MULTIPLE_END.sub("", word)
    for form, suffix in ((word, ""), (stem, word[len(stem) :])):
        if form in _VALUES:
            return (_VALUES[form],), suffix
        parts = _PART.findall(form)
        if parts and "".join(parts) == form and "und" not in (parts[0], parts[-1]):
            return tuple(_VALUES[part] for part in parts), suffix
    return (), ""


def _read_phrase(match: re.Match[str], found: list[Quantity]) -> str:
    """Extract a share or a factor in words; return the text that replaces it."""
    groups = match.groupdict()
    share = 0.0
    if groups["whole"]:
        share = _share(_count(groups["part"]), int(groups["whole"]), "/" in match[0])
    elif groups["fraction"]:
        if groups["count"] or _BARE.fullmatch(groups["fraction"]):
            share = _share(_count(groups["count"]), _DENOMINATORS[groups["fraction"]])
    elif groups["every"]:
        numbers = [number for number, word in _EVERY.items() if word == groups["every"]]
        share = 1 / numbers[0]
    elif groups["half"]:
        share = 0.5
    else:
        name = str(match.lastgroup).removeprefix("times")
        found.append(Quantity(float(name), "times"))
        return " ; "
    if not share:
        return match[0]
    found.append(Quantity(float(round(100 * share)), "percent"))
    return " ; "


def _count(word: str | None) -> int:
    return int(word) if word is not None and word.isdigit() else 1


def _share(part: int, whole: int, is_slashed: bool = False) -> float:
    """Divide part by whole; 0.0 if this is not a share, such as "7 in 2020"."""
    most = 10 if is_slashed else _MOST_OF
    if not 0 < part < whole or (whole > most and whole != _THOUSAND):
        return 0.0
    return part / whole


def _read_numbers(text: str, lang: str) -> Iterator[Quantity]:
    after_start = len(text)
    after_kind: Kind = "number"
    for match in reversed(list(_NUMBER.finditer(text))):
        value = number_value(match[0], lang)
        if value is None or not _UNIT.match(text, match.end()):
            continue
        end = match.end()
        if scale := _SCALE.match(text, end):
            value = round(value * _SCALES[str(scale.lastgroup)], 6)
            end = scale.end()
        is_year = len(match[0]) == 4 and value in _YEARS
        kind = _number_kind(text, match.start(), end, is_year)
        # The kind after the second end of a range applies to the first one too.
        is_plain = kind == "number" and after_kind != "year"
        if is_plain and _RANGE.fullmatch(text, end, after_start):
            kind = after_kind
        after_start, after_kind = match.start(), kind
        yield Quantity(value, kind)


def _number_kind(text: str, start: int, end: int, is_year: bool) -> Kind:
    """Determine the kind of a number by the text after it and before it."""
    if _AFTER_PERCENT.match(text, end):
        return "percent"
    before = f" {text[max(0, start - _BEFORE) : start]}".rstrip(" ")
    if before.endswith(_TIMES_BEFORE) or _AFTER_TIMES.match(text, end):
        return "times"
    return "year" if is_year else "number"


def number_value(digits: str, lang: str) -> float | None:
    """Parse a number in digits; None if it is not a single number, such as 12.05.2020."""
    if digits.isdigit():
        return float(digits) if len(digits) <= _MOST_DIGITS else None
    digits = _SPACES.sub("", digits)
    marks = _MARK.findall(digits)
    first, *groups = _MARK.split(digits)
    if len(digits) - len(marks) > _MOST_DIGITS:
        return None
    if not marks:
        return float(first)
    decimal = marks[-1]
    thousands_mark = "," if lang == "en" else "."
    if len(set(marks)) > 1:
        # The last mark is the decimal one if it occurs once.
        is_number = marks.count(decimal) == 1 and _are_thousands(first, groups[:-1])
        return _join(first, groups, 1) if is_number else None
    if len(marks) > 1:
        return _join(first, groups, 0) if _are_thousands(first, groups) else None
    if decimal == thousands_mark and _are_thousands(first, groups):
        return _join(first, groups, 0)
    return _join(first, groups, 1)


def _are_thousands(first: str, groups: Sequence[str]) -> bool:
    """Whether groups of digits after the first are thousands: 1,234 but not 0,123."""
    return 0 < len(first) <= 3 and first[0] != "0" and {len(group) for group in groups} == {3}


def _join(first: str, groups: Sequence[str], decimals: int) -> float:
    """Join groups of digits; the last `decimals` groups (0 or 1) follow the decimal point."""
    whole = len(groups) - decimals
    return float(f"0{first}{''.join(groups[:whole])}.{''.join(groups[whole:])}")
