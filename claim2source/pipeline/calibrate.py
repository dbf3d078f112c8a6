"""Fit abstention to an index: claims whose papers are known, each once with and without them."""

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
from claim2source.retrieve import FusionConfig, fuse
from claim2source.stages.abstain import DEEPEST, AbstainModel

# Stages that abstention reads. Lists are as deep as its features look.
LEXICAL, DENSE, FUSED = "lexical", "dense", "fused"
# More claims tell little more.
MOST = 1_000


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
    said = f" of {dataset.name}, {dataset.split}; {engine.stats().papers} in the index"
    return fit_abstention(asked, seed=seed, said=said).model


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
