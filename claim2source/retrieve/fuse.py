"""Fusing runs: weighted sums of normalised scores (2025 paper, section 4), reciprocal ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np

from claim2source.core.config import require, require_between
from claim2source.core.records import Source
from claim2source.core.run import Result, Run
from claim2source.core.stage import Claims, Index, Retriever
from claim2source.retrieve.index_folder import write_folder

# The folders of a hybrid index's two parts.
PARTS = ("first", "second")


@dataclass(frozen=True)
class FusionConfig:
    """Settings of the fusion of two runs.

    Args:
        method: `linear`: alpha * first + (1 - alpha) * second, each normalised per claim over
            its own list; `rrf`: sum of weight / (rrf_k + rank).
        alpha: weight of the first run (the sparse one in a hybrid), 0 to 1.
        rrf_k: constant of reciprocal rank fusion.
        depth: how deep each list is before fusion.
        scale: what a list's scores are divided by in linear fusion: `min-max`, their range;
            `z-score`, their standard deviation, which depends less on a single high score;
            `none`, nothing: a claim's high scores stay high, and alpha also sets the rate
            between the two kinds of scores.
    """

    method: Literal["linear", "rrf"] = "linear"
    alpha: float = 0.5
    rrf_k: int = 60
    depth: int = 100
    scale: Literal["min-max", "z-score", "none"] = "min-max"

    def __post_init__(self) -> None:
        require(0 <= self.alpha <= 1, "fusion.alpha", self.alpha, "0 to 1")
        require_between("fusion.rrf_k", self.rrf_k, 1, 10**6)
        require_between("fusion.depth", self.depth, 1, 10**6)


@overload
def fuse(
    first: Run,
    second: Run,
    config: FusionConfig | None = None,
    *,
    k: int | None = None,
    **settings: Any,
) -> Run: ...
@overload
def fuse(
    first: Result,
    second: Result,
    config: FusionConfig | None = None,
    *,
    k: int | None = None,
    **settings: Any,
) -> Result: ...
def fuse(
    first: Run | Result,
    second: Run | Result,
    config: FusionConfig | None = None,
    *,
    k: int | None = None,
    **settings: Any,
) -> Run | Result:
    """Fuse two runs, or two results, over the union of their lists.

    Settings are those of `FusionConfig`: `fuse(first, second, alpha=0.3)`. With `k` the lists
    are at least that deep, and the first `k` sources are kept.

    A source missing from one list gets 0 from it: in linear fusion the score of that list's
    last source (its minimum, normalised), in reciprocal rank fusion nothing, as if ranked
    infinitely deep. A list whose scores are all equal normalises to 1.

    Example:
        >>> import claim2source as c2s
        >>> first = c2s.Run.from_lists({"c": [("a", 9.0), ("b", 1.0)]})
        >>> second = c2s.Run.from_lists({"c": [("b", 0.9), ("a", 0.8)]})
        >>> c2s.fuse(first, second, alpha=0.2).sources("c")
        ['b', 'a']
    """
    config = replace(config or FusionConfig(), **settings)
    if k is not None:
        config = replace(config, depth=max(config.depth, k))
    if isinstance(first, Run) and isinstance(second, Run):
        return Fusion(first, second, config).run(config.alpha, k)
    if not isinstance(first, Result) or not isinstance(second, Result):
        raise TypeError("fuse takes two runs or two results")
    # A claim that one part could not rank is ranked by the other: only both failing fails.
    failed = {failure.claim_id for failure in second.failures}
    return Result(
        Fusion(first.run, second.run, config).run(config.alpha, k),
        failures=tuple(f for f in first.failures if f.claim_id in failed),
        cost=first.cost.over_same(second.cost),
        stored=first.stored and second.stored,
        index=second.index or first.index,
    )


class Fusion:
    """Align and normalise two runs once, to fuse them by one alpha after the other."""

    def __init__(self, first: Run, second: Run, config: FusionConfig) -> None:
        claim_ids = list(dict.fromkeys([*first.claim_ids, *second.claim_ids]))
        runs = [run.restricted(claim_ids).top(config.depth) for run in (first, second)]
        # Only ranked sources: a run of one claim may have a vocabulary of millions.
        ranked = [np.unique(run.codes, return_inverse=True) for run in runs]
        sources = [run.vocabulary[codes] for run, (codes, _) in zip(runs, ranked, strict=True)]
        vocabulary = np.unique(np.concatenate(sources))
        keys, values = [], []
        for run, ids, (_, places) in zip(runs, sources, ranked, strict=True):
            owner = np.repeat(np.arange(len(claim_ids)), np.diff(run.offsets))
            codes = np.searchsorted(vocabulary, ids)[places]
            keys.append(owner * len(vocabulary) + codes)
            values.append(_normalised(run, owner, config))
        pairs, place = np.unique(np.concatenate(keys), return_inverse=True)
        owner, codes = np.divmod(pairs, max(len(vocabulary), 1))
        # Places within a claim turn the pairs into the [claims, longest] shape of from_codes.
        counts = np.bincount(owner, minlength=len(claim_ids))
        column = np.arange(len(pairs)) - np.repeat(np.cumsum(counts) - counts, counts)
        shape = (len(claim_ids), int(counts.max(initial=0)))
        self._claim_ids, self._vocabulary = claim_ids, vocabulary
        self._codes = np.full(shape, -1, dtype=np.int64)
        self._codes[owner, column] = codes
        self._values = np.zeros((2, *shape))
        for number, part in enumerate(np.split(place.ravel(), [len(keys[0])])):
            self._values[number, owner[part], column[part]] = values[number]
        self._pool = {**(first.pool or {}), **(second.pool or {})} or None

    def run(self, alpha: float, k: int | None = None) -> Run:
        """Fuse with weight `alpha` for the first run; only the best `k` sources, if given."""
        scores = alpha * self._values[0] + (1.0 - alpha) * self._values[1]
        scores, codes = scores.astype(np.float32), self._codes
        if k is not None and 0 < k < scores.shape[1]:
            ranked = np.where(codes >= 0, scores, -np.inf)
            least = np.partition(ranked, -k, axis=1)[:, -k, None]
            codes = np.where(ranked >= least, codes, -1)
        run = Run.from_codes(self._claim_ids, self._vocabulary, codes, scores, pool=self._pool)
        return run if k is None else run.top(k)


def _normalised(run: Run, owner: np.ndarray, config: FusionConfig) -> np.ndarray:
    """Normalise a run's scores for fusion, before weighting: [rows] float64."""
    if config.method == "rrf":
        return 1 / (config.rrf_k + run.ranks())
    scores = run.scores.astype(np.float64)
    claims = len(run.claim_ids)
    low, high = np.full(claims, np.inf), np.full(claims, -np.inf)
    np.minimum.at(low, owner, scores)
    np.maximum.at(high, owner, scores)
    # Scores count from the list's minimum, not from the mean or 0: this shifts all of a claim's
    # sources alike, and leaves 0 for missing ones.
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


class Hybrid:
    """Rank sources by two retrievers and fuse their rankings.

    Example:
        >>> import claim2source as c2s
        >>> papers = c2s.load("demo", "dev").sources[:20]
        >>> hybrid = c2s.Hybrid(c2s.BM25(), c2s.BM25(stemmer=False)).index(papers)
        >>> hybrid.search("masks", k=3).run.claim_ids
        ('0',)
    """

    def __init__(
        self, first: Retriever, second: Retriever, fusion: FusionConfig | None = None
    ) -> None:
        self.first, self.second, self.fusion = first, second, fusion or FusionConfig()

    def index(self, sources: Sequence[Source]) -> HybridIndex:
        """Give the index of these sources: one of each retriever."""
        return HybridIndex(self.first.index(sources), self.second.index(sources), self.fusion)


class HybridIndex:
    """Search two indexes of the same sources and fuse their rankings."""

    def __init__(self, first: Index, second: Index, fusion: FusionConfig | None = None) -> None:
        self.first, self.second, self.fusion = first, second, fusion or FusionConfig()

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank max(`fusion.depth`, `k`) sources by both, fuse, keep the best `k`."""
        depth = max(self.fusion.depth, k)
        first, second = self.first.search(claims, depth), self.second.search(claims, depth)
        return fuse(first, second, self.fusion, k=k)

    def save(self, folder: str | Path) -> None:
        """Write both indexes to a folder that `load_index` opens."""
        write_folder(folder, "hybrid", self._write)

    def _write(self, folder: Path) -> dict[str, object]:
        for name in PARTS:
            getattr(self, name).save(folder / name)
        return {"fusion": self.fusion}
