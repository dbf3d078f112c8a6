"""Fusing runs: weighted sums of normalised scores (2025 paper, section 4), reciprocal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from claim2source.core.config import require
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.retrieve.topk import Retriever


@dataclass(frozen=True)
class FusionConfig:
    """How two runs become one.

    Args:
        method: `linear`: alpha * first + (1 - alpha) * second, each normalised per claim over
            its own list; `rrf`: sum of weight / (rrf_k + rank).
        alpha: weight of the first run (the sparse one in a hybrid), 0 to 1.
        rrf_k: constant of reciprocal rank fusion.
        depth: how deep each list is before fusion.
        scale: what a list is divided by in linear fusion: `min-max`, its range; `z-score`, its
            standard deviation, which one score far above the others moves less; `none`, nothing:
            a claim's high scores stay high, and alpha is also the rate between the two kinds.
    """

    method: Literal["linear", "rrf"] = "linear"
    alpha: float = 0.5
    rrf_k: int = 60
    depth: int = 100
    scale: Literal["min-max", "z-score", "none"] = "min-max"

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
    return Fusion(first, second, config).run(config.alpha)


class Fusion:
    """Two runs side by side, normalised once, to be fused by one alpha after the other."""

    def __init__(self, first: Run, second: Run, config: FusionConfig) -> None:
        claim_ids = list(dict.fromkeys([*first.claim_ids, *second.claim_ids]))
        vocabulary = sorted({*first.vocabulary.tolist(), *second.vocabulary.tolist()})
        code_of = {source: code for code, source in enumerate(vocabulary)}
        keys, values = [], []
        for run in (first, second):
            run = run.restricted(claim_ids).top(config.depth)
            owner = np.repeat(np.arange(len(claim_ids)), np.diff(run.offsets))
            codes = np.array([code_of[s] for s in run.vocabulary], dtype=np.int64)[run.codes]
            keys.append(owner * len(vocabulary) + codes)
            values.append(_normalised(run, owner, config))
        pairs, place = np.unique(np.concatenate(keys), return_inverse=True)
        owner, codes = np.divmod(pairs, max(len(vocabulary), 1))
        # Places within a claim turn the pairs into the [claims, longest] shape of from_topk.
        counts = np.bincount(owner, minlength=len(claim_ids))
        column = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (len(claim_ids), int(counts.max(initial=0)))
        self._claim_ids, self._vocabulary = claim_ids, vocabulary
        self._positions = np.full(shape, -1, dtype=np.int64)
        self._positions[owner, column] = codes
        self._values = np.zeros((2, *shape))
        for number, part in enumerate(np.split(place.ravel(), [len(keys[0])])):
            self._values[number, owner[part], column[part]] = values[number]
        self._pool = {**(first.pool or {}), **(second.pool or {})} or None

    def run(self, alpha: float, k: int | None = None) -> Run:
        """The fused run, the first weighing `alpha`; only its first `k` if given, sooner done."""
        scores = alpha * self._values[0] + (1.0 - alpha) * self._values[1]
        scores, positions = scores.astype(np.float32), self._positions
        if k is not None and 0 < k < scores.shape[1]:
            ranked = np.where(positions >= 0, scores, -np.inf)
            least = np.partition(ranked, -k, axis=1)[:, -k, None]
            positions = np.where(ranked >= least, positions, -1)
        run = Run.from_topk(self._claim_ids, self._vocabulary, positions, scores, pool=self._pool)
        return run if k is None else run.top(k)


def _normalised(run: Run, owner: np.ndarray, config: FusionConfig) -> np.ndarray:
    """What every row of a run brings to the fusion before it is weighed, [rows] float64."""
    if config.method == "rrf":
        return 1 / (config.rrf_k + run.ranks())
    scores = run.scores.astype(np.float64)
    claims = len(run.claim_ids)
    low, high = np.full(claims, np.inf), np.full(claims, -np.inf)
    np.minimum.at(low, owner, scores)
    np.maximum.at(high, owner, scores)
    # Scores count from the list's minimum, not from the mean or 0: that moves all of a claim's
    # sources by as much, and leaves 0 for what is missing.
    if config.scale == "min-max":
        spread = high - low
    elif config.scale == "none":
        spread = np.ones(claims)
    else:
        counts = np.maximum(np.bincount(owner, minlength=claims), 1)
        mean = np.bincount(owner, weights=scores, minlength=claims) / counts
        squares = np.bincount(owner, weights=(scores - mean[owner]) ** 2, minlength=claims)
        spread = np.sqrt(squares / counts)
    differs = (high > low)[owner]
    return np.where(differs, (scores - low[owner]) / np.where(differs, spread[owner], 1), 1.0)


@dataclass(frozen=True)
class HybridRetriever:
    """Two retrievers, fused."""

    sparse: Retriever
    dense: Retriever
    fusion: FusionConfig = FusionConfig()

    def retrieve(self, claims: Sequence[Claim], sources: Sequence[Source], k: int) -> Result:
        """Retrieve max(`fusion.depth`, `k`) from both, fuse, keep `k`."""
        depth = max(self.fusion.depth, k)
        first = self.sparse.retrieve(claims, sources, depth)
        second = self.dense.retrieve(claims, sources, depth)
        return fuse_results(first, second, self.fusion, k)


def fuse_results(first: Result, second: Result, fusion: FusionConfig, k: int) -> Result:
    """What two retrievers gave, max(`fusion.depth`, `k`) deep, fused; the first `k` are kept."""
    fused = Fusion(first.run, second.run, replace(fusion, depth=max(fusion.depth, k)))
    # A claim that one part could not do is done by the other: only both failing fails.
    failed = {failure.claim_id for failure in second.failures}
    failures = tuple(f for f in first.failures if f.claim_id in failed)
    stored = all(part.about.get("stored", False) for part in (first, second))
    about = {**first.about, **second.about, "stored": stored}
    cost = first.cost.over_same(second.cost)
    return Result(fused.run(fusion.alpha, k), failures=failures, cost=cost, about=about)
