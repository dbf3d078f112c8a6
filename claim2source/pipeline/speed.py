"""Measure what answering a new claim takes on a CPU: milliseconds, weights, vectors."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset
from claim2source.core.report import Speed
from claim2source.core.run import Run
from claim2source.models import resolve
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.stages import over, placed
from claim2source.pipeline.systems import SystemConfig, Systems, load_stages
from claim2source.retrieve import BM25, Dense, fuse

if TYPE_CHECKING:
    from claim2source.models import Encoder

Answer = Callable[[Sequence[Claim]], Run]
WARM_UP = 3


class Answering:
    """Answer claims with a system's parts, its sources indexed and nothing of a claim kept.

    Source vectors are read from the store, where it has them. Raises `UserError` for systems whose
    parts do not answer alone: routes, saved runs, settings that are chosen.
    """

    def __init__(
        self, name: str, systems: Systems, dataset: Dataset, settings: RunSettings
    ) -> None:
        self.systems, self.dataset, self.settings = systems, dataset, settings
        self.weights, self.vectors = 0, 0
        system = systems[name]
        self.first = self._first(system)
        # What they count over the pool is counted once; nothing is kept in the store.
        self.stages = [
            over(placed(stage, None, settings.device), dataset.sources)
            for _, stage in load_stages(system.stages)
        ]
        if self.stages:
            self.weights = 0  # what stages load is not known here

    def __call__(self, claims: Sequence[Claim]) -> Run:
        """Rank the sources of claims."""
        run = self.first(claims)
        for stage in self.stages:
            run = stage.apply(claims, self.dataset.sources, run).run
        return run

    def _first(self, system: SystemConfig) -> Answer:
        sources, depth = self.dataset.sources, system.depth or self.settings.depth
        if system.tune or system.routes is not None or system.run is not None:
            raise UserError("what it takes is measured of BM25, dense models and their fusion only")
        if system.bm25 is not None:
            bm25 = BM25(system.bm25).index(sources)
            return lambda claims: bm25.search(claims, depth).run
        if system.hybrid is not None:
            fusion = system.hybrid.fusion
            sparse = self._first(self.systems[system.hybrid.sparse])
            other = self._first(self.systems[system.hybrid.dense])
            return lambda claims: fuse(sparse(claims), other(claims), fusion, k=depth)
        assert system.model is not None
        resolved = resolve(system.model, self.settings.device)
        dense = Dense(
            resolved,
            rendering=system.rendering,
            store=self.settings.store,
            index=system.index,
            passages=system.passages,
            progress=self.settings.progress,
        ).index(sources)
        self.vectors += dense.vectors_bytes
        self.weights += _bytes(resolved.encoder)
        return lambda claims: dense.answer(claims, depth)


def _bytes(encoder: Encoder) -> int:
    """Count the bytes of the weights that encode claims."""
    parts = [encoder.model] if encoder.dense is None else [encoder.model, encoder.dense]
    return sum(p.numel() * p.element_size() for part in parts for p in part.parameters())


def measure(answering: Answering, claims: Sequence[Claim]) -> Speed:
    """Time claims one by one, after a warm-up, and all at once, in CPU time."""
    import torch

    for claim in claims[:WARM_UP]:
        answering([claim])
    alone = []
    for claim in claims:
        started = time.process_time()
        answering([claim])
        alone.append(time.process_time() - started)
    started = time.process_time()
    answering(claims)
    together = time.process_time() - started
    return Speed(
        round(1000 * statistics.median(alone), 3),
        round(1000 * together / len(claims), 3),
        len(claims),
        torch.get_num_threads(),
        answering.weights,
        answering.vectors,
    )
