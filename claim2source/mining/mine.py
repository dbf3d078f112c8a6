"""Hard negatives from BM25 and dense scores fused (2026 paper, table 6), positive-aware."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from tqdm import tqdm

from claim2source.config import require
from claim2source.encode.encoder import Encoder
from claim2source.mining.candidates import Candidates, Window
from claim2source.mining.twins import GoldTwins, Twins
from claim2source.records import Claim, Dataset
from claim2source.retrieve import BM25Config
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
        max_title_similarity: a source that shares more than this share of its title's words with
            a gold's (Jaccard) is taken for the same paper and left out; none: no limit.
        max_text_similarity: the same by the words of the two abstracts; none (the default): no
            limit.
        max_gold_similarity: the same by the cosine of the source's vector to a gold's. None (the
            default): no limit, since what a cosine means differs from encoder to encoder.
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
    max_title_similarity: float | None = 0.9
    max_text_similarity: float | None = None
    max_gold_similarity: float | None = None
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
        for key in ("max_title_similarity", "max_text_similarity", "max_gold_similarity"):
            value = getattr(self, key)
            require(value is None or 0 < value <= 1, f"mining.{key}", value,
                    "above 0, at most 1, or none")  # fmt: skip
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
    left_out_twin: int = 0
    left_out_close: int = 0
    missing_hard: int = 0
    missing_random: int = 0
    short_rows: int = 0

    def sentences(self) -> list[str]:
        """The counts for a person."""
        lines = [
            f"mined {self.hard} hard and {self.random} random negatives for {self.rows} pairs",
            f"left out {self.left_out_gold} golds, {self.left_out_pool} outside the pool, "
            f"{self.left_out_close} too close to the gold, {self.left_out_twin} near-duplicates of "
            "a gold",
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
        candidates = Candidates(
            dataset.sources, vectors, config.alpha, config.last_rank, config.bm25
        )
        pool = _Pool(dataset, candidates, config)
        golds = golds_by_text(dataset.claims)
        bar = tqdm(total=len(dataset.claims), desc="mining", disable=not self.progress, leave=False)
        with bar:
            for start in range(0, len(dataset.claims), CHUNK):
                chunk = dataset.claims[start : start + CHUNK]
                claim_vectors, _ = self.encoder.encode(
                    self.rendering.claim_texts(chunk), "claim", store=self.store
                )
                for block, window in candidates.windows(chunk, claim_vectors):
                    for row, claim in enumerate(block):
                        picker = _Picker(config, self.counts, claim, golds[claim.id], pool)
                        for gold in claim.golds:
                            negatives = picker.negatives(gold, window, row)
                            yield MinedRow(claim.id, gold, negatives)
                    bar.update(len(block))


class _Pool:
    """The sources that negatives come from, by position."""

    def __init__(self, dataset: Dataset, candidates: Candidates, config: MiningConfig) -> None:
        self.ids, self.position = candidates.ids, candidates.position
        golds = dataset.golds
        self.allowed = [config.pool == "all" or source in golds for source in self.ids]
        self.drawable = np.flatnonzero(self.allowed)
        self.twins = Twins(
            dataset.sources, candidates.vectors, config.max_title_similarity,
            config.max_text_similarity, config.max_gold_similarity,
        )  # fmt: skip


class _Picker:
    """Chooses the negatives of one claim, a gold at a time."""

    def __init__(
        self,
        config: MiningConfig,
        counts: MiningCounts,
        claim: Claim,
        golds: frozenset[str],
        pool: _Pool,
    ) -> None:
        self.config, self.counts, self.claim, self.pool = config, counts, claim, pool
        self.golds = {pool.position[gold] for gold in golds if gold in pool.position}
        self.twins: GoldTwins = pool.twins.of(self.golds)

    def negatives(self, gold: str, window: Window, row: int) -> tuple[Negative, ...]:
        """The negatives of the pair (claim, gold), hardest first, random ones last."""
        similarities = window.similarities[row]
        limit = self._highest(float(similarities[self.pool.position[gold]]))
        hard = self._hard(window, row, limit)
        taken = {self.pool.position[negative.source] for negative in hard} | self.golds
        random = self._random(similarities, limit, taken)
        missing_hard = self.config.hard - len(hard)
        missing_random = self.config.random - len(random)
        self.counts.rows += 1
        self.counts.hard += len(hard)
        self.counts.random += len(random)
        self.counts.missing_hard += missing_hard
        self.counts.missing_random += missing_random
        self.counts.short_rows += missing_hard > 0 or missing_random > 0
        return (*hard, *random)

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

    def _hard(self, window: Window, row: int, limit: float) -> list[Negative]:
        """The best of the window that may be taken."""
        taken: list[Negative] = []
        similarities = window.similarities[row]
        columns = slice(self.config.first_rank - 1, self.config.last_rank)
        # As lists: a claim's few sources are looked at one by one.
        listed = zip(
            window.positions[row, columns].tolist(), window.scores[row, columns].tolist(),
            window.in_dense[row, columns].tolist(), window.in_sparse[row, columns].tolist(),
            strict=True,
        )  # fmt: skip
        for position, score, in_dense, in_sparse in listed:
            if position < 0 or len(taken) == self.config.hard:
                break
            if position in self.golds:
                self.counts.left_out_gold += 1
            elif not self.pool.allowed[position]:
                self.counts.left_out_pool += 1
            elif position in self.twins:
                self.counts.left_out_twin += 1
            elif similarities[position] > limit:
                self.counts.left_out_close += 1
            else:
                origin: Origin = "dense" if not in_sparse else "both" if in_dense else "bm25"
                taken.append(Negative(self.pool.ids[position], score, origin))
        return taken

    def _random(self, similarities: np.ndarray, limit: float, taken: set[int]) -> list[Negative]:
        """Drawn from the pool, seeded by the claim so that no other claim changes the draw."""
        drawn: list[Negative] = []
        for position in self._drawn() if self.config.random else ():
            if position in taken or position in self.twins:
                continue
            score = float(similarities[position])
            if score <= limit:
                drawn.append(Negative(self.pool.ids[position], score, "random"))
                if len(drawn) == self.config.random:
                    break
        return drawn

    def _drawn(self) -> Iterator[int]:
        """The whole pool in random order; a claim's order is its own."""
        drawable = self.pool.drawable
        number = int.from_bytes(hashlib.sha256(self.claim.id.encode()).digest()[:8], "big")
        draw = np.random.default_rng([self.config.seed, number])
        # A permutation of a huge pool is dear, and a few sources nearly always do.
        first = draw.choice(drawable, size=min(len(drawable), FIRST_DRAWN), replace=False)
        yield from first.tolist()
        rest = np.setdiff1d(drawable, first, assume_unique=True)
        yield from draw.permutation(rest).tolist()
