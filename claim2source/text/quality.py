"""Measure how much of the original a rewriting or a translation keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from statistics import fmean
from typing import Literal

from claim2source.core.reasons import Reason
from claim2source.core.records import nfkc
from claim2source.text.clean import LINK

_TAG = re.compile(r"(?<![\w@#])[@#]\w+(?:-\d+)*")
# Thousands are separated by space (French), point or comma; not digits within COVID-19 or H1N1.
_NUMBER = re.compile(
    r"(?<![\w.,])(?<![A-Za-z]-)\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)"
    r"|(?<![\w])(?<![A-Za-z]-)\d+(?:[.,'’]\d+)*"
)
_PERCENT = re.compile(r"\s*-?(?:%|percent|per cent|prozent|pour ?cent|por ciento)", re.IGNORECASE)
_WORD = re.compile(r"[\w][\w'’-]*")
_LETTERS = re.compile(r"[^\W\d_]+")
# Endings of "dreimal", "dreifach", "threefold".
_MULTIPLE = re.compile(r"(?:mal|fache?[nmrs]?|fold)$")
_ENGLISH = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
).split()
_ORDINALS = "first second third fourth fifth sixth seventh eighth ninth tenth".split()
_GERMAN = "null eins zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
_FRENCH = "zéro un deux trois quatre cinq six sept huit neuf dix onze douze".split()
_SPELT = {
    **{word: str(number) for number, word in enumerate(_GERMAN)},
    **{word: str(number) for number, word in enumerate(_FRENCH)},
    **{word: str(number) for number, word in enumerate(_ORDINALS, start=1)},
    **{word: str(number) for number, word in enumerate(_ENGLISH)},
}


def tags(text: str) -> list[str]:
    """List the distinct handles and hashtags of a text."""
    without_links = LINK.sub(" ", text)
    found = _TAG.findall(without_links)
    return list(dict.fromkeys(found))


def numbers(text: str) -> dict[str, bool]:
    """Find the numbers of a text: digits without separators -> whether one is a percentage.

    "1,479", "1.479" and "1 479" are the same, as are "0.5" and "0,5". Digits within words (H1N1),
    addresses, handles and hashtags are ignored.
    """
    kinds: dict[str, bool] = {}
    for start, end in number_places(text):
        number = text[start:end]
        digits = re.sub(r"\D", "", number)
        is_percent = _PERCENT.match(text, end) is not None
        was_percent = kinds.get(digits, False)
        kinds[digits] = was_percent or is_percent
    return kinds


def number_places(text: str) -> list[tuple[int, int]]:
    """Find the positions of numbers in digits, except within words, addresses and hashtags."""
    for pattern in (LINK, _TAG):
        text = pattern.sub(lambda match: " " * len(match[0]), text)
    return [match.span() for match in _NUMBER.finditer(text)]


def word_number_places(text: str) -> list[tuple[int, int, str]]:
    """Find small numbers as words (three, drei, trois), with their positions and digits."""
    places: list[tuple[int, int, str]] = []
    for match in _LETTERS.finditer(text):
        plain = nfkc(match[0]).lower()
        word = _MULTIPLE.sub("", plain)
        if word in _SPELT:
            start, end = match.span()
            places.append((start, end, _SPELT[word]))
    return places


def numbers_in_words(text: str) -> set[str]:
    """Find the small numbers that are written as words, in English, German or French."""
    lowered = nfkc(text).lower()
    plain = lowered.replace("-", " ")
    found: set[str] = set()
    for word in _WORD.findall(plain):
        if word in _SPELT:
            found.add(_SPELT[word])
    return found


def lost_facts(
    original: str,
    text: str,
    *,
    is_translation: bool = False,
) -> list[str]:
    """List the numbers, percentages, handles and hashtags that `text` lost, and new numbers.

    In a translation a hashtag may have become another one with the same digits.
    """
    before = numbers(original)
    after = numbers(text)
    facts: list[str] = []

    written = after.keys() | numbers_in_words(text)
    for number in before:
        if number not in written:
            facts.append(f"the number {number} is gone")

    for number, is_percent in before.items():
        if is_percent and number in after and not after[number]:
            facts.append(f"{number} is no longer a percentage")

    known = before.keys() | numbers_in_words(original)
    for number in after:
        if number not in known:
            facts.append(f"the number {number} is new")

    tags_before = tags(original)
    tags_after = tags(text)
    for tag in _lost_tags(tags_before, tags_after, is_translation):
        facts.append(f"{tag} is gone")
    return facts


def _lost_tags(
    before: Sequence[str],
    after: Sequence[str],
    is_translation: bool,
) -> list[str]:
    """List the tags that are neither kept nor, in a translation, replaced by a new hashtag.

    A new hashtag replaces one old one, the most similar first: #immunologie for #immunology.
    """
    kept = {_folded(tag) for tag in after}
    lost = [tag for tag in before if _folded(tag) not in kept]
    if not is_translation:
        return lost

    known = {_folded(tag) for tag in before}
    new: list[str] = []
    for tag in after:
        if tag[0] == "#" and _folded(tag) not in known:
            new.append(tag)

    pairs: list[tuple[float, int, int]] = []
    for old_place, old in enumerate(lost):
        for new_place, tag in enumerate(new):
            if old[0] == "#" and _digits(old) == _digits(tag):
                likeness = SequenceMatcher(None, old.casefold(), tag.casefold()).ratio()
                pairs.append((-likeness, old_place, new_place))

    translated: dict[int, int] = {}
    for _, old_place, new_place in sorted(pairs):
        if old_place not in translated and new_place not in translated.values():
            translated[old_place] = new_place
    return [tag for place, tag in enumerate(lost) if place not in translated]


def _folded(tag: str) -> str:
    """Fold the case and the compatibility forms of a tag."""
    return nfkc(tag).casefold()


def _digits(text: str) -> list[str]:
    return re.findall(r"\d+", text)


@dataclass(frozen=True)
class WrittenText:
    """Translation or rewriting, and the reason if it is doubtful; the text is empty if it failed.

    `not asked` means that there is no answer, `left out` that a good text is not used because
    another part of its record has none.
    """

    text: str = ""
    kind: Literal["", "failed", "doubtful", "not asked", "left out"] = ""
    reason: str | None = None


# Judges a reply as a text.
Judge = Callable[[str], WrittenText]


def judge_text(
    text: str,
    error: str | None,
    doubt: str | None,
) -> WrittenText:
    """Keep a text, even if it is doubtful; with an `error` it has failed."""
    if error is not None:
        return WrittenText(kind="failed", reason=error)
    if doubt is not None:
        reason = Reason(doubt, "doubtful")
        return WrittenText(text, "doubtful", reason)
    return WrittenText(text)


def first_lines(lines: Sequence[str], limit: int, rest: str) -> list[str]:
    """Indent the first lines; `rest` tells where the others are."""
    first = [f"  {line}" for line in lines[:limit]]
    more = len(lines) - limit
    if more > 0:
        first.append(f"  and {more} more{rest}")
    return first


@dataclass(frozen=True)
class Quality:
    """Differences between rewritten texts and their originals, as means over the texts.

    `words`: number in a rewritten text; `length`: the same per word of the original; `numbers`:
    share of the original's numbers that are kept, over originals with numbers (None: there are
    none); `new_numbers`: count of numbers that the original lacks.
    """

    words: float
    length: float
    numbers: float | None
    new_numbers: float

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, str]]) -> Quality | None:
        """Compare pairs of an original and its rewriting; None without any."""
        if not pairs:
            return None

        words: list[int] = []
        lengths: list[float] = []
        shares: list[float] = []
        new: list[int] = []
        for original, text in pairs:
            count = len(text.split())
            original_count = len(original.split())
            words.append(count)
            lengths.append(count / max(original_count, 1))

            before = numbers(original).keys()
            after = numbers(text).keys()
            if before:
                written = after | numbers_in_words(text)
                kept = before & written
                shares.append(len(kept) / len(before))
            unknown = after - before - numbers_in_words(original)
            new.append(len(unknown))
        return cls(
            words=fmean(words),
            length=fmean(lengths),
            numbers=fmean(shares) if shares else None,
            new_numbers=fmean(new),
        )

    def sentence(self) -> str:
        text = f"{self.words:.0f} words ({self.length:.2f} of the original)"
        if self.numbers is None:
            return text
        return f"{text}, {self.numbers:.0%} of the numbers kept, {self.new_numbers:.2f} new"
