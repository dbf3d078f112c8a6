"""Find the papers of an index that new records are of, so that none replaces another paper."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from claim2source.data.identity import (
    Identities,
    Identity,
    distinct_id,
    is_alike,
    merged,
)
from claim2source.data.papers import Paper
from claim2source.search.engine import Engine

# Records whose papers are read from the index at a time.
_BATCH = 256
# Papers, each with whether its id is kept as its data set gives it.
Identified = Iterable[tuple[Paper, bool]]


class IndexedPapers:
    """Give records the ids that their papers have in an index.

    A record of a paper that is there under another id is merged into it. A paper whose id is
    another paper's there gets one of its own, the same one whenever it is read again.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.merged = 0
        self._identities: Identities | None = None
        self._ids: list[str] = []

    def placed(
        self, papers: Identified, on_merge: Callable[[Paper, str, str], None] | None = None
    ) -> Iterator[Paper]:
        """Yield papers with their ids in the index; `on_merge` is called for other ids."""
        part: list[tuple[Paper, bool]] = []
        for entry in papers:
            part.append(entry)
            if len(part) == _BATCH:
                yield from self._place(part, on_merge)
                part = []
        yield from self._place(part, on_merge)

    def _place(
        self,
        part: list[tuple[Paper, bool]],
        on_merge: Callable[[Paper, str, str], None] | None,
    ) -> Iterator[Paper]:
        ids: list[str] = []
        twins: set[int] = set()
        for number, (paper, keeps_id) in enumerate(part):
            own = paper.source.id
            key, reason = self._kept_id(paper) if keeps_id else self._known_id(paper)
            ids.append(key)
            if reason and key != own:
                twins.add(number)
                self.merged += 1
                if on_merge is not None:
                    on_merge(paper, key, reason)
        stored = self.engine.fetch([ids[number] for number in sorted(twins)]) if twins else {}
        for number, (paper, _) in enumerate(part):
            placed = replace(paper, source=replace(paper.source, id=ids[number]))
            if number in twins and ids[number] in stored:
                placed = merged(stored[ids[number]], placed)
                stored[ids[number]] = placed
            yield placed

    def _known_id(self, paper: Paper) -> tuple[str, str]:
        """Return the id of a record's paper, and by what it is the same; "" if it is new."""
        identities, identity = self._read(), Identity.read(paper)
        for number, reason in identities.find(identity):
            return self._ids[number], reason
        if identities.labelled(identity.label) is None:
            return paper.source.id, ""
        return distinct_id(paper), ""

    def _kept_id(self, paper: Paper) -> tuple[str, str]:
        """Return a data set's id, or another one if it is of a paper with other words."""
        identities, identity = self._read(), Identity.read(paper)
        number = identities.labelled(identity.label)
        if number is None or identities.known[number].common(identity):
            return paper.source.id, ""
        is_other = identities.known[number].is_other(identity)
        stored = self.engine.fetch([paper.source.id]).get(paper.source.id)
        if is_other or stored is None or not is_alike(paper, stored):
            return distinct_id(paper), ""
        return paper.source.id, ""

    def _read(self) -> Identities:
        """Read once by what all papers of the index are known."""
        if self._identities is None:
            self._identities = Identities()
            for paper in self.engine.headings():
                self._identities.add(Identity.read(paper))
                self._ids.append(paper.source.id)
        return self._identities
