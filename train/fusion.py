"""Fit a learned fusion: `python train/fusion.py --views FILE --system NAME --out DIR`.

The candidates are the first sources of a system; each is scored by several views (BM25 of parts,
bigrams, cosines ..), and a linear listwise ranker learns their weights: on all of train, or on val
if a model was trained. Views are chosen, and rankers compared, on papers that they were not
fitted on; the split is looked at once, with what was chosen.
`{rerank: learned, file: OUT/fusion.json}` is then a stage of any system.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Annotated

import numpy as np

from claim2source.core.config import (
    Between,
    as_plain,
    list_field,
    read_config,
    require,
    require_one_of,
)
from claim2source.core.errors import run_program
from claim2source.core.folders import require_output, require_output_file
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.store import Store
from claim2source.data.wandb import log_tables, require_tracking
from claim2source.evaluation.choices import TO_CHOOSE_BY
from claim2source.evaluation.evaluate import (
    Scoring,
    add_tests,
    load_reported,
    make_report,
    score_system,
)
from claim2source.evaluation.files import require_submittable, submit, write_runs, write_submissions
from claim2source.evaluation.options import ChoosingOptions, EvaluationOptions
from claim2source.evaluation.rows import FIRST_STAGE
from claim2source.evaluation.views import report_parts, report_tables, write_markdown
from claim2source.metrics.families import Family
from claim2source.metrics.metrics import language_strata
from claim2source.metrics.significance import (
    bootstrap_intervals,
    claim_weights,
    paired_randomisations,
)
from claim2source.models import ModelConfig
from claim2source.models.local import with_local_models
from claim2source.stages.learned import Learned
from claim2source.stages.pairs import DEEPEST, Runtime
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.systems.heldout import ChoosingOn, NothingToChooseOn
from claim2source.systems.read import Systems, read_entries, read_systems
from claim2source.systems.seen import claims_models_saw
from claim2source.systems.stages import StageResult, apply_stage
from claim2source.systems.system import RunSettings, System, SystemRunner
from claim2source.text import ClaimForm
from claim2source.training.fusion import Fitting, gather

FILE = "fusion.json"
LEARNED, CHOSEN = "learned", "chosen"


@dataclass(frozen=True)
class LearnedFusionConfig(EvaluationOptions, ChoosingOptions):
    """Settings of `train/fusion.py`.

    Args:
        views: YAML of views by name; the first two are in every ranker.
        system: name of a system of the YAML files, whose first sources are re-ranked: those before
            its stage `learned`, if it has one.
        out: folder for the fusion (`fusion.json`), the report and the runs.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on; nothing is chosen on it.
        checkpoint: encoder of the views that name none, and dense model of the system: a
            checkpoint, the folder of a training run, or a model's name; none: all-MiniLM-L6-v2
            for such views, and the system as it is.
        claims: claim form of the first stage; none: the system's own.
        depth: how many of the first sources are scored.
        folds: parts that the papers are dealt to.
    """

    views: Path
    system: str
    out: Path
    dataset: str = "demo"
    split: str = "dev"
    checkpoint: str | None = None
    claims: ClaimForm | None = None
    depth: Annotated[int, Between(1, DEEPEST)] = 100
    folds: Annotated[int, Between(2, 100)] = 5
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")
    against: list[str] = list_field((), help="systems of the files to compare with")


@dataclass(frozen=True, eq=False)
class Row:
    """Ranker's reciprocal ranks on papers it was not fitted on, [claims].

    `views` are those it reads; `seconds` is the CPU time of fitting it.
    """

    values: np.ndarray
    views: Sequence[str] = ()
    seconds: float | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Score, choose, fit, write the fusion, report on the split, print the tables."""
    config = read_config(
        LearnedFusionConfig, argv, program="train/fusion.py", description=__doc__ or ""
    )
    say(train_fusion(config))


@with_local_models
def train_fusion(config: LearnedFusionConfig) -> str:
    """Fit on train, report on the split, write `config.out`; return the tables.

    Raises `UserError` if nothing can be fitted on claims that the encoders do not know.
    """
    require_output(config.out)
    require_output_file(config.out / FILE, '"views"')
    require_tracking(config.wandb)
    views = read_views(config.views, config.checkpoint)
    systems = read_systems(config.files or None)
    for name in (config.system, *config.against):
        require_one_of("system", name, list(systems))
    system = systems[config.system]
    if config.checkpoint is not None:
        system = system.on_checkpoint(config.checkpoint)
    reported = load_reported(config.dataset, config.split, lenient=config.lenient)
    require_submittable(config.submit, reported, [LEARNED])
    settings = RunSettings(
        config.dataset,
        ChoosingOn(lenient=config.lenient, rule=config.rule),
        store=Store(config.store),
        device=config.device,
    )
    against = {name: systems[name] for name in config.against}
    runner = SystemRunner(reported, settings)
    candidates = SystemRunner(reported, replace(settings, depth=config.depth))
    scorer = Scorer(reported.sources, Runtime(settings.store, config.device, progress=True))
    system = without_learned(system)
    fitting = gather(views, system, config.claims, candidates, scorer, config.folds)
    for name in list(views)[:2]:
        require(name in fitting.views, "views", name, "first two that tell candidates apart")
    rows = compare_rankers(fitting, other_rankers(fitting, against, runner, config.claims))
    fusion, choice = fitting.fit(scorer)
    fusion.write(config.out / FILE)
    result = candidates.run(system, config.claims)
    results = {FIRST_STAGE: result}
    results |= {name: runner.run(against[name], config.claims) for name in against}
    stage = Learned(file=str(config.out / FILE), depth=config.depth)
    ranked = apply_stage(
        stage,
        reported.claims,
        reported.sources,
        result.result,
        settings.store,
        device=config.device,
    )
    results[LEARNED] = replace(
        result,
        stages=(*result.stages, StageResult("rerank learned", ranked)),
        cost=result.cost.over_same(ranked.cost),
    )
    speed = fitting.milliseconds(scorer)
    scoring = Scoring(repeats=config.repeats if config.tests else 0, seed=config.seed)
    scored = {
        name: score_system(name, result, reported, scoring).with_report(
            runs=f"runs/{name.replace(' ', '-')}"
        )
        for name, result in results.items()
    }
    scored[LEARNED] = scored[LEARNED].with_report(
        model=f"learned:{systems[config.system].full_label()}",
        choices=(*scored[LEARNED].report.choices, choice),
        settings={
            "ranker": fusion.ranker,
            "weights": {view.name: round(view.weight, 6) for view in fusion.views},
        },
    )
    report = make_report(reported, scored, LEARNED, name=config.dataset, program="train/fusion.py")
    if config.tests and reported.golds:
        pairs = tuple((LEARNED, name) for name in results if name != LEARNED)
        families = [Family("The learned fusion against the others", pairs)]
        report = add_tests(report, scored, families, reported, config.repeats, config.seed)
    report.write(config.out)
    trained_on = {name: against[name].trained_on(config.dataset) for name in against}
    first = system.trained_on(config.dataset)
    of_views = [view.model.name for view in views.values() if view.model is not None]
    learned = first | claims_models_saw(of_views, config.dataset) | fusion.fitted.trained_on
    trained_on |= {FIRST_STAGE: first, LEARNED: learned}
    for name, scored_system in scored.items():
        folder = config.out / scored_system.report.runs
        write_runs(scored_system.run, reported, folder, trained_on[name])
    write_submissions(scored[LEARNED].run, reported, config.out)
    table = rows_table(config, fitting, rows, speed)
    weights: list[list[Cell]] = [[view.name, view.weight, view.scale] for view in fusion.views]
    parts: list[Part] = [
        f"{config.dataset}, {config.split}: a learned fusion over the first {config.depth} of "
        f"{config.system}",
        *train_parts(fitting, table, [name for name in config.against if name not in rows]),
        TextTable(["view", "weight", "scale"], weights),
        f"Chosen on train, then looked at once on {config.split}:",
        *report_parts(report),
        *submit(config.submit, scored[LEARNED].run, reported),
    ]
    write_markdown(config.out, "Learned fusion", parts)
    tables = {"rankers": table, **report_tables(report)}
    log_tables(config.wandb, tables, folder=config.out, program="fusion", config=as_plain(config))
    return f"{render(parts)}\n\nIn {config.out}: {{rerank: learned, file: {config.out / FILE}}}"


def without_learned(system: System) -> System:
    """Cut a system before its learned stage, if it has one."""
    stages = takewhile(lambda stage: stage.name != "rerank learned", system.stages)
    return replace(system, stages=tuple(stages))


def read_views(path: Path, checkpoint: str | None) -> dict[str, ViewConfig]:
    """Read the views, with the program's encoder if they name none."""
    views = read_entries(ViewConfig, path, folder="fusion")
    require(len(views) > 1, "views", str(path), "a file with two views or more")
    model = ModelConfig() if checkpoint is None else ModelConfig(name=checkpoint)
    return {
        name: replace(view, model=view.encoder_over(model)) if view.encodes else view
        for name, view in views.items()
    }


def other_rankers(
    fitting: Fitting, against: Systems, runner: SystemRunner, form: ClaimForm | None
) -> dict[str, Row]:
    """Score the candidates' order, and the systems to compare with, on the claims of train.

    A system of which a model was trained on some of these claims is left out.
    """
    data, weighing = fitting.data, fitting.weighing
    rows = {FIRST_STAGE: Row(weighing.of(fitting.run))}
    ids = {claim.id for claim in data.claims}
    for name, system in against.items():
        try:
            unknown = {claim.id for claim in runner.choosing_claims(system).val.claims}
        except NothingToChooseOn:
            continue
        if ids <= unknown:
            rows[name] = Row(weighing.of(runner.run(system, form, data).result.run))
    return rows


def compare_rankers(fitting: Fitting, scored: Mapping[str, Row]) -> dict[str, Row]:
    """Rank claims by rankers fitted on other papers: two views, three, all, the chosen."""
    rows, base = dict(scored), fitting.names[:2]

    def add(name: str, views: Sequence[str]) -> None:
        started = time.process_time()
        values = fitting.linear_on(views)
        rows[name] = Row(values, views, time.process_time() - started)

    add("raw two: " + ", ".join(base), base)
    for view in fitting.names:
        if view not in base:
            add(f"+ {view}", [*base, view])
    add("all", fitting.names)
    started = time.process_time()
    values = fitting.nested()
    rows[CHOSEN] = Row(values, fitting.names, time.process_time() - started)
    return rows


def rows_table(
    config: LearnedFusionConfig,
    fitting: Fitting,
    rows: Mapping[str, Row],
    speed: Mapping[str, float],
) -> TextTable:
    """Tabulate rankers on held-out papers: score, interval, two paired tests, hours, speed.

    Where claims of seen papers are chosen on by another share than they have here, the score to
    choose by stands beside the mean that the intervals and the tests are of.
    """
    weighing = fitting.weighing
    strata = language_strata(fitting.data.claims, weighing.claim_ids)
    values = np.stack([row.values for row in rows.values()])
    bounds = bootstrap_intervals(values, weighing.groups, strata, config.repeats, config.seed)
    names = list(rows)
    two = next(name for name in names if name.startswith("raw two"))
    means = values @ claim_weights(strata, len(weighing.claim_ids))
    has_share = weighing.seen_share is not None
    tested = {}
    for baseline in (FIRST_STAGE, two):
        differences = values - rows[baseline].values
        tests = paired_randomisations(
            differences, weighing.groups, strata, config.repeats, config.seed
        )
        around = bootstrap_intervals(
            differences, weighing.groups, strata, config.repeats, config.seed
        )
        tested[baseline] = [
            None if name == baseline else f"{d:+.4f} ({low:+.4f} to {high:+.4f}; p {p:.4f})"
            for name, d, p, (low, high) in zip(
                names, tests.differences, tests.p_values, around, strict=True
            )
        ]
    lines: list[list[Cell]] = []
    for number, (name, row) in enumerate(rows.items()):
        low, high = bounds[number]
        fitted = row.seconds is not None
        hours = (row.seconds or 0) + sum(fitting.seconds[view] for view in row.views)
        lines.append(
            [
                name,
                float(means[number]),
                *([weighing.score(values[number])] if has_share else []),
                f"{low:.4f} to {high:.4f}",
                *(tested[baseline][number] for baseline in tested),
                f"{hours / 3600:.3f}" if fitted else None,
                f"{sum(speed[view] for view in row.views):.1f}" if fitted else None,
            ]
        )
    columns = [
        "ranker",
        "MRR@5",
        *([TO_CHOOSE_BY] if has_share else []),
        "95 %",
        f"against the {FIRST_STAGE}",
        "against the raw two",
    ]
    columns += ["CPU hours", "CPU ms a claim"]
    return TextTable(columns, lines)


def train_parts(fitting: Fitting, table: TextTable, without: Sequence[str]) -> list[Part]:
    """Describe the comparison on train, `without` systems that know claims of it."""
    lists, papers = fitting.lists, len(np.unique(fitting.lists.groups))
    sentence = (
        f"{fitting.data.split}, {len(lists.weights)} claims of {papers} papers, each ranked by a "
        f"ranker that was fitted on {fitting.folds - 1} of {fitting.folds} parts of the papers, "
        f"without its own; {lists.reachable.mean():.1%} have a gold among their candidates. "
        f"`{CHOSEN}` has chosen its views on the other parts too. Systems without hours are not "
        "fitted here; what they choose, they chose on all of these claims."
    )
    hours = (
        "CPU hours: scoring by the row's views, less what was in the store already, and fitting. "
        "CPU milliseconds a claim: scoring a new claim's candidates by the row's views, in a batch "
        "of 10, with the vectors of sources kept (MaxSim has none to keep)."
    )
    parts: list[Part] = [sentence, table, hours]
    if without:
        names = ", ".join(without)
        parts.append(f"Not in the table: {names}, with a model that was trained on these claims.")
    if fitting.constant:
        parts.append(f"Left out, equal for all candidates: {', '.join(fitting.constant)}.")
    return [*parts, f"Scores of trained encoders: {fitting.note}."] if fitting.note else parts


if __name__ == "__main__":
    run_program(main)
