"""Fusing runs: min-max linear (2025 paper, section 4) and reciprocal rank fusion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from claim2source.config import require
from claim2source.records import Claim, Source
from claim2source.retrieve.stage import Retriever
from claim2source.run import Result, Run


@dataclass(frozen=True)
class FusionConfig:
    """How two runs become one.

    Args:
        method: `linear`: alpha * first + (1 - alpha) * second, each min-max normalised per
            claim over its own list; `rrf`: sum of weight / (rrf_k + rank).
        alpha: weight of the first run (the sparse one in a hybrid), 0 to 1.
        rrf_k: constant of reciprocal rank fusion.
        depth: how deep each list is before fusion.
    """

    method: Literal["linear", "rrf"] = "linear"
    alpha: float = 0.5
    rrf_k: int = 60
    depth: int = 100

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "fusion.alpha", self.alpha, "0 to 1")
        require(self.rrf_k >= 1, "fusion.rrf_k", self.rrf_k, "1 or more")
        require(self.depth >= 1, "fusion.depth", self.depth, "1 or more")


def fuse(first: Run, second: Run, config: FusionConfig | None = None) -> Run:
    """Fuse two runs over the union of their lists.

    A document missing from one list gets 0 from it: in linear fusion the score of that
    list's last document (its minimum, normalised), in reciprocal rank fusion nothing, as
    if ranked infinitely deep. A list whose scores are all equal normalises to 1.
    """
    config = config or FusionConfig()
    weights = (config.alpha, 1.0 - config.alpha)
    claim_ids = list(dict.fromkeys([*first.claim_ids, *second.claim_ids]))
    vocabulary = sorted({*first.vocabulary.tolist(), *second.vocabulary.tolist()})
    code_of = {source: code for code, source in enumerate(vocabulary)}
    keys, values = [], []
    for run, weight in zip((first, second), weights, strict=True):
        run = run.restricted(claim_ids).top(config.depth)
        owner = np.repeat(np.arange(len(claim_ids)), np.diff(run.offsets))
        codes = np.array([code_of[s] for s in run.vocabulary], dtype=np.int64)[run.codes]
        score = _minmax(run, owner) if config.method == "linear" else 1 / (config.rrf_k + run.ranks())
        keys.append(owner * len(vocabulary) + codes)
        values.append(weight * score)
    pairs, inverse = np.unique(np.concatenate(keys), return_inverse=True)
    fused = np.bincount(inverse, weights=np.concatenate(values), minlength=len(pairs))
    owner, codes = np.divmod(pairs, max(len(vocabulary), 1))
    # Ranks within a claim turn the pairs into the [claims, longest] shape of from_topk.
    counts = np.bincount(owner, minlength=len(claim_ids))
    column = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions = np.full((len(claim_ids), int(counts.max(initial=0))), -1, dtype=np.int64)
    scores = np.zeros(positions.shape, dtype=np.float64)
    positions[owner, column], scores[owner, column] = codes, fused
    pool = {**(first.pool or {}), **(second.pool or {})} or None
    return Run.from_topk(claim_ids, vocabulary, positions, scores, pool=pool)


def _minmax(run: Run, owner: np.ndarray) -> np.ndarray:
    """Scores scaled to 0..1 within each claim; all equal -> 1."""
    scores = run.scores.astype(np.float64)
    low = np.full(len(run.claim_ids), np.inf)
    high = np.full(len(run.claim_ids), -np.inf)
    np.minimum.at(low, owner, scores)
    np.maximum.at(high, owner, scores)
    spread = (high - low)[owner]
    return np.where(spread > 0, (scores - low[owner]) / np.where(spread > 0, spread, 1), 1.0)


@dataclass(frozen=True)
class HybridRetriever:
    """Two retrievers, fused."""

    sparse: Retriever
    dense: Retriever
    fusion: FusionConfig = FusionConfig()

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Retrieve max(`fusion.depth`, `k`) from both, fuse, keep `k`."""
        depth = max(self.fusion.depth, k)
        fusion = replace(self.fusion, depth=depth)
        first = self.sparse.retrieve(claims, sources, depth)
        second = self.dense.retrieve(claims, sources, depth)
        run = fuse(first.run, second.run, fusion).top(k)
        # A claim that one part could not do is done by the other: only both failing fails.
        failed = {failure.claim_id for failure in second.failures}
        failures = tuple(f for f in first.failures if f.claim_id in failed)
        return Result(run, failures=failures, cost=first.cost + second.cost)
