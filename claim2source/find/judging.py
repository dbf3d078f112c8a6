"""Judge whether posts' papers are in an index, by its model of abstention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from claim2source.core.records import Claim
from claim2source.find.abstention import AbstainModel, Tenth, foreign_ids, index_stages
from claim2source.find.shared import LOW_FOREIGN, TOO_FEW, language_reason
from claim2source.search.engine import Engine
from claim2source.search.table import SearchResults

Verdict = Literal["found", "uncertain", "not here", "not judged"]
NOT_JUDGED: Verdict = "not judged"


@dataclass(frozen=True)
class Judged:
    """Probability that each claim's paper is in the index, and its verdict.

    `measured` counts the held-out answers of each verdict. `reasons` are those why the model does
    not judge a claim.
    """

    present: Mapping[str, float] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)
    measured: Mapping[str, Tenth] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)


def judge(
    engine: Engine,
    model: AbstainModel | None,
    claims: Sequence[Claim],
    results: SearchResults,
    threshold: float | None = None,
) -> Judged:
    """Judge claims by their results; nothing is judged without a model, or without similarities.

    `threshold` overrides the model's, below which a paper is "not here".
    """
    if model is None or results.unencoded:
        return Judged()
    floor = model.threshold
    sure = model.sure
    if threshold is not None:
        floor = threshold
        sure = max(sure, threshold)

    ids = [claim.id for claim in claims]
    foreign = foreign_ids(claims, engine)
    stages = index_stages(results)
    shares = model.shares(ids, stages, foreign)

    reasons: dict[str, str] = {}
    present: dict[str, float] = {}
    for claim, share in zip(claims, shares.tolist(), strict=True):
        if model.languages and _read_language(claim, engine) not in model.languages:
            reasons[claim.id] = language_reason(model.languages)
        elif not np.isfinite(share):
            reasons[claim.id] = TOO_FEW
        elif model.shared and claim.id in foreign and share < floor:
            reasons[claim.id] = LOW_FOREIGN
        else:
            present[claim.id] = share

    verdicts: dict[str, Verdict] = {}
    for claim_id, share in present.items():
        verdicts[claim_id] = _verdict(share, floor, sure)
    measured = _measured_answers(model, floor, sure)
    return Judged(present, verdicts, measured, reasons)


def _measured_answers(
    model: AbstainModel,
    floor: float,
    sure: float,
) -> dict[str, Tenth]:
    """Count the held-out answers of each verdict that has any."""
    edges = {
        "not here": (0.0, floor),
        "uncertain": (floor, sure),
        "found": (sure, 1.1),
    }
    measured: dict[str, Tenth] = {}
    for name, (low, high) in edges.items():
        tenth = model.measured(low, high)
        if tenth.answers:
            measured[name] = tenth
    return measured


def _read_language(claim: Claim, engine: Engine) -> str:
    """Return the language of a claim's text for the index's encoder."""
    manifest = engine.manifest
    if claim.translation and manifest.post_rendering.claims == "translated":
        return manifest.bm25.language
    return claim.lang


def _verdict(share: float, floor: float, sure: float) -> Verdict:
    if share < floor:
        return "not here"
    if share >= sure:
        return "found"
    return "uncertain"
