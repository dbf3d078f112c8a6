"""Report a run: step 0 beside the chosen epoch, on the split that nothing was chosen on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Choice,
    Epoch,
    Report,
    SystemReport,
    Table,
    TrainingReport,
)
from claim2source.core.run import Result
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.evaluation.choices import TO_CHOOSE_BY, choice_notes
from claim2source.evaluation.families import Family
from claim2source.io.store import Store
from claim2source.io.wandb import table_key
from claim2source.models import resolve
from claim2source.pipeline.evaluate import (
    Scoring,
    add_tests,
    evaluate_encoder,
    make_report,
    score_result,
)
from claim2source.pipeline.rows import FIRST_STAGE
from claim2source.pipeline.views import report_tables
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.yes_no import YesNo
from claim2source.systems.choose import SEEN, UNSEEN
from claim2source.systems.stages import apply_stage
from claim2source.training.choose import ValScores, part_name
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.data import TrainingData
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.run_folder import RunFolder, score_to_choose_by
from claim2source.training.session import Session

STEP_0, CHOSEN = "step 0", "chosen"
PARTS = (SEEN, UNSEEN)
ZERO_SHOT = "zero-shot re-ranker"
# Bootstrap draws and permutations of a re-ranker's report.
_REPEATS = 10_000


def report_run(
    session: Session, config: FinetuneConfig, data: TrainingData, epoch: int, choice: Choice
) -> Report:
    """Write a run's choice and its report, print it, and close the logs with its tables.

    The run is finished then: its states are removed.
    """
    run = session.run
    run.write(run.checkpoint(epoch))
    scored = {
        number: _score_checkpoint(run, run.checkpoint(number), data, config, session.store)
        for number in sorted({0, epoch})
    }
    systems = {
        name: replace(scored[number], name=name) for name, number in ((STEP_0, 0), (CHOSEN, epoch))
    }
    name, program = config.data.dataset, "train/finetune.py"
    report = make_report(data.report, systems, CHOSEN, name=name, program=program)
    report = _finished(run, report, config, epoch, choice)
    _show(session, run_tables(report), run_text(report))
    return report


def _finished(
    run: RunFolder, report: Report, config: RunConfig, epoch: int, choice: Choice
) -> Report:
    """Add the run's course and its choice to its report, write it, and remove the states."""
    training = TrainingReport(
        # Scores by claim are in run.json.
        history=tuple(replace(entry, claims={}) for entry in run.history),
        choose=config.choose,
        chosen_epoch=epoch,
        chosen_checkpoint=str(run.checkpoint(epoch).relative_to(run.path)),
        choice=choice,
        skipped_steps=run.skipped_steps,
        settings=config.recorded,
    )
    report = replace(report, chosen=CHOSEN, training=training)
    report.write(run.path)
    run.remove_states()
    return report


def _show(session: Session, tables: Mapping[str, TextTable | None], text: str) -> None:
    for name, table in tables.items():
        if table is not None:
            session.logs.table(table_key(name), table)
    session.logs.close()
    say(text)


def _score_checkpoint(
    run: RunFolder, folder: Path, data: TrainingData, config: FinetuneConfig, store: Store
) -> SystemReport:
    resolved = resolve(config.model.for_checkpoint(folder), config.device)
    assert resolved.manifest is not None
    rendering = resolved.manifest.rendering
    report = evaluate_encoder(
        resolved.encoder,
        data.report,
        rendering,
        store=store,
        seen_golds=data.train.golds,
        progress=True,
    )
    (system,) = report.systems.values()
    return replace(
        system,
        model=str(folder.relative_to(run.path)) if resolved.is_trained else resolved.base.name,
        claims=rendering.claims,
        sources=rendering.sources,
        val=resolved.manifest.scores,
        settings={"checkpoint": str(folder.relative_to(run.path))},
    )


def training_of(report: Report) -> TrainingReport:
    """Return the part of a run's report that describes the training."""
    assert report.training is not None
    return report.training


def run_tables(report: Report) -> dict[str, TextTable]:
    """Tabulate scores on val after every epoch, before and after training, by seen golds.

    Each has a row for each language and `macro`, and all metrics. Where val has both parts, each
    has a table like that of all of val.
    """
    training, systems = training_of(report), report.systems
    metrics = list(systems[STEP_0].macro)
    names = {"before": STEP_0, "after": CHOSEN}

    def by_epoch(tables: Mapping[int, Table]) -> TextTable:
        losses = {entry.epoch: entry.loss for entry in training.history}
        rows: list[list[Cell]] = [
            [epoch, language, *(row[m] for m in metrics), losses[epoch]]
            for epoch, table in tables.items()
            for language, row in table.items()
        ]
        return TextTable(["epoch", "language", *metrics, "loss"], rows)

    val_parts = {
        part_name(part): by_epoch({e.epoch: e.parts[part] for e in training.history if e.parts})
        for part in training.history[-1].parts
    }
    rows: list[list[Cell]] = [
        [name, language, *(row[m] for m in metrics)]
        for name, system in names.items()
        for language, row in systems[system].table.items()
    ]
    parts: list[list[Cell]] = [
        [part, name, language, *(row[m] for m in metrics)]
        for part in ("seen", "unseen")
        for name, system in names.items()
        for language, row in systems[system].slices[part].items()
    ]
    return {
        "history": by_epoch({entry.epoch: entry.val for entry in training.history}),
        **val_parts,
        "before and after": TextTable(["model", "language", *metrics], rows),
        "seen and unseen golds": TextTable(["golds", "model", "language", *metrics], parts),
    }


def run_text(report: Report) -> str:
    """Show MRR@5 by language, and by whether the gold was seen in training."""
    training = training_of(report)
    before, after = (report.systems[name].table for name in (STEP_0, CHOSEN))
    languages = list(before)
    columns = [f"MRR@5 on {report.split}", *languages]
    how = "chosen on val" if training.choose == "best" else "the last"
    rows: list[list[Cell]] = [
        [STEP_0, *(before[lang][MAIN_METRIC] for lang in languages)],
        [
            f"epoch {training.chosen_epoch} ({how})",
            *(after[lang][MAIN_METRIC] for lang in languages),
        ],
        ["gain", *(after[lang][MAIN_METRIC] - before[lang][MAIN_METRIC] for lang in languages)],
    ]
    for part in ("seen", "unseen"):
        for name in (STEP_0, CHOSEN):
            table = report.systems[name].slices[part]
            if table:
                cells = [table.get(lang, {}).get(MAIN_METRIC) for lang in languages]
                rows.append([f"{part} golds, {name}", *cells])
    lines = [render([TextTable(columns, rows)]), *_val_lines(training), *warnings_of(training)]
    return "\n".join(["", *lines])


def warnings_of(training: TrainingReport) -> list[str]:
    """Warn of steps that were skipped, and where no epoch was better than the model before."""
    lines = []
    if training.skipped_steps:
        lines += ["", f"{training.skipped_steps} steps were skipped: loss or gradient not finite"]
    if training.chosen_epoch == 0:
        lines += [
            "",
            "!!! No epoch was better on val than the model before training: step 0 is chosen.",
            "!!! The training did not help; see the history in report.json.",
        ]
    return lines


def _val_lines(training: TrainingReport) -> list[str]:
    lines = []
    if all(entry.parts for entry in training.history):
        columns = ["macro MRR@5 on val", *(f"{part} papers" for part in PARTS), TO_CHOOSE_BY]
        rows: list[list[Cell]] = [
            [
                f"epoch {entry.epoch}" if entry.epoch else STEP_0,
                *(entry.parts[part][MACRO][MAIN_METRIC] for part in PARTS),
                entry.score,
            ]
            for entry in training.history
        ]
        lines += ["", render([TextTable(columns, rows)])]
    notes = choice_notes(training.choice) if training.choice else []
    return [*lines, "", f"Chosen on val: {'; '.join(notes)}."] if notes else lines


def report_pipeline(
    session: Session,
    config: RerankerConfig,
    data: TrainingData,
    first: tuple[str, Result, ValScores],
    epoch: int,
    choice: Choice,
) -> Report:
    """Write a re-ranker's choice and its report: first stage, re-ranker as it was, and as chosen.

    They are read from their checkpoints, by the stages that others use. `first` has the first
    stage's name, its result on the report split and its scores on val. Otherwise as `report_run`.
    """
    run, reported = session.run, data.report
    run.write(run.checkpoint(epoch))
    name, ranking, on_val = first
    settings = Scoring(repeats=_REPEATS, seen_golds=data.seen_golds)
    scored_system = score_result(FIRST_STAGE, ranking, reported, settings)
    by = {TO_CHOOSE_BY: on_val.score}
    described = replace(
        scored_system.report, model=name, claims="", val=on_val.by_split(), settings=by
    )
    scored = {FIRST_STAGE: replace(scored_system, report=described)}
    results: dict[int, Result] = {}
    for system, number in {STEP_0: 0, CHOSEN: epoch}.items():
        checkpoint = run.checkpoint(number)
        if number not in results:
            stage_class = CrossEncoder if config.model.kind == "cross_encoder" else YesNo
            stage = stage_class(
                model=str(checkpoint),
                depth=config.first.depth,
                dtype=config.model.dtype,
                allow_remote_code=config.model.allow_remote_code,
            )
            results[number] = apply_stage(
                stage,
                reported.claims,
                reported.sources,
                ranking,
                session.store,
                device=config.device,
                progress=True,
            )
        scored_system = score_result(system, results[number], reported, settings)
        folder = str(checkpoint.relative_to(run.path))
        entry = next(entry for entry in run.history if entry.epoch == number)
        described = replace(
            scored_system.report,
            model=folder if number else config.model.name,
            claims=config.rendering.claims,
            sources=config.rendering.sources,
            val={"val": entry.val},
            settings={"checkpoint": folder, "depth": config.first.depth},
        )
        scored[system] = replace(scored_system, report=described)
    systems = {name: system.report for name, system in scored.items()}
    dataset, program = config.data.dataset, "train/finetune_reranker.py"
    report = make_report(reported, systems, CHOSEN, name=dataset, program=program)
    pairs = ((CHOSEN, FIRST_STAGE), *(((CHOSEN, STEP_0),) if epoch else ()), (STEP_0, FIRST_STAGE))
    families = [Family("The re-ranker against the baselines before it", pairs)]
    report = add_tests(report, scored, families, reported, _REPEATS, 0)
    report = _finished(run, report, config, epoch, choice)
    tables = {"pipeline": pipeline_table(report), **report_tables(report)}
    _show(session, tables, pipeline_text(report, config))
    return report


def pipeline_table(report: Report) -> TextTable:
    """Tabulate first stage, zero-shot re-ranker and each epoch: MRR@5 on val, and as reported.

    Nothing was chosen on the report split; only what stands for the run is scored there.
    """
    training = training_of(report)
    first = report.systems[FIRST_STAGE]
    on_val = first.val["val"]
    languages = list(on_val)

    def row(name: str, entry: Epoch, system: str | None) -> list[Cell]:
        reported = None if system is None else report.systems[system].macro[MAIN_METRIC]
        values = [entry.val[language][MAIN_METRIC] for language in languages]
        score = None if entry.score is None else score_to_choose_by(entry)
        return [name, *values, score, entry.loss, reported]

    first_entry = Epoch(-1, on_val, score=first.settings[TO_CHOOSE_BY])
    rows = [row(f"{FIRST_STAGE}: {first.model}", first_entry, FIRST_STAGE)]
    for entry in training.history:
        is_chosen = entry.epoch == training.chosen_epoch
        name = f"epoch {entry.epoch}" if entry.epoch else ZERO_SHOT
        system = CHOSEN if is_chosen else None if entry.epoch else STEP_0
        rows.append(row(f"{name} (chosen)" if is_chosen else name, entry, system))
    columns = [f"MRR@5 on val, {language}" for language in languages]
    columns += [TO_CHOOSE_BY, "loss", f"MRR@5 on {report.split}, {MACRO}"]
    return TextTable(["pipeline", *columns], rows)


def difference_lines(report: Report) -> list[str]:
    """Describe the re-ranker's gain on the report split, with intervals and tests."""
    lines = []
    for test in report.tests[0].comparisons if report.tests else ():
        around = f"{test.low:+.4f} to {test.high:+.4f}; p {test.p:.4f}, Holm {test.p_holm:.4f}"
        line = f"{test.system} against {test.baseline} on {report.split}"
        lines.append(f"{line}: {test.difference:+.4f} ({around}): {test.verdict}")
    return lines


def pipeline_text(report: Report, config: RerankerConfig) -> str:
    """Show the table and the tests, and how the re-ranker is used as a stage."""
    training = training_of(report)
    parts: list[Part] = [
        f"{report.dataset}: the first {config.first.depth} sources, re-ranked",
        pipeline_table(report),
        *difference_lines(report),
    ]
    if training.choice is not None and training.choice.why:
        parts.append(f"Chosen on val: {training.choice.why}.")
    parts += filter(None, warnings_of(training))
    on_val, best = report.systems[FIRST_STAGE].val["val"], training.history[training.chosen_epoch]
    if best.val[MACRO][MAIN_METRIC] < on_val[MACRO][MAIN_METRIC]:
        parts.append("!!! The first stage alone is better on val than the chosen re-ranker.")
    entry: dict[str, object] = {"rerank": config.model.kind, "model": config.out}
    entry["depth"] = config.first.depth
    if allowed := config.model.allow_remote_code:
        entry["allow_remote_code"] = list(allowed)
    stage = ", ".join(f"{key}: {value}" for key, value in entry.items())
    parts.append(f"A stage of any system: {{{stage}}}")
    return "\n" + render(parts)
