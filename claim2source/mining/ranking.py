"""Mine hard negatives from any system's ranking: the mistakes of a re-ranker's first stage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from claim2source.core.config import require
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.data.grouping import golds_by_text
from claim2source.mining.mine import (
    MinedRow,
    MiningConfig,
    MiningCounts,
    Negative,
    negative_limits,
    pair_draw,
)
from claim2source.mining.near_duplicates import GoldDuplicates, words_to_compare

# Draws tried per random negative that is wanted.
_TRIES = 20


def check_ranked(config: MiningConfig) -> None:
    """Raise `ConfigError` for settings that need the vectors of a model."""
    share = config.share_of
    is_allowed = config.max_share is None or share != "above_random"
    allowed = "above_last or score with a first stage, unless mining.max_share is null"
    require(is_allowed, "mining.share_of", share, allowed)


@dataclass
class RankingMiner:
    """Pick negatives of training claims from a ranking, and at random from the pool.

    A gold that is not among a claim's first `depth` sources is missed. The draw of a pair depends
    on its claim and gold alone.
    """

    train: Dataset
    run: Run
    config: MiningConfig
    depth: int
    counts: MiningCounts = field(default_factory=MiningCounts)

    def mine(self) -> Iterator[MinedRow]:
        """Yield a row for each claim and gold: its hard negatives, then its random ones."""
        config = self.config
        counts = self.counts
        sources = self.train.sources
        self._row_of = {source.id: number for number, source in enumerate(sources)}
        self._pool = [source.id for source in sources]
        if config.pool != "all":
            trained = self.train.golds
            self._pool = [source for source in self._pool if source in trained]
        self._in_pool = frozenset(self._pool)
        limits = config.max_title_similarity, config.max_text_similarity
        words = words_to_compare(sources, *limits)
        golds_of = golds_by_text(self.train.claims)
        for claim in self.train.claims:
            scored = self.run.scored(claim.id)
            ranked = list(scored.items())
            last = min(scored.values(), default=0.0)
            first = {source for source, _ in ranked[: self.depth]}
            golds = golds_of[claim.id]
            rows = [self._row_of[gold] for gold in golds if gold in self._row_of]
            duplicates = GoldDuplicates(words, rows)
            for gold in claim.golds:
                is_missed = gold not in first
                counts.missed_golds += is_missed
                if is_missed and not config.missed_golds:
                    counts.rows_left_out += 1
                    continue
                limit = self._limit(scored.get(gold), last)
                draw = pair_draw(config.seed, claim.id, gold)
                hard = list(self._hard_negatives(ranked, golds, duplicates, limit, draw))
                listed = first.union(negative.source for negative in hard)
                random = list(self._random_negatives(golds, duplicates, listed, draw))
                counts.count(len(hard), len(random), config)
                if hard or random:
                    yield MinedRow(claim.id, gold, (*hard, *random))

    def _limit(self, gold: float | None, last: float) -> float:
        """Return the highest score of a negative: `max_score` alone if the gold is unranked."""
        if gold is None:
            if self.config.max_score is None:
                return np.inf
            return self.config.max_score
        limits = negative_limits(self.config, np.array([gold]), np.array([last]))
        return float(limits[0])

    def _hard_negatives(
        self,
        ranked: Sequence[tuple[str, float]],
        golds: frozenset[str],
        duplicates: GoldDuplicates,
        limit: float,
        draw: np.random.Generator,
    ) -> Iterator[Negative]:
        config = self.config
        counts = self.counts
        allowed = []
        for source, score in ranked[config.first_rank - 1 : config.last_rank]:
            if source in golds:
                counts.left_out_gold += 1
            elif source not in self._in_pool:
                counts.left_out_pool += 1
            elif self._row_of[source] in duplicates:
                counts.left_out_duplicate += 1
            elif score > limit:
                counts.left_out_close += 1
            else:
                allowed.append(Negative(source, float(score), "first"))
        order = range(len(allowed))
        if config.pick == "random":
            order = draw.permutation(len(allowed)).tolist()
        yield from (allowed[i] for i in order[: config.hard])

    def _random_negatives(
        self,
        golds: frozenset[str],
        duplicates: GoldDuplicates,
        listed: set[str],
        draw: np.random.Generator,
    ) -> Iterator[Negative]:
        remaining = self.config.random
        if not remaining:
            return
        order = draw.permutation(len(self._pool))
        for position in order[: remaining * _TRIES]:
            source = self._pool[position]
            if source in golds or source in listed or self._row_of[source] in duplicates:
                continue
            yield Negative(source, 0.0, "random")
            remaining -= 1
            if not remaining:
                return
