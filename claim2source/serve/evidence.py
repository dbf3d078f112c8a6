"""Compare a post with a paper for a reader: its numbers, and the strength of the evidence."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from claim2source.core.languages import primary_language
from claim2source.find.finder import Answer, Match
from claim2source.find.matching import WORD
from claim2source.search.analyser import Analyser
from claim2source.text.quality import number_places, word_number_places

# Most numbers of a post to compare, and the characters shown around each.
MOST = 6
AROUND = 40
# Articles that are spelt as a number: "une étude".
_ARTICLES = frozenset("un une".split())
# Shares of a post's words above which the words in common are many, and some. On train posts of
# papertweets BM25's first paper is right for 80 % of many, 64 % of some and 43 % of few.
MANY = 0.6
SOME = 0.3
STRONG = "strong"
MODERATE = "moderate"
WEAK = "weak"
_BY_VERDICT = {
    "found": STRONG,
    "uncertain": MODERATE,
    "not here": WEAK,
}
# Few words in common weaken a verdict, which is about the index and not only this paper.
_LOWER = {
    STRONG: MODERATE,
    MODERATE: WEAK,
    WEAK: WEAK,
}


@dataclass(frozen=True)
class Number:
    """Number of a post, and its place in the paper with nearby words; None: not in the paper."""

    post: str
    paper: tuple[str, str, str] | None


@dataclass(frozen=True)
class Evidence:
    """Strength of the evidence for a paper: a level, the bar's share, and its origin.

    If `is_judged`, the share is the probability that the post's paper is in the index;
    otherwise it is the share of the post's words that the paper has, `shared` of `words`.
    """

    level: str
    share: float
    is_judged: bool
    shared: int
    words: int


def evidence(
    answer: Answer,
    match: Match,
    analyser: Analyser,
) -> Evidence:
    """Return the evidence for a paper by the fitted verdict, else by the words in common."""
    own: dict[str, str] = {}
    for word in WORD.findall(answer.post.text):
        own.setdefault(word.casefold(), word)
    distinct = list(own.values())
    terms = analyser.texts(distinct)

    words = sum(1 for word in terms if word)
    post_words = match.words[0]
    shared = min(words, len(post_words))
    share = shared / words if words else 0.0
    by_words = _level_by_words(share)

    level = _BY_VERDICT.get(answer.verdict)
    if answer.present is None or level is None:
        return Evidence(by_words, share, False, shared, words)

    paper_lang = primary_language(match.paper.lang)
    is_foreign = paper_lang not in ("", answer.lang)
    if by_words == WEAK and not is_foreign:
        level = _LOWER[level]
    return Evidence(level, answer.present, True, shared, words)


def _level_by_words(share: float) -> str:
    """Return the level of evidence for a share of words in common."""
    if share >= MANY:
        return STRONG
    if share >= SOME:
        return MODERATE
    return WEAK


def compared_numbers(post: str, paper: str) -> list[Number]:
    """List the numbers of a post, each with its context in a paper's text."""
    theirs: dict[str, tuple[int, int]] = {}
    for start, end, value in _numbers(paper):
        theirs.setdefault(value, (start, end))

    numbers: dict[str, Number] = {}
    for start, end, value in _numbers(post):
        if value in numbers or len(numbers) >= MOST:
            continue
        shown = _with_unit(post, start, end)
        context = _place(paper, theirs, value)
        numbers[value] = Number(shown, context)
    return list(numbers.values())


def _numbers(text: str) -> list[tuple[int, int, str]]:
    """List the numbers of a text in order, each with a value for comparisons.

    A percentage differs from a count, and single digits are listed only with a unit.
    """
    places: list[tuple[int, int, str]] = []
    for start, end in number_places(text):
        value = _value(text[start:end])
        places.append((start, end, value))
    for start, end, value in word_number_places(text):
        word = text[start:end].lower()
        if word not in _ARTICLES:
            places.append((start, end, value))

    numbers: list[tuple[int, int, str]] = []
    for start, end, value in sorted(places):
        unit = _UNIT.match(text, end)
        has_multiple = _MULTIPLE.search(text[start:end]) is not None
        is_long = len(value) > 1
        if not (is_long or unit or has_multiple):
            continue
        is_percent = unit is not None and _PERCENT.search(unit[0]) is not None
        if is_percent:
            value += "%"
        numbers.append((start, end, value))
    return numbers


def _value(number: str) -> str:
    """Normalise a number to a decimal point without groups: 1,479 is 1479, and 3,7 is 3.7."""
    without_spaces = re.sub(r"[\s'’]", "", number)
    plain = without_spaces.replace(",", ".")
    whole, *groups = plain.split(".")
    if not groups:
        return plain

    are_thousands = all(len(group) == 3 for group in groups)
    are_groups = whole != "0" and are_thousands
    if are_groups or len(groups) > 1:
        return plain.replace(".", "")

    decimals = groups[0].rstrip("0")
    if not decimals:
        return whole
    return f"{whole}.{decimals}"


_UNIT = re.compile(
    r"\s?(?:%|‰|°C?|[x×](?!\w)|percent\b|per cent\b|Prozent\b|pour cent\b|times\b|fold\b|-fold\b"
    r"|-fach\b|Mal\b|mal\b|fois\b)"
)
_PERCENT = re.compile("%|cent|Prozent", re.IGNORECASE)
_MULTIPLE = re.compile(r"(?:mal|fache?[nmrs]?|fold)$")


def _with_unit(text: str, start: int, end: int) -> str:
    unit = _UNIT.match(text, end)
    if unit:
        end = unit.end()
    return text[start:end]


def _place(
    text: str,
    places: Mapping[str, tuple[int, int]],
    value: str,
) -> tuple[str, str, str] | None:
    """Return the words around a number in a text; None if the text does not have it."""
    if value not in places:
        return None
    start, end = places[value]

    line_start = text.rfind("\n", 0, start) + 1
    line_end = text.find("\n", end)
    if line_end < 0:
        line_end = len(text)
    first = max(line_start, start - AROUND)
    last = min(line_end, end + AROUND)

    before = text[first:start]
    if first > line_start:
        _, _, whole_words = before.partition(" ")
        before = "… " + whole_words.lstrip()

    after = text[end:last]
    if last < line_end:
        whole_words, _, _ = after.rpartition(" ")
        after = whole_words.rstrip() + " …"
    return before, text[start:end], after
