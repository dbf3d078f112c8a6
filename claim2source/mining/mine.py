"""Hard negatives from BM25 and dense scores fused (2026 paper, table 6), positive-aware."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import Literal

import numpy as np
from tqdm import tqdm

from claim2source.core.config import require
from claim2source.core.records import Claim, Dataset
from claim2source.datasets.grouping import golds_by_text
from claim2source.io.store import Store
from claim2source.mining.candidates import Candidates, Window
from claim2source.mining.near_duplicates import GoldDuplicates, NearDuplicates
from claim2source.models.encoder import Encoder
from claim2source.retrieve import BM25Config
from claim2source.text import Rendering

Origin = Literal["bm25", "dense", "both", "random"]
# By who found a source: dense alone, BM25 alone, both.
_ORIGINS: tuple[Origin, ...] = ("dense", "bm25", "both")
# Claims mined at a time: what is held in memory does not grow with their number.
CHUNK = 1024
# Places of lists looked at together when negatives are picked.
PICKED = 2**18
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
            self.last_rank >= self.first_rank,
            "mining.last_rank",
            self.last_rank,
            f"first_rank ({self.first_rank}) or more",
        )
        require(0 <= self.alpha <= 1, "mining.alpha", self.alpha, "0 to 1")
        require(
            self.max_share is None or 0 < self.max_share <= 1,
            "mining.max_share",
            self.max_share,
            "above 0, at most 1, or none",
        )
        for key in ("max_title_similarity", "max_text_similarity", "max_gold_similarity"):
            value = getattr(self, key)
            require(
                value is None or 0 < value <= 1,
                f"mining.{key}",
                value,
                "above 0, at most 1, or none",
            )
        require(self.seed >= 0, "mining.seed", self.seed, "0 or more")
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
            self.rendering.source_texts(dataset.sources),
            "source",
            store=self.store,
            progress="sources" if self.progress else None,
        )
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
                    yield from _Picker(config, self.counts, pool, golds).rows(block, window)
                    bar.update(len(block))


class _Pool:
    """The sources that negatives come from, by position."""

    def __init__(self, dataset: Dataset, candidates: Candidates, config: MiningConfig) -> None:
        self.ids, self.position = candidates.ids, candidates.position
        golds = dataset.golds
        in_pool = [config.pool == "all" or source in golds for source in self.ids]
        self.allowed = np.array(in_pool, dtype=bool)
        self.drawable = np.flatnonzero(self.allowed)
        self.twins = NearDuplicates(
            dataset.sources,
            candidates.vectors,
            config.max_title_similarity,
            config.max_text_similarity,
            config.max_gold_similarity,
        )


@dataclass(frozen=True)
class _Pair:
    """A claim, by its row in the block, one of its golds, and what is none of its negatives."""

    row: int
    claim: Claim
    gold: str
    golds: frozenset[int]
    twins: GoldDuplicates


class _Picker:
    """Chooses the negatives of a block of claims."""

    def __init__(
        self,
        config: MiningConfig,
        counts: MiningCounts,
        pool: _Pool,
        golds: Mapping[str, frozenset[str]],
    ) -> None:
        self.config, self.counts, self.pool, self.golds = config, counts, pool, golds

    def rows(self, claims: Sequence[Claim], window: Window) -> Iterator[MinedRow]:
        """One row per (claim, gold): its negatives, hardest first, random ones last."""
        pairs = list(self._pairs(claims))
        step = max(1, PICKED // max(window.positions.shape[1], 1))
        for start in range(0, len(pairs), step):
            yield from self._rows(pairs[start : start + step], window)

    def _rows(self, pairs: Sequence[_Pair], window: Window) -> Iterator[MinedRow]:
        rows = np.array([pair.row for pair in pairs])
        positions = np.array([self.pool.position[pair.gold] for pair in pairs])
        limits = self._highest(window.similarities[rows, positions].astype(np.float64))
        hard = self._hard(pairs, window, rows, limits)
        for pair, limit, negatives in zip(pairs, limits.tolist(), hard, strict=True):
            taken = {self.pool.position[negative.source] for negative in negatives} | pair.golds
            random = self._random(pair, window.similarities[pair.row], limit, taken)
            missing_hard = self.config.hard - len(negatives)
            missing_random = self.config.random - len(random)
            self.counts.rows += 1
            self.counts.hard += len(negatives)
            self.counts.random += len(random)
            self.counts.missing_hard += missing_hard
            self.counts.missing_random += missing_random
            self.counts.short_rows += missing_hard > 0 or missing_random > 0
            yield MinedRow(pair.claim.id, pair.gold, (*negatives, *random))

    def _pairs(self, claims: Sequence[Claim]) -> Iterator[_Pair]:
        position = self.pool.position
        # Claims of the same text have the same golds, and what is kept of them is not small.
        twins: dict[frozenset[int], GoldDuplicates] = {}
        for row, claim in enumerate(claims):
            golds = frozenset(position[g] for g in self.golds[claim.id] if g in position)
            if golds not in twins:
                twins[golds] = self.pool.twins.of(golds)
            for gold in claim.golds:
                yield _Pair(row, claim, gold, golds, twins[golds])

    def _highest(self, gold_scores: np.ndarray) -> np.ndarray:
        """Most that a negative may score, for each gold's score."""
        limits = np.full(len(gold_scores), np.inf)
        if self.config.max_share is not None:
            # A share of a negative score would lie above it: there the limit goes as far below.
            share = self.config.max_share
            limits = gold_scores * np.where(gold_scores >= 0, share, 2 - share)
        if self.config.margin is not None:
            limits = np.minimum(limits, gold_scores - self.config.margin)
        return limits

    def _hard(
        self, pairs: Sequence[_Pair], window: Window, rows: np.ndarray, limits: np.ndarray
    ) -> list[list[Negative]]:
        """For every pair the best of the window that may be taken."""
        columns = slice(self.config.first_rank - 1, self.config.last_rank)
        positions = window.positions[rows, columns]
        listed = positions >= 0
        gold = np.zeros_like(listed)
        # Most claims have a gold or two: all pairs' first, all their second...
        for golds in zip_longest(*(pair.golds for pair in pairs), fillvalue=-1):
            gold |= positions == np.array(golds)[:, None]
        gold &= listed
        outside = listed & ~gold & ~self.pool.allowed[positions]
        free = listed & ~gold & ~outside
        near = window.similarities[rows[:, None], positions] > limits[:, None]
        twin, asked = np.zeros_like(listed), np.zeros_like(listed)
        while True:
            taken = free & ~near & ~twin
            # Up to the last that is taken; behind it nothing is looked at.
            seen = np.cumsum(taken, axis=1) - taken < self.config.hard
            wanted = free & seen & ~asked
            if not wanted.any():
                break
            # Of the costlier question no more is asked than is looked at.
            for i, column in zip(*map(np.ndarray.tolist, np.nonzero(wanted)), strict=True):
                twins = pairs[i].twins
                if twins:
                    twin[i, column] = int(positions[i, column]) in twins
            asked |= wanted
        taken &= seen
        self.counts.left_out_gold += int((gold & seen).sum())
        self.counts.left_out_pool += int((outside & seen).sum())
        self.counts.left_out_twin += int((twin & seen).sum())
        self.counts.left_out_close += int((free & near & ~twin & seen).sum())
        ids, origins = self.pool.ids, window.in_sparse * (1 + window.in_dense)
        found = iter(
            [
                Negative(ids[position], score, _ORIGINS[origin])
                for position, score, origin in zip(
                    positions[taken].tolist(),
                    window.scores[rows, columns][taken].tolist(),
                    origins[rows, columns][taken].tolist(),
                    strict=True,
                )
            ]
        )
        return [list(islice(found, count)) for count in taken.sum(axis=1).tolist()]

    def _random(
        self, pair: _Pair, similarities: np.ndarray, limit: float, taken: set[int]
    ) -> list[Negative]:
        """Drawn from the pool, seeded by the claim so that no other claim changes the draw."""
        drawn: list[Negative] = []
        for position in self._drawn(pair.claim) if self.config.random else ():
            if position in taken or position in pair.twins:
                continue
            score = float(similarities[position])
            if score <= limit:
                drawn.append(Negative(self.pool.ids[position], score, "random"))
                if len(drawn) == self.config.random:
                    break
        return drawn

    def _drawn(self, claim: Claim) -> Iterator[int]:
        """The whole pool in random order; a claim's order is its own."""
        drawable = self.pool.drawable
        number = int.from_bytes(hashlib.sha256(claim.id.encode()).digest()[:8], "big")
        draw = np.random.default_rng([self.config.seed, number])
        # A permutation of a huge pool is dear, and a few sources nearly always do.
        first = draw.choice(drawable, size=min(len(drawable), FIRST_DRAWN), replace=False)
        yield from first.tolist()
        rest = np.setdiff1d(drawable, first, assume_unique=True)
        yield from draw.permutation(rest).tolist()
