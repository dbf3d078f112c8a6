"""Fit a learned fusion: `python train/fusion.py --views FILE --system NAME --out DIR`.

The candidates are the first sources of a system. Several views (BM25 of parts, bigrams, cosines
..) score each of them, and a linear listwise ranker learns the views' weights: on all of train, or
on val if a model was trained. Views are chosen, and rankers compared, on papers that they were not
fitted on. The reported split is scored once, with the chosen views. The result is a stage for any
system: `{rerank: learned, file: OUT/fusion.json}`.
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
    Share,
    as_plain,
    list_field,
    read_config,
    require,
    require_one_of,
)
from claim2source.core.errors import run_program
from claim2source.core.folders import require_output, require_output_file
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, MAIN_METRIC, Choice, Report
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.known_posts import KnownPosts
from claim2source.data.store import Store
from claim2source.data.wandb import log_tables, require_tracking
from claim2source.evaluation.choices import TO_CHOOSE_BY
from claim2source.evaluation.compare import ScoredRuns
from claim2source.evaluation.evaluate import (
    Scoring,
    add_tests,
    load_reported,
    make_report,
    score_system,
)
from claim2source.evaluation.files import require_submittable, submit, write_submissions
from claim2source.evaluation.options import ChoosingOptions, EvaluationOptions
from claim2source.evaluation.plan import RowPlan
from claim2source.evaluation.rows import FIRST_STAGE, SystemRow, write_row_runs
from claim2source.evaluation.table import scored_rows
from claim2source.evaluation.views import report_parts, report_tables, write_report
from claim2source.metrics.families import Family
from claim2source.metrics.metrics import Scores
from claim2source.models import ModelConfig
from claim2source.models.local import with_local_models
from claim2source.stages.learned import LearnedFusion
from claim2source.stages.pairs import DEEPEST, Runtime
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.systems.heldout import ChoosingOn, NothingToChooseOn
from claim2source.systems.read import Systems, read_entries, read_stage, read_systems
from claim2source.systems.seen import claims_models_saw
from claim2source.systems.stages import StageResult
from claim2source.systems.system import RunSettings, System, SystemResult, SystemRunner
from claim2source.text import ClaimForm
from claim2source.training.fusion import Fitting, gather

FILE = "fusion.json"
LEARNED, CHOSEN = "learned", "chosen"
# Prefix of the name of the ranker of the first two views.
RAW_TWO = "raw two: "


# Keys that are listed first in the help.
COMMON = (
    "views",
    "system",
    "files",
    "dataset",
    "out",
    "checkpoint",
    "claims",
    "split",
    "folds",
    "against",
)


@dataclass(frozen=True)
class LearnedFusionConfig(EvaluationOptions, ChoosingOptions):
    """Settings of `train/fusion.py`.

    Args:
        views: YAML file of views by name; every ranker uses the first two.
        system: name of a system in the YAML files whose first sources are re-ranked: its sources
            before a stage `learned`, if it has one.
        out: folder for the fusion (`fusion.json`), the report and the runs.
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`; or a file of
            pairs.
        split: split to report on; nothing is chosen on it.
        checkpoint: encoder of the views that name none, and dense model of the system: a
            checkpoint, the folder of a training run, or a model's name; none: all-MiniLM-L6-v2
            for such views, and the system's own model.
        claims: claim form of the first stage; none: the system's own.
        depth: number of first sources to score.
        folds: number of parts into which the papers are divided.
        seen_share_expected: share of claims of papers with known posts, 0 to 1, to expect; none: as
            for the trained models, or the share of train's claims whose paper has another claim.
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
    seen_share_expected: Share | None = None
    files: list[Path] = list_field(help="YAML files of systems; none: all of configs/systems")
    against: list[str] = list_field((), help="systems of the files to compare with")


@dataclass(frozen=True, eq=False)
class Ranker:
    """Ranker's reciprocal ranks on papers that it was not fitted on, [claims].

    `views` are the views that it uses; `seconds` is the CPU time of fitting it.
    """

    values: np.ndarray
    views: Sequence[str] = ()
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class Inputs:
    """Views and systems to fit and to compare, and the runners of the reported split.

    `candidates` returns as many sources as the fusion re-ranks; `full_label` names the requested
    system.
    """

    views: Mapping[str, ViewConfig]
    system: System
    full_label: str
    against: Systems
    runner: SystemRunner
    candidates: SystemRunner
    scorer: Scorer

    @property
    def reported(self) -> Dataset:
        return self.runner.reported


def main(argv: Sequence[str] | None = None) -> None:
    """Score, choose, fit, write the fusion, report on the split, print the tables."""
    config = read_config(
        LearnedFusionConfig,
        argv,
        program="train/fusion.py",
        description=__doc__ or "",
        common=COMMON,
    )
    say(train_fusion(config))


@with_local_models
def train_fusion(config: LearnedFusionConfig) -> str:
    """Fit on train, report on the split, write `config.out`; return the tables.

    Raises `UserError` if there are no claims to fit on that the encoders were not trained on.
    """
    inputs = read_inputs(config)
    fitting = gather(
        inputs.views,
        inputs.system,
        config.claims,
        inputs.candidates,
        inputs.scorer,
        config.folds,
        config.seen_share_expected,
    )
    for name in list(inputs.views)[:2]:
        require(name in fitting.views, "views", name, "first two views that distinguish candidates")
    rankers = compare_rankers(fitting, other_rankers(fitting, inputs, config.claims))
    fusion, choice = fitting.fit(inputs.scorer)
    fusion.write(config.out / FILE)

    rows = run_plans(config, inputs)
    rows[-1] = describe_fusion(rows[-1], inputs, fusion, choice)
    report = make_fusion_report(config, inputs, rows)
    for row in rows:
        trained_on = row.plan.system.trained_on(config.dataset)
        if row.name == LEARNED:
            trained_on |= claims_models_saw(view_models(inputs.views), config.dataset)
        write_row_runs(row, inputs.reported, config.out, trained_on)
    learned_run = rows[-1].whole.run
    write_submissions(learned_run, inputs.reported, config.out)

    speed = fitting.milliseconds(inputs.scorer)
    table = rankers_table(fitting, rankers, speed, config.repeats, config.seed)
    left_out = [name for name in config.against if name not in rankers]
    title = f"a learned fusion over the first {config.depth} of {config.system}"
    parts: list[Part] = [
        f"{config.dataset}, {config.split}: {title}",
        *train_parts(fitting, table, left_out),
        weights_table(fusion),
        f"Chosen on train, then scored once on {config.split}:",
        *report_parts(report),
        *submit(config.submit, learned_run, inputs.reported),
    ]
    write_report(report, config.out, "Learned fusion", parts)
    tables = {"rankers": table, **report_tables(report)}
    log_tables(config.wandb, tables, folder=config.out, program="fusion", config=as_plain(config))
    return f"{render(parts)}\n\nThe stage: {{rerank: learned, file: {config.out / FILE}}}"


def read_inputs(config: LearnedFusionConfig) -> Inputs:
    """Read and check all inputs before anything is run."""
    require_output(config.out)
    require_output_file(config.out / FILE, '"views"')
    require_tracking(config.wandb)
    views = read_views(config.views, config.checkpoint, config.dataset)
    reported_posts = KnownPosts(config.dataset, config.split)
    for name, view in views.items():
        allowed = "another split than the reported one"
        require(view.posts != reported_posts, f"{name}.posts.split", config.split, allowed)
        key = f"{name}.bm25.posts.split"
        require(view.bm25.posts != reported_posts, key, config.split, allowed)
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
    runtime = Runtime(settings.store, config.device, progress=True)
    return Inputs(
        views=views,
        system=without_learned(system),
        full_label=systems[config.system].full_label(),
        against={name: systems[name] for name in config.against},
        runner=SystemRunner(reported, settings),
        candidates=SystemRunner(reported, replace(settings, depth=config.depth)),
        scorer=Scorer(reported.sources, runtime),
    )


def run_plans(config: LearnedFusionConfig, inputs: Inputs) -> list[SystemRow]:
    """Run the first stage, the systems to compare with, and the fusion, a row each."""
    form = config.claims
    scoring = Scoring(repeats=config.repeats if config.tests else 0, seed=config.seed)

    def make_row(name: str, system: System, result: SystemResult) -> SystemRow:
        scored = score_system(name, result, inputs.reported, scoring)
        scored = scored.with_report(runs=f"runs/{name.replace(' ', '-')}")
        return SystemRow(RowPlan(system, form), result.form, {name: scored})

    before = inputs.candidates.run(inputs.system, form)
    rows = [make_row(FIRST_STAGE, inputs.system, before)]
    for name, system in inputs.against.items():
        rows.append(make_row(name, system, inputs.runner.run(system, form)))
    learned, result = with_fusion(config, inputs, before)
    return [*rows, make_row(LEARNED, learned, result)]


def with_fusion(
    config: LearnedFusionConfig,
    inputs: Inputs,
    before: SystemResult,
) -> tuple[System, SystemResult]:
    """Add the fitted fusion to the system as its last stage, and re-rank its candidates."""
    entry = {"rerank": "learned", "file": str(config.out / FILE), "depth": config.depth}
    stage = read_stage(entry, is_first=not inputs.system.stages)
    system = replace(inputs.system, stages=(*inputs.system.stages, stage))
    reported = inputs.reported
    runtime = inputs.candidates.runtime
    ranked = stage.apply(reported.claims, reported.sources, before.stages, runtime)
    stages = (*before.stages, StageResult(stage.name, ranked))
    return system, replace(before, stages=stages, cost=before.cost.over_same(ranked.cost))


def describe_fusion(
    row: SystemRow,
    inputs: Inputs,
    fusion: LearnedFusion,
    choice: Choice,
) -> SystemRow:
    """Describe the fusion in its row: its choice and the weights of its views."""
    weights = {}
    for view in fusion.views:
        weights[view.name] = round(view.weight, 6)
    scored = row.whole.with_report(
        model=f"learned:{inputs.full_label}",
        choices=(*row.whole.report.choices, choice),
        settings={"ranker": fusion.ranker, "weights": weights},
    )
    return replace(row, stages={row.name: scored})


def make_fusion_report(
    config: LearnedFusionConfig,
    inputs: Inputs,
    rows: Sequence[SystemRow],
) -> Report:
    """Report the rows, the fusion at the top, with its tests against the others."""
    scored = scored_rows(rows)
    reported = inputs.reported
    report = make_report(reported, scored, LEARNED, name=config.dataset, program="train/fusion.py")
    if not config.tests or not reported.golds:
        return report
    pairs = tuple((LEARNED, name) for name in scored if name != LEARNED)
    families = [Family("The learned fusion against the others", pairs)]
    return add_tests(report, scored, families, reported, config.repeats, config.seed)


def without_learned(system: System) -> System:
    """Cut a system before its learned stage, if it has one."""
    stages = takewhile(lambda stage: stage.name != "rerank learned", system.stages)
    return replace(system, stages=tuple(stages))


def read_views(
    path: Path,
    checkpoint: str | None,
    dataset: str = "demo",
) -> dict[str, ViewConfig]:
    """Read the views, with the program's encoder and known posts if they name none."""
    read = read_entries(ViewConfig, path, folder="fusion")
    require(len(read) > 1, "views", str(path), "a file with at least two views")
    model = ModelConfig() if checkpoint is None else ModelConfig(name=checkpoint)
    views: dict[str, ViewConfig] = {}
    for name, view in read.items():
        if view.encodes:
            view = replace(view, model=view.encoder_over(model))
        if view.score == "posts" and view.posts is None:
            view = replace(view, posts=KnownPosts(dataset))
        views[name] = view
    return views


def view_models(views: Mapping[str, ViewConfig]) -> list[str]:
    return [view.model.name for view in views.values() if view.model is not None]


def other_rankers(fitting: Fitting, inputs: Inputs, form: ClaimForm | None) -> dict[str, Ranker]:
    """Score the candidates' order, and the systems to compare with, on the claims of train.

    Systems with a model that was trained on some of these claims are left out.
    """
    data = fitting.data
    weighing = fitting.weighing
    rankers = {FIRST_STAGE: Ranker(weighing.of(fitting.run))}
    ids = set()
    for claim in data.claims:
        ids.add(claim.id)
    for name, system in inputs.against.items():
        try:
            unknown = set()
            for claim in inputs.runner.choosing_claims(system).val.claims:
                unknown.add(claim.id)
        except NothingToChooseOn:
            continue
        if ids <= unknown:
            run = inputs.runner.run(system, form, data).result.run
            rankers[name] = Ranker(weighing.of(run))
    return rankers


def compare_rankers(fitting: Fitting, scored: Mapping[str, Ranker]) -> dict[str, Ranker]:
    """Rank claims by rankers fitted on other papers: two views, three, all, the chosen ones."""
    base = fitting.names[:2]
    sets = {RAW_TWO + ", ".join(base): base}
    for view in fitting.names:
        if view not in base:
            sets[f"+ {view}"] = [*base, view]
    sets["all"] = fitting.names
    rankers = dict(scored)
    for name, views in sets.items():
        started = time.process_time()
        values = fitting.linear_on(views)
        rankers[name] = Ranker(values, views, time.process_time() - started)
    started = time.process_time()
    values = fitting.nested()
    rankers[CHOSEN] = Ranker(values, fitting.names, time.process_time() - started)
    return rankers


def rankers_table(
    fitting: Fitting,
    rankers: Mapping[str, Ranker],
    speed: Mapping[str, float],
    repeats: int,
    seed: int,
) -> TextTable:
    """Tabulate rankers on held-out papers: score, interval, two paired tests, hours, speed.

    If the expected share of claims of seen papers differs from their share here, the score to
    choose by gets its own column, next to the mean that intervals and tests are about.
    """
    weighing = fitting.weighing
    scores: dict[str, Scores] = {}
    for name, ranker in rankers.items():
        scores[name] = Scores(weighing.claim_ids, {MAIN_METRIC: ranker.values})
    compared = ScoredRuns(fitting.data, MAIN_METRIC, FIRST_STAGE, {}, scores)
    bounds = compared.bounds(repeats, seed)[MACRO]
    two = next(name for name in rankers if name.startswith(RAW_TWO))
    tested = []
    for baseline in (FIRST_STAGE, two):
        tested.append(difference_cells(replace(compared, baseline=baseline), repeats, seed))
    has_share = weighing.seen_share is not None
    rows: list[list[Cell]] = []
    for name, ranker in rankers.items():
        row: list[Cell] = [name, bounds[name].value]
        if has_share:
            row.append(weighing.score(ranker.values))
        row.append(f"{bounds[name].low:.4f} to {bounds[name].high:.4f}")
        for cells in tested:
            row.append(cells.get(name))
        rows.append([*row, *cost_of_views(ranker, fitting.seconds, speed)])
    columns = ["ranker", "MRR@5"]
    if has_share:
        columns.append(TO_CHOOSE_BY)
    columns += ["95 %", f"against the {FIRST_STAGE}", "against the raw two"]
    columns += ["CPU hours", "CPU ms a claim"]
    return TextTable(columns, rows)


def difference_cells(compared: ScoredRuns, repeats: int, seed: int) -> dict[str, str]:
    """Write each ranker's difference from the baseline, its interval and the test's p."""
    family = compared.tests(repeats=repeats, seed=seed)[0]
    cells: dict[str, str] = {}
    for test in family.comparisons:
        bounds = f"{test.low:+.4f} to {test.high:+.4f}"
        cells[test.system] = f"{test.difference:+.4f} ({bounds}; p {test.p:.4f})"
    return cells


def cost_of_views(
    ranker: Ranker,
    seconds: Mapping[str, float],
    speed: Mapping[str, float],
) -> list[Cell]:
    """Write the CPU hours and milliseconds of a ranker's views; None if nothing was fitted."""
    if ranker.seconds is None:
        return [None, None]
    total = ranker.seconds
    milliseconds = 0.0
    for view in ranker.views:
        total += seconds[view]
        milliseconds += speed[view]
    return [f"{total / 3600:.3f}", f"{milliseconds:.1f}"]


def weights_table(fusion: LearnedFusion) -> TextTable:
    rows: list[list[Cell]] = []
    for view in fusion.views:
        rows.append([view.name, view.weight, view.scale])
    return TextTable(["view", "weight", "scale"], rows)


def train_parts(fitting: Fitting, table: TextTable, without: Sequence[str]) -> list[Part]:
    """Describe the comparison on train, `without` systems that were trained on its claims."""
    lists = fitting.lists
    papers = len(np.unique(fitting.lists.groups))
    sentence = (
        f"{fitting.data.split}, {len(lists.weights)} claims of {papers} papers, each ranked by a "
        f"ranker that was fitted on {fitting.folds - 1} of {fitting.folds} parts of the papers, "
        f"without its own; {lists.reachable.mean():.1%} have a gold among their candidates. "
        f"`{CHOSEN}` also chose its views on the other parts. Systems without hours were not "
        "fitted here; they chose their settings on all of these claims."
    )
    hours = (
        "CPU hours: scoring by the row's views, except stored scores, and fitting. CPU ms a claim: "
        "scoring a new claim's candidates by the row's views, in a batch of 10, with stored "
        "vectors of sources (MaxSim stores none)."
    )
    parts: list[Part] = [sentence, table, hours]
    if without:
        names = ", ".join(without)
        parts.append(f"Not in the table: {names}, whose models were trained on these claims.")
    if fitting.constant:
        parts.append(f"Left out as equal for all candidates: {', '.join(fitting.constant)}.")
    return [*parts, f"Scores of trained encoders: {fitting.note}."] if fitting.note else parts


if __name__ == "__main__":
    run_program(main)
