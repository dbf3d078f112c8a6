"""Compute metrics by claim and by language with ir_measures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import compress
from typing import Any

import ir_measures
import numpy as np

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, sorted_languages
from claim2source.core.report import MACRO, MAIN_METRIC, Twins
from claim2source.core.run import Run
from claim2source.core.terminal import one_line

ALLOWED = "mrr@K, recall@K, hit@K, p@K, ndcg@K, map, map@K, with K from 1 to 1000000"

_MEASURES: Mapping[str, Any] = {
    "mrr": ir_measures.RR,
    "recall": ir_measures.R,
    "hit": ir_measures.Success,
    "p": ir_measures.P,
    "ndcg": ir_measures.nDCG,
    "map": ir_measures.AP,
}
_FIRST_GOLD = ("mrr@", "hit@")  # metrics that the rank of the first gold decides
_DEEPEST = 1_000_000
_MAIN_DEPTH = 5  # of the main metric


@dataclass(frozen=True, eq=False)
class Scores:
    """Metrics by claim: name -> float64 array, in the order of `claim_ids`."""

    claim_ids: tuple[str, ...]
    values: Mapping[str, np.ndarray]

    def __repr__(self) -> str:
        return one_line(self, claims=len(self.claim_ids), metrics=tuple(self.values))

    def __getitem__(self, metric: str) -> np.ndarray:
        """Return the values of a metric, [claims] float64."""
        return self.values[metric]

    def mean(self, metric: str) -> float:
        return float(self.values[metric].mean())

    def means(self) -> dict[str, float]:
        return {metric: self.mean(metric) for metric in self.values}


@dataclass(frozen=True, slots=True)
class Coverage:
    """Numbers of claims with a gold, of those without a prediction, and of unjudged ones.

    `missing` claims have a gold but no prediction (they score 0); `ignored` claims are in the run
    but have no gold.
    """

    claims: int
    missing: int
    ignored: int


def judged_claims(qrels: Qrels) -> tuple[str, ...]:
    """List the claims with at least one gold, in file order; means are over these."""
    return tuple(claim for claim in qrels.claim_ids if qrels.golds(claim))


def coverage(run: Run, qrels: Qrels, name: str = "run") -> Coverage:
    """Count the claims that only the run or only the judgements have.

    Raises `UserError`, with an id of each, if they have no claim in common.
    """
    judged = judged_claims(qrels)
    shared = set(judged).intersection(run.claim_ids)
    if not judged:
        raise UserError("qrels: no claim has a gold")
    if not shared:
        example = "nothing"
        if run.claim_ids:
            example = repr(run.claim_ids[0])
        raise UserError(
            f"{name}: ids do not match: none of its {len(run.claim_ids)} claims is judged; "
            f"the run has {example}, the qrels have {judged[0]!r}"
        )
    unanswered = len(set(judged) - _ranked_claims(run))
    ignored = len(run.claim_ids) - len(shared)
    return Coverage(len(judged), unanswered, ignored)


def _ranked_claims(run: Run) -> set[str]:
    """Collect the claims that a run ranks a source for."""
    return set(compress(run.claim_ids, np.diff(run.offsets) > 0))


def cutoff(metric: str) -> int | None:
    """Return the k of a metric's name, None for `map`.

    Raises `ConfigError` for an unknown name.
    """
    match = re.fullmatch(r"(mrr|recall|hit|p|ndcg|map)@([1-9][0-9]{0,6})", metric)
    if match and int(match[2]) <= _DEEPEST:
        return int(match[2])
    if metric != "map":
        raise ConfigError("metrics", metric, ALLOWED)
    return None


def depth_notes(
    runs: Mapping[str, Run],
    metrics: Sequence[str],
    sources: int | None = None,
) -> list[str]:
    """Note metrics with a cutoff beyond the longest list of a run; `sources` is the pool's size.

    Such metrics are computed as if there were no sources after the lists.
    """
    deep: dict[tuple[int, tuple[str, ...]], list[str]] = {}
    for name, run in runs.items():
        longest = int(np.diff(run.offsets).max(initial=0))
        too_deep: list[str] = []
        for metric in metrics:
            depth = cutoff(metric)
            if depth is not None and depth > longest:
                too_deep.append(metric)
        is_whole_pool = sources is not None and longest >= sources
        if too_deep and longest > 0 and not is_whole_pool:
            deep.setdefault((longest, tuple(too_deep)), []).append(name)
    notes = []
    for (longest, deeper), names in deep.items():
        sources_text = "1 source" if longest == 1 else f"{longest} sources"
        notes.append(
            f"{', '.join(deeper)}: deeper than the lists of {', '.join(names)}, whose longest "
            f"has {sources_text}; golds further down count as not found."
        )
    return notes


def evaluate(
    run: Run,
    qrels: Qrels,
    metrics: Sequence[str],
    claim_ids: Sequence[str] | None = None,
) -> Scores:
    """Score every judged claim; one without predictions gets 0.

    Metrics are `mrr@k`, `recall@k`, `hit@k` (whether a gold is among the first k), `p@k`,
    `ndcg@k`, `map`, `map@k`. `claim_ids` restricts and orders the claims. Raises `ConfigError` for
    an unknown metric, ValueError for a claim without a gold, and `UserError` without claims.
    """
    if not metrics:
        raise ConfigError("metrics", list(metrics), f"at least one of {ALLOWED}")
    cutoffs = [cutoff(metric) for metric in metrics]
    claims = _claims_to_score(qrels, claim_ids)
    measures = {}
    for metric, k in zip(metrics, cutoffs, strict=True):
        measure = _MEASURES[metric.split("@")[0]]
        measures[metric] = measure @ k if k else measure
    if all(name.startswith(_FIRST_GOLD) for name in metrics):
        ranks = first_gold_ranks(run, qrels, claims)
        return Scores(claims, {name: _by_first_gold(name, ranks) for name in metrics})
    judged = run.restricted(claims).rescored()
    depths = [k for k in cutoffs if k is not None]
    if len(depths) == len(cutoffs):
        judged = judged.top(max(depths))
    position = {claim: i for i, claim in enumerate(claims)}
    grades = {claim: dict(qrels.grades[claim]) for claim in claims}
    values: dict[Any, np.ndarray] = {}
    for measure in measures.values():
        values[measure] = np.zeros(len(claims))
    evaluator = ir_measures.evaluator(list(values), grades)
    for value in evaluator.iter_calc(_as_mapping(judged)):
        row = position[value.query_id]
        values[value.measure][row] = value.value
    by_metric = {metric: values[measure] for metric, measure in measures.items()}
    return Scores(claims, by_metric)


def first_gold_ranks(run: Run, qrels: Qrels, claim_ids: Sequence[str]) -> np.ndarray:
    """Return the rank of each claim's first gold, [claims] float64, inf if absent."""
    code = {source: number for number, source in enumerate(run.vocabulary.tolist())}
    judged = run.restricted(claim_ids)
    owners: list[int] = []
    codes: list[int] = []
    for row, claim in enumerate(claim_ids):
        for gold in qrels.golds(claim):
            if gold in code:
                owners.append(row)
                codes.append(code[gold])
    width = max(len(code), 1)
    golds = np.array(owners, np.int64) * width + np.array(codes, np.int64)
    rows = np.repeat(np.arange(len(claim_ids)), np.diff(judged.offsets))
    is_gold = np.isin(rows * width + judged.codes, golds, assume_unique=True)
    ranks = np.full(len(claim_ids), np.inf)
    np.minimum.at(ranks, rows[is_gold], judged.ranks()[is_gold])
    return ranks


def _by_first_gold(metric: str, ranks: np.ndarray) -> np.ndarray:
    """Score the ranks of first golds: mrr@k or hit@k."""
    found = ranks <= (cutoff(metric) or np.inf)
    if metric.startswith("hit"):
        return found.astype(np.float64)
    return np.where(found, 1 / ranks, 0.0)


def _claims_to_score(qrels: Qrels, claim_ids: Sequence[str] | None) -> tuple[str, ...]:
    if claim_ids is None:
        claims = judged_claims(qrels)
    else:
        claims = tuple(dict.fromkeys(claim_ids))
    if not claims:
        raise UserError("qrels: no claim has a gold")
    for claim in claims:
        if not qrels.golds(claim):
            raise ValueError(f"claim {claim!r} has no gold")
    return claims


def missing_notes(runs: Mapping[str, Run], qrels: Qrels) -> list[str]:
    """Note the runs without results for claims with a gold, which score 0."""
    judged = judged_claims(qrels)
    notes: list[str] = []
    for name, run in runs.items():
        missing = len(set(judged) - _ranked_claims(run))
        if missing:
            notes.append(
                f"{name}: no results for {missing} of the {len(judged)} claims with a gold, "
                "which count as 0."
            )
    return notes


def without_themselves(runs: Mapping[str, Run], qrels: Qrels) -> tuple[dict[str, Run], list[str]]:
    """Remove sources with their claim's id from runs, and note them."""
    cleaned: dict[str, Run] = {}
    notes = []
    for name, run in runs.items():
        cleaned[name], count = run.without_themselves(qrels)
        if count:
            notes.append(
                f"{name}: {count} claims rank a source of their own id, which is removed, as in "
                "BEIR."
            )
    return cleaned, notes


def _as_mapping(run: Run) -> dict[str, dict[str, float]]:
    sources = run.vocabulary[run.codes].tolist()
    scores = run.scores.tolist()
    by_claim: dict[str, dict[str, float]] = {}
    for claim in run.claim_ids:
        rows = run.rows(claim)
        if rows.stop > rows.start:
            pairs = zip(sources[rows], scores[rows], strict=True)
            by_claim[claim] = dict(pairs)
    return by_claim


def language_masks(claims: Sequence[Claim], claim_ids: Sequence[str]) -> dict[str, np.ndarray]:
    """Map every language of `claim_ids` to the claims in it, [claims] bool."""
    language_of = {claim.id: claim.lang for claim in claims}
    languages = np.array([language_of[claim] for claim in claim_ids])
    masks: dict[str, np.ndarray] = {}
    for lang in sorted_languages(languages.tolist()):
        masks[lang] = languages == lang
    return masks


def language_strata(claims: Sequence[Claim], claim_ids: Sequence[str]) -> np.ndarray:
    """Return each claim's language as a number, [claims] int64: strata for the macro average."""
    strata = np.zeros(len(claim_ids), dtype=np.int64)
    masks = language_masks(claims, claim_ids)
    for number, mask in enumerate(masks.values()):
        strata[mask] = number
    return strata


def language_table(
    scores: Scores,
    claims: Sequence[Claim],
    among: np.ndarray | None = None,
) -> dict[str, dict[str, float]]:
    """Average scores by language: language -> metric -> mean, and the claims as "queries".

    `among` [claims] bool restricts the claims; languages without claims are omitted.
    """
    table: dict[str, dict[str, float]] = {}
    for lang, mask in language_masks(claims, scores.claim_ids).items():
        if among is not None:
            mask = mask & among
        if not mask.any():
            continue
        row: dict[str, float] = {}
        for metric, values in scores.values.items():
            row[metric] = float(values[mask].mean())
        row["queries"] = int(mask.sum())
        table[lang] = row
    return table


def score_languages(
    run: Run,
    claims: Sequence[Claim],
    qrels: Qrels,
    metrics: Sequence[str],
) -> dict[str, dict[str, float]]:
    """Return language -> metric -> mean over its judged claims, and their number as "queries".

    Judgements of other claims than `claims` are ignored, and so are claims without a gold. Raises
    the errors of `evaluate`.
    """
    judged = [claim.id for claim in claims if qrels.golds(claim.id)]
    return language_table(evaluate(run, qrels, metrics, judged), claims)


def twins_in(run: Run, dataset: Dataset) -> Twins | None:
    """Count the golds that tie with a twin, a source with the same text; None without twins."""
    first = dataset.twins
    judged = judged_claims(dataset.qrels)
    ranked = {claim: run.scored(claim) for claim in run.claim_ids}
    golds = having = ties = lost = 0
    values = np.zeros(len(judged))
    for position, claim in enumerate(judged):
        gold_ids = dataset.qrels.golds(claim)
        scored = ranked.get(claim, {})
        golds += len(gold_ids)
        for gold in gold_ids:
            if gold in first:
                having += 1
                ties += _is_tied(gold, scored, first)
        groups = {first.get(gold, gold) for gold in gold_ids}
        values[position] = _reciprocal_rank(groups, scored, first)
        best = next(iter(scored), None)
        if best is not None and best not in gold_ids:
            lost += first.get(best, best) in groups
    if not having:
        return None
    table = language_table(Scores(judged, {MAIN_METRIC: values}), dataset.claims)
    table = {**table, MACRO: macro(table)}
    as_one = {language: float(row[MAIN_METRIC]) for language, row in table.items()}
    return Twins(golds, having, ties, lost, as_one)


def _is_tied(
    gold: str,
    scored: Mapping[str, float],
    first: Mapping[str, str],
) -> bool:
    """Whether another source with the gold's text has the gold's score."""
    for source, score in scored.items():
        is_twin = source != gold and first.get(source) == first[gold]
        if is_twin and score == scored.get(gold):
            return True
    return False


def _reciprocal_rank(
    groups: AbstractSet[str],
    scored: Mapping[str, float],
    first: Mapping[str, str],
) -> float:
    """Return the reciprocal rank of the first gold within five, with twins as one source."""
    order = dict.fromkeys(first.get(source, source) for source in scored)
    for rank, source in enumerate(order, 1):
        if rank > _MAIN_DEPTH:
            break
        if source in groups:
            return 1 / rank
    return 0.0


def macro(by_language: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Average every metric over languages; "queries" is summed."""
    if not by_language:
        raise ValueError("no languages to average over")
    rows = list(by_language.values())
    average = {}
    for name in rows[0]:
        average[name] = sum(row[name] for row in rows) / len(rows)
    return {**average, "queries": sum(row["queries"] for row in rows)}
