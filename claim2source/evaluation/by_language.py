"""Intervals and declared families of paired tests: on the macro average, and in each language."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from claim2source.core.records import Dataset, sorted_languages
from claim2source.core.run import Run
from claim2source.evaluation.families import Family, FamilyResult, Pairs, compare
from claim2source.evaluation.metrics import evaluate, judged_claims
from claim2source.evaluation.saved import SavedSystem, whole_run
from claim2source.evaluation.significance import bootstrap_intervals, gold_groups
from claim2source.evaluation.slices import language_strata

SHOWN = "mrr@5"


def intervals_of(run: Run, dataset: Dataset, repeats: int, seed: int) -> dict[str, Any]:
    """95 % bootstrap intervals of MRR@5 by language and of their macro average.

    Gold papers are drawn, not claims; systems of one data set meet the same draws.
    """
    claims = judged_claims(dataset.qrels)
    scores = evaluate(run, dataset.qrels, [SHOWN], claims)[SHOWN]
    groups, strata = gold_groups(dataset.qrels, claims), language_strata(dataset.claims, claims)
    found: dict[str, Any] = {}
    for language, mine in _languages(dataset, claims).items():
        found[language] = _interval(scores[mine], groups[mine], None, repeats, seed)
    found["macro"] = _interval(scores, groups, strata, repeats, seed)
    return {SHOWN: found, "repeats": repeats, "seed": seed, "papers": int(groups.max()) + 1}


def saved_families(
    systems: Iterable[SavedSystem],
    families: Sequence[Family | Pairs],
    dataset: Dataset,
    *,
    repeats: int = 10_000,
    seed: int = 0,
) -> list[FamilyResult]:
    """`tested_families` of saved systems' MRR@5, by their names."""
    named = {name for family in families for pair in family.pairs for name in pair}
    claims = judged_claims(dataset.qrels)
    scores = {
        system.name: evaluate(whole_run(system), dataset.qrels, [SHOWN], claims)[SHOWN]
        for system in systems
        if system.name in named
    }
    return tested_families(scores, families, dataset, claims, repeats=repeats, seed=seed)


def tested_families(
    scores: Mapping[str, np.ndarray],
    families: Sequence[Family | Pairs],
    dataset: Dataset,
    claims: Sequence[str],
    *,
    micro: bool = False,
    alpha: float = 0.05,
    repeats: int = 10_000,
    seed: int = 0,
) -> list[FamilyResult]:
    """Every family on the macro average, with `micro` over all claims too, then in each language.

    `scores` are [claims] by system. Each language is a family of its own: Holm is within it.
    Where there is one language, it is tested once.
    """
    groups, strata = gold_groups(dataset.qrels, claims), language_strata(dataset.claims, claims)
    languages = _languages(dataset, claims)
    several = len(languages) > 1
    averages = [strata, None] if several and micro else [strata if several else None]
    found = []
    for family in families:
        for within in averages:
            found.append(
                compare(scores, family, groups, within, alpha=alpha, repeats=repeats, seed=seed)
            )
        for language, mine in languages.items() if several else ():
            alone = compare(
                {name: values[mine] for name, values in scores.items()},
                replace(family, name=f"{family.name}, {language} claims (a family of its own)"),
                groups[mine],
                alpha=alpha,
                repeats=repeats,
                seed=seed,
            )
            found.append(replace(alone, average=language))
    return found


def _languages(dataset: Dataset, claims: Sequence[str]) -> dict[str, np.ndarray]:
    """Language -> which of the claims are in it, [claims] bool."""
    language_of = {claim.id: claim.lang for claim in dataset.claims}
    languages = np.array([language_of[claim] for claim in claims])
    return {name: languages == name for name in sorted_languages(languages.tolist())}


def _interval(
    scores: np.ndarray, groups: np.ndarray, strata: np.ndarray | None, repeats: int, seed: int
) -> list[float]:
    low, high = bootstrap_intervals(scores[None], groups, strata, repeats=repeats, seed=seed)[0]
    return [float(low), float(high)]
