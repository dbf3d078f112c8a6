"""Report a run: step 0 and the chosen epoch, on the split that nothing was chosen on."""

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
from claim2source.training.data import TrainingData
from claim2source.training.reranker_config import RerankerRecipe
from claim2source.training.session import Session

# Bootstrap draws, and permutations of a re-ranker's report.
_REPEATS = 10_000
# Settings of one machine or process: no part of a report.
_OF_ONE_MACHINE = "out store device threads resume overwrite wandb keep after".split()


def report_run(
    session: Session, recipe: RetrieverRecipe, data: TrainingData, epoch: int, choice: Choice
) -> Report:
    """Report a retriever's run: step 0 and the chosen epoch, read from their checkpoints."""
    run, settings = session.run, Scoring(repeats=_REPEATS, seen_golds=data.train.golds)
    run.write(run.checkpoint(epoch))
    scored: dict[int, ScoredSystem] = {}
    for number in sorted({0, epoch}):
        folder = run.checkpoint(number)
        model = resolve(recipe.model.for_checkpoint(folder), session.device)
        assert model.manifest is not None
        rendering, name = model.manifest.rendering, str(folder.relative_to(run.path))
        ranked = score_encoder(
            model.encoder, data.report, rendering, settings, store=session.store, progress=True
        )
        scored[number] = ranked.with_report(
            model=name if model.is_trained else model.base.name,
            claims=rendering.claims,
            sources=rendering.sources,
            val=model.manifest.scores,
            settings={"checkpoint": name, "max_length": model.encoder.settings.max_length},
        )
    systems: dict[str, ScoredSystem] = {}
    for name, number in ((STEP_0, 0), (CHOSEN, epoch)):
        systems[name] = scored[number].with_report(name=name)
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
    dataset, program = data.settings.dataset, "train/finetune_reranker.py"
    report = make_report(reported, systems, CHOSEN, name=dataset, program=program)
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
    for name, table in training_tables(report, training).items():
        session.logs.table(table_key(name), table)
    session.logs.close()
    say("\n" + render([*training_parts(report, training), *notes]))
    return report
