"""Cut long sources into passages that a model can read whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from claim2source.core.config import Between, Settings, require
from claim2source.core.records import Source


@dataclass(frozen=True)
class PassageConfig(Settings):
    """Say how sources are cut into passages; a source scores as its best passage.

    Args:
        words: words of a text in each passage; the title stands before each. 150 English words
            and a title stay below 256 tokens.
        overlap: words that a passage shares with the one before it.
    """

    words: Annotated[int, Between(1, 10**6)] = 150
    overlap: Annotated[int, Between(0, 10**6)] = 50

    def check(self) -> None:
        less = self.overlap < self.words
        require(less, "passages.overlap", self.overlap, f"less than passages.words, {self.words}")


def cut_sources(sources: Sequence[Source], config: PassageConfig) -> list[list[Source]]:
    """Cut each source into passages, which are sources with a part of the text, in order.

    One whose text is short enough stays as it is; every word is in a passage.

    Example:
        >>> from claim2source.core.records import Source
        >>> long = Source("a", "T", "one two three four")
        >>> [part.abstract for part in cut_sources([long], PassageConfig(3, 1))[0]]
        ['one two three', 'three four']
    """
    return [_cut(source, config) for source in sources]


def _cut(source: Source, config: PassageConfig) -> list[Source]:
    words = source.abstract.split()
    if len(words) <= config.words:
        return [source]
    step = config.words - config.overlap
    starts = range(0, len(words) - config.overlap, step)
    parts = (" ".join(words[start : start + config.words]) for start in starts)
    return [replace(source, abstract=part) for part in parts]
