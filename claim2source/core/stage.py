"""Define the protocols of a pipeline: retriever, index, and stages that change a ranking.

A retriever turns sources into an index; the index ranks its sources for claims; a stage turns that
ranking into another one. Any class with these methods works, without a base class or a registry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from claim2source.core.arguments import records
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run

Claims = str | Sequence[str] | Sequence[Claim]
_CLAIMS_WANTED = "a text, or a list of texts or Claims, such as load(..).claims"
_SOURCES_WANTED = "a list of Sources, such as load(..).sources or [Source(id, title, abstract)]"


def as_claims(claims: Claims) -> Sequence[Claim]:
    """Turn plain strings into claims with the ids "0", "1", ..; return claims unchanged.

    Raises `InputError` for anything else.
    """
    given: object = [claims] if isinstance(claims, str) else claims
    listed: Sequence[str | Claim] = records(given, (str, Claim), "claims", _CLAIMS_WANTED)
    return [
        Claim(str(i), value) if isinstance(value, str) else value for i, value in enumerate(listed)
    ]


def as_sources(sources: Sequence[Source]) -> Sequence[Source]:
    """Return the sources to index. Raises `InputError` if they are not a list of `Source`s."""
    return records(sources, Source, "sources", _SOURCES_WANTED)


class Index(Protocol):
    """Search one set of sources, as often as needed.

    The first search may have to build the index (analyse texts, encode sources); its cost includes
    that.
    """

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank the best `k` sources of every claim, best first.

        For a claim with `candidates`, only these are ranked. A plain string is a claim too.
        """
        ...


class Retriever(Protocol):
    """Make indexes: a first stage with its settings, but without sources."""

    def index(self, sources: Sequence[Source]) -> Index:
        """Return the index of these sources; its first search builds it."""
        ...


class Stage(Protocol):
    """Change a ranking: re-rank, cut or verify an earlier stage's sources."""

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        """Rank the sources that `run` has for every claim again.

        `sources` is the entire pool, in which a stage finds their texts. A claim on which the
        stage fails keeps its ranking and is listed in the result's `failures`.
        """
        ...
