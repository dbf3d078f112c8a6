"""Apply the stages of a system to what an index finds; the index stands for its first stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from claim2source.core.config import require
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result
from claim2source.data.papers import Paper
from claim2source.data.store import Store
from claim2source.search.engine import Engine
from claim2source.search.table import SearchResults
from claim2source.systems.nodes import FUSE, RETRIEVE, BM25Node, DenseNode, HybridNode, RouteNode
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import apply_stages
from claim2source.systems.system import System

# What `on_part` is called with before the whole index is read.
COUNTING = "reading the index"
# Papers that a stage which counts terms over the whole index holds in memory, at most.
_POOL = 50_000


class PipelineStages:
    """Apply a system's stages; each loads its model when it is first applied, and keeps it.

    The engine takes over the system's fusion. Raises `UserError` if the system's first stage
    is not the index's: another BM25, model or kind.
    """

    def __init__(
        self,
        engine: Engine,
        system: System,
        store: Store | None,
        device: str | None,
        progress: bool,
    ) -> None:
        self.engine, self.system = engine, system
        self._check()
        self._runtime = SystemRuntime(store, device=device, progress=progress)
        self._stages = [stage.with_runtime(self._runtime) for stage in system.stages]
        self._pool: dict[str, Source] = {}

    @property
    def names(self) -> list[str]:
        return [stage.name for stage in self._stages]

    @property
    def depth(self) -> int:
        """Count the papers of each list that the stages read."""
        return self.system.first_depth(0)

    def _check(self) -> None:
        engine, system, first = self.engine, self.system, self.system.first
        if isinstance(first, HybridNode):
            engine.fusion = first.fusion
        require(not system.is_fit, "system", system.name, "nothing to fit: an index has no claims")
        for part in first.parts or (first,):
            if isinstance(part, BM25Node):
                engine.manifest.check_analyser(part.bm25, engine.location)
            elif not isinstance(part, DenseNode) or isinstance(first, RouteNode):
                allowed = "bm25, dense or hybrid: the index is the first stage"
                require(False, "system", system.name, allowed)
            # `dense: checkpoint` is the index's own.
            elif part.unsupported is None and part.model != engine.manifest.model:
                engine.load(part.model)

    def apply(
        self,
        claims: Sequence[Claim],
        results: SearchResults,
        papers: Mapping[str, Paper],
        on_part: Callable[[str], None],
    ) -> list[tuple[str, Result]]:
        """Return the results of the first stage's parts and of the stages, named, in order."""
        first, stage_results = self.system.first, [(RETRIEVE, results.dense)]
        if isinstance(first, HybridNode):
            parts = [first.sparse.display_name, first.dense.display_name, FUSE]
            ranked = (results.lexical, results.dense, results.fused)
            stage_results = list(zip(parts, ranked, strict=True))
        elif isinstance(first, BM25Node):
            stage_results = [(RETRIEVE, results.lexical)]
        sources = [paper.source for paper in papers.values()]
        self._count_over(sources, on_part)
        return stage_results + apply_stages(
            self._stages, stage_results, claims, sources, self._runtime, on_part
        )

    def _count_over(self, sources: Sequence[Source], on_part: Callable[[str], None]) -> None:
        """Have stages count terms over all papers; `UserError` if these are too many."""
        counting = [stage.name for stage in self._stages if stage.counts_terms]
        if not counting or all(self._pool.get(source.id) == source for source in sources):
            return
        if (papers := self.engine.stats().papers) > _POOL:
            raise UserError(
                f"{self.engine.location}: {counting[0]} weighs terms by how rare they are in all "
                f"papers, which it holds in memory: {_POOL} at most, and here are {papers}"
            )
        on_part(COUNTING)
        stored_sources = (paper.source for rows in self.engine.rows() for paper in rows.papers)
        self._pool = {source.id: source for source in (*stored_sources, *sources)}
        pool = list(self._pool.values())
        self._stages = [stage.with_corpus_stats(pool) for stage in self._stages]
