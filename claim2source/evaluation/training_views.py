"""Show the report of a training as tables, for a terminal and W&B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Epoch,
    Report,
    Table,
    TrainingReport,
)
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.evaluation.choices import TO_CHOOSE_BY, choice_notes
from claim2source.evaluation.rows import FIRST_STAGE
from claim2source.metrics.families import family_table, tests_parts
from claim2source.search.choose import SEEN, UNSEEN

# Systems of the report, besides a re-ranker's first stage.
STEP_0 = "step 0"
CHOSEN = "chosen"
ZERO_SHOT = "zero-shot re-ranker"


def part_name(part: str) -> str:
    return f"val, {part} papers"


def scores_by_split(entry: Epoch) -> dict[str, Table]:
    tables: dict[str, Table] = {"val": entry.val}
    for part, table in entry.parts.items():
        tables[part_name(part)] = table
    return tables


def training_tables(report: Report, training: TrainingReport) -> dict[str, TextTable]:
    """Tabulate all scores on val after every epoch, and those on the report split, for W&B.

    Each table has all metrics, with a row for each language and `macro`. If val has both parts,
    each part has a table too.
    """
    metrics = list(report.systems[STEP_0].macro)
    columns = ["epoch", "language", *metrics, "loss"]
    last = training.history[-1]
    tables: dict[str, TextTable] = {}
    for split in scores_by_split(last):
        name = "history" if split == "val" else split
        rows = _epoch_rows(training, split, metrics)
        tables[name] = TextTable(columns, rows)
    tables |= run_scores(report)
    for test in report.tests:
        tables[f"Tests: {test.family}"] = family_table(test)
    return tables


def _epoch_rows(
    training: TrainingReport,
    split: str,
    metrics: Sequence[str],
) -> list[list[Cell]]:
    """List the scores of every epoch and language on val or one of its parts."""
    rows: list[list[Cell]] = []
    for entry in training.history:
        tables = scores_by_split(entry)
        table = tables.get(split, {})
        for language, row in table.items():
            scores = [row[metric] for metric in metrics]
            rows.append([entry.epoch, language, *scores, entry.loss])
    return rows


def run_scores(report: Report) -> dict[str, TextTable]:
    """Tabulate the report's scores: of all claims, and by whether the gold was seen in training."""
    tables: dict[str, TextTable] = {}
    unmarked = replace(report, chosen=None)
    scores = unmarked.score_table()
    if scores is not None:
        tables["scores"] = scores

    metrics = list(report.systems[STEP_0].macro)
    rows: list[list[Cell]] = []
    for part in ("seen", "unseen"):
        for name in (STEP_0, CHOSEN):
            slices = report.systems[name].slices
            for language, row in slices[part].items():
                values = [row[metric] for metric in metrics]
                rows.append([f"{part} golds", name, language, *values])
    columns = ["golds", "model", "language", *metrics]
    tables["seen and unseen golds"] = TextTable(columns, rows)
    return tables


def history_table(report: Report, training: TrainingReport) -> TextTable:
    """Tabulate the model before training and each epoch: MRR@5 on val and on the report split.

    Only the run's choice is scored on the report split: nothing was chosen there.
    """
    first = report.systems.get(FIRST_STAGE)
    history = training.history
    languages = list(history[0].val)
    has_parts = all(entry.parts for entry in history)
    parts = [SEEN, UNSEEN] if has_parts else []

    def row(name: str, entry: Epoch, system: str | None) -> list[Cell]:
        values = []
        for language in languages:
            scores = entry.val[language]
            values.append(scores[MAIN_METRIC])
        for part in parts:
            scores = entry.parts[part][MACRO]
            values.append(scores[MAIN_METRIC])
        reported = None
        if system is not None:
            reported = report.systems[system].macro[MAIN_METRIC]
        return [name, *values, entry.score, entry.loss, reported]

    rows = []
    if first is not None:
        by_part = {}
        for part in parts:
            by_part[part] = first.val[part_name(part)]
        score = first.settings[TO_CHOOSE_BY]
        entry = Epoch(-1, first.val["val"], parts=by_part, score=score)
        title = f"{FIRST_STAGE}: {first.model}"
        rows.append(row(title, entry, FIRST_STAGE))
    before = STEP_0 if first is None else ZERO_SHOT
    mark = CHOSEN if training.choose == "best" else "the last"
    for entry in history:
        name = f"epoch {entry.epoch}" if entry.epoch else before
        system = None if entry.epoch else STEP_0
        if entry.epoch == training.chosen_epoch:
            name = f"{name} ({mark})"
            system = CHOSEN
        rows.append(row(name, entry, system))

    columns = ["model"]
    for language in languages:
        columns.append(f"MRR@5 on val, {language}")
    for part in parts:
        columns.append(f"{part} papers")
    columns.append(TO_CHOOSE_BY)
    columns.append("loss")
    columns.append(f"MRR@5 on {report.split}, {MACRO}")
    return TextTable(columns, rows)


def training_parts(report: Report, training: TrainingReport) -> list[Part]:
    """Describe a run: its epochs on val, the scores on the report split, tests and warnings."""
    parts: list[Part] = [history_table(report, training)]
    parts += run_scores(report).values()
    parts += tests_parts(report.tests, MAIN_METRIC)
    length_before = report.systems[STEP_0].settings.get("max_length")
    length = report.systems[CHOSEN].settings.get("max_length")
    if length_before != length:
        parts.append(
            f"Step 0 uses {length_before} tokens, the model's maximum; the chosen epoch uses "
            f"{length} (model.max_length)"
        )
    notes = choice_notes(training.choice) if training.choice is not None else []
    if notes:
        parts.append(f"Chosen on val: {'; '.join(notes)}.")
    if training.skipped_steps:
        parts.append(f"{training.skipped_steps} steps were skipped: loss or gradient not finite")
    if training.chosen_epoch == 0:
        parts.append(
            "!!! No epoch was better on val than the model before training; step 0 was chosen.\n"
            "!!! The training did not help; see the history in report.json."
        )
    return parts
