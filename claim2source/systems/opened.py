"""Run a system on an opened index of papers, which replaces its first stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from claim2source.core.config import require
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result
from claim2source.models import ModelConfig
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine
from claim2source.search.fuse import Hybrid
from claim2source.search.routes import Routes
from claim2source.search.table import SearchResults
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import apply_stages
from claim2source.systems.system import FUSE, RETRIEVE, System

# Name of the work of reading the whole index.
COUNTING = "reading the index"
# Most papers that a stage can load to count terms over the whole index.
_POOL = 50_000


class OpenedSystem:
    """Apply a system's stages to the papers that an index finds; each loads its model only once.

    The engine uses the system's fusion. Raises `UserError` if the system's first stage does not
    match the index: another BM25, model or kind.
    """

    def __init__(self, engine: Engine, system: System, runtime: SystemRuntime) -> None:
        self.engine = engine
        self.system = system
        self._adopt()
        self._runtime = runtime
        self._stages = [stage.with_runtime(runtime) for stage in system.stages]
        self._pool: dict[str, Source] = {}

    @property
    def stage_names(self) -> list[str]:
        return [stage.name for stage in self._stages]

    @property
    def depth(self) -> int:
        """Return the number of papers of each list that the stages use."""
        return self.system.first_depth(0)

    def _adopt(self) -> None:
        """Set the index's fusion and model to the system's; raise if its first stage differs."""
        engine = self.engine
        system = self.system
        first = system.first
        if isinstance(first.retriever, Hybrid):
            engine.fusion = first.retriever.fusion
        require(not system.is_fit, "system", system.name, "a system without `fit`")
        for stage in system.stages:
            allowed = f"a system without {stage.name}, which ranks the claims of a set together"
            require(not stage.ranks_together, "system", system.name, allowed)
        manifest = engine.manifest
        lacks_vectors = manifest.encoded_first and isinstance(first.retriever, Dense)
        require(
            not lacks_vectors,
            "system",
            system.name,
            "bm25 or hybrid: the index stores no vectors",
        )
        for part in first.parts or (first,):
            own = part.retriever
            is_dense = isinstance(own, Dense) and isinstance(own.model, ModelConfig)
            if isinstance(own, BM25):
                engine.manifest.check_analyser(own, engine.location)
            elif not is_dense or isinstance(first.retriever, Routes):
                allowed = "bm25, dense or hybrid: the index replaces the first stage"
                require(False, "system", system.name, allowed)
            # `dense: checkpoint` is the index's own model.
            elif part.unsupported is None and own.model != engine.manifest.model:
                engine.load(own.model)

    def apply(
        self,
        claims: Sequence[Claim],
        found: SearchResults,
        sources: Sequence[Source],
        on_part: Callable[[str], None],
    ) -> list[tuple[str, Result]]:
        """Return the results of the first stage's parts and of the stages by name, in order.

        `sources` are the papers that the index found; `on_part` is called with the name of each
        part of the work before it begins.
        """
        first = self._first_results(found)
        self._count_over(sources, on_part)
        later = apply_stages(
            self._stages,
            first,
            claims,
            sources,
            self._runtime,
            on_part,
        )
        return first + later

    def _first_results(self, found: SearchResults) -> list[tuple[str, Result]]:
        first = self.system.first
        if isinstance(first.retriever, Hybrid):
            sparse, dense = (part.display_name for part in first.parts)
            return [
                (sparse, found.lexical),
                (dense, found.dense),
                (FUSE, found.fused),
            ]
        if isinstance(first.retriever, BM25):
            return [(RETRIEVE, found.lexical)]
        return [(RETRIEVE, found.dense)]

    def _count_over(self, sources: Sequence[Source], on_part: Callable[[str], None]) -> None:
        """Let stages count terms over all papers; raise `UserError` if these are too many."""
        counting = [stage.name for stage in self._stages if stage.counts_terms]
        if not counting:
            return
        if all(self._pool.get(source.id) == source for source in sources):
            return
        papers = self.engine.stats().papers
        if papers > _POOL:
            raise UserError(
                f"{self.engine.location}: {counting[0]} counts terms over all papers in memory: "
                f"at most {_POOL} papers are allowed, the index has {papers}"
            )

        on_part(COUNTING)
        self._pool = {}
        for rows in self.engine.rows():
            for paper in rows.papers:
                self._pool[paper.source.id] = paper.source
        for source in sources:
            self._pool[source.id] = source
        pool = list(self._pool.values())
        self._stages = [stage.with_corpus_stats(pool) for stage in self._stages]
