"""Match new records with papers of an index, so that no paper replaces a different one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from claim2source.data.identity import (
    Identities,
    Identity,
    distinct_id,
    is_alike,
    merged,
)
from claim2source.data.papers import Paper
from claim2source.search.engine import Engine

# Records that are looked up in the index at a time. After so many look-ups all papers of the index
# are read, which takes no longer than as many further look-ups.
_BATCH, _MOST = 256, 16_384
# Papers, each with whether it keeps its data set's id.
Identified = Iterable[tuple[Paper, bool]]


class IndexedPapers:
    """Assign records the ids that their papers have in an index.

    A record of a paper that the index has under another id is merged into it. A paper whose id
    belongs to another paper in the index gets a new id, always the same one. Papers that are
    written in the meantime are ignored.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.merged = 0
        self._identities = Identities()
        self._ids: list[str] = []
        self._version: int | None = None
        self._looked_up = 0
        self._has_all = False

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
        records = [Identity.read(paper) for paper, _ in part]
        self._look_up(records)
        ids: list[str] = []
        twins: set[int] = set()
        for number, (paper, keeps_id) in enumerate(part):
            own, record = paper.source.id, records[number]
            if keeps_id:
                key, reason = self._kept_id(paper, record), ""
            else:
                key, reason = self._known_id(paper, record)
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

    def _known_id(self, paper: Paper, record: Identity) -> tuple[str, str]:
        """Return the id of a record's paper, and the identity they share; "" if it is new."""
        identities = self._identities
        for number, reason in identities.find(record):
            return self._ids[number], reason
        if identities.labelled(record.label) is None:
            return paper.source.id, ""
        return distinct_id(paper), ""

    def _kept_id(self, paper: Paper, record: Identity) -> str:
        """Return a data set's id, or a new one if the id belongs to a paper with other words."""
        identities = self._identities
        number = identities.labelled(record.label)
        if number is None or identities.known[number].common(record):
            return paper.source.id
        is_other = identities.known[number].is_other(record)
        stored = self.engine.fetch([paper.source.id]).get(paper.source.id)
        if is_other or stored is None or not is_alike(paper, stored):
            return distinct_id(paper)
        return paper.source.id

    def _look_up(self, records: Sequence[Identity]) -> None:
        """Read the identities of papers of the index that may be those of records."""
        if self._has_all or not records:
            return
        if self._version is None:
            self._version = self.engine.version
        self._looked_up += len(records)
        keys: set[int] | None = None
        if self.engine.has_keys and self._looked_up <= _MOST:
            keys = set(chain.from_iterable(record.all_keys for record in records))
        else:
            self._has_all = True
        there = set(self._ids)
        for paper in self.engine.headings(self._version, keys):
            if paper.source.id not in there:
                self._identities.add(Identity.read(paper))
                self._ids.append(paper.source.id)
