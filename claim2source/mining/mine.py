"""Mine hard negatives by fused BM25 and dense scores, positive-aware (2026 paper, table 6)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import numpy as np

from claim2source.core.config import (
    LARGEST,
    Between,
    PositiveShare,
    Seed,
    Settings,
    Share,
    require,
)
from claim2source.core.progress import Progress
from claim2source.core.records import Claim, Dataset
from claim2source.data.grouping import golds_by_text
from claim2source.data.store import Store
from claim2source.mining.baseline import RandomBaseline, random_baseline
from claim2source.mining.candidates import Candidates, Window
from claim2source.mining.near_duplicates import GoldDuplicates, words_to_compare
from claim2source.search.bm25 import BM25
from claim2source.text import ClaimForm, Rendering

if TYPE_CHECKING:
    from claim2source.models import Encoder

# `teacher`: from a teacher's run, not mined.
Origin = Literal["bm25", "dense", "both", "random", "teacher", "first", "given"]
# Indexed by what found a source: dense alone, BM25 alone, both.
_ORIGINS: tuple[Origin, ...] = ("dense", "bm25", "both")
# Claims mined at a time, so that memory does not grow with their number.
CHUNK = 4096
# List entries processed at a time when negatives are picked.
PICKED = 2**18
# Random sources drawn for a claim before the rest of the pool is shuffled.
FIRST_DRAWN = 64
# Warn if more than this share of the pairs is short of negatives.
SHORT = 0.1


@dataclass(frozen=True)
class MiningBM25(Settings):
    """Configure BM25 for mining; its other settings are the defaults of `BM25`.

    Args:
        analysis: `terms` (NFKC, lower case, no stop words, stemmed), or `whitespace`.
        k1: saturation of term frequency, 0 or more.
        b: strength of length normalisation, 0 to 1.
        title_weight: how often the title's terms are counted.
        metadata: index authors and venue too.
        claims: claim representation.
    """

    analysis: Literal["terms", "whitespace"] = "terms"
    k1: Annotated[float, Between(0, 1000)] = 1.2
    b: Share = 0.75
    title_weight: Annotated[int, Between(1, 100)] = 1
    metadata: bool = False
    claims: ClaimForm = "original"

    @property
    def settings(self) -> BM25:
        return BM25(**vars(self))


@dataclass(frozen=True)
class MiningConfig(Settings):
    """Configure the choice of hard negatives.

    Args:
        hard: hard negatives per claim.
        random: random negatives per claim.
        first_rank: first rank of the fused list that may be used, from 1.
        last_rank: last rank that may be used.
        alpha: weight of BM25 in the fusion; the rest is the dense score's.
        max_share: a negative scores at most this share of the gold's dense score, measured from
            the zero point that `share_of` sets; none: no limit.
        share_of: zero point of `max_share`. `above_random`: the mean score of random pairs of a
            claim and a source, so that one share serves every encoder; `above_last`: the last
            score of the claim's list, so that one share serves any first stage; `score`: 0, as in
            version 0.1.0, which leaves no negatives if all cosines are close to 1.
        margin: a negative scores at least this much below the gold; none: no limit.
        max_score: a negative scores at most this; none: no limit.
        pick: `hardest`: the first ones that are allowed; `random`: any that are allowed.
        missed_golds: mine also for golds that are not in the claim's list; false leaves those
            pairs out.
        max_title_similarity: a source that shares more than this share of its title's words with
            a gold's (Jaccard) counts as the same paper and is left out; none: no limit.
        max_text_similarity: the same limit for the words of the abstracts; none (the default): no
            limit.
        pool: `all` sources, or only `train-golds`, the golds of training claims.
        seed: seed of the random negatives.
        bm25: BM25's settings.
    """

    hard: Annotated[int, Between(0, 10**6)] = 6
    random: Annotated[int, Between(0, 10**6)] = 2
    first_rank: Annotated[int, Between(1, 10**6)] = 1
    last_rank: Annotated[int, Between(1, 10**6)] = 100
    alpha: Share = 0.5
    max_share: PositiveShare | None = 0.9
    share_of: Literal["above_random", "above_last", "score"] = "above_random"
    margin: Annotated[float, Between(0, LARGEST)] | None = None
    max_score: Annotated[float, Between(0, LARGEST)] | None = None
    pick: Literal["hardest", "random"] = "hardest"
    missed_golds: bool = True
    max_title_similarity: PositiveShare | None = 0.9
    max_text_similarity: PositiveShare | None = None
    pool: Literal["all", "train-golds"] = "all"
    seed: Seed = 13
    bm25: MiningBM25 = field(default_factory=MiningBM25)

    def check(self) -> None:
        require(
            self.last_rank >= self.first_rank,
            "mining.last_rank",
            self.last_rank,
            f"first_rank ({self.first_rank}) or more",
        )


class Negative(NamedTuple):
    """Source that is not a gold of the claim, with the score that ranked it and its origin.

    `score` is the fused score; for random negatives the dense score, for a first stage or a
    teacher its own. `dense` and `lexical` are the scores of the model and of BM25 before fusion.
    They are None if they are not known: BM25 did not list the source, or a file of an earlier
    version, a first stage or a teacher has neither.
    """

    source: str
    score: float
    origin: Origin
    dense: float | None = None
    lexical: float | None = None


@dataclass(frozen=True, slots=True)
class MinedRow:
    """Training pair with its negatives, hardest first, random ones last."""

    claim: str
    positive: str
    negatives: tuple[Negative, ...]


@dataclass
class MiningCounts:
    """Count the negatives of pairs, those left out by reason, and those that are missing.

    `baseline` is set if `mining.share_of` needs it.
    """

    rows: int = 0
    hard: int = 0
    random: int = 0
    left_out_gold: int = 0
    left_out_pool: int = 0
    left_out_duplicate: int = 0
    left_out_close: int = 0
    missing_hard: int = 0
    missing_random: int = 0
    short_rows: int = 0
    rows_without_hard: int = 0
    missed_golds: int = 0
    rows_left_out: int = 0
    baseline: RandomBaseline | None = field(default=None, compare=False)

    def count(self, hard: int, random: int, config: MiningConfig) -> None:
        """Count the negatives of one pair, and those that are missing."""
        missing_hard = config.hard - hard
        missing_random = config.random - random
        self.rows += 1
        self.hard += hard
        self.random += random
        self.rows_without_hard += not hard and config.hard > 0
        self.missing_hard += missing_hard
        self.missing_random += missing_random
        self.short_rows += missing_hard > 0 or missing_random > 0

    def sentences(self) -> list[str]:
        lines = [
            f"mined {self.hard} hard and {self.random} random negatives for {self.rows} pairs",
            f"left out {self.left_out_gold} golds, {self.left_out_pool} outside the pool, "
            f"{self.left_out_close} too close to the gold, "
            f"{self.left_out_duplicate} near-duplicates of a gold",
        ]
        if self.baseline is not None:
            lines.append(
                f"random pairs score {self.baseline.mean:.3f} on average (standard deviation "
                f"{self.baseline.deviation:.3f} within a claim): mining.max_share starts there"
            )
        if self.missed_golds:
            lines.append(f"{self.missed_golds} pairs have a gold that is not in their claim's list")
        if self.rows_left_out:
            lines.append(f"{self.rows_left_out} of them are left out")
        if self.short_rows:
            lines.append(
                f"{self.short_rows} pairs could not be filled: {self.missing_hard} hard and "
                f"{self.missing_random} random negatives are missing"
            )
        if self.short_rows > SHORT * self.rows:
            lines.append(
                f"warning: {self.short_rows / self.rows:.0%} of the pairs are short of negatives "
                f"({self.rows_without_hard / self.rows:.0%} have no hard one): raise "
                "mining.last_rank or mining.max_share, or lower mining.hard"
            )
        return lines


@dataclass(frozen=True)
class _Pair:
    """Claim by its row in the block, one of its golds, and sources that cannot be negatives."""

    row: int
    claim: Claim
    gold: str
    golds: frozenset[int]
    duplicates: GoldDuplicates


class Miner:
    """Mine negatives for the claims of a training set from its sources."""

    def __init__(
        self,
        dataset: Dataset,
        encoder: Encoder,
        rendering: Rendering,
        config: MiningConfig | None = None,
        store: Store | None = None,
        progress: bool = False,
    ) -> None:
        self.dataset = dataset
        self.encoder = encoder
        self.rendering = rendering
        self.config = config or MiningConfig()
        self.store = store
        self.progress = progress
        self.counts = MiningCounts()

    def mine(self) -> Iterator[MinedRow]:
        """Yield rows in the order of the claims, one per (claim, gold); updates `counts`."""
        config = self.config
        dataset = self.dataset
        vectors, _ = self.encoder.encode(
            self.rendering.source_texts(dataset.sources),
            "source",
            store=self.store,
            progress="sources" if self.progress else None,
        )
        candidates = Candidates(
            dataset.sources,
            vectors,
            config.alpha,
            config.last_rank,
            config.bm25.settings,
        )
        # From here on, sources are positions in the pool.
        self.ids = candidates.sources.ids
        self.position = candidates.sources.position_of
        self.in_pool = np.ones(len(self.ids), dtype=bool)
        if config.pool != "all":
            golds = dataset.golds
            self.in_pool[:] = [source in golds for source in self.ids]
        self.drawable = np.flatnonzero(self.in_pool)
        self.golds = golds_by_text(dataset.claims)
        limits = config.max_title_similarity, config.max_text_similarity
        self.words = words_to_compare(dataset.sources, *limits)
        if config.max_share is not None and config.share_of == "above_random":
            self.counts.baseline = random_baseline(
                dataset.claims,
                self._encoded,
                candidates.vectors,
                self.drawable,
                self.ids,
                self.golds,
                config.seed,
            )
        with Progress("mining" if self.progress else None, len(dataset.claims)) as bar:
            for start in range(0, len(dataset.claims), CHUNK):
                chunk = dataset.claims[start : start + CHUNK]
                for block, window in candidates.windows(chunk, self._encoded(chunk)):
                    yield from self._mined(block, window)
                    bar.update(len(block))

    def _encoded(self, claims: Sequence[Claim]) -> np.ndarray:
        texts = self.rendering.claim_texts(claims)
        vectors, _ = self.encoder.encode(texts, "claim", store=self.store)
        return vectors

    def _mined(self, claims: Sequence[Claim], window: Window) -> Iterator[MinedRow]:
        """Yield one row per (claim, gold): its negatives, hardest first, random ones last."""
        pairs = list(self._pairs(claims))
        step = max(1, PICKED // max(window.positions.shape[1], 1))
        for start in range(0, len(pairs), step):
            yield from self._rows(pairs[start : start + step], window)

    def _rows(self, pairs: Sequence[_Pair], window: Window) -> Iterator[MinedRow]:
        rows = np.array([pair.row for pair in pairs])
        golds = np.array([self.position[pair.gold] for pair in pairs])
        if not self.config.missed_golds:
            in_list = window.positions[rows] == golds[:, None]
            is_listed = in_list.any(axis=1)
            missed = int((~is_listed).sum())
            self.counts.missed_golds += missed
            self.counts.rows_left_out += missed
            numbers = np.flatnonzero(is_listed).tolist()
            pairs = [pairs[number] for number in numbers]
            rows = rows[is_listed]
            golds = golds[is_listed]
        gold_scores = window.similarities[rows, golds].astype(np.float64)
        limits = self._limits(window, rows, gold_scores)
        hard = self._hard_negatives(pairs, window, rows, limits)
        for pair, limit, negatives in zip(pairs, limits.tolist(), hard, strict=True):
            similarities = window.similarities[pair.row]
            random = self._random_negatives(pair, similarities, limit, negatives)
            self.counts.count(len(negatives), len(random), self.config)
            both = (*negatives, *random)
            yield MinedRow(pair.claim.id, pair.gold, both)

    def _pairs(self, claims: Sequence[Claim]) -> Iterator[_Pair]:
        # Claims with the same text have the same golds: their words are stored once.
        duplicates: dict[frozenset[int], GoldDuplicates] = {}
        for row, claim in enumerate(claims):
            own = [self.position[gold] for gold in self.golds[claim.id] if gold in self.position]
            golds = frozenset(own)
            if golds not in duplicates:
                duplicates[golds] = GoldDuplicates(self.words, golds)
            for gold in claim.golds:
                yield _Pair(row, claim, gold, golds, duplicates[golds])

    def _limits(
        self,
        window: Window,
        rows: np.ndarray,
        gold_scores: np.ndarray,
    ) -> np.ndarray:
        if self.config.share_of != "above_last":
            return negative_limits(self.config, gold_scores, baseline=self.counts.baseline)
        positions = window.positions[rows]
        scores = window.similarities[rows[:, None], positions]
        listed = np.where(positions >= 0, scores, np.inf)
        lowest = listed.min(axis=1, initial=np.inf)
        last = np.where(np.isfinite(lowest), lowest, 0.0)
        return negative_limits(self.config, gold_scores, last)

    def _hard_negatives(
        self,
        pairs: Sequence[_Pair],
        window: Window,
        rows: np.ndarray,
        limits: np.ndarray,
    ) -> Iterator[list[Negative]]:
        """Yield each pair's hard negatives, best first; updates the counts of those left out."""
        columns = slice(self.config.first_rank - 1, self.config.last_rank)
        positions = window.positions[rows, columns]
        mask = self._allowed(pairs, window, rows, limits, positions)
        negatives = self._negatives(window, rows, columns, positions, mask)
        # One list at a time: many objects at once would trigger the garbage collector.
        counts = mask.sum(axis=1).tolist()
        for pair, count in zip(pairs, counts, strict=True):
            allowed = list(islice(negatives, count))
            if self.config.pick == "random":
                draw = pair_draw(self.config.seed, pair.claim.id, pair.gold)
                order = draw.permutation(count)[: self.config.hard]
                allowed = [allowed[i] for i in order.tolist()]
            yield allowed

    def _negatives(
        self,
        window: Window,
        rows: np.ndarray,
        columns: slice,
        positions: np.ndarray,
        mask: np.ndarray,
    ) -> Iterator[Negative]:
        """Yield the negatives that a mask [pairs, columns] selects, row by row."""
        found_by = window.in_sparse * (1 + window.in_dense)
        found_by = found_by[rows, columns][mask]
        origins = map(_ORIGINS.__getitem__, found_by.tolist())
        scores = window.scores[rows, columns][mask].tolist()
        taken = positions[mask]
        names = map(self.ids.__getitem__, taken.tolist())
        claims = np.broadcast_to(rows[:, None], mask.shape)[mask]
        dense = window.similarities[claims, taken].tolist()
        lexical = _known(window.lexical(claims, taken))
        fields = zip(names, scores, origins, dense, lexical, strict=True)
        return map(Negative._make, fields)

    def _allowed(
        self,
        pairs: Sequence[_Pair],
        window: Window,
        rows: np.ndarray,
        limits: np.ndarray,
        positions: np.ndarray,
    ) -> np.ndarray:
        """Mark the first sources of each pair's list that may be negatives, [pairs, columns].

        Updates the counts, by reason, of those left out before them.
        """
        limit = self.config.hard
        if self.config.pick == "random":
            limit = self.config.last_rank
        listed = positions >= 0
        gold = np.zeros_like(listed)
        # Most claims have a gold or two: compare all pairs' first, all their second, ...
        for golds in zip_longest(*(pair.golds for pair in pairs), fillvalue=-1):
            gold |= positions == np.array(golds)[:, None]
        gold &= listed
        unlike = listed & ~gold
        in_pool = self.in_pool[positions]
        outside = unlike & ~in_pool
        free = unlike & in_pool
        close = window.similarities[rows[:, None], positions] > limits[:, None]
        duplicate = np.zeros_like(listed)
        checked = np.zeros_like(listed)
        # If a gold has nothing to compare, no source is its near-duplicate.
        nothing_to_compare = [not pair.duplicates for pair in pairs]
        checked[nothing_to_compare] = True
        # Checking for a near-duplicate is slow: only sources that would be taken are checked.
        while True:
            mask = free & ~close & ~duplicate
            # A list is read until enough sources are taken.
            read = np.cumsum(mask, axis=1) - mask < limit
            unchecked = free & read & ~checked
            if not unchecked.any():
                break
            for number, column in np.argwhere(unchecked).tolist():
                source = int(positions[number, column])
                duplicate[number, column] = source in pairs[number].duplicates
            checked |= unchecked
        counts = self.counts
        counts.left_out_gold += int(np.count_nonzero(gold & read))
        counts.left_out_pool += int(np.count_nonzero(outside & read))
        counts.left_out_duplicate += int(np.count_nonzero(duplicate & read))
        counts.left_out_close += int(np.count_nonzero(free & close & ~duplicate & read))
        return mask & read

    def _random_negatives(
        self,
        pair: _Pair,
        similarities: np.ndarray,
        limit: float,
        hard: Sequence[Negative],
    ) -> list[Negative]:
        """Draw random negatives, seeded by the claim, so that no other claim changes the draw."""
        negatives: list[Negative] = []
        if not self.config.random:
            return negatives
        excluded = set(pair.golds)
        for negative in hard:
            excluded.add(self.position[negative.source])
        for position in self._shuffled_pool(pair.claim):
            if position in excluded or position in pair.duplicates:
                continue
            score = float(similarities[position])
            if score <= limit:
                negatives.append(Negative(self.ids[position], score, "random", score))
                if len(negatives) == self.config.random:
                    break
        return negatives

    def _shuffled_pool(self, claim: Claim) -> Iterator[int]:
        draw = np.random.default_rng([self.config.seed, _number(claim.id)])
        # Shuffling a huge pool is slow, and the first few sources are nearly always enough.
        count = min(len(self.drawable), FIRST_DRAWN)
        first = draw.choice(self.drawable, count, replace=False)
        yield from first.tolist()
        rest = np.setdiff1d(self.drawable, first, assume_unique=True)
        yield from draw.permutation(rest).tolist()


def negative_limits(
    config: MiningConfig,
    golds: np.ndarray,
    last: np.ndarray | None = None,
    baseline: RandomBaseline | None = None,
) -> np.ndarray:
    """Compute the highest score of a negative for each gold's score, float64 [golds].

    `last` [golds] are the last scores of the claims' lists, if `share_of` is `above_last`.
    """
    limits = np.full(len(golds), np.inf)
    share = config.max_share
    if share is not None and baseline is not None:
        # If a gold scores no higher than random, only sources up to the random mean are allowed.
        limits = baseline.mean + share * np.maximum(golds - baseline.mean, 0)
    elif share is not None and config.share_of == "above_last":
        assert last is not None
        limits = last + share * (golds - last)
    elif share is not None:
        # A share of a negative score would be above it: the limit is as far below it instead.
        limits = golds * np.where(golds >= 0, share, 2 - share)
    if config.margin is not None:
        limits = np.minimum(limits, golds - config.margin)
    if config.max_score is not None:
        limits = np.minimum(limits, config.max_score)
    return limits


def _known(scores: np.ndarray) -> list[float | None]:
    """List scores, with None for NaN."""
    values: list[float | None] = scores.tolist()
    for place in np.flatnonzero(np.isnan(scores)).tolist():
        values[place] = None
    return values


def pair_draw(seed: int, claim: str, gold: str) -> np.random.Generator:
    """Seed a draw by its pair alone, so that other claims do not change it."""
    return np.random.default_rng([seed, _number(f"{claim}\0{gold}")])


def _number(text: str) -> int:
    hashed = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    return int.from_bytes(hashed.digest()[:8], "big")
