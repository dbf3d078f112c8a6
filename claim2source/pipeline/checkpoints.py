"""Evaluate checkpoints: runs, scores by language, submissions, tests against step 0."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from claim2source.core.config import (
    Between,
    as_plain,
    flag,
    list_field,
    require,
    require_one_of,
)
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.folders import RUN_FILE, require_output
from claim2source.core.records import Dataset
from claim2source.core.report import MAIN_METRIC, Report, Table, TrainingReport
from claim2source.core.run import Run
from claim2source.core.tables import render
from claim2source.evaluation.families import Family
from claim2source.io.wandb import log_tables, require_tracking
from claim2source.metrics.metrics import cutoff
from claim2source.models import Manifest, ModelConfig
from claim2source.models.local import with_local_models
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.models.resolve import checkpoint_folder, chosen_checkpoint
from claim2source.pipeline.attached import AttachedRun, read_attached
from claim2source.pipeline.evaluate import (
    METRICS,
    ScoredSystem,
    Scoring,
    add_tests,
    make_report,
    score_system,
    write_runs,
    write_submissions,
)
from claim2source.pipeline.options import EvaluationOptions
from claim2source.pipeline.style_grid import GridRun, with_cells
from claim2source.pipeline.style_texts import StyleOptions, require_stage
from claim2source.pipeline.submit import load_reported, require_submittable, submit
from claim2source.pipeline.views import report_parts, report_tables, write_markdown
from claim2source.systems.nodes import (
    DEFAULT,
    PAPERS_BM25,
    AnyNode,
    BM25Node,
    DenseNode,
    HybridNode,
    RouteNode,
)
from claim2source.systems.read import Systems
from claim2source.systems.system import DEPTH, RunSettings, System, SystemRunner
from claim2source.text import ClaimForm, Rendering
from claim2source.text.views import why_same_forms

STEP_0 = "epoch-0"
STYLES_FOLDER = "styles"
ROUTED = "routed"
_BM25 = "bm25 of the papers"
CLAIM_FORMS: tuple[ClaimForm, ...] = get_args(ClaimForm)
_ONE = (
    "name one checkpoint (of a training run, --only chosen), one pipeline behind it at most, and "
    "neither --claims nor --hybrid (eval/pipeline.py and eval/hybrid.py submit such)"
)


@dataclass(frozen=True)
class CheckpointConfig(EvaluationOptions):
    """Settings of `eval/checkpoint.py`.

    Args:
        checkpoint: a checkpoint, the folder of a training run (every kept epoch and step 0), or
            a model's name.
        out: folder for the report, the runs and the submissions.
        dataset: folder in BEIR layout, or `demo`.
        split: split to score.
        model: how a model that is no checkpoint of ours is read; its name is `checkpoint`.
        rendering: representation for such a model; a checkpoint has its own.
        label: name by which published tables know the model, such as GritLM-F; none: a model's
            own, and at step 0 its base's.
        depth: sources kept per claim; metrics that look deeper are left out.
        routes: language -> checkpoint that ranks its claims in place of `checkpoint`; on the
            command line also `--checkpoint A de=B`.
        only: `chosen`: of a training run, the checkpoint it chose on val and no other.
        styles: the grid of text styles, with `--stages styles`.
    """

    checkpoint: str
    out: Path
    dataset: str = "demo"
    split: str = "dev"
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None
    label: str | None = None
    claims: list[str] | None = list_field(
        help="score these claim forms too: original, translated, bilingual"
    )
    hybrid: bool = flag("score the fusion with the papers' BM25 too: min-max, alpha 0.5")
    depth: Annotated[int, Between(1, 10**6)] = DEPTH
    routes: dict[str, str] = field(default_factory=dict)
    only: Literal["chosen"] | None = None
    languages: list[str] | None = list_field(help="score claims in these languages only")
    stages: list[str] | None = list_field(
        help="attach to every checkpoint: styles, the grid of text styles, or files of pipelines, "
        "whose first stage it is",
    )
    styles: StyleOptions = field(default_factory=StyleOptions)

    def check(self) -> None:
        super().check()
        for form in self.claims or ():
            require_one_of("claims", form, CLAIM_FORMS)
        for stage in self.stages or ():
            require_stage("stages", stage)
        good = not self.stages or MAIN_METRIC in self.metrics
        require(good, "depth", self.depth, f"with stages, a depth that gives {MAIN_METRIC}")

    @property
    def metrics(self) -> list[str]:
        """List the metrics that lists of `depth` sources give."""
        return [metric for metric in METRICS if (cutoff(metric) or self.depth) <= self.depth]

    @property
    def compares(self) -> bool:
        """Tell whether there are intervals and tests: MRR@5 must be among the metrics."""
        return self.tests and MAIN_METRIC in self.metrics


class Checkpoint(NamedTuple):
    """Name a checkpoint: its path or model name, and the folder for its files."""

    name: str
    path: str
    out: Path


def route_words(words: Sequence[str]) -> list[str]:
    """Turn `--checkpoint A de=B` into `--checkpoint A --routes '{"de": "B"}'`.

    Of `--checkpoint en=A de=B` the first is what other languages would use.
    """
    flag = "--checkpoint="
    parted = ([flag[:-1], word[len(flag) :]] if word.startswith(flag) else [word] for word in words)
    words = [word for part in parted for word in part]
    if "--checkpoint" not in words:
        return words
    start = words.index("--checkpoint") + 1
    end = next((i for i in range(start, len(words)) if words[i].startswith("--")), len(words))
    given = words[start:end]
    routes = dict(word.split("=", 1) for word in given if _is_route(word))
    if not routes:
        return words
    plain = [word for word in given if not _is_route(word)] or list(routes.values())[:1]
    return [*words[:start], *plain, f"--routes={json.dumps(routes)}", *words[end:]]


def _is_route(word: str) -> bool:
    language, sign, _ = word.partition("=")
    return bool(sign) and len(language) in (2, 3) and language.isalpha() and language.islower()


@with_local_models
def evaluate_checkpoints(config: CheckpointConfig) -> str:
    """Score every checkpoint named, write `config.out`, return the table as text.

    `report.json` holds all systems. One checkpoint's runs and submissions lie beside it, those
    of a training run's checkpoints in folders of their names, as do those of what `claims` and
    `hybrid` add: `NAME.FORM`, `H-NAME` and `H-NAME.FORM`; each of these folders has a report, as
    has `NAME+PIPELINE`, with the runs of its stages.
    """
    require_output(config.out)
    require_tracking(config.wandb)
    pipelines = read_attached("stages", config.stages or ())
    dataset = load_reported(config.dataset, config.split, config.languages, lenient=config.lenient)
    checkpoints, chosen = checkpoints_of(config)
    submitted = _submitted(config, [one.name for one in checkpoints], pipelines)
    require_submittable(config.submit, dataset, submitted, _ONE)
    systems: dict[str, ScoredSystem] = {}
    grid = None
    if "styles" in (config.stages or ()):
        grid = GridRun(
            dataset, config.styles, folder=config.dataset, repeats=config.repeats, seed=config.seed
        )
    scoring = _scoring(config)
    settings, program = _run_settings(config), "eval/checkpoint.py"
    attached = AttachedRun(pipelines, dataset, settings, scoring, out=config.out, program=program)
    for checkpoint in checkpoints:
        systems |= evaluate_checkpoint(config, checkpoint, dataset, grid)
        systems |= attached.add(
            checkpoint.name, checkpoint.path, config.routes, lambda path: _dense(config, path)
        )
    main = checkpoints[0].name if len(checkpoints) == 1 else chosen
    reports = {name: scored.report for name, scored in systems.items()}
    report = make_report(dataset, reports, main, name=config.dataset, program=program)
    notes = (
        *report.notes,
        *_left_out(config),
        *_notes(config, dataset, systems),
        *attached.notes,
    )
    not_run = tuple(attached.not_run)
    training = _training(config)
    report = replace(report, chosen=chosen, notes=notes, training=training, not_run=not_run)
    if config.compares and dataset.golds:
        own = {name: one for name, one in reports.items() if name not in attached.rows}
        families = [*declared_families(replace(report, systems=own)), *attached.families(STEP_0)]
        report = add_tests(report, systems, families, dataset, config.repeats, config.seed)
    title = f"{config.dataset}, {config.split}"
    parts, tables = report_parts(report, "checkpoint"), report_tables(report, "checkpoint")
    if grid is not None:
        found = grid.grid(name=config.dataset, program=program)
        grid.write(found, config.out / STYLES_FOLDER, f"Styles: {title}")
        parts += ["Styles:", *grid.parts(found)]
        tables |= {f"styles {name}": table for name, table in grid.tables(found).items()}
        report = with_cells(report, found, STYLES_FOLDER)
    report.write(config.out)
    if config.submit is not None:
        parts += submit(config.submit, _run_of(submitted[0], systems, attached), dataset)
    write_markdown(config.out, title, parts)
    log_tables(
        config.wandb,
        tables,
        folder=config.out,
        program="checkpoint",
        config=as_plain(config),
    )
    return f"{title}\n{render(parts)}"


def checkpoints_of(config: CheckpointConfig) -> tuple[list[Checkpoint], str | None]:
    """List the checkpoints to score, and the name of the one that a training run chose."""
    folder = Path(config.checkpoint)
    is_run = (folder / RUN_FILE).is_file()
    if config.only == "chosen" and not is_run:
        raise ConfigError("only", "chosen", f"none: {folder} is no training run's folder")
    if config.routes:
        return [Checkpoint(ROUTED, config.checkpoint, config.out)], None
    if config.only == "chosen" or not is_run:
        path = str(chosen_checkpoint(folder)) if is_run else config.checkpoint
        if not Path(path).name:  # ".", which has no name to call reports by
            path = str(Path(path).resolve())
        name = Path(path).name
        return [Checkpoint(name, path, config.out)], name if is_run else None
    found = [
        Checkpoint(epoch.name, str(epoch), config.out / epoch.name)
        for epoch in _kept_epochs(folder)
    ]
    try:
        chosen: str | None = chosen_checkpoint(folder).name
    except UserError:
        chosen = None  # the run has not ended: its epochs so far are scored all the same
    return found, chosen


def _submitted(
    config: CheckpointConfig, checkpoints: Sequence[str], pipelines: Sequence[System]
) -> list[str]:
    """Name what could be submitted: a pipeline's last stage stands for its first one."""
    behind = [f"{name}+{one.name}" for name in checkpoints for one in pipelines]
    hybrids = [f"H-{name}" for name in checkpoints if config.hybrid]
    forms = [f"{name}.{form}" for name in checkpoints for form in config.claims or ()]
    return [*(behind or checkpoints), *hybrids, *forms]


def _run_of(name: str, systems: Mapping[str, ScoredSystem], attached: AttachedRun) -> Run:
    """Take the ranking of a checkpoint, or of the pipeline behind it."""
    for row in attached.not_run:
        if row.system == name:
            raise UserError(f"submit: {name} did not run: {row.reason}")
    ends = [row for row in attached.rows if row.startswith(f"{name}: ")]
    return systems[ends[-1] if ends else name].run


def _kept_epochs(run: Path) -> list[Path]:
    found = [path for path in (run / "checkpoints").glob("epoch-*") if path.is_dir()]
    if not found:
        raise UserError(f"{run}: a training run without checkpoints")
    epochs = sorted(found, key=lambda path: (int(path.name.split("-")[1]), path.name))
    return [*epochs, *sorted((run / "checkpoints").glob("soup-*"))]


def evaluate_checkpoint(
    config: CheckpointConfig, checkpoint: Checkpoint, dataset: Dataset, grid: GridRun | None = None
) -> dict[str, ScoredSystem]:
    """Score a checkpoint as it was trained, then its other claim forms and its hybrid.

    With a `grid` it is run over the text styles too, while its weights are there.
    """
    name = checkpoint.name
    systems = _systems_of(config, checkpoint)
    runner = SystemRunner(dataset, _run_settings(config))
    own = systems[name].form_of(None, runner.runtime)
    names = list(systems)
    scoring = _scoring(config)
    scored: dict[str, ScoredSystem] = {}
    for form in (own, *_other_forms(config, dataset, own)):
        for system in names:
            cell = system if form == own else f"{system}.{form}"
            # Routed checkpoints of different forms are each run with their own.
            found = runner.run(systems[system], None if form == own else form)
            model = found.untrained_base or config.label or checkpoint.path
            one = score_system(cell, found, dataset, scoring)
            out = checkpoint.out if cell == name else config.out / cell
            report = replace(
                one.report,
                model=f"hybrid:{model}" if system != name else model,
                val=_scores_on_val(checkpoint.path) if cell == name and not config.routes else {},
                settings={"checkpoint": checkpoint.path, **config.routes},
                parts=_parts(cell, system, name),
                runs=str((out / "runs").relative_to(config.out)),
            )
            scored[cell] = replace(one, report=report)
            write_runs(one.run, dataset, out / "runs")
            write_submissions(one.run, dataset, out)
            if out != config.out:
                alone = replace(report, runs="runs")
                make_report(
                    dataset, {cell: alone}, cell, name=config.dataset, program="eval/checkpoint.py"
                ).write(out)
    if grid is not None:
        for system in names:
            grid.add(runner, systems[system], model=scored[system].report.model)
    return scored


def _run_settings(config: CheckpointConfig) -> RunSettings:
    return RunSettings(
        config.dataset,
        models=config.models,
        store=config.open_store(),
        device=config.device,
        depth=config.depth,
    )


def _scoring(config: CheckpointConfig) -> Scoring:
    return Scoring(config.metrics, config.repeats if config.compares else 0, config.seed)


def _dense(config: CheckpointConfig, path: str) -> DenseNode:
    return DenseNode(
        model=replace(config.model, name=path),
        sources_form=(config.rendering or Rendering()).sources,
        rendering=config.rendering,
    )


def _systems_of(config: CheckpointConfig, checkpoint: Checkpoint) -> Systems:
    name = checkpoint.name
    first: AnyNode = replace(_dense(config, checkpoint.path), name=name)
    if config.routes:
        paths = {DEFAULT: config.checkpoint, **config.routes}
        routes = {
            lang: (replace(_dense(config, path), name=f"of {path}"),)
            for lang, path in paths.items()
        }
        first = RouteNode(name=name, routes=routes)
    systems = {name: System(name, first)}
    if config.hybrid:
        sparse = BM25Node(name=_BM25, bm25=PAPERS_BM25)
        hybrid = HybridNode(name=f"H-{name}", sparse=sparse, dense=first)
        systems[hybrid.name] = System(hybrid.name, hybrid)
    return systems


def _parts(cell: str, system: str, name: str) -> tuple[str, ...]:
    """Name the cell of the dense part of a hybrid's cell."""
    return () if system == name else (cell.removeprefix("H-"),)


def _other_forms(config: CheckpointConfig, dataset: Dataset, own: ClaimForm) -> list[ClaimForm]:
    others = [form for form in CLAIM_FORMS if form in (config.claims or ()) and form != own]
    if why_same_forms(dataset.claims):
        others = [form for form in others if "paired" in (form, own)]
    return others


def _scores_on_val(path: str) -> Mapping[str, Table]:
    """Return the scores on val that a checkpoint's manifest states; none for any other model."""
    folder = checkpoint_folder(path)
    return Manifest.read(folder).scores if (folder / MANIFEST).is_file() else {}


def _training(config: CheckpointConfig) -> TrainingReport | None:
    """Return what the report of a training run's folder says of the training, if it has one."""
    folder = Path(config.checkpoint)
    try:
        return Report.read(folder).training if (folder / RUN_FILE).is_file() else None
    except InputError:
        return None  # it has not ended, or an older version wrote it


def _left_out(config: CheckpointConfig) -> list[str]:
    """Name the metrics that lists of `depth` sources do not give."""
    missing = [metric for metric in METRICS if metric not in config.metrics]
    said = f"{', '.join(missing)}: left out, deeper than --depth {config.depth}."
    return [said] if missing else []


def _notes(
    config: CheckpointConfig, dataset: Dataset, systems: dict[str, ScoredSystem]
) -> list[str]:
    """Explain why claim forms that were asked for are not there."""
    own = next(iter(systems.values())).report.claims
    asked = [form for form in CLAIM_FORMS if form in (config.claims or ())]
    others = [form for form in asked if form != own and "paired" not in (form, own)]
    if others and (why := why_same_forms(dataset.claims)):
        return [f"{' and '.join(others)}: the same as {own} here, since {why}."]
    return [f"{own}: as trained, so under the checkpoint's own name."] if own in asked else []


def declared_families(report: Report) -> list[Family]:
    """Declare the tests: epochs against step 0, other claim forms, hybrids."""
    families: list[Family] = []
    dense = {name: system for name, system in report.systems.items() if not system.parts}
    endings = dict.fromkeys(name.removeprefix(s.system) for name, s in dense.items())
    for ending in endings:
        before = STEP_0 + ending
        epochs = [n for n, s in dense.items() if n == s.system + ending and n != before]
        if before in dense and epochs:
            form = f", {ending.removeprefix('.')} claims" if ending else ""
            families.append(Family.against(f"Every epoch against step 0{form}", before, epochs))
    forms = tuple((name, s.system) for name, s in report.systems.items() if name != s.system)
    hybrids = tuple((name, s.parts[0]) for name, s in report.systems.items() if s.parts)
    if forms:
        families.append(Family("Other claim forms against the checkpoint's own", forms))
    if hybrids:
        families.append(Family("Hybrids against their dense part", hybrids))
    return families
