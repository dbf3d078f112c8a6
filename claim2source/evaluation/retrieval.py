"""Scoring one encoder on one split: the same code after every epoch and for `eval/`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from claim2source.core.records import Dataset
from claim2source.core.run import Result
from claim2source.evaluation.metrics import macro, score_languages
from claim2source.io.store import Store
from claim2source.models import Encoder, Resolved
from claim2source.retrieve import Dense
from claim2source.text import Rendering

METRICS = ("mrr@1", "mrr@5", "mrr@10", "recall@5", "recall@100")
DEPTH = 100

Table = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Evaluation:
    """Scores by language, their macro average, and the result they come from."""

    languages: Table
    macro: dict[str, float]
    result: Result

    def flat(self) -> Table:
        """Languages and `macro` in one table."""
        return {**self.languages, "macro": self.macro}


def evaluate_dense(
    encoder: Encoder,
    dataset: Dataset,
    rendering: Rendering,
    *,
    store: Store | None = None,
    metrics: Sequence[str] = METRICS,
    depth: int = DEPTH,
    progress: bool = False,
) -> Evaluation:
    """Retrieve for every claim of a split and score by language."""
    index = Dense(encoder, rendering=rendering, store=store, progress=progress).index(
        dataset.sources
    )
    return evaluate_result(index.search(dataset.claims, depth), dataset, metrics)


def rendering_of(resolved: Resolved, asked: Rendering | None) -> Rendering:
    """Choose the rendering of a model, as `Resolved.rendering_for` does."""
    return resolved.rendering_for(asked)


def evaluate_result(
    result: Result, dataset: Dataset, metrics: Sequence[str] = METRICS
) -> Evaluation:
    """Score a stage's result by language."""
    by_language = score_languages(result.run, dataset.claims, dataset.qrels, metrics)
    return Evaluation(by_language, macro(by_language), result)


def cost_report(result: Result, parameters: int | None) -> dict[str, Any]:
    """What a report says of a result's cost.

    `stored`: the run was read, and this is what it cost when it was made. `reused`: texts whose
    vectors were in the store already, so that making them is not in this cost.
    """
    cost = result.cost
    return {
        "seconds": round(cost.seconds, 3),
        "claims": cost.items,
        "peak_memory_bytes": cost.peak_memory,
        "tokens": cost.tokens,
        "reused": cost.reused,
        "stored": result.stored,
        "parameters": parameters,
    }


def seen_and_unseen(
    evaluation: Evaluation,
    dataset: Dataset,
    seen_golds: frozenset[str],
    metrics: Sequence[str] = METRICS,
) -> dict[str, Table]:
    """Scores apart for claims whose gold was a training gold and for the others.

    Returns {"seen": table, "unseen": table}, each with languages and `macro`; a part that
    holds no claims is an empty table.
    """
    parts: dict[str, Table] = {}
    for name, wanted in (("seen", True), ("unseen", False)):
        claims = [
            claim
            for claim in dataset.claims
            if claim.golds and (not seen_golds.isdisjoint(claim.golds)) is wanted
        ]
        part = dataset.with_claims(claims)
        if not claims:
            parts[name] = {}
            continue
        table = score_languages(evaluation.result.run, part.claims, part.qrels, metrics)
        parts[name] = {**table, "macro": macro(table)}
    return parts


def mean_of(
    table: Mapping[str, Mapping[str, Any]], metric: str = "mrr@5", name: str = "macro"
) -> float:
    """The value of a metric to choose by: the macro average, or that of the language `name`.

    To 12 digits: averages of the same reciprocal ranks in another order are equal.
    """
    return round(float(table[name][metric]), 12)
