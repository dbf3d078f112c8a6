"""Report a run: step 0 beside the chosen epoch, on the split that nothing was chosen on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Choice,
    Report,
    SystemReport,
    Table,
    TrainingReport,
)
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.evaluation.choices import choice_notes
from claim2source.io.store import Store
from claim2source.io.wandb import table_key
from claim2source.models import resolve
from claim2source.pipeline.evaluate import evaluate_encoder, make_report
from claim2source.systems.choose import SEEN, UNSEEN
from claim2source.training.choose import part_name
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.curve import TO_CHOOSE_BY
from claim2source.training.data import TrainingData
from claim2source.training.run_folder import RunFolder
from claim2source.training.session import Session

STEP_0, CHOSEN = "step 0", "chosen"
PARTS = (SEEN, UNSEEN)


def report_run(
    session: Session,
    config: FinetuneConfig,
    data: TrainingData,
    epoch: int,
    choice: Choice,
) -> Report:
    """Write a run's choice and its report, print it, and close the logs with its tables.

    The run is finished then: its states are removed.
    """
    run, logs = session.run, session.logs
    run.write(run.checkpoint(epoch))
    scored = {
        number: _score_checkpoint(run, run.checkpoint(number), data, config, session.store)
        for number in sorted({0, epoch})
    }
    systems = {
        name: replace(scored[number], name=name) for name, number in ((STEP_0, 0), (CHOSEN, epoch))
    }
    report = make_report(
        data.report, systems, CHOSEN, name=config.data.dataset, program="train/finetune.py"
    )
    training = training_report(run, config, epoch, choice)
    report = replace(report, chosen=CHOSEN, training=training)
    report.write(run.path)
    run.remove_states()
    for name, table in run_tables(report).items():
        logs.table(table_key(name), table)
    logs.close()
    say(run_text(report))
    return report


def training_report(
    run: RunFolder, config: RunConfig, epoch: int, choice: Choice
) -> TrainingReport:
    """Describe a run's course and its choice."""
    return TrainingReport(
        # Scores by claim are in run.json.
        history=tuple(replace(entry, claims={}) for entry in run.history),
        choose=config.choose,
        chosen_epoch=epoch,
        chosen_checkpoint=str(run.checkpoint(epoch).relative_to(run.path)),
        choice=choice,
        skipped_steps=run.skipped_steps,
        settings=config.recorded,
    )


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
    both: list[list[Cell]] = [
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
        "before and after": TextTable(["model", "language", *metrics], both),
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
