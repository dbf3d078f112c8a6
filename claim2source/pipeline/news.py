"""Evaluate a system as the news paper does: recall, golds injected or not, events, failures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from claim2source.core.config import as_plain, flag, require
from claim2source.core.folders import require_output
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, Intervals, Report
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.evaluation.analysis.news_errors import (
    ErrorConfig,
    errors_parts,
    sort_claims,
    write_errors,
)
from claim2source.evaluation.families import Family, score_intervals
from claim2source.io.wandb import log_tables
from claim2source.models.local import with_local_models
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    score_result,
    score_system,
    with_depth_notes,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.events import EventsConfig, event_sets, with_events, write_events
from claim2source.pipeline.options import ChoosingOptions
from claim2source.pipeline.staged import StagedOptions, read_pipeline
from claim2source.pipeline.submit import submit
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.systems.heldout import ChoosingOn
from claim2source.systems.system import System, SystemResult
from claim2source.text.clean import load_pipeline

Golds = Literal["found", "injected", "both"]
DEPTH = 500
RECALLS = tuple(f"recall@{k}" for k in (1, 10, 100, DEPTH))
MRR = f"mrr@{DEPTH}"
METRICS = ("mrr@5", "p@1", *RECALLS, MRR)
BOUNDED = (*RECALLS, "mrr@5", MRR)
PROGRAM = "eval/news.py"
INJECT = "inject_gold"


@dataclass(frozen=True)
class NewsConfig(StagedOptions, ChoosingOptions):
    """Settings of `eval/news.py`; on the command line `--config` is `--pipeline`.

    Args:
        pipeline: YAML file of systems, such as configs/news/bm25.yaml.
        system: which system of the file; none: its last one.
        golds: candidates that are re-ranked: as `found`; with the gold `injected` where the first
            stage missed it, as in the paper; or `both`, one after the other.
        reranker: takes the place of the last re-ranker's model: a tuned model's folder, or a name.
        events: what makes articles report the same event.
        errors: what a failure is, and the proxies of its causes.
    """

    pipeline: Path
    system: str | None = None
    golds: Golds = "found"
    reranker: str | None = None
    same_event: bool = flag("count all articles of the gold's event as relevant too")
    events: EventsConfig = field(default_factory=EventsConfig)
    errors: ErrorConfig = field(default_factory=ErrorConfig)

    @property
    def choosing_on(self) -> ChoosingOn:
        """Name the claims that a fusion and routes are chosen on."""
        return self.choosing("auto")


@with_local_models
def evaluate_news(config: NewsConfig) -> str:
    """Run a system, score it and its variants; write `config.out`, return the tables."""
    require_output(config.out)
    system = read_pipeline(config.pipeline, config.system, config.files, staged=False)
    if config.reranker is not None:
        system = with_reranker(system, config.reranker)
    name, systems = system.name, {system.name: system}
    variants = {name: config.golds != "injected"}
    if config.golds != "found":
        injected = f"{name}, gold injected"
        systems[injected] = replace(with_golds(system), name=injected)
        variants[injected] = True
    dataset = config.reported([one for one, wanted in variants.items() if wanted], "--golds found")
    for key, needs in (("golds", config.golds != "found"), ("same_event", config.same_event)):
        allowed = f"what needs no golds: {config.split} has none"
        require(bool(dataset.golds) or not needs, key, getattr(config, key), allowed)
    honest = config.submit is None or variants[name]
    require(honest, "submit", str(config.submit), "none of a ranking with injected golds")
    if config.same_event:
        load_pipeline(config.events.pipeline)  # where it is missing, now rather than at the end
    runner = config.runner(dataset, DEPTH)
    scored: dict[str, ScoredSystem] = {}
    notes = []
    for variant in [variant for variant, wanted in variants.items() if wanted]:
        ranked = runner.run(systems[variant], config.claims)
        scored |= _scored(systems[variant], ranked, dataset, config)
        notes.append(_golds_note(variant, systems[variant], ranked))
    main = next(one for one in scored if one in variants)
    if config.same_event:
        relevant, said = _with_events(dataset, config)
        notes.append(said)
        again = [_of_events(scored[one], relevant, config) for one in scored if one in variants]
        scored |= {one.report.name: one for one in again}
    report = _report(scored, main, dataset, config)
    report = replace(report, notes=(*report.notes, *filter(None, notes)))
    for one in scored.values():
        write_runs(one.run, dataset, config.out / one.report.runs)
    if variants[name]:
        write_submissions(scored[name].run, dataset, config.out)
    report.write(config.out)
    title = f"{config.dataset}, {config.split}: {main}"
    parts: list[Part] = [title, *report_parts(report)]
    parts += bounds_parts(report)
    if dataset.golds:
        found = sort_claims(scored[main].run, dataset, config.errors)
        write_errors(found, config.errors, config.out / "errors.csv")
        parts += errors_parts(found, config.errors)
    parts += submit(config.submit, scored[main].run, dataset)
    write_markdown(config.out, "Tweets to news", parts)
    log_tables(
        config.wandb,
        report_tables(report),
        folder=config.out,
        program="news",
        config=as_plain(config),
    )
    return render(parts)


def with_reranker(system: System, model: str) -> System:
    """Put another model into a system's last stage. Raises `ConfigError` where it has none."""
    last = dict(system.stages[-1]) if system.stages else {}
    require("model" in last, "reranker", model, "none: the system's last stage has no `model`")
    stages = (*system.stages[:-1], {**last, "model": model})
    return replace(system, stages=stages, unsupported=None, advice=None)


def with_golds(system: System) -> System:
    """Put a stage that injects golds before the others. Raises `ConfigError` without stages."""
    allowed = "found: the system has no stage that re-ranks"
    require(bool(system.stages), "golds", "injected", allowed)
    depth = getattr(system.loaded_stages()[0][1], "depth", DEPTH)
    return replace(system, stages=({"rerank": INJECT, "depth": depth}, *system.stages))


def _scored(
    system: System, found: SystemResult, data: Dataset, config: NewsConfig
) -> dict[str, ScoredSystem]:
    """Score what a system gave, and its first stage where others follow."""
    name = system.name
    scoring = Scoring(METRICS, 0, config.seed)
    whole = score_system(name, found, data, scoring)
    injected = _injects(system)
    label = system.label_of() + ("+gold" if injected else "")
    place = "runs/gold_injected" if injected else "runs"
    report = replace(whole.report, model=label, runs=place, sources=_sources(system, found))
    scored = {name: _bounded(replace(whole, report=report), data, config)}
    if system.stages and not injected:
        first = f"{name}: first stage"
        before = found.stages[-len(system.stages) - 1].result
        one = score_result(first, before, data, scoring)
        described = replace(
            one.report, claims=found.form, sources=found.sources, runs="runs/first_stage"
        )
        scored = {first: _bounded(replace(one, report=described), data, config), **scored}
    return scored


def _injects(system: System) -> bool:
    return bool(system.stages) and system.stages[0].get("rerank") == INJECT


def _golds_note(name: str, system: System, found: SystemResult) -> str:
    """Say how many claims were handed a gold that the first stage had missed."""
    if not _injects(system):
        return ""
    result = found.stages[-len(system.stages)].result
    added, every = len(result.notes), len(result.run.claim_ids)
    return f"{name}: the gold was put among the candidates of {added} of {every} claims."


def _sources(system: System, found: SystemResult) -> str:
    """Name the representation of sources that the last stage reads."""
    stages = system.loaded_stages()
    return str(getattr(stages[-1][1], "sources", found.sources)) if stages else found.sources


def _bounded(one: ScoredSystem, dataset: Dataset, config: NewsConfig) -> ScoredSystem:
    """Add intervals of all measures."""
    if not config.tests or not config.repeats or one.scores is None:
        return one
    values: dict[str, Mapping[str, tuple[float, float]]] = {}
    for metric in BOUNDED:
        found = score_intervals(one.scores, dataset, metric, config.repeats, config.seed)
        values |= found.values
    bounds = Intervals(values, found.repeats, found.seed, found.papers)
    return replace(one, report=replace(one.report, intervals=bounds))


def _with_events(dataset: Dataset, config: NewsConfig) -> tuple[Dataset, str]:
    """Find same-event sets, write them, give the judgements that count them, and say how many."""
    linked = [source.id for source in dataset.sources if source.id in dataset.golds]
    sets = event_sets(
        dataset.sources, linked, config.events, store=config.open_store(), device=config.device
    )
    relevant = with_events(dataset, sets)
    write_events(sets, dataset, relevant, config.events, config.out / "events")
    said = (
        f"{len(sets)} of {len(linked)} linked articles ({len(sets) / len(linked):.1%}) have others "
        f"of their event, {sum(map(len, sets.values()))} in all: {config.events.days} days, "
        f"headlines {config.events.similarity:g}, named entities {config.events.overlap:g}."
    )
    return relevant, said


def _of_events(one: ScoredSystem, relevant: Dataset, config: NewsConfig) -> ScoredSystem:
    """Score the same run with all articles of an event as relevant."""
    name = f"{one.report.name}, same event"
    again = score_result(name, one.run, relevant, Scoring(METRICS, 0, config.seed))
    kept = replace(
        one.report,
        name=name,
        model=f"{one.report.model}+events",
        languages=again.report.languages,
        macro=again.report.macro,
        intervals=None,
    )
    return _bounded(replace(again, report=kept), relevant, config)


def _report(
    scored: Mapping[str, ScoredSystem], main: str, dataset: Dataset, config: NewsConfig
) -> Report:
    """Put all into a report, whose top has the main system's scores."""
    reports = {name: one.report for name, one in scored.items()}
    report = make_report(dataset, reports, main, name=config.dataset, program=PROGRAM)
    report = with_depth_notes(report, scored, dataset)
    first = f"{main}: first stage"
    if not dataset.golds:
        return report
    if config.tests and config.repeats:
        pairs = ((main, first),) if first in scored else ()
        families = [Family("Re-ranked against the first stage", pairs)] if pairs else []
        shown = {name: one for name, one in scored.items() if "same event" not in name}
        report = add_tests(report, shown, families, dataset, config.repeats, config.seed)
    top = {metric: float(report.macro[metric]) for metric in RECALLS}
    return replace(report, headline={**top, "mrr": float(report.macro[MRR])})


def bounds_parts(report: Report) -> list[Part]:
    """Tabulate all measures with their intervals."""
    rows: list[list[Cell]] = []
    for system in report.scored:
        for metric in BOUNDED if system.intervals is not None else ():
            bounds = system.intervals.of(metric) if system.intervals is not None else None
            text = None if bounds is None else f"{bounds[0]:.4f} to {bounds[1]:.4f}"
            rows.append([system.name, metric, float(system.macro[metric]), text])
    table = TextTable(["system", "measure", MACRO, "95 %"], rows)
    return ["Measures with 95 % intervals, by linked article:", table] if rows else []
