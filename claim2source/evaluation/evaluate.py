"""Score systems' results: by language, with intervals, slices, tests and published numbers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source import __version__
from claim2source.core.arguments import require_kind, whole_number
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
    SystemCost,
    SystemReport,
    Table,
    known_cost,
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
    """System's report, with the run and the scores by claim that it comes from."""

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

    `repeats` is the number of bootstrap draws, 0 for no intervals. With `seen_golds`, the golds of
    training, claims whose gold is among them are scored apart from the others. Raises `UserError`
    for what is not a ranking, or a file, dict or frame that ranks for none of the claims.

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
    repeats, seed = whole_number(repeats, "repeats", 0), whole_number(seed, "seed", 0)
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
    report: Report, systems: Mapping[str, ScoredSystem], dataset: Dataset
) -> Report:
    """Note the systems that rank nothing for some of the claims with a gold."""
    runs = {name: system.run for name, system in systems.items() if system.report.macro}
    missing = scoring.missing_notes(runs, dataset.qrels)
    return replace(report, notes=(*report.notes, *missing))


def with_shared_note(report: Report, names: Sequence[str]) -> Report:
    """Note the systems, of those named, that share the highest MRR@5."""
    systems = [report.systems[name] for name in names if name in report.systems]
    scores = {s.name: s.macro[MAIN_METRIC] for s in systems if MAIN_METRIC in s.macro}
    shared = highest_notes(f"{MAIN_METRIC} ({MACRO})", scores)
    return replace(report, notes=(*report.notes, *shared))


def with_depth_notes(
    report: Report, systems: Mapping[str, ScoredSystem], dataset: Dataset
) -> Report:
    """Note the metrics that look deeper than a system's lists."""
    runs = {name: system.run for name, system in systems.items() if system.report.macro}
    metrics = [m for system in report.scored[:1] for m in system.macro if m != "queries"]
    deep = scoring.depth_notes(runs, metrics, len(dataset.sources))
    return replace(report, notes=(*report.notes, *deep))


def score_result(
    name: str, result: Run | Result, dataset: Dataset, settings: Scoring
) -> ScoredSystem:
    """Score one result; without golds there is nothing but its cost.

    A source of a claim's own id is left out, unless it is a gold of it.
    """
    result = Result(result) if isinstance(result, Run) else result
    result = replace(result, run=result.run.without_themselves(dataset.qrels)[0])
    report = SystemReport(
        name,
        name,
        name,
        cost=known_cost(result.cost, result.stored),
        failures=result.failure_counts(),
    )
    if not dataset.golds:
        return ScoredSystem(report, result.run)
    claims = judged_claims(dataset.qrels)
    scores = scoring.evaluate(result.run, dataset.qrels, settings.metrics, claims)
    languages = language_table(scores, dataset.claims)
    twins = scoring.twins_in(result.run, dataset)
    report = replace(report, languages=languages, macro=macro(languages), twins=twins)
    bounded = [metric for metric in settings.bounded if metric in settings.metrics]
    if settings.repeats and bounded:
        bounds = score_intervals(scores, dataset, bounded, settings.repeats, settings.seed)
        report = replace(report, intervals=bounds)
    if settings.seen_golds is not None:
        slices = _slices(scores, dataset, settings.seen_golds)
        report = replace(report, slices=slices)
    return ScoredSystem(report, result.run, scores)


def _slices(scores: Scores, dataset: Dataset, seen_golds: frozenset[str]) -> dict[str, Table]:
    """Score the claims with a gold that was seen in training, and the others."""
    golds = {claim.id: claim.golds for claim in dataset.claims}
    seen = np.array([not seen_golds.isdisjoint(golds[claim]) for claim in scores.claim_ids])
    slices: dict[str, Table] = {}
    for name, among in (("seen", seen), ("unseen", ~seen)):
        table = language_table(scores, dataset.claims, among)
        # A part without claims is empty.
        slices[name] = {**table, MACRO: macro(table)} if table else {}
    return slices


def score_system(
    name: str, result: SystemResult, dataset: Dataset, settings: Scoring
) -> ScoredSystem:
    """Score a system's result, with its stages, choices and cost."""
    scored = score_result(name, result.result, dataset, settings)
    return replace(scored, report=with_whole(scored.report, result, dataset))


def with_whole(report: SystemReport, result: SystemResult, dataset: Dataset) -> SystemReport:
    """Describe a whole system: its stages, choices and cost."""
    stages = tuple(
        StageReport(
            stage.name,
            SystemCost.of(stage.result.cost, stage.result.stored),
            stage.result.failure_counts(),
            stage.result.settings,
        )
        for stage in result.stages
    )
    return replace(
        report,
        system=result.system,
        claims=result.form,
        sources=result.sources,
        stages=stages,
        choices=result.choices,
        cost=known_cost(
            result.cost, all(stage.result.stored for stage in result.stages), result.parameters
        ),
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
    return score_result("system", result, dataset, settings)


def make_report(
    dataset: Dataset,
    rows: Mapping[str, ScoredSystem],
    main: str | None,
    *,
    name: str | None = None,
    program: str = "",
) -> Report:
    """Make the report of scored rows; `main` names the one whose scores are at its top."""
    systems = {row: scored.report for row, scored in rows.items()}
    top = systems.get(main or "")
    installed = versions() | {"claim2source": __version__}
    provenance = Provenance(
        program, installed, git_state(), {dataset.split: dataset.fingerprint}, hardware()
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
    dataset: str, split: str, languages: Sequence[str] | None = None, *, lenient: bool = False
) -> Dataset:
    """Load the split to report on; warn of its unscorable claims before anything runs."""
    reported = load(dataset, split, languages, lenient=lenient)
    for note in unjudged(reported):
        log.warning("%s", note)
    return reported


def unjudged(dataset: Dataset) -> list[str]:
    """Note the claims of a split that cannot be scored, since they have no gold."""
    if not dataset.golds:
        return [f"No golds in {dataset.split}: nothing to score; runs and submissions are written."]
    without = Counter(claim.lang for claim in dataset.claims if not claim.golds)
    judged = {claim.lang for claim in dataset.claims if claim.golds}
    blind = [lang for lang in dataset.languages if lang not in judged]
    notes = []
    if blind:
        judged_languages = [lang for lang in dataset.languages if lang in judged]
        notes.append(
            f"No {' or '.join(blind)} claim of {dataset.split} has a gold: these are ranked and "
            f"not scored, and the macro average is that of {', '.join(judged_languages)}."
        )
    counts = [f"{without[lang]} {lang}" for lang in judged if without[lang]]
    if counts:
        notes.append(
            f"Claims without a gold are ranked and not scored: {', '.join(sorted(counts))}."
        )
    return notes


def require_golds(dataset: Dataset, name: str) -> None:
    """Raise `UserError` if a split has no golds to report on."""
    if not dataset.golds:
        raise UserError(f"{name}: split {dataset.split!r} has no golds to report on")
