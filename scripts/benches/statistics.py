"""Time the statistics of many systems: intervals, paired tests, Holm's correction, ANOVA.

The scores are made up: every claim has a difficulty, every system a skill, and a paper has two
claims on average. The peer is scipy with its bootstrap and its permutation test, one system at a
time, timed on a few systems and extrapolated. `ratio` is its time divided by ours for one family
with its intervals; `all` is the time of all parts together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from scipy import stats

from claim2source.core.config import LARGEST, Between, Repeats, require
from claim2source.metrics.anova import two_way_anova
from claim2source.metrics.families import Family, compare_family
from claim2source.metrics.significance import bootstrap_intervals
from scripts.benches.common import SEED, Bench, Measured, Watch, measured_ratio


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py statistics`; the peer tests `repeats` systems.

    Args:
        systems: number of systems; the first is the baseline of the others.
        claims: number of claims that every system was scored on.
        draws: bootstrap draws, and permutations unless the family needs more.
    """

    systems: Annotated[int, Between(2, LARGEST)] = 300
    claims: Annotated[int, Between(2, LARGEST)] = 5_000
    draws: Repeats = 10_000

    def check(self) -> None:
        high = self.systems - 1
        allowed = f"1 to {high}, one for each system"
        require(self.repeats <= high, "repeats", self.repeats, allowed)


def run(config: Config) -> Measured:
    scores, papers, languages = made_up(config)
    names = tuple(scores)
    matrix = np.stack(list(scores.values()))
    baseline = names[0]
    family = Family.against("all", baseline, names[1:])
    draws = config.draws

    watch = Watch(config.clock)
    with watch("family intervals"):
        bootstrap_intervals(matrix, papers, repeats=draws)
    with watch("family micro"):
        micro = compare_family(scores, family, papers, repeats=draws)
    with watch("macro"):
        compare_family(scores, family, papers, languages, repeats=draws)
    with watch("ANOVA and Tukey"):
        two_way_anova(scores)
    total = sum(map(sum, watch.seconds.values()))

    _, groups = np.unique(papers, return_inverse=True)
    sizes = np.bincount(groups).astype(float)
    baseline_sums = np.bincount(groups, scores[baseline])
    for name in names[1 : config.repeats + 1]:
        sums = np.bincount(groups, scores[name])
        with watch("peer, a system"):
            interval_and_test(sums, baseline_sums, sizes, draws, micro.repeats)

    peer_seconds = config.systems * watch.of("peer,")
    family_seconds = watch.of("family")[0]
    return {
        **measured_ratio(peer_seconds / family_seconds),
        "seconds": {
            **watch.medians,
            "all": round(total, 2),
        },
        "permutations": micro.repeats,
    }


def made_up(config: Config) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Make scores [claims] by system, and the papers and languages of the claims."""
    rng = np.random.default_rng(SEED)
    count = max(config.claims // 2, 1)
    papers = rng.integers(0, count, config.claims)
    difficulty = rng.normal(size=config.claims)
    values = np.array(
        [
            0,
            1 / 5,
            1 / 4,
            1 / 3,
            1 / 2,
            1,
        ]
    )
    scores = {}
    for i in range(config.systems):
        skill = i / config.systems
        latent = difficulty + rng.normal(size=config.claims) + skill
        rounded = np.round(latent + 2.5)
        steps = np.clip(rounded, 0, 5).astype(int)
        scores[f"system {i}"] = values[steps]
    languages = rng.integers(0, 3, config.claims)
    return scores, papers, languages


def interval_and_test(
    mine: np.ndarray,
    baseline: np.ndarray,
    sizes: np.ndarray,
    draws: int,
    permutations: int,
) -> None:
    """Compute interval and paired test with scipy from papers' summed scores and claim counts."""
    options: dict[str, Any] = {"batch": 1000, "vectorized": True}
    interval = {
        "paired": True,
        "method": "percentile",
        "n_resamples": draws,
        **options,
    }
    test = {
        "permutation_type": "samples",
        "n_resamples": permutations,
        **options,
    }
    stats.bootstrap((mine, sizes), lambda a, b, axis: a.sum(axis) / b.sum(axis), **interval)
    stats.permutation_test((mine, baseline), lambda a, b, axis: (a - b).sum(axis), **test)
