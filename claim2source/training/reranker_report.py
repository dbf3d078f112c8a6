"""Report a re-ranker's training: first stage, zero-shot re-ranker, each epoch, in one table."""

from __future__ import annotations

from dataclasses import replace

from claim2source.core.report import MACRO, MAIN_METRIC, Choice, Epoch, Report
from claim2source.core.run import Result
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.evaluation.families import Family
from claim2source.io.store import Store
from claim2source.io.wandb import table_key
from claim2source.models.reranker_manifest import RerankerKind
from claim2source.pipeline.evaluate import Scoring, add_tests, make_report, score_result
from claim2source.pipeline.rows import FIRST_STAGE
from claim2source.pipeline.views import report_tables
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.pairs import Reranker
from claim2source.stages.yes_no import YesNo
from claim2source.systems.stages import apply_stage
from claim2source.training.choose import ValScores
from claim2source.training.data import TrainingData
from claim2source.training.loggers import RunLog
from claim2source.training.report import CHOSEN, STEP_0, training_of, training_report, warnings_of
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.run_folder import RunFolder, score_to_choose_by

PROGRAM = "train/finetune_reranker.py"
ZERO_SHOT = "zero-shot re-ranker"
BY = "to choose by"
# Bootstrap draws and permutations of the report.
_REPEATS = 10_000


def trained_stage(kind: RerankerKind, model: str, config: RerankerConfig) -> Reranker:
    """Make the stage that reads a checkpoint's folder, or a run's."""
    depth, allowed = config.first.depth, config.model.allow_remote_code
    stage = CrossEncoder if kind == "cross_encoder" else YesNo
    dtype = config.model.dtype
    return stage(model=model, depth=depth, dtype=dtype, allow_remote_code=allowed)


def report_pipeline(
    run: RunFolder,
    config: RerankerConfig,
    data: TrainingData,
    *,
    first: tuple[str, Result, ValScores],
    chosen: tuple[int, Choice],
    store: Store,
    logs: RunLog,
) -> Report:
    """Score the first stage, the re-ranker as it was, and the chosen one on the report split.

    They are read from their checkpoints, by the stages that others use. `first` has the first
    stage's name, its result on the report split and its scores on val. Writes `report.json`,
    prints it, closes the logs with its tables, and removes the states of the run, which is
    finished then.
    """
    name, ranking, on_val = first
    epoch, choice = chosen
    reported, scored = data.report, {}
    epochs = {STEP_0: 0, CHOSEN: epoch}
    settings = Scoring(repeats=_REPEATS, seen_golds=data.seen_golds)
    one = score_result(FIRST_STAGE, ranking, reported, settings)
    described = replace(one.report, model=name, claims="", val=on_val.by_split())
    described = replace(described, settings={BY: on_val.score})
    scored[FIRST_STAGE] = replace(one, report=described)
    results = {}
    for system, number in epochs.items():
        if number not in results:
            stage = trained_stage(config.model.kind, str(run.checkpoint(number)), config)
            results[number] = apply_stage(
                stage,
                reported.claims,
                reported.sources,
                ranking,
                store,
                device=config.device,
                progress=True,
            )
        one = score_result(system, results[number], reported, settings)
        folder = run.checkpoint(number).relative_to(run.path)
        entry = next(entry for entry in run.history if entry.epoch == number)
        described = replace(
            one.report,
            model=str(folder) if number else config.model.name,
            claims=config.rendering.claims,
            sources=config.rendering.sources,
            val={"val": entry.val},
            settings={"checkpoint": str(folder), "depth": config.first.depth},
        )
        scored[system] = replace(one, report=described)
    training = training_report(run, config, epoch, choice)
    systems = {name: system.report for name, system in scored.items()}
    report = make_report(reported, systems, CHOSEN, name=config.data.dataset, program=PROGRAM)
    pairs = ((CHOSEN, FIRST_STAGE), *(((CHOSEN, STEP_0),) if epoch else ()), (STEP_0, FIRST_STAGE))
    families = [Family("The re-ranker against the baselines before it", pairs)]
    report = add_tests(report, scored, families, reported, _REPEATS, 0)
    report = replace(report, chosen=CHOSEN, training=training)
    report.write(run.path)
    run.remove_states()
    log_report(report, config, logs)
    logs.close()
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
        shown = None if system is None else report.systems[system].macro[MAIN_METRIC]
        values = [entry.val[language][MAIN_METRIC] for language in languages]
        score = None if entry.score is None else score_to_choose_by(entry)
        return [name, *values, score, entry.loss, shown]

    alone = Epoch(-1, on_val, score=first.settings[BY])
    rows = [row(f"{FIRST_STAGE}: {first.model}", alone, FIRST_STAGE)]
    for entry in training.history:
        is_chosen = entry.epoch == training.chosen_epoch
        name = f"epoch {entry.epoch}" if entry.epoch else ZERO_SHOT
        system = CHOSEN if is_chosen else None if entry.epoch else STEP_0
        rows.append(row(f"{name} (chosen)" if is_chosen else name, entry, system))
    columns = [f"MRR@5 on val, {language}" for language in languages]
    columns += [BY, "loss", f"MRR@5 on {report.split}, {MACRO}"]
    return TextTable(["pipeline", *columns], rows)


def difference_lines(report: Report) -> list[str]:
    """Describe the re-ranker's gain on the report split, with intervals and tests."""
    lines = []
    for one in report.tests[0].comparisons if report.tests else ():
        around = f"{one.low:+.4f} to {one.high:+.4f}; p {one.p:.4f}, Holm {one.p_holm:.4f}"
        line = f"{one.system} against {one.baseline} on {report.split}"
        lines.append(f"{line}: {one.difference:+.4f} ({around}): {one.verdict}")
    return lines


def log_report(report: Report, config: RerankerConfig, logs: RunLog) -> None:
    """Print the table and the tests, show them in W&B, and say how the re-ranker is used."""
    table = pipeline_table(report)
    for name, part in {"pipeline": table, **report_tables(report)}.items():
        if part is not None:
            logs.table(table_key(name), part)
    training = training_of(report)
    parts: list[Part] = [
        f"{report.dataset}: the first {config.first.depth} sources, re-ranked",
        table,
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
    say("\n" + render(parts))
