"""Estimate how similar an encoder finds a claim and a source that have nothing in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from claim2source.core.records import Claim, Dataset
from claim2source.data.grouping import golds_by_text
from claim2source.data.store import Store
from claim2source.text import Rendering

if TYPE_CHECKING:
    from claim2source.models import Encoder

# Texts encoded per side if nothing else needs their vectors.
SAMPLED = 128
# Random pairs: claims drawn, and sources drawn for each of them.
CLAIMS = 512
SOURCES = 16
# Random scores' standard deviation in temperatures. At 1.18 a claim's softmax over a batch is
# spread over half of its sources; at 8 the hardest of thousands takes nearly all of the gradient.
FLATTEST = 1.18
SHARPEST = 8.0
# The ratio of E5 at 0.01 and MiniLM at 0.05, the temperatures of their training. It is lower if all
# papers are from one field: E5 has 1.4 on the demo's.
USUAL = 2.0
# Warn of a first loss above this many times that of a guess.
_FAR_ABOVE_CHANCE = 2.0


@dataclass(frozen=True, slots=True)
class RandomBaseline:
    """Mean of random pairs' dense scores, their deviation within a claim, their number."""

    mean: float
    deviation: float
    pairs: int

    def temperature_sentences(self, temperature: float) -> list[str]:
        """Write a warning if a claim's softmax over random sources is too flat or too sharp.

        Normally distributed scores spread it over exp(-(deviation / temperature)^2 / 2) of them,
        the perplexity's share. The list is empty if all scores are equal.
        """
        ratio = self.deviation / temperature
        if not ratio or FLATTEST <= ratio <= SHARPEST:
            return []
        effect = "too sharp: a claim's softmax is almost entirely on the nearest source"
        if ratio < FLATTEST:
            share = math.exp(-(ratio**2) / 2)
            effect = f"too flat: a claim's softmax covers {share:.0%} of its batch's sources"
        return [
            f"warning: optimisation.temperature {temperature:g} is {effect}, because this model's "
            f"scores of random pairs have a standard deviation of {self.deviation:.3f}; try about "
            f"{self.deviation / USUAL:.1g}"
        ]


def first_loss_sentences(
    loss: float,
    candidates: int,
    temperature: float,
) -> list[str]:
    """Write a warning if the first InfoNCE loss is far above the loss of equal scores.

    Random scores with a deviation of 2 temperatures give 1.6 times that loss for 8 candidates.
    """
    chance = math.log(max(candidates, 2))
    if math.isfinite(loss) and loss <= _FAR_ABOVE_CHANCE * chance:
        return []
    return [
        f"the first loss is {loss:.3g}, but guessing among {candidates} sources gives "
        f"{chance:.3g}: this model's scores are too large for optimisation.temperature "
        f"{temperature:g}, or rank golds last; raise it, or set model.normalize: true"
    ]


def sampled_baseline(
    dataset: Dataset,
    encoder: Encoder,
    rendering: Rendering,
    store: Store,
    seed: int,
) -> RandomBaseline:
    """Score random pairs of a data set by encoding a sample."""
    draw = np.random.default_rng([seed, len(dataset.sources)])

    def sample(count: int) -> list[int]:
        return sorted(draw.permutation(count)[:SAMPLED].tolist())

    claims = [dataset.claims[i] for i in sample(len(dataset.claims))]
    sources = [dataset.sources[i] for i in sample(len(dataset.sources))]

    def encoded(claims: Sequence[Claim]) -> np.ndarray:
        return encoder.encode(rendering.claim_texts(claims), "claim", store=store)[0]

    vectors, _ = encoder.encode(rendering.source_texts(sources), "source", store=store)
    ids = [source.id for source in sources]
    golds = golds_by_text(dataset.claims)
    pool = np.arange(len(sources))
    return random_baseline(claims, encoded, vectors, pool, ids, golds, seed)


def random_baseline(
    claims: Sequence[Claim],
    encoded: Callable[[Sequence[Claim]], np.ndarray],
    sources: np.ndarray,
    pool: np.ndarray,
    ids: Sequence[str],
    golds: Mapping[str, frozenset[str]],
    seed: int,
) -> RandomBaseline:
    """Score random pairs of a claim and a source of the pool; golds are left out.

    `encoded` returns the vectors of claims, `sources` [n, dimensions] are those of all sources,
    `ids` their ids, `pool` the positions that may be drawn, `golds` the ids of each claim's
    golds. If claims and sources are few, all pairs are scored. Without any pair the mean is 0.
    """
    draw = np.random.default_rng([seed, len(claims), len(pool)])
    rows = np.sort(draw.permutation(len(claims))[:CLAIMS])
    sample = [claims[i] for i in rows.tolist()]
    if not sample or not len(pool):
        return RandomBaseline(0.0, 0.0, 0)
    if len(pool) <= SOURCES:
        positions = np.broadcast_to(pool, (len(sample), len(pool)))
    else:
        positions = pool[draw.integers(len(pool), size=(len(sample), SOURCES))]
    claim_vectors = np.asarray(encoded(sample), np.float64)
    scores = np.einsum("cd,csd->cs", claim_vectors, sources[positions])
    is_gold = np.zeros(scores.shape, bool)
    for number, claim in enumerate(sample):
        own = golds[claim.id]
        is_gold[number] = [ids[position] in own for position in positions[number].tolist()]
    non_golds = np.ma.masked_array(scores, is_gold)
    if not non_golds.count():
        return RandomBaseline(0.0, 0.0, 0)
    # Within a claim: a shift of all its scores changes neither its ranking nor its softmax.
    several = non_golds[non_golds.count(axis=1) > 1]
    variance = 0.0
    if len(several):
        variance = several.var(axis=1, ddof=1).mean()
    return RandomBaseline(
        mean=float(non_golds.mean()),
        deviation=float(np.sqrt(variance)),
        pairs=int(non_golds.count()),
    )
