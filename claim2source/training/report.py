"""Report a run: step 0 and the chosen epoch, on a split that no choice used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.config import as_plain
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Choice,
    Epoch,
    Report,
    TrainingReport,
)
from claim2source.core.run import Result
from claim2source.core.tables import render
from claim2source.core.terminal import say
from claim2source.data.wandb import table_key
from claim2source.evaluation.choices import TO_CHOOSE_BY
from claim2source.evaluation.evaluate import (
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    score_encoder,
    score_named,
    score_result,
)
from claim2source.evaluation.rows import FIRST_STAGE
from claim2source.evaluation.training_views import (
    CHOSEN,
    STEP_0,
    scores_by_split,
    training_parts,
    training_tables,
)
from claim2source.metrics.families import Family
from claim2source.models import resolve
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.yes_no import YesNo
from claim2source.systems.stages import apply_stage
from claim2source.training.config import RetrieverRecipe, TrainingRecipe
from claim2source.training.reranker_config import RerankerRecipe
from claim2source.training.session import Session
from claim2source.training.splits import TrainingData

# Bootstrap draws, and permutations of a re-ranker's report.
_REPEATS = 10_000
# Settings of one machine or process, which are not in a report.
_OF_ONE_MACHINE = "out store device threads resume overwrite wandb keep after".split()


def report_run(
    session: Session,
    recipe: RetrieverRecipe,
    data: TrainingData,
    epoch: int,
    choice: Choice,
) -> Report:
    """Report a retriever's run: step 0 and the chosen epoch, read from their checkpoints."""
    run = session.run
    settings = Scoring(repeats=_REPEATS, seen_golds=data.train.golds)
    run.write(run.checkpoint(epoch))

    def score(number: int) -> ScoredSystem:
        folder = run.checkpoint(number)
        model = resolve(recipe.model.for_checkpoint(folder), session.device)
        assert model.manifest is not None
        rendering = model.manifest.rendering
        name = str(folder.relative_to(run.path))
        ranked = score_encoder(
            model.encoder,
            data.report,
            rendering,
            settings,
            store=session.store,
            progress=True,
        )
        return ranked.with_report(
            model=name if model.is_trained else model.base.name,
            val=model.manifest.scores,
            settings={"checkpoint": name, "max_length": model.encoder.settings.max_length},
        )

    systems = score_named({STEP_0: 0, CHOSEN: epoch}, score)
    name = data.settings.dataset
    program = "train/finetune.py"
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
    """Report a re-ranker's run: the first stage, the re-ranker before training, and the chosen one.

    The re-rankers are loaded from their checkpoints as ordinary stages. `first` has the first
    stage's name, its result on the report split and its scores on val.
    """
    run = session.run
    reported = data.report
    run.write(run.checkpoint(epoch))
    name, ranking, on_val = first
    settings = Scoring(repeats=_REPEATS, seen_golds=data.selection.train.golds)
    by = {TO_CHOOSE_BY: on_val.score}
    scored = score_result(FIRST_STAGE, ranking, reported, settings)
    scored = scored.with_report(model=name, claims="", val=scores_by_split(on_val), settings=by)

    def score(number: int) -> ScoredSystem:
        checkpoint = run.checkpoint(number)
        stage_class = CrossEncoder if recipe.model.kind == "cross_encoder" else YesNo
        stage = stage_class(
            model=str(checkpoint),
            depth=depth,
            dtype=recipe.model.dtype,
            allow_remote_code=recipe.model.allow_remote_code,
        )
        result = apply_stage(
            stage,
            reported.claims,
            reported.sources,
            ranking,
            session.store,
            device=session.device,
            progress=True,
        )
        ranked = score_result(CHOSEN, result, reported, settings)
        folder = str(checkpoint.relative_to(run.path))
        entry = next(entry for entry in run.file.history if entry.epoch == number)
        return ranked.with_report(
            model=folder if number else recipe.model.name,
            claims=recipe.rendering.claims,
            sources=recipe.rendering.sources,
            val={"val": entry.val},
            settings={"checkpoint": folder, "depth": depth},
        )

    systems = {FIRST_STAGE: scored}
    for system, row in score_named({STEP_0: 0, CHOSEN: epoch}, score).items():
        systems[system] = row.with_report(system=system)
    dataset = data.settings.dataset
    program = "train/finetune_reranker.py"
    report = make_report(reported, systems, CHOSEN, name=dataset, program=program)
    pairs = [(CHOSEN, FIRST_STAGE), (CHOSEN, STEP_0), (STEP_0, FIRST_STAGE)]
    if epoch == 0:  # the chosen one is step 0
        pairs.remove((CHOSEN, STEP_0))
    families = [Family("The re-ranker against the baselines before it", tuple(pairs))]
    report = add_tests(report, systems, families, reported, _REPEATS, 0)
    notes = []
    best = run.file.history[epoch].val[MACRO][MAIN_METRIC]
    if best < on_val.val[MACRO][MAIN_METRIC]:
        notes.append("!!! The first stage alone is better on val than the chosen re-ranker.")
    notes.append(_stage_note(recipe, run.path, depth))
    return _finish(session, report, recipe, epoch, choice, notes)


def _stage_note(recipe: RerankerRecipe, run: Path, depth: int) -> str:
    """Write the chosen re-ranker as a stage for a systems file."""
    text = f"rerank: {recipe.model.kind}, model: {run}, depth: {depth}"
    if allowed := recipe.model.allow_remote_code:
        text += f", allow_remote_code: {list(allowed)}"
    return f"A stage of any system: {{{text}}}"


def _finish(
    session: Session,
    report: Report,
    recipe: TrainingRecipe,
    epoch: int,
    choice: Choice,
    notes: Sequence[str] = (),
) -> Report:
    """Add the run's history and choice to its report; write, log and print it.

    This finishes the run, and its states are removed.
    """
    run = session.run
    config = replace(run.config, optimisation=recipe.optimisation)
    settings = as_plain(config)
    for key in _OF_ONE_MACHINE:
        settings.pop(key, None)
    history: list[Epoch] = []
    for entry in run.file.history:
        # Scores by claim are in run.json.
        history.append(replace(entry, claims={}))
    training = TrainingReport(
        history=tuple(history),
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
    for name, table in training_tables(report, training).items():
        session.logs.table(table_key(name), table)
    session.logs.close()
    say("\n" + render([*training_parts(report, training), *notes]))
    return report
