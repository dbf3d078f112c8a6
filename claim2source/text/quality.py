"""Measure what a rewriting or a translation keeps of its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from claim2source.core.records import nfkc

_ADDRESS = re.compile(r"(?:https?://|www\.|pic\.twitter\.com/)\S+")
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

# One cosine for each pair of original and rewritten text.
Similarity = Callable[[Sequence[str], Sequence[str]], Sequence[float]]


def tags(text: str) -> list[str]:
    """List the handles and hashtags of a text, once each."""
    return list(dict.fromkeys(_TAG.findall(_ADDRESS.sub(" ", text))))


def numbers(text: str) -> dict[str, bool]:
    """Find the numbers of a text: digits alone -> whether one of them is a percentage.

    "1,479", "1.479" and "1 479" are the same, as are "0.5" and "0,5". Digits within words (H1N1),
    addresses, handles and hashtags are none.
    """
    text = _TAG.sub(" ", _ADDRESS.sub(" ", text))
    found: dict[str, bool] = {}
    for match in _NUMBER.finditer(text):
        digits = re.sub(r"\D", "", match[0])
        percent = _PERCENT.match(text, match.end()) is not None
        found[digits] = found.get(digits, False) or percent
    return found


def spelt(text: str) -> set[str]:
    """Find the small numbers that are written as words, in English, German or French."""
    words = set(_WORD.findall(nfkc(text).lower().replace("-", " ")))
    return {_SPELT[word] for word in words & _SPELT.keys()}


def entities(text: str) -> set[str]:
    """Find what looks like a name, by its letters alone: a proxy, no recogniser of entities.

    Words with an inner capital or a digit, acronyms, and capitalised words within a sentence;
    in lower case. German nouns are among them.
    """
    text = _ADDRESS.sub(" ", nfkc(text))
    found = set()
    for match in _WORD.finditer(text):
        word = match[0].rstrip("-'’")
        # Most words are these.
        if word.islower() and word.isalpha():
            continue
        before = text[max(0, match.start() - 9) : match.start()].rstrip(" \t\"'“„«([#@")
        begins = not before or before[-1] in ".!?:\n"
        inner = any(map(str.isupper, word[1:]))
        named = any(map(str.isdigit, word)) and any(map(str.isalpha, word))
        if len(word) > 1 and (inner or named or (word[0].isupper() and not begins)):
            found.add(word.lower())
    return found


# A pool is compared with its rewritings style by style.
@lru_cache(maxsize=2**14)
def _facts(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Find the numbers of an original, those written as words, and its names."""
    return frozenset(numbers(text)), frozenset(spelt(text)), frozenset(entities(text))


def lost_facts(original: str, text: str) -> list[str]:
    """List the numbers, percentages, handles and hashtags that `text` lost, and new numbers."""
    before, after = numbers(original), numbers(text)
    written = after.keys() | spelt(text)
    said = [f"the number {number} is gone" for number in before if number not in written]
    for number, percent in before.items():
        if percent and number in after and not after[number]:
            said.append(f"{number} is no percentage any more")
    known = before.keys() | spelt(original)
    said += [f"the number {number} is new" for number in after if number not in known]
    kept = {tag.lower() for tag in tags(text)}
    return said + [f"{tag} is gone" for tag in tags(original) if tag.lower() not in kept]


@dataclass(frozen=True)
class Quality:
    """Say how rewritten texts differ from their originals, as means over the texts.

    `words`: of a rewritten text; `length`: its words per word of the original; `numbers`: share of
    the original's numbers that are kept, over originals that have some (None: none has);
    `new_numbers`: numbers that the original lacks; `entities`: share of what looks like a name
    that is kept, a proxy; `similarity`: cosine to the original, where an encoder was given.
    """

    texts: int
    words: float
    length: float
    numbers: float | None
    new_numbers: float
    entities: float | None
    similarity: float | None = None

    def sentence(self) -> str:
        """Write the measures for a reader."""
        parts = [f"{self.words:.0f} words ({self.length:.2f} of the original)"]
        if self.numbers is not None:
            parts.append(f"{self.numbers:.0%} of the numbers kept, {self.new_numbers:.2f} new")
        if self.entities is not None:
            parts.append(f"{self.entities:.0%} of what looks like a name")
        if self.similarity is not None:
            parts.append(f"similarity {self.similarity:.3f}")
        return ", ".join(parts)


def quality(
    originals: Sequence[str], texts: Sequence[str], similarity: Similarity | None = None
) -> Quality | None:
    """Compare rewritten texts with their originals, pair by pair; None without any."""
    pairs = list(zip(originals, texts, strict=True))
    if not pairs:
        return None
    lengths = [(len(old.split()), len(new.split())) for old, new in pairs]
    kept_numbers, new_numbers, kept_entities = [], [], []
    for old, new in pairs:
        before, written_before, names = _facts(old)
        after = numbers(new).keys()
        if before:
            kept_numbers.append(len(before & (after | spelt(new))) / len(before))
        new_numbers.append(len(after - before - written_before))
        if names:
            words = {word.rstrip("-'’") for word in set(_WORD.findall(nfkc(new).lower()))}
            kept_entities.append(len(names & words) / len(names))
    cosines = None if similarity is None else similarity(originals, texts)
    return Quality(
        texts=len(pairs),
        words=fmean(new for _, new in lengths),
        length=fmean(new / max(old, 1) for old, new in lengths),
        numbers=fmean(kept_numbers) if kept_numbers else None,
        new_numbers=fmean(new_numbers),
        entities=fmean(kept_entities) if kept_entities else None,
        similarity=None if cosines is None else fmean(map(float, cosines)),
    )
