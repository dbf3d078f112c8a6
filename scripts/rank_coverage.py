"""Measure how often intervals of ranks contain the true order: `python scripts/rank_coverage.py`.

The program simulates systems whose true order is known, many times. Each draw has posts in three
languages, some of them about the same paper. A draw covers the order if the interval of every
system contains all ranks that the system can have; equal systems share their ranks.

If systems are equal, chance separates them, and misses the order, in 5 % of the draws. If no two
systems are equal, an order is missed only if a test finds a difference of the wrong sign, which
is rarer.

The last two columns show the coverage without the two corrections: if posts about the same paper
counted as independent, and if every pair were tested by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, Seed, Settings, read_config
from claim2source.core.errors import run_program
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.metrics.pairs import compare_pairs, rank_intervals
from claim2source.metrics.significance import paired_randomisations

# Order -> the systems' abilities, in standard deviations of what makes a post easy or hard.
ORDERS: Mapping[str, tuple[float, ...]] = {
    "all equal": (0.0,) * 8,
    "one first, seven equal": (1.5, *(0.0,) * 7),
    "two groups of four": (*(1.5,) * 4, *(0.0,) * 4),
    "four groups of two": (1.8, 1.8, 0.6, 0.6, -0.6, -0.6, -1.8, -1.8),
    "all different, hardly": tuple(0.05 * i for i in range(8)),
    "all different, clearly": tuple(0.6 * i - 2.1 for i in range(8)),
}
_LANGUAGES = (0.7, 0.1, 0.2)  # shares of posts: most are English, as in the lab's data
_MORE_POSTS = 0.35  # chance of one more post about a paper, and of one more again
# Scores of ranks 1 to 5 and beyond, by what a system falls short of.
_SCORES = np.array(
    [
        1,
        1 / 2,
        1 / 3,
        1 / 4,
        1 / 5,
        0,
    ]
)
_STEPS = np.array([0.0, 0.4, 0.7, 0.9, 1.0])


@dataclass(frozen=True)
class Config(Settings):
    """Settings of the simulation.

    Args:
        draws: simulated data sets of each order.
        papers: papers of a data set.
        repeats: flips of every data set's tests.
        alpha: chance of an order that is missed.
        seed: seed of all draws.
    """

    draws: Annotated[int, Between(1, 10**6)] = 4_000
    papers: Annotated[int, Between(2, 10**5)] = 200
    repeats: Annotated[int, Between(19, 10**6)] = 999
    alpha: Annotated[float, Between(0.001, 0.9)] = 0.05
    seed: Seed = 0


@dataclass(frozen=True)
class Sample:
    """One simulated data set: `scores` are [systems, claims], the others [claims]."""

    scores: np.ndarray
    papers: np.ndarray
    languages: np.ndarray


@dataclass(frozen=True)
class Covered:
    """Shares of draws whose intervals have the true order, and the mean ranks of an interval."""

    order: str
    coverage: float
    width: float
    by_claim: float
    uncorrected: float


def simulate(abilities: Sequence[float], papers: int, rng: np.random.Generator) -> Sample:
    """Draw papers, posts about them, and what systems of these abilities score on the posts."""
    posts = rng.geometric(1 - _MORE_POSTS, papers)
    paper = np.repeat(np.arange(papers), posts)
    claims = len(paper)
    languages = rng.choice(len(_LANGUAGES), size=claims, p=_LANGUAGES)

    systems = len(abilities)
    ease_for_all = rng.normal(size=papers)
    ease_by_system = rng.normal(size=(systems, papers))
    ease = ease_for_all + ease_by_system
    noise = rng.normal(size=(systems, claims))
    ability = np.array(abilities)[:, None]
    latent = ability + ease[:, paper] + noise
    steps = np.searchsorted(_STEPS, -latent)
    scores = _SCORES[steps]
    return Sample(scores, paper, languages)


def true_ranks(abilities: Sequence[float]) -> np.ndarray:
    """Return the first and the last rank of every system: [systems, 2]; equal ones share them."""
    values = np.array(abilities)
    better = values[:, None] > values
    return rank_intervals(better)


def covers(intervals: np.ndarray, ranks: np.ndarray) -> bool:
    """Whether every system's interval has all the ranks that it can have."""
    begins = intervals[:, 0] <= ranks[:, 0]
    ends = intervals[:, 1] >= ranks[:, 1]
    is_covered = begins & ends
    return bool(is_covered.all())


def intervals_by(sample: Sample, groups: np.ndarray, config: Config, seed: int) -> np.ndarray:
    """Return the intervals of ranks of a data set whose claims depend on each other by group."""
    pairs = compare_pairs(
        sample.scores,
        groups,
        sample.languages,
        config.repeats,
        seed,
    )
    better = pairs.better(config.alpha)
    return rank_intervals(better)


def uncorrected_intervals(sample: Sample, config: Config, seed: int) -> np.ndarray:
    """Return the intervals of ranks if every pair is tested as if it were the only one."""
    size = len(sample.scores)
    first, second = np.triu_indices(size, 1)
    gaps = sample.scores[first] - sample.scores[second]
    tests = paired_randomisations(
        gaps,
        sample.papers,
        sample.languages,
        config.repeats,
        seed,
    )

    is_separated = tests.p_values <= config.alpha
    is_first_better = tests.differences > 0
    is_second_better = tests.differences < 0
    better = np.zeros((size, size), dtype=bool)
    better[first, second] = is_separated & is_first_better
    better[second, first] = is_separated & is_second_better
    return rank_intervals(better)


def measure(order: str, config: Config) -> Covered:
    """Simulate an order, and count the draws whose intervals have it."""
    abilities = ORDERS[order]
    ranks = true_ranks(abilities)
    rng = np.random.default_rng(config.seed)
    covered = np.zeros((config.draws, 3), dtype=bool)
    total_width = 0.0
    for draw in range(config.draws):
        sample = simulate(abilities, config.papers, rng)
        own = intervals_by(sample, sample.papers, config, draw)
        each_claim = np.arange(len(sample.papers))
        by_claim = intervals_by(sample, each_claim, config, draw)
        alone = uncorrected_intervals(sample, config, draw)
        covered[draw] = [covers(found, ranks) for found in (own, by_claim, alone)]
        widths = own[:, 1] - own[:, 0] + 1
        total_width += float(widths.mean())

    coverage, coverage_by_claim, uncorrected = covered.mean(axis=0).tolist()
    return Covered(
        order=order,
        coverage=coverage,
        width=total_width / config.draws,
        by_claim=coverage_by_claim,
        uncorrected=uncorrected,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Measure every order; print a table."""
    config = read_config(
        Config,
        argv,
        program="scripts/rank_coverage.py",
        description=__doc__ or "",
    )
    rows: list[list[Cell]] = []
    for order in ORDERS:
        found = measure(order, config)
        rows.append(
            [
                found.order,
                _percent(found.coverage),
                f"{found.width:.1f}",
                _percent(found.by_claim),
                _percent(found.uncorrected),
            ]
        )

    columns = [
        "order of 8 systems",
        "covered",
        "ranks",
        "by post",
        "each pair alone",
    ]
    numeric = [False, True, True, True, True]
    table = TextTable(columns, rows, numeric=numeric)
    title = f"{config.draws} draws of {config.papers} papers"
    say(render([title, table]))


def _percent(share: float) -> str:
    """Write a share in percent."""
    return f"{100 * share:.1f} %"


if __name__ == "__main__":
    run_program(main)
