"""Score systems' results: by language, with intervals, slices, tests and published numbers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from claim2source import __version__
from claim2source.core.arguments import require_kind, whole_number
from claim2source.core.costs import SystemCost, known_cost
from claim2source.core.errors import UserError
from claim2source.core.provenance import git_state, hardware, versions
from claim2source.core.records import DATASET_WANTED, Dataset
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    FamilyResult,
    Provenance,
    Report,
    StageReport,
    SystemReport,
    Table,
)
from claim2source.core.run import Result, Run
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.evaluation.compare import highest_notes
from claim2source.evaluation.published.scores import with_published
from claim2source.evaluation.rankings import Ranking, named_results
from claim2source.metrics import metrics as scoring
from claim2source.metrics.families import Family, compare_families, score_intervals
from claim2source.metrics.metrics import Scores, judged_claims, language_table, macro
from claim2source.search.dense import Dense
from claim2source.systems.system import DEPTH, SystemResult
from claim2source.text import Rendering
from claim2source.text.views import missing_translations

if TYPE_CHECKING:
    from claim2source.models import Encoder

log = logging.getLogger(__name__)

# A trained model of several: a checkpoint's epoch, or the scale of its weights.
Model = TypeVar("Model", int, float)
METRICS = ("mrr@1", "mrr@5", "mrr@10", "recall@5", "recall@100")


@dataclass(frozen=True)
class Scoring:
    """Set the metrics, those with intervals, and the bootstrap draws (0: none)."""

    metrics: Sequence[str] = METRICS
    repeats: int = 10_000
    seed: int = 0
    seen_golds: frozenset[str] | None = None
    bounded: Sequence[str] = (MAIN_METRIC,)


@dataclass(frozen=True, eq=False)
class ScoredSystem:
    """System's report, with its run and its scores by claim."""

    report: SystemReport
    run: Run
    scores: Scores | None = None

    def with_report(self, **changes: Any) -> ScoredSystem:
        return replace(self, report=replace(self.report, **changes))


def evaluate(
    results: Ranking | Mapping[str, Ranking],
    dataset: Dataset,
    metrics: Sequence[str] = METRICS,
    *,
    repeats: int = 10_000,
    seed: int = 0,
    seen_golds: frozenset[str] | None = None,
) -> Report:
    """Score rankings by language, with intervals by gold paper.

    A ranking is a run or result; the path of a TREC run or of a lab's predictions; a dict of claim
    -> source -> score; a pandas frame or Hugging Face `Dataset` with columns for the claim
    (`query-id`, `query_id`, `qid` or `claim`: the first that is there), the source (`corpus-id`,
    `corpus_id`, `doc_id`, `docno`, `docid` or `source`) and `score`; or a `SentenceTransformer`,
    which ranks titles and abstracts for the claims as posted, by its own prompts and similarity.
    Several by name make one report; the first is the main one.

    `repeats` is the number of bootstrap draws, 0 for no intervals. `seen_golds` are the golds of
    training: claims with such a gold are scored apart from the others. Raises `UserError` if a
    value is not a ranking, or if a file, dict or frame has none of the claims.

    Example:
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev")
        >>> report = c2s.evaluate(c2s.BM25().index(dev.sources).search(dev.claims), dev)
        >>> list(report.languages), report.macro["mrr@5"] > 0.1
        (['en', 'de', 'fr'], True)
        >>> scores = {"dev-en-0001": {"p0001": 0.5, "p0002": 0.25}}
        >>> c2s.evaluate(scores, dev, repeats=0).macro["mrr@5"]
        0.0
    """
    require_kind(dataset, Dataset, "dataset", DATASET_WANTED)
    repeats = whole_number(repeats, "repeats", 0)
    seed = whole_number(seed, "seed", 0)
    metrics = (metrics,) if isinstance(metrics, str) else metrics
    require_kind(metrics, Sequence, "metrics", "a list of metrics, such as mrr@5")
    rankings = named_results(results, dataset)
    settings = Scoring(metrics, repeats, seed, seen_golds)
    runs: dict[str, Run] = {}
    scored: dict[str, ScoredSystem] = {}
    for name, ranking in rankings.items():
        runs[name] = ranking if isinstance(ranking, Run) else ranking.run
        scored[name] = score_result(name, ranking, dataset, settings)
    _, notes = scoring.without_themselves(runs, dataset.qrels)
    report = make_report(dataset, scored, next(iter(scored), None))
    report = replace(report, notes=(*report.notes, *notes))
    report = with_shared_note(report, [*scored])
    report = with_missing_notes(report, scored, dataset)
    return with_depth_notes(report, scored, dataset)


def with_missing_notes(
    report: Report,
    systems: Mapping[str, ScoredSystem],
    dataset: Dataset,
) -> Report:
    """Note the systems without a ranking for some of the claims with a gold."""
    missing = scoring.missing_notes(_scored_runs(systems), dataset.qrels)
    return replace(report, notes=(*report.notes, *missing))


def with_shared_note(report: Report, names: Sequence[str]) -> Report:
    """Note which of the named systems share the highest MRR@5."""
    scores: dict[str, float] = {}
    for name in names:
        system = report.systems.get(name)
        if system is not None and MAIN_METRIC in system.macro:
            scores[system.name] = system.macro[MAIN_METRIC]
    shared = highest_notes(f"{MAIN_METRIC} ({MACRO})", scores)
    return replace(report, notes=(*report.notes, *shared))


def with_depth_notes(
    report: Report,
    systems: Mapping[str, ScoredSystem],
    dataset: Dataset,
) -> Report:
    """Note the metrics whose depth exceeds a system's lists."""
    if not report.scored:
        return report
    metrics = dict(report.scored[0].macro)
    metrics.pop("queries", None)
    deep = scoring.depth_notes(_scored_runs(systems), [*metrics], len(dataset.sources))
    return replace(report, notes=(*report.notes, *deep))


def _scored_runs(systems: Mapping[str, ScoredSystem]) -> dict[str, Run]:
    runs: dict[str, Run] = {}
    for name, system in systems.items():
        if system.report.macro:
            runs[name] = system.run
    return runs


def score_result(
    name: str,
    result: Run | Result,
    dataset: Dataset,
    settings: Scoring,
) -> ScoredSystem:
    """Score one result; without golds only its cost is reported.

    A source with the claim's own id is left out unless it is a gold.
    """
    result = Result(result) if isinstance(result, Run) else result
    run = result.run.without_themselves(dataset.qrels)[0]
    row = unscored(name, replace(result, run=run))
    if not dataset.golds:
        return row
    claims = judged_claims(dataset.qrels)
    scores = scoring.evaluate(run, dataset.qrels, settings.metrics, claims)
    row = row.with_report(twins=scoring.twins_in(run, dataset))
    row = with_scores(row, scores, dataset, settings)
    if settings.seen_golds is None:
        return row
    return row.with_report(slices=_slices(scores, dataset, settings.seen_golds))


def unscored(name: str, result: Result) -> ScoredSystem:
    """Describe a result without scores: its cost and its failures."""
    report = SystemReport(
        name,
        model=name,
        system=name,
        cost=known_cost(result.cost, result.stored),
        failures=result.failure_counts(),
    )
    return ScoredSystem(report, result.run)


def with_scores(
    scored: ScoredSystem,
    scores: Scores,
    dataset: Dataset,
    settings: Scoring,
) -> ScoredSystem:
    """Give a row its scores by claim: their means by language, with intervals."""
    languages = language_table(scores, dataset.claims)
    scored = replace(scored, scores=scores)
    scored = scored.with_report(languages=languages, macro=macro(languages))
    bounded = []
    for metric in settings.bounded:
        if metric in settings.metrics:
            bounded.append(metric)
    if not settings.repeats or not bounded:
        return scored
    bounds = score_intervals(scores, dataset, bounded, settings.repeats, settings.seed)
    return scored.with_report(intervals=bounds)


def _slices(scores: Scores, dataset: Dataset, seen_golds: frozenset[str]) -> dict[str, Table]:
    """Score the claims with a gold that was seen in training, and the others."""
    golds = {claim.id: claim.golds for claim in dataset.claims}
    seen = np.array([not seen_golds.isdisjoint(golds[claim]) for claim in scores.claim_ids])
    slices: dict[str, Table] = {}
    for name, among in (("seen", seen), ("unseen", ~seen)):
        table = language_table(scores, dataset.claims, among)
        # A part without claims has no scores.
        slices[name] = {**table, MACRO: macro(table)} if table else {}
    return slices


def score_system(
    name: str,
    result: SystemResult,
    dataset: Dataset,
    settings: Scoring,
) -> ScoredSystem:
    """Score a system's result, with its stages, choices and cost."""
    scored = score_result(name, result.result, dataset, settings)
    return replace(scored, report=with_whole(scored.report, result, dataset))


def with_whole(report: SystemReport, result: SystemResult, dataset: Dataset) -> SystemReport:
    """Describe a whole system: its stages, choices and cost."""
    stages: list[StageReport] = []
    is_stored = True
    for name, stage in result.stages:
        is_stored = is_stored and stage.stored
        cost = SystemCost.of(stage.cost, stage.stored)
        stages.append(StageReport(name, cost, stage.failure_counts(), stage.settings))
    return replace(
        report,
        system=result.system,
        claims=result.form,
        sources=result.sources,
        stages=tuple(stages),
        choices=result.choices,
        cost=known_cost(result.cost, is_stored, result.parameters),
        without_translation=len(missing_translations(dataset.claims, result.form)),
    )


def score_encoder(
    encoder: Encoder,
    dataset: Dataset,
    rendering: Rendering,
    settings: Scoring,
    *,
    store: Store | None = None,
    progress: bool = False,
) -> ScoredSystem:
    """Retrieve with an encoder, and score by language and by claim."""
    dense = Dense(encoder, rendering=rendering, store=store, progress=progress)
    result = dense.index(dataset.sources).search(dataset.claims, DEPTH)
    scored = score_result("system", result, dataset, settings)
    return scored.with_report(claims=rendering.claims, sources=rendering.sources)


def score_named(
    models: Mapping[str, Model], score: Callable[[Model], ScoredSystem]
) -> dict[str, ScoredSystem]:
    """Score the models of rows by name, in order of the models; a repeated model only once."""
    scored: dict[Model, ScoredSystem] = {}
    for model in sorted(set(models.values())):
        scored[model] = score(model)
    rows: dict[str, ScoredSystem] = {}
    for name, model in models.items():
        rows[name] = scored[model].with_report(name=name)
    return rows


def make_report(
    dataset: Dataset,
    rows: Mapping[str, ScoredSystem],
    main: str | None,
    *,
    name: str | None = None,
    program: str = "",
) -> Report:
    """Make the report of scored rows; `main` names the row whose scores are at its top."""
    systems = {row: scored.report for row, scored in rows.items()}
    top = systems.get(main or "")
    installed = versions() | {"claim2source": __version__}
    provenance = Provenance(
        program,
        installed,
        git_state(),
        {dataset.split: dataset.fingerprint},
        hardware(),
    )
    return Report(
        name if name is not None else dataset.name,
        dataset.split,
        systems,
        top.languages if top else {},
        top.macro if top else {},
        notes=(*dataset.notes, *unjudged(dataset)),
        provenance=provenance,
    )


def run_tests(
    systems: Mapping[str, ScoredSystem],
    families: Sequence[Family],
    dataset: Dataset,
    repeats: int,
    seed: int,
) -> tuple[FamilyResult, ...]:
    """Test declared families on MRR@5: on the macro average, then in each language."""
    names = {name for family in families for pair in family.pairs for name in pair}
    claims = judged_claims(dataset.qrels)
    values = {}
    for name in names:
        scored = systems[name]
        scores = scored.scores or scoring.evaluate(scored.run, dataset.qrels, [MAIN_METRIC], claims)
        values[name] = scores[MAIN_METRIC]
    return tuple(compare_families(values, families, dataset, claims, repeats=repeats, seed=seed))


def add_tests(
    report: Report,
    systems: Mapping[str, ScoredSystem],
    families: Sequence[Family],
    dataset: Dataset,
    repeats: int,
    seed: int,
) -> Report:
    """Add the tests of declared families and the published numbers that apply."""
    report = replace(report, tests=run_tests(systems, families, dataset, repeats, seed))
    return with_published(report, [system.report for system in systems.values()])


def load_reported(
    dataset: str,
    split: str,
    languages: Sequence[str] | None = None,
    *,
    lenient: bool = False,
) -> Dataset:
    """Load the split to report on; warn of its unscorable claims before anything runs."""
    reported = load(dataset, split, languages, lenient=lenient)
    for note in unjudged(reported):
        log.warning("%s", note)
    return reported


def unjudged(dataset: Dataset) -> list[str]:
    """Note the claims of a split that cannot be scored, since they have no gold."""
    if not dataset.golds:
        return [f"No golds in {dataset.split}: not scored; runs and submissions are written."]
    without = Counter(claim.lang for claim in dataset.claims if not claim.golds)
    judged = {claim.lang for claim in dataset.claims if claim.golds}
    blind = [lang for lang in dataset.languages if lang not in judged]
    notes = []
    if blind:
        scored = [lang for lang in dataset.languages if lang in judged]
        notes.append(
            f"No {' or '.join(blind)} claim of {dataset.split} has a gold: these are ranked but "
            f"not scored, and the macro average is over {', '.join(scored)}."
        )
    counts = []
    for lang in judged:
        if without[lang]:
            counts.append(f"{without[lang]} {lang}")
    if counts:
        notes.append(
            f"Claims without a gold are ranked but not scored: {', '.join(sorted(counts))}."
        )
    return notes


def require_golds(dataset: Dataset, name: str) -> None:
    """Raise `UserError` if a split has no golds to report on."""
    if not dataset.golds:
        raise UserError(f"{name}: split {dataset.split!r} has no golds to report on")
