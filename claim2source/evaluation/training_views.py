"""Show the report of a training as tables, for a terminal and W&B."""

from __future__ import annotations

from dataclasses import replace

from claim2source.core.report import MACRO, MAIN_METRIC, Epoch, Report, Table, TrainingReport
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.evaluation.choices import TO_CHOOSE_BY, choice_notes
from claim2source.evaluation.rows import FIRST_STAGE
from claim2source.metrics.families import family_table, tests_parts
from claim2source.search.choose import SEEN, UNSEEN

# Systems of the report beside a re-ranker's first stage.
STEP_0, CHOSEN = "step 0", "chosen"
ZERO_SHOT = "zero-shot re-ranker"


def part_name(part: str) -> str:
    return f"val, {part} papers"


def scores_by_split(entry: Epoch) -> dict[str, Table]:
    return {"val": entry.val, **{part_name(part): table for part, table in entry.parts.items()}}


def training_tables(report: Report, training: TrainingReport) -> dict[str, TextTable]:
    """Tabulate all scores on val after every epoch, and those on the report split, for W&B.

    Each has a row for each language and `macro`, and all metrics. If val has both parts, each
    has a table like that of all of val.
    """
    metrics, tables = list(report.systems[STEP_0].macro), dict[str, TextTable]()
    for split in scores_by_split(training.history[-1]):
        rows: list[list[Cell]] = [
            [entry.epoch, language, *(row[m] for m in metrics), entry.loss]
            for entry in training.history
            for language, row in scores_by_split(entry).get(split, {}).items()
        ]
        name = "history" if split == "val" else split
        tables[name] = TextTable(["epoch", "language", *metrics, "loss"], rows)
    tests = {f"Tests: {test.family}": family_table(test) for test in report.tests}
    return {**tables, **run_scores(report), **tests}


def run_scores(report: Report) -> dict[str, TextTable]:
    """Tabulate the report's scores: of all claims, and by whether the gold was seen in training."""
    metrics = list(report.systems[STEP_0].macro)
    rows: list[list[Cell]] = [
        [f"{part} golds", name, language, *(row[m] for m in metrics)]
        for part in ("seen", "unseen")
        for name in (STEP_0, CHOSEN)
        for language, row in report.systems[name].slices[part].items()
    ]
    scores = replace(report, chosen=None).score_table()
    golds = TextTable(["golds", "model", "language", *metrics], rows)
    return {**({"scores": scores} if scores else {}), "seen and unseen golds": golds}


def history_table(report: Report, training: TrainingReport) -> TextTable:
    """Tabulate what was before training and each epoch: MRR@5 on val, and as reported.

    Nothing was chosen on the report split; only what stands for the run is scored there.
    """
    first, history = report.systems.get(FIRST_STAGE), training.history
    languages = list(history[0].val)
    parts = [part for part in (SEEN, UNSEEN) if all(entry.parts for entry in history)]

    def row(name: str, entry: Epoch, system: str | None) -> list[Cell]:
        reported = None if system is None else report.systems[system].macro[MAIN_METRIC]
        values = [entry.val[language][MAIN_METRIC] for language in languages]
        values += [entry.parts[part][MACRO][MAIN_METRIC] for part in parts]
        return [name, *values, entry.score, entry.loss, reported]

    rows = []
    if first is not None:
        of_parts = {part: first.val[part_name(part)] for part in parts}
        score = first.settings[TO_CHOOSE_BY]
        entry = Epoch(-1, first.val["val"], parts=of_parts, score=score)
        rows.append(row(f"{FIRST_STAGE}: {first.model}", entry, FIRST_STAGE))
    mark = CHOSEN if training.choose == "best" else "the last"
    for entry in history:
        is_chosen = entry.epoch == training.chosen_epoch
        name = f"epoch {entry.epoch}" if entry.epoch else ZERO_SHOT if first else STEP_0
        system = CHOSEN if is_chosen else None if entry.epoch else STEP_0
        rows.append(row(f"{name} ({mark})" if is_chosen else name, entry, system))
    columns = [f"MRR@5 on val, {language}" for language in languages]
    columns += [f"{part} papers" for part in parts]
    columns += [TO_CHOOSE_BY, "loss", f"MRR@5 on {report.split}, {MACRO}"]
    return TextTable(["model", *columns], rows)


def training_parts(report: Report, training: TrainingReport) -> list[Part]:
    """Describe a run: its epochs on val, the scores on the report split, tests and warnings."""
    parts: list[Part] = [history_table(report, training), *run_scores(report).values()]
    parts += tests_parts(report.tests, MAIN_METRIC)
    lengths = [report.systems[name].settings.get("max_length") for name in (STEP_0, CHOSEN)]
    if lengths[0] != lengths[1]:
        parts.append(
            f"Step 0 is read at {lengths[0]} tokens, all that the model takes, the chosen epoch "
            f"at {lengths[1]} (model.max_length)"
        )
    if notes := choice_notes(training.choice) if training.choice else []:
        parts.append(f"Chosen on val: {'; '.join(notes)}.")
    if training.skipped_steps:
        parts.append(f"{training.skipped_steps} steps were skipped: loss or gradient not finite")
    if training.chosen_epoch == 0:
        parts.append(
            "!!! No epoch was better on val than the model before training: step 0 is chosen.\n"
            "!!! The training did not help; see the history in report.json."
        )
    return parts
