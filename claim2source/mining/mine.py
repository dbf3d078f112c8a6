"""Hard negatives from BM25 and dense scores fused (2026 paper, table 6), positive-aware."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from tqdm import tqdm

from claim2source.config import require
from claim2source.encode.encoder import Encoder
from claim2source.records import Claim, Dataset
from claim2source.retrieve import BM25Config, BM25Index, DenseIndex, FusionConfig, fuse
from claim2source.run import Run
from claim2source.store import Store
from claim2source.text import Rendering

Origin = Literal["bm25", "dense", "both", "random"]
# Claims mined at a time: what is held in memory does not grow with their number.
CHUNK = 1024
# Random sources drawn for a claim before the rest of the pool is put in order.
FIRST_DRAWN = 64


@dataclass(frozen=True)
class MiningConfig:
    """How hard negatives are chosen.

    Args:
        hard: hard negatives per claim.
        random: random negatives per claim.
        first_rank: first rank of the fused list that may be used, from 1.
        last_rank: last rank that may be used.
        alpha: weight of BM25 in the fusion; the rest is the dense score's.
        max_share: a negative scores at most this share of the gold's dense score; none: no
            limit.
        margin: a negative scores at least this much below the gold; none: no limit.
        pool: `all` sources, or only `train-golds`, the golds of training claims.
        seed: of the random negatives.
        bm25: BM25's settings.
    """

    hard: int = 6
    random: int = 2
    first_rank: int = 1
    last_rank: int = 100
    alpha: float = 0.5
    max_share: float | None = 0.95
    margin: float | None = None
    pool: Literal["all", "train-golds"] = "all"
    seed: int = 13
    bm25: BM25Config = field(default_factory=BM25Config)

    def __post_init__(self) -> None:
        require(self.hard >= 0, "mining.hard", self.hard, "0 or more")
        require(self.random >= 0, "mining.random", self.random, "0 or more")
        require(self.first_rank >= 1, "mining.first_rank", self.first_rank, "1 or more")
        require(
            self.last_rank >= self.first_rank, "mining.last_rank", self.last_rank,
            f"first_rank ({self.first_rank}) or more",
        )  # fmt: skip
        require(0 <= self.alpha <= 1, "mining.alpha", self.alpha, "0 to 1")
        require(
            self.max_share is None or 0 < self.max_share <= 1, "mining.max_share",
            self.max_share, "above 0, at most 1, or none",
        )  # fmt: skip
        require(self.margin is None or self.margin >= 0, "mining.margin", self.margin, "0 or more")


@dataclass(frozen=True, slots=True)
class Negative:
    """A source that a claim does not mean: its fused score (random: dense score) and origin."""

    source: str
    score: float
    origin: Origin


@dataclass(frozen=True, slots=True)
class MinedRow:
    """One training pair with its negatives, hardest first, random ones last."""

    claim: str
    positive: str
    negatives: tuple[Negative, ...]


@dataclass
class MiningCounts:
    """What was found, what was left out and why, what could not be filled."""

    rows: int = 0
    hard: int = 0
    random: int = 0
    left_out_gold: int = 0
    left_out_pool: int = 0
    left_out_close: int = 0
    missing_hard: int = 0
    missing_random: int = 0
    short_rows: int = 0

    def sentences(self) -> list[str]:
        """The counts for a person."""
        lines = [
            f"mined {self.hard} hard and {self.random} random negatives for {self.rows} pairs",
            f"left out {self.left_out_gold} golds, {self.left_out_pool} outside the pool, "
            f"{self.left_out_close} too close to the gold",
        ]
        if self.short_rows:
            lines.append(
                f"{self.short_rows} pairs could not be filled: {self.missing_hard} hard and "
                f"{self.missing_random} random negatives are missing"
            )
        return lines


def golds_by_text(claims: Sequence[Claim]) -> dict[str, frozenset[str]]:
    """Claim id -> every gold of any claim with the same text (case and spaces apart)."""
    of_text: dict[str, set[str]] = {}
    for claim in claims:
        of_text.setdefault(_same(claim.text), set()).update(claim.golds)
    return {claim.id: frozenset(of_text[_same(claim.text)]) for claim in claims}


def _same(text: str) -> str:
    return " ".join(text.casefold().split())


class Miner:
    """Mines the claims of one training set against its pool of sources."""

    def __init__(
        self,
        dataset: Dataset,
        encoder: Encoder,
        rendering: Rendering,
        config: MiningConfig | None = None,
        store: Store | None = None,
        progress: bool = False,
    ) -> None:
        self.dataset, self.encoder, self.rendering = dataset, encoder, rendering
        self.config = config or MiningConfig()
        self.store, self.progress = store, progress
        self.counts = MiningCounts()

    def mine(self) -> Iterator[MinedRow]:
        """Rows in the order of the claims, one per (claim, gold); `counts` fills as it goes."""
        config, dataset = self.config, self.dataset
        vectors, _ = self.encoder.encode(
            self.rendering.source_texts(dataset.sources), "source", store=self.store,
            progress="sources" if self.progress else None,
        )  # fmt: skip
        ids = [source.id for source in dataset.sources]
        dense = DenseIndex(ids, vectors)
        sparse = BM25Index(dataset.sources, config.bm25) if config.alpha > 0 else None
        position = {source: i for i, source in enumerate(ids)}
        allowed = frozenset(ids) if config.pool == "all" else dataset.golds
        drawable = np.array(sorted(position[s] for s in allowed), dtype=np.int64)
        golds = golds_by_text(dataset.claims)
        bar = tqdm(total=len(dataset.claims), desc="mining", disable=not self.progress, leave=False)
        with bar:
            for start in range(0, len(dataset.claims), CHUNK):
                chunk = dataset.claims[start : start + CHUNK]
                claim_vectors, _ = self.encoder.encode(
                    self.rendering.claim_texts(chunk), "claim", store=self.store
                )
                by_dense = dense.search(chunk, claim_vectors, config.last_rank)
                by_sparse = sparse.search(chunk, config.last_rank) if sparse else None
                fused = self._fused(by_dense, by_sparse)
                for row, claim in enumerate(chunk):
                    similarity = _Similarity(vectors, claim_vectors[row], position)
                    for gold in claim.golds:
                        picked = _Picker(self, claim, gold, golds[claim.id], allowed, similarity)
                        picked.hard(fused, by_dense, by_sparse)
                        picked.random(drawable, ids)
                        self.counts.rows += 1
                        self.counts.short_rows += picked.short
                        yield MinedRow(claim.id, gold, tuple(picked.negatives))
                bar.update(len(chunk))

    def _fused(self, dense: Run, sparse: Run | None) -> Run:
        if sparse is None:
            return dense
        if self.config.alpha == 1:
            return sparse
        depth = self.config.last_rank
        return fuse(sparse, dense, FusionConfig("linear", self.config.alpha, depth=depth))


class _Similarity:
    """Dense scores of one claim against any source."""

    def __init__(self, vectors: np.ndarray, claim: np.ndarray, position: Mapping[str, int]) -> None:
        self._vectors, self._claim, self._position = vectors, claim, position

    def __call__(self, source: str) -> float:
        return float(self._vectors[self._position[source]] @ self._claim)


class _Picker:
    """Chooses the negatives of one (claim, gold) pair."""

    def __init__(
        self,
        miner: Miner,
        claim: Claim,
        gold: str,
        golds: frozenset[str],
        allowed: frozenset[str],
        similarity: _Similarity,
    ) -> None:
        self.config, self.counts = miner.config, miner.counts
        self.claim, self.golds, self.allowed, self.similarity = claim, golds, allowed, similarity
        self.negatives: list[Negative] = []
        self.short = False
        self._limit = self._highest(similarity(gold))

    def _highest(self, gold_score: float) -> float:
        """Most that a negative may score."""
        limit = np.inf
        if self.config.max_share is not None:
            # A share of a negative score would lie above it: there the limit goes as far below.
            share = self.config.max_share
            limit = gold_score * (share if gold_score >= 0 else 2 - share)
        if self.config.margin is not None:
            limit = min(limit, gold_score - self.config.margin)
        return float(limit)

    def hard(self, fused: Run, dense: Run, sparse: Run | None) -> None:
        """Take the best of the window that may be taken."""
        in_dense = set(dense.sources(self.claim.id))
        in_sparse = set(sparse.sources(self.claim.id)) if sparse else set()
        wanted = self.config.hard
        for rank, (source, score) in enumerate(fused.scored(self.claim.id).items(), start=1):
            if wanted == 0 or rank > self.config.last_rank:
                break
            if rank < self.config.first_rank:
                continue
            if source in self.golds:
                self.counts.left_out_gold += 1
            elif source not in self.allowed:
                self.counts.left_out_pool += 1
            elif self.similarity(source) > self._limit:
                self.counts.left_out_close += 1
            else:
                both = source in in_dense and source in in_sparse
                origin: Origin = "both" if both else "dense" if source in in_dense else "bm25"
                self.negatives.append(Negative(source, score, origin))
                wanted -= 1
        self.counts.hard += self.config.hard - wanted
        self.counts.missing_hard += wanted
        self.short |= wanted > 0

    def random(self, drawable: np.ndarray, ids: Sequence[str]) -> None:
        """Draw from the pool, seeded by the claim so that no other claim changes the draw."""
        wanted = self.config.random
        taken = {negative.source for negative in self.negatives} | self.golds
        for position in self._drawn(drawable) if wanted else ():
            source = ids[position]
            if source not in taken and (score := self.similarity(source)) <= self._limit:
                self.negatives.append(Negative(source, score, "random"))
                wanted -= 1
                if wanted == 0:
                    break
        self.counts.random += self.config.random - wanted
        self.counts.missing_random += wanted
        self.short |= wanted > 0

    def _drawn(self, drawable: np.ndarray) -> Iterator[int]:
        """The whole pool in random order; a claim's order is its own."""
        number = int.from_bytes(hashlib.sha256(self.claim.id.encode()).digest()[:8], "big")
        draw = np.random.default_rng([self.config.seed, number])
        # A permutation of a huge pool is dear, and a few sources nearly always do.
        first = draw.choice(drawable, size=min(len(drawable), FIRST_DRAWN), replace=False)
        yield from first.tolist()
        rest = np.setdiff1d(drawable, first, assume_unique=True)
        yield from draw.permutation(rest).tolist()
