"""Choose the sentences of an abstract that report a result, and those with a post's numbers."""

from __future__ import annotations

import re
from collections.abc import Sequence

# Shorter ones are headings and pieces of citations.
_WORDS = 3
# In shorter abstracts every sentence may be one.
_SHORTEST = 4
# From here on most sentences are findings, and from there on those with a result's sign.
_LATER, _EARLIER = 0.5, 0.25
_SIGNS = re.compile(
    r"\d ?%|\bp ?[<=>]|\bCI\b|\b(?:found|show(?:ed|s|n)?|observed|reveal(?:ed|s)|demonstrated?"
    r"|significant(?:ly)?|associated|zeigten?|fanden|signifikant\w*|montr\w+|significati\w+"
    r"|associée?s?)\b",
    re.IGNORECASE,
)


_NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*")


def findings(sentences: Sequence[str]) -> list[int]:
    """List the positions of an abstract's findings; of all sentences where there are none.

    They stand in its later half or show a result: 92 % of them are results or conclusions, and
    92 % of these are among them, in structured abstracts (`tests/text/test_findings.py`).
    """
    last = len(sentences) - 1
    long = [number for number, sentence in enumerate(sentences) if len(sentence.split()) >= _WORDS]
    if len(sentences) < _SHORTEST:
        return long or [*range(len(sentences))]
    marked = [
        number
        for number in long
        if number >= _LATER * last
        or number >= _EARLIER * last
        and _SIGNS.search(sentences[number]) is not None
    ]
    return marked or long or [*range(len(sentences))]


def with_numbers_of(text: str, sentences: Sequence[str], positions: Sequence[int]) -> list[int]:
    """Keep, of these positions, sentences that hold most of the text's numbers; all, if none does.

    A decimal comma is a point. Single digits are no sign: they are in every abstract.
    """
    numbers = _numbers(text)
    shared = {i: len(numbers & _numbers(sentences[i])) for i in positions}
    maximum = max(shared.values(), default=0)
    return [i for i, count in shared.items() if count == maximum]


def _numbers(text: str) -> set[str]:
    return {number.replace(",", ".") for number in _NUMBER.findall(text) if len(number) > 1}
