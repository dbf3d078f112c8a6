"""Report a run: step 0 beside the chosen epoch, on the split that nothing was chosen on."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.core.program import command_of
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Report,
    SystemReport,
    Table,
    TrainingReport,
    Trial,
)
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.evaluation.choices import choice_notes
from claim2source.io.store import Store
from claim2source.io.wandb import table_key
from claim2source.models import resolve
from claim2source.pipeline.evaluate import evaluate_encoder, make_report
from claim2source.systems.choose import SEEN, UNSEEN
from claim2source.training.after import FOLDER
from claim2source.training.choose import ChosenCheckpoint, part_name
from claim2source.training.config import FinetuneConfig
from claim2source.training.curve import TO_CHOOSE_BY, curve_table, draw
from claim2source.training.data import TrainingData
from claim2source.training.loggers import RunLog
from claim2source.training.resume import skipped_steps
from claim2source.training.run_folder import RunFolder, score_to_choose_by

SCALES_PLOT = "scales.png"
STEP_0, CHOSEN = "step 0", "chosen"
PARTS = (SEEN, UNSEEN)


def build_report(
    run: RunFolder,
    chosen: ChosenCheckpoint,
    data: TrainingData,
    config: FinetuneConfig,
    store: Store,
    skipped_steps: int = 0,
) -> Report:
    """Score step 0 and the chosen checkpoint on the report split, through their manifests."""
    before = _evaluated(run, run.checkpoint(0), data, config, store)
    after = before if chosen.epoch == 0 else _evaluated(run, chosen.folder, data, config, store)
    systems = {STEP_0: replace(before, name=STEP_0), CHOSEN: replace(after, name=CHOSEN)}
    training = TrainingReport(
        # Scores by claim are in run.json.
        history=tuple(replace(entry, claims={}) for entry in run.history),
        choose=config.choose,
        chosen_epoch=chosen.epoch,
        chosen_scale=chosen.scale,
        chosen_checkpoint=str(chosen.folder.relative_to(run.path)),
        scales=chosen.tried,
        scaled_epoch=chosen.scaled_epoch,
        chosen_soup=chosen.soup,
        choice=chosen.choice,
        skipped_steps=skipped_steps,
        settings=config.recorded,
    )
    report = make_report(
        data.report, systems, CHOSEN, name=config.data.dataset, program="train/finetune.py"
    )
    report = replace(report, chosen=CHOSEN, training=training)
    report.write(run.path)
    return report


def _evaluated(
    run: RunFolder, folder: Path, data: TrainingData, config: FinetuneConfig, store: Store
) -> SystemReport:
    resolved = resolve(config.model.for_checkpoint(folder), config.device)
    rendering = resolved.rendering
    if rendering is None:
        raise UserError(f"{folder}: its manifest has no rendering")
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
        val=resolved.manifest.scores if resolved.manifest else {},
        settings={"checkpoint": str(folder.relative_to(run.path))},
    )


def training_of(report: Report) -> TrainingReport:
    """Return the part of a run's report that describes the training."""
    assert report.training is not None
    return report.training


def run_tables(report: Report) -> dict[str, TextTable]:
    """Tabulate scores on val after every epoch, before and after training, by seen golds.

    Each has a row for each language and `macro`, and all metrics. Where val has both parts, each
    has a table like that of all of val. Where scales were tried, `scales` has a row for each, and
    MRR@5 on val.
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
    scales = {"scales": curve_table(_curve(training))} if training.scales else {}
    return {
        "history": by_epoch({entry.epoch: entry.val for entry in training.history}),
        **val_parts,
        "before and after": TextTable(["model", "language", *metrics], both),
        "seen and unseen golds": TextTable(["golds", "model", "language", *metrics], parts),
        **scales,
    }


def _curve(training: TrainingReport) -> list[Trial]:
    """List the scales that were tried, the smallest first, with the base at 0."""
    before = training.history[0].val
    base = Trial({"scale": 0.0}, score_to_choose_by(training.history[0]), before)
    by_scale = {trial.settings["scale"]: trial for trial in (base, *training.scales)}
    return [by_scale[scale] for scale in sorted(by_scale)]


def plot_scales(report: Report, folder: Path) -> Path:
    """Draw the tried scales' scores on val, the chosen one circled; return the file written."""
    training = training_of(report)
    curve = {trial.settings["scale"]: trial.scores for trial in _curve(training)}
    epoch, chosen = training.scaled_epoch, training.chosen_epoch
    title = f"epoch {epoch} on val of {Path(report.dataset).name}"
    # Another epoch than the scaled one, or a mean, is not on the curve.
    on_curve = {} if training.chosen_soup else {0: 0.0, epoch: training.chosen_scale}
    draw(curve, on_curve.get(chosen), title).savefig(folder / SCALES_PLOT, dpi=150)
    return folder / SCALES_PLOT


def run_text(report: Report) -> str:
    """Show MRR@5 by language, and by whether the gold was seen in training."""
    training = training_of(report)
    before, after = (report.systems[name].table for name in (STEP_0, CHOSEN))
    languages = list(before)
    columns = [f"MRR@5 on {report.split}", *languages]
    chosen = training.choice is not None and len(training.choice.tried) > 1
    how = "chosen on val" if chosen or training.choose == "best" else "the last"
    rows: list[list[Cell]] = [
        [STEP_0, *(before[lang][MAIN_METRIC] for lang in languages)],
        [
            f"{training.chosen_name} ({how})",
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
    lines = ["", render([TextTable(columns, rows)]), *_val_lines(training)]
    if training.skipped_steps:
        lines += ["", f"{training.skipped_steps} steps were skipped: loss or gradient not finite"]
    if training.chosen_epoch == 0:
        lines += [
            "",
            "!!! No epoch was better on val than the model before training: step 0 is chosen.",
            "!!! The training did not help; see the history in report.json.",
        ]
    return "\n".join(lines)


def _val_lines(training: TrainingReport) -> list[str]:
    """Show both parts of val for every epoch, where it has both, and why what was chosen."""
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


def report_run(
    run: RunFolder,
    chosen: ChosenCheckpoint,
    data: TrainingData,
    config: FinetuneConfig,
    store: Store,
    logs: RunLog,
    losses: Sequence[float],
) -> Report:
    """Write a run's choice and its report, print it, and close the logs with its tables."""
    run.write(chosen.folder)
    report = build_report(run, chosen, data, config, store, skipped_steps(losses))
    for name, table in run_tables(report).items():
        logs.table(table_key(name), table)
    if training_of(report).scales:
        logs.figure("scales_plot", plot_scales(report, run.path))
    logs.close()
    say(run_text(report))
    return report


def say_next_steps(
    config: FinetuneConfig, chosen: ChosenCheckpoint, evaluated: Sequence[Path]
) -> None:
    """Print where the chosen checkpoint lies, and what to type next."""
    say(next_steps(config, chosen.folder, chosen.epoch > 0, evaluated))


def next_steps(
    config: FinetuneConfig, chosen: Path, trained: bool, evaluated: Sequence[Path] = ()
) -> str:
    """Name the chosen checkpoint, and the commands that evaluate it and that export it.

    `evaluated` are the reports, and the page, that the run's end has written: what is there is
    named, not suggested. Where the model before training was chosen there is nothing to export:
    the second command writes the evaluation as a page.
    """
    run, data = str(config.out), config.data
    evaluation = str(config.out / FOLDER)
    needs = [
        *_option("--model.allow_remote_code", config.model.allow_remote_code),
        *_option("--model.allow_bin", config.model.allow_bin),
        *_option("--model.attention", [config.model.attention] if config.model.attention else ()),
    ]
    lenient = ["--lenient"] if data.lenient else []
    reports = [str(path) for path in evaluated if path.suffix != ".html"]
    commands = []
    if config.out / FOLDER not in evaluated:
        evaluate = [
            *("--checkpoint", run, "--dataset", data.dataset, "--split", data.report_split),
            *_option("--languages", config.languages or ()),
            *_option("--store", [str(config.store)] if config.store else ()),
            *_option("--device", [config.device] if config.device else ()),
            *lenient,
            *needs,
            *("--out", evaluation),
        ]
        commands.append(("eval/evaluate.py", evaluate))
    if trained:
        merge = ["--checkpoints", run, *needs, "--out", f"{run}-merged"]
        commands.append(("train/merge.py", merge))
    elif len(reports) == len(evaluated):
        page = [*_option("--reports", reports or [evaluation]), *lenient]
        commands.append(("eval/report.py", [*page, "--html", f"{evaluation}/report.html"]))
    lines = [f"  {command_of(program)} {shlex.join(words)}" for program, words in commands]
    found = [f"evaluation: {', '.join(map(str, evaluated))}"] if evaluated else []
    lines = ["next:", *lines] if lines else []
    return "\n".join(["", f"chosen checkpoint: {chosen}", *found, *lines])


def _option(name: str, values: Sequence[str]) -> list[str]:
    return [name, *values] if values else []
