"""Show the report of a training as tables, for a terminal and W&B."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from claim2source.core.report import MACRO, MAIN_METRIC, Epoch, Report, Table, TrainingReport
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.evaluation.choices import TO_CHOOSE_BY, choice_notes
from claim2source.evaluation.rows import FIRST_STAGE
from claim2source.metrics.families import family_table, tests_parts
from claim2source.search.choose import SEEN, UNSEEN

# Systems of the report, besides a re-ranker's first stage.
STEP_0, CHOSEN = "step 0", "chosen"
ZERO_SHOT = "zero-shot re-ranker"


def part_name(part: str) -> str:
    return f"val, {part} papers"


def scores_by_split(entry: Epoch) -> dict[str, Table]:
    return {"val": entry.val, **{part_name(part): table for part, table in entry.parts.items()}}


def training_tables(report: Report, training: TrainingReport) -> dict[str, TextTable]:
    """Tabulate all scores on val after every epoch, and those on the report split, for W&B.

    Each table has all metrics, with a row for each language and `macro`. If val has both parts,
    each part has a table too.
    """
    metrics = list(report.systems[STEP_0].macro)
    tables: dict[str, TextTable] = {}
    for split in scores_by_split(training.history[-1]):
        name = "history" if split == "val" else split
        rows = _epoch_rows(training, split, metrics)
        tables[name] = TextTable(["epoch", "language", *metrics, "loss"], rows)
    tables |= run_scores(report)
    for test in report.tests:
        tables[f"Tests: {test.family}"] = family_table(test)
    return tables


def _epoch_rows(training: TrainingReport, split: str, metrics: Sequence[str]) -> list[list[Cell]]:
    """List the scores of every epoch and language on val or one of its parts."""
    rows: list[list[Cell]] = []
    for entry in training.history:
        table = scores_by_split(entry).get(split, {})
        for language, row in table.items():
            scores = []
            for metric in metrics:
                scores.append(row[metric])
            rows.append([entry.epoch, language, *scores, entry.loss])
    return rows


def run_scores(report: Report) -> dict[str, TextTable]:
    """Tabulate the report's scores: of all claims, and by whether the gold was seen in training."""
    tables: dict[str, TextTable] = {}
    scores = replace(report, chosen=None).score_table()
    if scores is not None:
        tables["scores"] = scores
    metrics = list(report.systems[STEP_0].macro)
    rows: list[list[Cell]] = []
    for part in ("seen", "unseen"):
        for name in (STEP_0, CHOSEN):
            for language, row in report.systems[name].slices[part].items():
                rows.append([f"{part} golds", name, language, *(row[m] for m in metrics)])
    tables["seen and unseen golds"] = TextTable(["golds", "model", "language", *metrics], rows)
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
            values.append(entry.val[language][MAIN_METRIC])
        for part in parts:
            values.append(entry.parts[part][MACRO][MAIN_METRIC])
        reported = None if system is None else report.systems[system].macro[MAIN_METRIC]
        return [name, *values, entry.score, entry.loss, reported]

    rows = []
    if first is not None:
        by_part = {}
        for part in parts:
            by_part[part] = first.val[part_name(part)]
        entry = Epoch(-1, first.val["val"], parts=by_part, score=first.settings[TO_CHOOSE_BY])
        rows.append(row(f"{FIRST_STAGE}: {first.model}", entry, FIRST_STAGE))
    before = STEP_0 if first is None else ZERO_SHOT
    mark = CHOSEN if training.choose == "best" else "the last"
    for entry in history:
        name = f"epoch {entry.epoch}" if entry.epoch else before
        if entry.epoch == training.chosen_epoch:
            rows.append(row(f"{name} ({mark})", entry, CHOSEN))
        else:
            rows.append(row(name, entry, None if entry.epoch else STEP_0))
    columns = []
    for language in languages:
        columns.append(f"MRR@5 on val, {language}")
    for part in parts:
        columns.append(f"{part} papers")
    columns += [TO_CHOOSE_BY, "loss", f"MRR@5 on {report.split}, {MACRO}"]
    return TextTable(["model", *columns], rows)


def training_parts(report: Report, training: TrainingReport) -> list[Part]:
    """Describe a run: its epochs on val, the scores on the report split, tests and warnings."""
    parts: list[Part] = [history_table(report, training), *run_scores(report).values()]
    parts += tests_parts(report.tests, MAIN_METRIC)
    lengths = []
    for name in (STEP_0, CHOSEN):
        lengths.append(report.systems[name].settings.get("max_length"))
    if lengths[0] != lengths[1]:
        parts.append(
            f"Step 0 uses {lengths[0]} tokens, the model's maximum; the chosen epoch uses "
            f"{lengths[1]} (model.max_length)"
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
