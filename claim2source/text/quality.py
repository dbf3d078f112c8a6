"""Measure how much of its text a rewriting or a translation keeps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from claim2source.core.records import nfkc
from claim2source.text.clean import LINK

_TAG = re.compile(r"(?<![\w@#])[@#]\w+(?:-\d+)*")
# Groups of thousands by space (French), point or comma; not the digits within COVID-19 or H1N1.
_NUMBER = re.compile(
    r"(?<![\w.,])(?<![A-Za-z]-)\d{1,3}(?:[ \u00a0\u202f]\d{3})+(?!\d)"
    r"|(?<![\w])(?<![A-Za-z]-)\d+(?:[.,'’]\d+)*"
)
_PERCENT = re.compile(r"\s*-?(?:%|percent|per cent|prozent|pour ?cent|por ciento)", re.IGNORECASE)
_WORD = re.compile(r"[\w][\w'’-]*")
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
    return list(dict.fromkeys(_TAG.findall(LINK.sub(" ", text))))


def numbers(text: str) -> dict[str, bool]:
    """Find the numbers of a text: digits alone -> whether one of them is a percentage.

    "1,479", "1.479" and "1 479" are the same, as are "0.5" and "0,5". Digits within words (H1N1),
    addresses, handles and hashtags are none.
    """
    text = _TAG.sub(" ", LINK.sub(" ", text))
    kinds: dict[str, bool] = {}
    for match in _NUMBER.finditer(text):
        digits = re.sub(r"\D", "", match[0])
        percent = _PERCENT.match(text, match.end()) is not None
        kinds[digits] = kinds.get(digits, False) or percent
    return kinds


def numbers_in_words(text: str) -> set[str]:
    """Find the small numbers that are written as words, in English, German or French."""
    words = set(_WORD.findall(nfkc(text).lower().replace("-", " ")))
    return {_SPELT[word] for word in words & _SPELT.keys()}


def lost_facts(original: str, text: str) -> list[str]:
    """List the numbers, percentages, handles and hashtags that `text` lost, and new numbers."""
    before, after = numbers(original), numbers(text)
    numbers_written = after.keys() | numbers_in_words(text)
    facts = [f"the number {number} is gone" for number in before if number not in numbers_written]
    for number, percent in before.items():
        if percent and number in after and not after[number]:
            facts.append(f"{number} is no longer a percentage")
    numbers_known = before.keys() | numbers_in_words(original)
    facts += [f"the number {number} is new" for number in after if number not in numbers_known]
    tags_kept = {tag.lower() for tag in tags(text)}
    return facts + [f"{tag} is gone" for tag in tags(original) if tag.lower() not in tags_kept]


@dataclass(frozen=True)
class WrittenText:
    """Translation or rewriting, and why it is doubtful; of a failed one the text is empty.

    `not asked` stands for no answer at all.
    """

    text: str = ""
    kind: Literal["", "failed", "doubtful", "not asked"] = ""
    reason: str | None = None


# Judge a reply as a text.
Judge = Callable[[str], WrittenText]


def judge_text(text: str, why_bad: str | None, why_doubtful: str | None) -> WrittenText:
    """Keep a text that is doubtful at most; `why_bad` says why it is none at all."""
    if why_bad is not None:
        return WrittenText(kind="failed", reason=why_bad)
    return WrittenText(text, "" if why_doubtful is None else "doubtful", why_doubtful)


def first_lines(lines: Sequence[str], limit: int, rest: str) -> list[str]:
    """Indent the first lines; `rest` says where the others are."""
    remainder = [f"  and {len(lines) - limit} more{rest}"] if len(lines) > limit else []
    return [*(f"  {line}" for line in lines[:limit]), *remainder]


@dataclass(frozen=True)
class Quality:
    """Measure how rewritten texts differ from their originals, as means over the texts.

    `words`: of a rewritten text; `length`: its words per word of the original; `numbers`: share of
    the original's numbers that are kept, over originals that have some (None: none has);
    `new_numbers`: numbers that the original lacks.
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
        shares, new = [], []
        for original, text in pairs:
            before, after = numbers(original).keys(), numbers(text).keys()
            if before:
                shares.append(len(before & (after | numbers_in_words(text))) / len(before))
            new.append(len(after - before - numbers_in_words(original)))
        lengths = [(len(original.split()), len(text.split())) for original, text in pairs]
        return cls(
            words=fmean(words for _, words in lengths),
            length=fmean(words / max(before, 1) for before, words in lengths),
            numbers=fmean(shares) if shares else None,
            new_numbers=fmean(new),
        )

    def sentence(self) -> str:
        text = f"{self.words:.0f} words ({self.length:.2f} of the original)"
        if self.numbers is None:
            return text
        return f"{text}, {self.numbers:.0%} of the numbers kept, {self.new_numbers:.2f} new"
