"""Time the statistics of many systems: intervals, paired tests, Holm's correction, ANOVA.

The scores are made up: every claim has a difficulty, every system a skill, and a paper has two
claims on average. The peer is scipy: its bootstrap and its permutation test, one system at a
time, timed on a few systems and extrapolated. `ratio` is its time divided by ours for one family
and its intervals. `under_a_minute` says whether all parts together took less than 60 seconds, the
target for the default 300 systems x 5,000 claims.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from scipy import stats

from claim2source.core.config import read_config, require
from claim2source.core.errors import run_program
from claim2source.core.memory import peak_memory
from claim2source.core.tables import plain_table
from claim2source.evaluation.analysis.anova import two_way_anova
from claim2source.evaluation.families import Family, compare_family
from claim2source.evaluation.significance import bootstrap_intervals
from scripts.measure import Done, circumstances, median, ratio_and_spread, timed

TARGET_SECONDS = 60.0


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_statistics.py`.

    Args:
        systems: number of systems; the first is the baseline of the others.
        claims: number of claims that every system was scored on.
        repeats: bootstrap draws, and permutations unless the family needs more.
        seed: of the scores.
        peer_systems: systems that scipy is timed on.
    """

    systems: int = 300
    claims: int = 5_000
    repeats: int = 10_000
    seed: int = 13
    peer_systems: int = 3

    def __post_init__(self) -> None:
        require(self.systems >= 2, "systems", self.systems, "2 or more")
        require(self.claims >= 2, "claims", self.claims, "2 or more")
        most = self.systems - 1
        allowed = f"1 to {most}, one less than the systems"
        require(1 <= self.peer_systems <= most, "peer_systems", self.peer_systems, allowed)
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")


def made_up(config: BenchConfig) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Make scores [claims] by system, and the claims' papers and languages."""
    rng = np.random.default_rng(config.seed)
    papers = rng.integers(0, max(config.claims // 2, 1), config.claims)
    difficulty = rng.normal(size=config.claims)
    values = np.array([0, 1 / 5, 1 / 4, 1 / 3, 1 / 2, 1])
    scores = {}
    for i in range(config.systems):
        latent = difficulty + rng.normal(size=config.claims) + i / config.systems
        scores[f"system {i}"] = values[np.clip(np.round(latent + 2.5), 0, 5).astype(int)]
    return scores, papers, rng.integers(0, 3, config.claims)


def peer_seconds(
    scores: dict[str, np.ndarray], papers: np.ndarray, repeats: int, permutations: int, count: int
) -> list[float]:
    """Time scipy for each of `count` systems: an interval and a paired test.

    It resamples papers as ours does: their summed scores and numbers of claims.
    """
    groups = np.unique(papers, return_inverse=True)[1]
    sizes = np.bincount(groups).astype(float)
    baseline, *others = (
        np.bincount(groups, weights) for weights in list(scores.values())[: count + 1]
    )

    def interval_and_test(mine: np.ndarray) -> None:
        stats.bootstrap(
            (mine, sizes),
            lambda a, b, axis: a.sum(axis) / b.sum(axis),
            paired=True,
            n_resamples=repeats,
            method="percentile",
            batch=1000,
            vectorized=True,
        )
        stats.permutation_test(
            (mine, baseline),
            lambda a, b, axis: (a - b).sum(axis),
            permutation_type="samples",
            n_resamples=permutations,
            batch=1000,
            vectorized=True,
        )

    return [timed(partial(interval_and_test, mine))[0] for mine in others]


def main(argv: Sequence[str] | None = None) -> None:
    """Time every part once, print a table and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_statistics.py", description=__doc__ or ""
    )
    scores, papers, languages = made_up(config)
    names = tuple(scores)
    family = Family.against("all", names[0], names[1:])
    parts: dict[str, float] = {}

    def part(name: str, work: Callable[[], Done]) -> Done:
        seconds, done = timed(work)
        parts[name] = round(seconds, 2)
        return done

    matrix = np.stack(list(scores.values()))
    part("intervals", lambda: bootstrap_intervals(matrix, papers, repeats=config.repeats))
    micro = part(
        "family, micro", lambda: compare_family(scores, family, papers, repeats=config.repeats)
    )
    part(
        "family, macro",
        lambda: compare_family(scores, family, papers, languages, repeats=config.repeats),
    )
    anova = part("ANOVA and Tukey", lambda: two_way_anova(scores))
    total = round(sum(parts.values()), 2)
    each = peer_seconds(scores, papers, config.repeats, micro.repeats, config.peer_systems)
    ours = parts["intervals"] + parts["family, micro"]
    under = total < TARGET_SECONDS
    result = {
        **ratio_and_spread([config.systems * one / max(ours, 1e-9) for one in each]),
        "median": {"ours_seconds": round(ours, 2), "peer_seconds_a_system": median(each, 3)},
        "repeats": len(each),
        "seconds": total,
        "under_a_minute": under,
        "parts": parts,
        "systems": config.systems,
        "claims": config.claims,
        "draws": config.repeats,
        "permutations": micro.repeats,
        "peak_memory_mb": round(peak_memory() / 2**20, 1),
        **circumstances("numpy", "scipy", "statsmodels"),
    }
    print(
        f"{config.systems} systems, {config.claims} claims of {micro.groups} papers, "
        f"{config.repeats} draws, {micro.repeats} permutations, {len(anova.pairs)} pairs"
    )
    print(plain_table(["part", "seconds"], [*parts.items(), ("all", total)], 2))
    print(f"{total:.2f} seconds: {'under' if under else 'NOT under'} a minute")
    print(
        f"scipy, one system at a time: {median(each):.2f} seconds for an interval and a test, "
        f"{config.systems} systems extrapolated from {len(each)}"
    )
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
