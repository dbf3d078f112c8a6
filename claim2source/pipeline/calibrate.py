"""Fit abstention to an index: claims with and without their papers, and posts of other topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Result, Run
from claim2source.datasets.grouping import connected_groups
from claim2source.engines import Engine, Found
from claim2source.evaluation.abstention import Outcomes
from claim2source.pipeline.abstain import Asked, fit_abstention, papers_of_claims
from claim2source.pipeline.elsewhere import posts_from_elsewhere
from claim2source.retrieve import FusionConfig, fuse
from claim2source.stages.abstain import DEEPEST, AbstainModel, Design, fit

# Stages that abstention reads. Lists are as deep as its features look.
LEXICAL, DENSE, FUSED = "lexical", "dense", "fused"
# More claims tell little more.
MOST = 1_000
# Posts of other topics.
FEWEST, MOST_ELSEWHERE = 100, 300
# Probability below which a paper is not here; above, it is uncertain.
NOT_HERE = 0.3
# Of the model of topics.
PENALTY = 1.0


def stages_of(found: Found) -> dict[str, Result]:
    """Name what an index found, fused as by default, as abstention reads it."""
    lexical, dense = found.lexical.top(DEEPEST), found.dense.top(DEEPEST)
    fused = fuse(lexical, dense, FusionConfig(), k=DEEPEST)
    return {LEXICAL: lexical, DENSE: dense, FUSED: fused}


def calibrate(engine: Engine, dataset: Dataset, seed: int = 13) -> AbstainModel:
    """Fit abstention on the claims of a data set whose papers are in the index.

    Raises `UserError` where there are too few.
    """
    golds = sorted(dataset.golds)
    there = engine.stamps(golds)
    claims = [claim for claim in dataset.claims if claim.golds and set(claim.golds) <= set(there)]
    if len(claims) > MOST:
        chosen = np.random.default_rng(seed).choice(len(claims), MOST, replace=False)
        claims = [claims[i] for i in sorted(chosen)]
    if not claims:
        name = dataset.name or "the data set"
        raise UserError(f"{name}: no claim of {dataset.split!r} has its papers in the index")
    removed = papers_of_claims(dataset.with_claims(claims))
    found = engine.find(claims, DEEPEST + max(map(len, removed.values())))
    bare = replace(
        found, lexical=_without(found.lexical, removed), dense=_without(found.dense, removed)
    )
    asked = _asked(claims, stages_of(found), stages_of(bare))
    languages = sorted({claim.lang for claim in claims} | {engine.manifest.bm25.language})
    others = posts_from_elsewhere(languages, min(MOST_ELSEWHERE, max(FEWEST, len(claims) // 2)))
    said = (
        f" of {dataset.name}, {dataset.split}, and {len(others)} posts of other topics; "
        f"{engine.stats().papers} in the index"
    )
    fitted = fit_abstention(asked, seed=seed, said=said).model
    topic = _topic(asked, [one.id for one in others], stages_of(engine.find(others, DEEPEST)))
    return replace(fitted, threshold=NOT_HERE, topic=topic)


def _topic(asked: Asked, others: list[str], elsewhere: Mapping[str, Result]) -> AbstainModel:
    """Tell claims, with their papers or without, from posts of other topics."""
    first = elsewhere[DENSE].run.scores[[elsewhere[DENSE].run.rows(one).start for one in others]]
    usual = tuple(round(float(score), 6) for score in first)
    design = Design((LEXICAL, DENSE), 1, of_usual=DENSE, usual=usual)
    parts = [asked.features(design), design.features(others, elsewhere)]
    here = np.arange(len(parts[0]) + len(others)) < len(parts[0])
    return fit(design, np.concatenate(parts), here, PENALTY)


def _without(result: Result, removed: Mapping[str, frozenset[str]]) -> Result:
    """Take sources out of the rankings of claims; the rest keeps its order and scores."""
    rows = [row for row in result.run if row[1] not in removed.get(row[0], ())]
    columns = zip(*rows, strict=True) if rows else ((), (), ())
    run = Run.from_rows(*columns, claim_ids=result.run.claim_ids, pool=result.run.pool)
    return replace(result, run=run)


def _asked(claims: list[Claim], stages: dict[str, Result], bare: dict[str, Result]) -> Asked:
    ids = tuple(claim.id for claim in claims)
    absent = np.zeros(len(ids), bool)
    first = stages[FUSED].run
    right = np.array([bool({*first.sources(one.id, 1)} & {*one.golds}) for one in claims])
    groups = np.array(connected_groups(claim.golds for claim in claims))
    outcomes = Outcomes(
        np.concatenate([~absent, absent]), np.concatenate([right, absent]), np.tile(groups, 2)
    )
    return Asked(ids, stages, bare, outcomes)
