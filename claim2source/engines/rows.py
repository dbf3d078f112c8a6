"""What an engine stores of a paper, and the filter of a search."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256

import numpy as np

from claim2source.core.config import require
from claim2source.core.records import nfkc
from claim2source.datasets.papers import Paper, last_day

_LANGUAGE = re.compile(r"[a-z]{2,3}")
# Of the hash of a paper's fields: enough that two versions of one paper never look alike.
_STAMP = 32


@dataclass(frozen=True)
class Where:
    """Say among which papers to search; nothing: all.

    Args:
        until: published on this day or before, such as 2021-05-01; a year or month means its
            last day. Papers whose date is not known stay in.
        language: language of the paper, ISO 639-1.
        venue: name of the venue, in any case.
        ids: papers to choose from.
    """

    until: str | None = None
    language: str | None = None
    venue: str | None = None
    ids: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        known = self.until is None or last_day(self.until) > 0
        require(known, "date", self.until, "a date such as 2021-05-01")
        known = self.language is None or _LANGUAGE.fullmatch(self.language) is not None
        require(known, "language", self.language, "a language code such as en")

    @property
    def last_day(self) -> int | None:
        """Number the last day, such as 20210501."""
        return None if self.until is None else last_day(self.until)

    def within(self, ids: Sequence[str] | None) -> Where:
        """Choose among these papers only, and those that it already chose from."""
        if ids is None:
            return self
        known = None if self.ids is None else set(self.ids)
        return replace(self, ids=tuple(one for one in ids if known is None or one in known))


EVERYWHERE = Where()


@dataclass(frozen=True, eq=False)
class Rows:
    """Hold papers as an engine stores them: terms between spaces, vectors [papers, d] float16.

    `sentences` are the vectors of each paper's sentences, [sentences, d] float16; None where the
    index keeps none.
    """

    papers: Sequence[Paper]
    terms: Sequence[str]
    vectors: np.ndarray
    stamps: Sequence[str]
    sentences: Sequence[np.ndarray] | None = None

    def __post_init__(self) -> None:
        ids = [paper.source.id for paper in self.papers]
        counts = {len(ids), len(self.terms), len(self.vectors), len(self.stamps)}
        if len(counts | ({len(self.sentences)} if self.sentences is not None else set())) > 1:
            raise ValueError("papers, terms, vectors, stamps and sentences differ in length")
        if len(set(ids)) < len(ids):
            raise ValueError("a paper's id repeats")

    def __len__(self) -> int:
        """Number of papers."""
        return len(self.papers)

    def only(self, places: Sequence[int]) -> Rows:
        """Keep the papers at these places."""
        return Rows(
            [self.papers[i] for i in places],
            [self.terms[i] for i in places],
            self.vectors[list(places)],
            [self.stamps[i] for i in places],
            None if self.sentences is None else [self.sentences[i] for i in places],
        )


def stamp_of(paper: Paper) -> str:
    """Hash all that is stored of a paper: another hash is another version of it."""
    text = json.dumps(asdict(paper), ensure_ascii=True, sort_keys=True)
    return sha256(text.encode()).hexdigest()[:_STAMP]


def half(vectors: np.ndarray) -> np.ndarray:
    """Round vectors to float16. Raises ValueError where one does not fit, or is not finite."""
    with np.errstate(over="ignore"):
        rounded = np.ascontiguousarray(vectors, dtype=np.float16)
    if not np.isfinite(rounded).all():
        raise ValueError("a vector does not fit into float16")
    return rounded


def venue_key(venue: str) -> str:
    """Write a venue's name as it is compared."""
    return " ".join(nfkc(venue).casefold().split())
