"""Make the rows of a report: a system over one claim form, with its stages, in its own folder."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from claim2source.core.config import as_plain
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import content_hash, file_hash
from claim2source.core.progress import track
from claim2source.core.records import Dataset
from claim2source.core.report import FILE, MACRO, MAIN_METRIC, NotRun, Report, SystemReport
from claim2source.core.run import Result, Run
from claim2source.core.stage import Stage
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.data.trec import read_run
from claim2source.evaluation.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    score_result,
    with_missing_notes,
    with_whole,
)
from claim2source.evaluation.files import write_runs, write_submissions
from claim2source.evaluation.html.page import trace_page
from claim2source.evaluation.plan import RowPlan, row_name
from claim2source.evaluation.ranks import gold_moves, moves_table, verifier_note
from claim2source.evaluation.reports import join_runs
from claim2source.evaluation.views import report_parts, write_report
from claim2source.metrics.metrics import macro, score_languages
from claim2source.models.local import local_name
from claim2source.models.trained_on import TrainedOn
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.routes import Routes
from claim2source.search.saved import Saved
from claim2source.stages.facts import VersionedScores
from claim2source.systems.conditions import share_asked
from claim2source.systems.heldout import NothingToChooseOn
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import (
    StageResult,
    SystemStage,
    is_answered,
)
from claim2source.systems.system import (
    System,
    SystemResult,
    SystemRunner,
)
from claim2source.text import ClaimForm
from claim2source.text.views import with_claim_texts

FIRST_STAGE = "first stage"
# Page that shows how the stages re-rank every claim.
PAGE = "claims.html"
# Increased if the same settings give another report.
_FORMAT = 3
_ADVICE = "fix the cause and run the same command again; finished rows are kept"


@dataclass(frozen=True, eq=False)
class SystemRow:
    """System's scores over one claim form: a scored system for each stage, by row name.

    The last one is the whole system and has the row's name; the others append the stage's name.
    `notes` and `parts` describe what the stages did; a row that was read from its folder has no
    parts.
    """

    plan: RowPlan
    form: ClaimForm
    stages: dict[str, ScoredSystem]
    notes: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()

    @property
    def name(self) -> str:
        """Return the name of the whole system over this claim form."""
        return next(reversed(self.stages))

    @property
    def whole(self) -> ScoredSystem:
        return self.stages[self.name]

    @property
    def tested(self) -> list[str]:
        """Return the names of the stages before the first simulated one."""
        return [name for name, stage in self.stages.items() if not stage.report.simulated]


# A row, of rumours with verdicts.
Made = TypeVar("Made", bound=SystemRow)


def by_model(plans: Sequence[RowPlan]) -> list[int]:
    """Order systems by their dense model, so that each model is loaded once."""
    models = []
    for plan in plans:
        models.append(repr(plan.system.first.main_model or plan.system.name))
    return sorted(range(len(plans)), key=lambda number: models.index(models[number]))


def run_rows(
    plans: Sequence[RowPlan],
    run: Callable[[RowPlan], Made],
    runtime: SystemRuntime,
    *,
    raise_errors: bool = False,
) -> tuple[list[Made], list[NotRun]]:
    """Make the rows of planned systems by `run`; list failed ones as not run.

    Rows are in the order of the plans. With `raise_errors` the first failure is raised.
    """
    rows: dict[int, Made] = {}
    failed: dict[int, NotRun] = {}
    for number in track(by_model(plans), "systems", len(plans)):
        plan = plans[number]
        try:
            rows[number] = run(plan)
        except (UserError, MemoryError, RuntimeError) as error:
            # CUDA and FAISS raise RuntimeErrors: a system's failure must not end the table.
            if raise_errors:
                raise
            form = failed_form(plan.system, runtime, plan.form)
            failed[number] = not_run_row(plan.system, form, error)
    made = [rows[number] for number in sorted(rows)]
    return made, [failed[number] for number in sorted(failed)]


def run_row(plan: RowPlan, runner: SystemRunner, scoring: Scoring) -> SystemRow:
    """Run a system over its claim form, and score each of its stages."""
    system = plan.system
    dataset = runner.reported
    rewrites = runner.settings.rewrites
    if rewrites:  # only reported claims are rewritten; settings are chosen without it
        form = system.choose_form(plan.form, runner.runtime)
        dataset = dataset.with_claims(with_claim_texts(dataset.claims, rewrites, form, append=True))
    result = runner.run(system, plan.form, dataset)
    results = result.stages[-len(system.stages) - 1 :]
    try:
        scoring = replace(scoring, seen_golds=runner.choosing_claims(system).trained_golds)
    except UserError:
        pass  # the claims that it was trained on are not here
    row = row_name(system.name, result.form)
    last = len(results) - 1
    stage_names = _stage_names(system, results)
    stages = [stage.stage for stage in system.stages]
    scored = {}
    for number, (stage_name, stage) in enumerate(zip(stage_names, [None, *stages], strict=True)):
        name = row if number == last else f"{row}: {stage_name}"
        scored_stage = score_result(name, results[number].result, dataset, scoring)
        report = _fill_report(scored_stage.report, plan, result, number, runner)
        # A stage may use another source form than the first stage.
        read = getattr(stage, "sources", result.sources)
        report = replace(report, stage="" if number == last else stage_name, sources=read)
        if rewrites:
            # Rewritings are appended to the claims; the papers' styles replace them.
            report = replace(report, style="rewritten", rewrites=runner.settings.rewrites_file)
        scored[name] = replace(scored_stage, report=report)
    notes, parts = _stage_details(stages, stage_names[1:], results, dataset)
    parts += _versions(system.stages, stage_names[1:], results, dataset, runner.runtime)
    return SystemRow(plan, result.form, scored, tuple(notes), tuple(parts))


def _stage_names(system: System, results: Sequence[StageResult]) -> list[str]:
    """Number the stages; mark a simulated one and all after it."""
    real = _first_simulated(system)
    names = []
    for number, result in enumerate(results):
        names.append(f"{number}. {result.name}" + (" (simulated)" if number > real else ""))
    return [FIRST_STAGE, *names[1:]]


def _first_simulated(system: System) -> int:
    stages = system.stages
    return next((i for i, stage in enumerate(stages) if stage.simulated), len(stages))


def _fill_report(
    report: SystemReport,
    plan: RowPlan,
    result: SystemResult,
    number: int,
    runner: SystemRunner,
) -> SystemReport:
    system = plan.system
    checkpoint = plan.checkpoint
    model = system.full_label(number)
    if number == len(system.stages):
        parts = []
        for part in system.first.parts:
            if part.name:
                parts.append(row_name(part.name, part.choose_form(result.form, runner.runtime)))
        report = with_whole(report, result, runner.reported)
        report = replace(report, parts=tuple(dict.fromkeys(parts)))
    if checkpoint is not None:
        if result.untrained_base and not isinstance(system.first.retriever, Routes):
            # Step 0 is named by its base model, not by its path.
            model = model.replace(checkpoint.path, result.untrained_base)
        if number == 0:
            report = replace(report, val=checkpoint.scores_on_val)
    return replace(
        report,
        model=model,
        system=system.name,
        claims=result.form,
        simulated=number > _first_simulated(system),
        choices=result.choices if number == 0 else report.choices,
        settings=_without_unset(system.settings),
        runs=f"runs/{number}",
    )


def _without_unset(value: Any) -> Any:
    """Drop unset values and the addresses of servers."""
    if isinstance(value, list):
        return [_without_unset(item) for item in value]
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for key, item in value.items():
        is_set = item not in (None, "", [], False)
        if is_set and key not in ("url", "key_env"):
            kept[key] = _without_unset(item)
    return kept


def _stage_details(
    stages: Sequence[Stage],
    names: Sequence[str],
    results: Sequence[StageResult],
    dataset: Dataset,
) -> tuple[list[str], list[Part]]:
    notes = list[str]()
    moves = {}
    for number, (name, stage) in enumerate(zip(names, stages, strict=True)):
        before = results[number].result
        after = results[number + 1].result
        depth = getattr(stage, "depth", 0)
        counts = gold_moves(before.run, after.run, dataset, depth)
        moves[name] = depth, counts
        notes += _stage_notes(name, depth, before.run, after)
        if note := verifier_note(after, counts.get(MACRO)):
            notes.append(f"{name}: {note}.")
    parts: list[Part] = []
    if any(counts for _, counts in moves.values()):
        parts += ["Golds promoted and demoted by each stage:", moves_table(moves)]
    return notes, parts


def _stage_notes(name: str, depth: int, before: Run, result: Result) -> list[str]:
    longest = int(np.diff(before.offsets).max(initial=0))
    depth_note = f"the first {depth} of up to {longest} sources of a claim were re-ranked"
    lines = [f"{name}: {depth_note}; the others keep their order below."]
    posted = sum("no translation" in note for note in result.notes.values())
    if posted:
        lines.append(f"{name}: {posted} claims have no translation; their original was used.")
    failed = []
    for reason, count in result.failure_counts().items():
        failed.append(f"{reason} ({count})")
    if failed:
        kind = "unusable answers" if result.details else "pairs without a score"
        lines.append(f"{name}: {kind}: {'; '.join(failed[:3])}.")
    for thinking in result.thinking:
        if thinking.note:
            lines.append(f"{name}: {thinking.note}.")
    share = share_asked(result)
    if share < 1:
        lines.append(f"{name}: {1 - share:.1%} of the claims were not in doubt and not re-ranked.")
    return lines


def _versions(
    stages: Sequence[SystemStage],
    names: Sequence[str],
    results: Sequence[StageResult],
    data: Dataset,
    runtime: SystemRuntime,
) -> list[Part]:
    """Tabulate the scores of each version of stages with several, with mean and deviation.

    No request is sent again: the answers are in the store. Without a store, or with requests that
    failed, a stage is left out.
    """
    judged = data.with_claims(claim for claim in data.claims if claim.golds)
    if runtime.store is None or not judged.claims:
        return []
    scores: dict[tuple[str, str], list[float]] = {}
    for position, (name, stage) in enumerate(zip(names, stages, strict=True), 1):
        if not isinstance(stage.stage, VersionedScores) or not is_answered(
            results[position].result
        ):
            continue
        for version in stage.stage.each_version():
            version_stage = replace(stage, stage=version)
            result = version_stage.apply(data.claims, data.sources, results[:position], runtime)
            table = score_languages(result.run, judged.claims, judged.qrels, [MAIN_METRIC])
            for language, row in {**table, MACRO: macro(table)}.items():
                scores.setdefault((name, language), []).append(row[MAIN_METRIC])
    if not scores:
        return []
    longest = max(map(len, scores.values()))
    columns = ["stage", "language", f"mean {MAIN_METRIC}", "SD"]
    rows: list[list[Cell]] = []
    for key, values in scores.items():
        rows.append(
            [
                *key,
                statistics.mean(values),
                statistics.stdev(values),
                *values,
                *[None] * (longest - len(values)),
            ]
        )
    numbers = []
    for number in range(longest):
        numbers.append(f"version {number + 1}")
    head = "Stages with several versions, each version alone:"
    return [head, TextTable([*columns, *numbers], rows)]


def read_or_run(
    out: Path,
    plan: RowPlan,
    runner: SystemRunner,
    scoring: Scoring,
    program: str,
) -> SystemRow:
    """Read a row from its folder in `out` if its key is the same; else make and write it."""
    form = plan.system.choose_form(plan.form, runner.runtime)
    folder = out / row_name(plan.system.name, form)
    key = _row_key(runner, scoring, plan.system, form)
    row = _read_row(plan, form, folder, key, runner.reported.languages)
    if row is not None:
        # An older version may have written another form.
        write_submissions(row.whole.run, runner.reported, folder)
    else:
        # If this stops halfway, a report of other settings must not be left with these runs.
        (folder / FILE).unlink(missing_ok=True)
        row = run_row(plan, runner, scoring)
        keyed = {}
        for name, stage in row.stages.items():
            keyed[name] = stage.with_report(key=key)
        row = replace(row, stages=keyed)
        trained_on = plan.system.trained_on(runner.settings.dataset)
        _write_row(row, runner.reported, folder, runner.settings.dataset, program, trained_on)
    within = {}
    for name, stage in row.stages.items():
        within[name] = stage.with_report(runs=f"{folder.name}/{stage.report.runs}")
    return replace(row, stages=within)


def _write_row(
    row: SystemRow,
    dataset: Dataset,
    folder: Path,
    name: str,
    program: str,
    trained_on: TrainedOn,
) -> None:
    """Write the runs, the whole system's submissions, the page of claims, then the report.

    The claims that the system was trained on are noted next to the runs.
    """
    runs = write_row_runs(row, dataset, folder, trained_on)
    write_submissions(row.whole.run, dataset, folder)
    trace_page(runs, dataset, folder / PAGE, title=f"{Path(name).name}, {dataset.split}")
    report = make_report(dataset, row.stages, row.name, name=name, program=program)
    report = with_missing_notes(report, {row.name: row.whole}, dataset)
    report = replace(report, notes=(*report.notes, *row.notes))
    write_report(report, folder, row.name, [*report_parts(report), *row.parts])


def write_row_runs(
    row: SystemRow,
    dataset: Dataset,
    folder: Path,
    trained_on: TrainedOn,
) -> dict[str, Run]:
    """Write each stage's run and the claims that the system was trained on; return the runs."""
    runs: dict[str, Run] = {}
    for name, scored in row.stages.items():
        write_runs(scored.run, dataset, folder / scored.report.runs, trained_on)
        runs[name] = scored.run
    return runs


def _read_row(
    plan: RowPlan,
    form: ClaimForm,
    folder: Path,
    key: str,
    languages: Sequence[str],
) -> SystemRow | None:
    """Read a finished row; None if its key differs or a file is missing."""
    try:
        report = Report.read(folder)
        stages = {}
        for name, system in report.systems.items():
            runs = []
            for lang in languages:
                runs.append(folder / system.runs / f"{lang}.trec")
            if system.key != key or not all(run.is_file() for run in runs):
                return None
            # Not by the report's languages: a split without judgements has scores of none.
            stages[name] = ScoredSystem(system, join_runs(read_run(run).run for run in runs))
    except InputError:
        return None
    return SystemRow(plan, form, stages, report.notes) if stages else None


def _row_key(runner: SystemRunner, scoring: Scoring, system: System, form: ClaimForm) -> str:
    data, settings = runner.reported, runner.settings
    dense = [model.name for model in system.dense_models]
    retrievers = [part.retriever for part in system.first.walk()]
    runs = [retriever for retriever in retrievers if isinstance(retriever, Saved)]
    files = [path for run in runs for path in (*run.files.values(), run.selections) if path]
    parts: dict[str, Any] = {
        "format": _FORMAT,
        "system": system.settings,
        # A stage's model may be a folder whose content has changed.
        "weights": {name: _model_identity(name) for name in (*dense, *system.models())},
        "runs": [file_hash(path) if path.is_file() else None for path in files],
        "claims": form,
        "split": data.split,
        "data": data.fingerprint,
        "rewrites": content_hash(dict(settings.rewrites)),
        "scoring": as_plain(scoring),
        "depth": settings.depth,
    }
    # Data that it reads besides the data set: a changed file or other known posts are another row.
    read = [one.posts.content for one in retrievers if isinstance(one, BM25) and one.posts]
    for stage in system.stages:
        content = getattr(stage.stage, "read_content", None)
        if content is not None:
            read.append(content)
    if read:
        parts["read"] = read
    if own_code := system.own_code():
        parts["code"] = own_code
    if system.is_fit:
        choosing = settings.choosing
        fingerprint = runner.held_out.train().fingerprint
        parts["chosen on"] = [fingerprint, choosing.val, choosing.rule]
    return content_hash(parts)


def _model_identity(model: str) -> Mapping[str, Any] | None:
    """Return sizes and times of a folder's files; None for a hub's model, which has a revision."""
    folder = Path(local_name(model))
    if not folder.is_dir():
        return None
    # Not hashes: seven billion weights take longer to hash than the finished row saves.
    states = {}
    for path in sorted(folder.rglob("*")):
        states[str(path.relative_to(folder))] = path.stat()
    return {name: [state.st_size, state.st_mtime_ns] for name, state in states.items()}


def failed_form(system: System, runtime: SystemRuntime, form: ClaimForm | None = None) -> ClaimForm:
    """Return the claim form of a system that could not run: the first that a part can choose."""
    for node in system.first.walk():
        with suppress(UserError, MemoryError, RuntimeError):
            return node.choose_form(system.claims or form, runtime)
    return "original"


def not_run_row(
    system: System,
    form: ClaimForm,
    error: UserError | MemoryError | RuntimeError,
) -> NotRun:
    """Describe a system that raised `error`: the reason and a remedy."""
    reason = " ".join(str(error).split()) or type(error).__name__
    if is_out_of_memory(error):
        reason = f"out of memory: {reason}"
    elif not isinstance(error, UserError):
        reason = f"failed: {reason}"
    return NotRun(system.name, form, reason[:300], _remedy(system, error))


def is_out_of_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError)


def _remedy(system: System, error: UserError | MemoryError | RuntimeError) -> str:
    if isinstance(error, NothingToChooseOn):
        return (
            "settings are chosen on train, which must have golds: report on another split, or "
            "leave systems with `fit` out with --only"
        )
    if is_out_of_memory(error):
        return (
            "lower model.max_length or set a 16-bit model.dtype in its entry, or use a machine "
            "with more memory; finished rows are kept"
        )
    if not isinstance(error, UserError):
        return f"try it on the CPU: --only {system.name} --device cpu; finished rows are kept"
    if isinstance(error, ConfigError):
        return "correct this setting in the system's entry or on the command line"
    return _own_advice(system, error) or _ADVICE


def _own_advice(system: System, error: UserError) -> str | None:
    """Return the advice of a systems file for a missing model or run; None if there is none.

    It is the advice nearest to the part that failed; for a stage's model, the system's.
    """
    if str(error) == system.unsupported or error.model in system.models():
        return system.advice
    is_found, advice = _advice_within(system.first, error)
    return advice or system.advice if is_found else None


def _advice_within(part: Retrieval, error: UserError) -> tuple[bool, str | None]:
    """Whether a part within raised an error, and the advice nearest to that part."""
    if _failed_in(part, error):
        return True, part.advice
    for inner in part.parts:
        is_found, advice = _advice_within(inner, error)
        if is_found:
            return True, advice or part.advice
    return False, None


def _failed_in(part: Retrieval, error: UserError) -> bool:
    if part.unsupported is not None and str(error) == part.unsupported:
        return True
    retriever = part.retriever
    if isinstance(retriever, Saved) and isinstance(error, InputError):
        files = {str(path) for path in (*retriever.files.values(), retriever.selections) if path}
        return error.problems[0].file in files
    model = part.main_model
    return isinstance(retriever, Dense) and model is not None and error.model == model.name
