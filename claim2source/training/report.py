"""Report a run: step 0 beside the chosen epoch, on the split that nothing was chosen on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from claim2source.core.config import as_plain
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Choice,
    Epoch,
    Report,
    SystemReport,
    TrainingReport,
)
from claim2source.core.run import Result
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.evaluation.choices import TO_CHOOSE_BY, choice_notes
from claim2source.evaluation.families import Family, family_table, tests_parts
from claim2source.io.wandb import table_key
from claim2source.models import resolve
from claim2source.pipeline.evaluate import (
    METRICS,
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    score_encoder,
    score_result,
)
from claim2source.pipeline.rows import FIRST_STAGE
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.yes_no import YesNo
from claim2source.systems.choose import SEEN, UNSEEN
from claim2source.systems.stages import apply_stage
from claim2source.training.choose import part_name, scores_by_split
from claim2source.training.config import RetrieverRecipe, TrainingRecipe
from claim2source.training.data import TrainingData
from claim2source.training.reranker_config import RerankerRecipe
from claim2source.training.session import Session

STEP_0, CHOSEN = "step 0", "chosen"
PARTS = (SEEN, UNSEEN)
ZERO_SHOT = "zero-shot re-ranker"
# Bootstrap draws and permutations of a re-ranker's report.
_REPEATS = 10_000
# Settings of one machine or process: no part of a report.
_OF_ONE_MACHINE = "out store device threads resume overwrite wandb keep after".split()


def report_run(
    session: Session, recipe: RetrieverRecipe, data: TrainingData, epoch: int, choice: Choice
) -> Report:
    """Report a retriever's run: step 0 and the chosen epoch, read from their checkpoints."""
    run, settings = session.run, Scoring(METRICS, 0, 0, data.train.golds)
    run.write(run.checkpoint(epoch))
    scored: dict[int, SystemReport] = {}
    for number in sorted({0, epoch}):
        folder = run.checkpoint(number)
        model = resolve(recipe.model.for_checkpoint(folder), session.device)
        assert model.manifest is not None
        rendering, name = model.manifest.rendering, str(folder.relative_to(run.path))
        ranked = score_encoder(
            model.encoder, data.report, rendering, settings, store=session.store, progress=True
        )
        scored[number] = replace(
            ranked.report,
            model=name if model.is_trained else model.base.name,
            claims=rendering.claims,
            sources=rendering.sources,
            val=model.manifest.scores,
            settings={"checkpoint": name},
        )
    systems = {
        name: replace(scored[number], name=name) for name, number in ((STEP_0, 0), (CHOSEN, epoch))
    }
    name, program = data.settings.dataset, "train/finetune.py"
    report = make_report(data.report, systems, CHOSEN, name=name, program=program)
    return _finish(session, report, recipe, epoch, choice)


def report_pipeline(
    session: Session,
    recipe: RerankerRecipe,
    data: TrainingData,
    depth: int,
    first: tuple[str, Result, Epoch],
    epoch: int,
    choice: Choice,
) -> Report:
    """Report a re-ranker's run: the first stage, the re-ranker as it was, and as chosen.

    They are read from their checkpoints, by the stages that others use. `first` has the first
    stage's name, its result on the report split and its scores on val.
    """
    run, reported = session.run, data.report
    run.write(run.checkpoint(epoch))
    name, ranking, on_val = first
    settings = Scoring(repeats=_REPEATS, seen_golds=data.selection.train.golds)
    by = {TO_CHOOSE_BY: on_val.score}
    scored = score_result(FIRST_STAGE, ranking, reported, settings)
    scored = scored.with_report(model=name, claims="", val=scores_by_split(on_val), settings=by)
    systems: dict[str, ScoredSystem] = {FIRST_STAGE: scored}
    results: dict[int, Result] = {}
    for system, number in {STEP_0: 0, CHOSEN: epoch}.items():
        checkpoint = run.checkpoint(number)
        if number not in results:
            stage_class = CrossEncoder if recipe.model.kind == "cross_encoder" else YesNo
            stage = stage_class(
                model=str(checkpoint),
                depth=depth,
                dtype=recipe.model.dtype,
                allow_remote_code=recipe.model.allow_remote_code,
            )
            results[number] = apply_stage(
                stage,
                reported.claims,
                reported.sources,
                ranking,
                session.store,
                device=session.device,
                progress=True,
            )
        scored = score_result(system, results[number], reported, settings)
        folder = str(checkpoint.relative_to(run.path))
        entry = next(entry for entry in run.file.history if entry.epoch == number)
        systems[system] = scored.with_report(
            model=folder if number else recipe.model.name,
            claims=recipe.rendering.claims,
            sources=recipe.rendering.sources,
            val={"val": entry.val},
            settings={"checkpoint": folder, "depth": depth},
        )
    reports = {name: system.report for name, system in systems.items()}
    dataset, program = data.settings.dataset, "train/finetune_reranker.py"
    report = make_report(reported, reports, CHOSEN, name=dataset, program=program)
    pairs = ((CHOSEN, FIRST_STAGE), *(((CHOSEN, STEP_0),) if epoch else ()), (STEP_0, FIRST_STAGE))
    families = [Family("The re-ranker against the baselines before it", pairs)]
    report = add_tests(report, systems, families, reported, _REPEATS, 0)
    best = run.file.history[epoch].val[MACRO][MAIN_METRIC]
    notes = []
    if best < on_val.val[MACRO][MAIN_METRIC]:
        notes.append("!!! The first stage alone is better on val than the chosen re-ranker.")
    stage_text = f"rerank: {recipe.model.kind}, model: {run.path}, depth: {depth}"
    if allowed := recipe.model.allow_remote_code:
        stage_text += f", allow_remote_code: {list(allowed)}"
    notes.append(f"A stage of any system: {{{stage_text}}}")
    return _finish(session, report, recipe, epoch, choice, notes)


def _finish(
    session: Session,
    report: Report,
    recipe: TrainingRecipe,
    epoch: int,
    choice: Choice,
    notes: Sequence[str] = (),
) -> Report:
    """Add the run's course and its choice to its report, write it, log and print it.

    The run is finished then: its states are removed.
    """
    run, config = session.run, replace(session.run.config, optimisation=recipe.optimisation)
    settings = {k: v for k, v in as_plain(config).items() if k not in _OF_ONE_MACHINE}
    training = TrainingReport(
        # Scores by claim are in run.json.
        history=tuple(replace(entry, claims={}) for entry in run.file.history),
        choose=config.choose,
        chosen_epoch=epoch,
        chosen_checkpoint=str(run.checkpoint(epoch).relative_to(run.path)),
        choice=choice,
        skipped_steps=run.file.skipped_steps,
        settings=settings,
    )
    report = replace(report, chosen=CHOSEN, training=training)
    report.write(run.path)
    run.remove_states()
    for name, table in run_tables(report, training).items():
        session.logs.table(table_key(name), table)
    session.logs.close()
    say("\n" + render([*run_parts(report, training), *notes]))
    return report


def run_tables(report: Report, training: TrainingReport) -> dict[str, TextTable]:
    """Tabulate all scores on val after every epoch, and those on the report split, for W&B.

    Each has a row for each language and `macro`, and all metrics. Where val has both parts, each
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
    parts = [part for part in PARTS if all(entry.parts for entry in history)]

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


def run_parts(report: Report, training: TrainingReport) -> list[Part]:
    """Describe a run: its epochs on val, the scores on the report split, tests and warnings."""
    parts: list[Part] = [history_table(report, training), *run_scores(report).values()]
    parts += tests_parts(report.tests, MAIN_METRIC)
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
