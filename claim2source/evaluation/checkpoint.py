"""What `eval/checkpoint.py` does: checkpoints -> runs, scores by language, submissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from claim2source.core.config import as_plain, flag, list_field, require, require_one_of
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import write_json, write_text
from claim2source.core.records import Dataset
from claim2source.core.run import Result
from claim2source.core.tables import COST_COLUMNS, cost_cells, markdown_table, plain_table
from claim2source.datasets import load
from claim2source.datasets.checkthat2026 import written_index
from claim2source.evaluation.by_language import SHOWN, intervals_of
from claim2source.evaluation.ending import Ending, ending_of
from claim2source.evaluation.families import Family
from claim2source.evaluation.hybrid import is_trained
from claim2source.evaluation.metrics import cutoff
from claim2source.evaluation.retrieval import (
    DEPTH,
    METRICS,
    Evaluation,
    cost_report,
    evaluate_result,
    rendering_of,
)
from claim2source.evaluation.saved import systems_in
from claim2source.io.store import Store, VectorType
from claim2source.io.submissions import write_submission_2025, write_submission_2026
from claim2source.io.trec import write_trec_run
from claim2source.io.wandb import LoggedTable, Tracking, log_tables, require_tracking
from claim2source.models import ModelConfig, resolve
from claim2source.models.resolve import RUN_FILE, chosen_checkpoint
from claim2source.retrieve import (
    BM25,
    BM25Config,
    Dense,
    FusionConfig,
    IndexConfig,
    fuse,
)
from claim2source.text import ClaimForm, Rendering
from claim2source.text.render import missing_translations, why_same_forms

_SUBMITTED = 5
_STEP_0 = "epoch-0"
_SCORES = ("languages", "macro")
CLAIM_FORMS: tuple[ClaimForm, ...] = get_args(ClaimForm)
# The BM25 of the papers' hybrids, whatever sources the dense part reads.
PAPERS_BM25 = BM25Config("whitespace", k1=1.2, b=1.0)


@dataclass(frozen=True)
class CheckpointConfig:
    """Settings of `eval/checkpoint.py`.

    Args:
        checkpoint: a checkpoint, the folder of a training run (every kept epoch and step 0),
            or a model's name.
        out: folder for the report, the runs and the submissions.
        dataset: folder in BEIR layout, or `demo`.
        split: split to score.
        model: how a model that is no checkpoint of ours is read; its name is `checkpoint`.
        rendering: representation for such a model; a checkpoint has its own.
        label: the name that published tables know the model by, such as GritLM-F; none: a
            model's own, and at step 0 its base's.
        depth: sources kept per claim; metrics that look deeper are left out.
        repeats: draws of the bootstrap and permutations of the tests, both by gold paper.
        seed: of both.
        index: how source vectors are searched; its recall is reported where it is not exact.
        store: folder of the store of vectors and runs; none: the user's cache.
        vectors: float32, or float16 to keep vectors in half the room.
        wandb: log the table to Weights & Biases.
        device: none takes a GPU if there is one.
        only: `chosen`: of a training run the checkpoint it chose on val, and no other.
    """

    checkpoint: str
    out: Path
    dataset: str = "demo"
    split: str = "dev"
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None
    label: str | None = None
    claims: list[str] | None = list_field(
        str, help="score these claim representations too: original, translated, bilingual"
    )
    hybrid: bool = flag("score the fusion with the papers' BM25 too: min-max, alpha 0.5")
    depth: int = DEPTH
    repeats: int = 10_000
    seed: int = 0
    tests: bool = flag("intervals, paired tests and the papers' numbers at the end", default=True)
    index: IndexConfig = field(default_factory=IndexConfig)
    store: Path | None = None
    vectors: VectorType = "float32"
    wandb: Tracking = "off"
    device: Literal["cpu", "cuda"] | None = None
    only: Literal["chosen"] | None = None
    languages: list[str] | None = list_field(str, help="score claims in these languages only")

    def __post_init__(self) -> None:
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")
        require(self.depth >= 1, "depth", self.depth, "1 or more")
        for form in self.claims or ():
            require_one_of("claims", form, CLAIM_FORMS)

    @property
    def metrics(self) -> list[str]:
        """Those that lists of `depth` sources give."""
        return [metric for metric in METRICS if (cutoff(metric) or self.depth) <= self.depth]

    @property
    def compares(self) -> bool:
        """Whether there are intervals and tests: of a metric that is there."""
        return self.tests and SHOWN in self.metrics


def evaluate_checkpoints(config: CheckpointConfig) -> str:
    """Score every checkpoint named; writes `config.out` and returns the table as text.

    One checkpoint, or a run's chosen one alone: `report.json` holds {"languages": .., "macro":
    ..}, with runs and submissions beside it. A training run: each checkpoint's report lies in a
    folder of its name, and the top `report.json` holds {"checkpoints": {name: report},
    "chosen": name}, and the chosen one's "languages" and "macro". `claims` and `hybrid` add
    reports in folders `NAME.FORM`, `H-NAME` and `H-NAME.FORM`, and to "checkpoints", which
    the report of one checkpoint then has too. Either ends with "tests" and "published".
    """
    require_tracking(config.wandb)
    dataset = load(config.dataset, config.split, config.languages)
    folder = Path(config.checkpoint)
    is_run = (folder / RUN_FILE).is_file()
    if config.only == "chosen" and not is_run:
        raise ConfigError("only", "chosen", f"none: {folder} is no training run's folder")
    if config.only == "chosen" or not is_run:
        path = str(chosen_checkpoint(folder)) if is_run else config.checkpoint
        if not Path(path).name:  # ".", which has no name to call reports by
            path = str(Path(path).resolve())
        (name, report), *more = _evaluate_one(config, path, dataset, config.out).items()
        further = dict(more)
        top = {**report, "checkpoints": further} if further else report
        return _end(config, dataset, {name: report, **further}, name if is_run else None, top)
    reports: dict[str, dict[str, Any]] = {}
    for epoch in _kept_epochs(folder):
        reports |= _evaluate_one(config, str(epoch), dataset, config.out / epoch.name)
    try:
        chosen: str | None = chosen_checkpoint(folder).name
    except UserError:
        chosen = None  # the run has not ended: its epochs so far are scored all the same
    scores = {key: value for key, value in reports.get(chosen or "", {}).items() if key in _SCORES}
    top = {"checkpoints": reports, "chosen": chosen, "tests": [], **scores}
    return _end(config, dataset, reports, chosen, top)


def _families(reports: Mapping[str, Mapping[str, Any]]) -> list[Family]:
    """Epochs against step 0, other claim forms against the one trained with, hybrids."""
    families: list[Family] = []
    dense = {name: report for name, report in reports.items() if "hybrid" not in report}
    for form in dict.fromkeys(
        name.removeprefix(report["system"]) for name, report in dense.items()
    ):
        before = _STEP_0 + form
        epochs = tuple(
            name
            for name, report in dense.items()
            if name == report["system"] + form and name != before
        )
        if before in dense and epochs:
            told = f", {form.removeprefix('.')} claims" if form else ""
            families.append(Family.against(f"Every epoch against step 0{told}", before, epochs))
    forms = tuple((name, r["system"]) for name, r in reports.items() if name != r["system"])
    hybrids = tuple((name, r["hybrid"]["dense"]) for name, r in reports.items() if "hybrid" in r)
    if forms:
        families.append(Family("Other claim forms against the checkpoint's own", forms))
    if hybrids:
        families.append(Family("Hybrids against their dense part", hybrids))
    return families


def _kept_epochs(run: Path) -> list[Path]:
    found = [path for path in (run / "checkpoints").glob("epoch-*") if path.is_dir()]
    if not found:
        raise UserError(f"{run}: a training run without checkpoints")
    return sorted(found, key=lambda path: (int(path.name.split("-")[1]), path.name))


def _evaluate_one(
    config: CheckpointConfig, path: str, dataset: Dataset, out: Path
) -> dict[str, dict[str, Any]]:
    """Reports by name: the checkpoint as it was trained, in `out`, then what is scored besides."""
    resolved = resolve(replace(config.model, name=path), config.device)
    own, store = rendering_of(resolved, config.rendering), Store(config.store, config.vectors)
    name = Path(path).name
    fusion = FusionConfig()
    deep = max(config.depth, fusion.depth) if config.hybrid else config.depth
    untrained = resolved.manifest is not None and not is_trained(resolved)
    model = resolved.base.name if untrained else config.label or path
    reports: dict[str, dict[str, Any]] = {}
    for form in (own.claims, *_other_forms(config, dataset, own)):
        rendering = replace(own, claims=form)
        retriever = Dense(
            resolved.encoder, rendering=rendering, store=store, index=config.index, progress=True
        )
        dense = retriever.index(dataset.sources).search(dataset.claims, deep)
        ending = "" if form == own.claims else f".{form}"
        results = {f"{name}{ending}": dense.top(config.depth)}
        if config.hybrid:
            bm25 = BM25(replace(PAPERS_BM25, claims=form), store=store)
            sparse = bm25.index(dataset.sources).search(dataset.claims, deep)
            results[f"H-{name}{ending}"] = fuse(sparse, dense, fusion, k=config.depth)
        for cell, result in results.items():
            mixed = cell != f"{name}{ending}"
            report: dict[str, Any] = {
                "checkpoint": path,
                "model": f"hybrid:{model}" if mixed else model,
                "system": f"H-{name}" if mixed else name,
                "dataset": config.dataset,
                "split": dataset.split,
                "rendering": {"claims": rendering.claims, "sources": rendering.sources},
                "index": result.index.plain() if result.index else None,
                "stored": result.stored,
                "cost": cost_report(result, resolved.encoder.parameters),
                "without_translation": len(missing_translations(dataset.claims, form)),
            }
            if mixed:
                report["hybrid"] = {
                    "dense": f"{name}{ending}",
                    "bm25": vars(PAPERS_BM25),
                    "fusion": vars(fusion),
                }
            folder = out if cell == name else config.out / cell
            reports[cell] = _saved(config, report, result, dataset, folder)
    return reports


def _other_forms(config: CheckpointConfig, dataset: Dataset, own: Rendering) -> list[ClaimForm]:
    if not config.claims or why_same_forms(dataset.claims):
        return []
    return [form for form in CLAIM_FORMS if form in config.claims and form != own.claims]


def _saved(
    config: CheckpointConfig, report: dict[str, Any], result: Result, dataset: Dataset, out: Path
) -> dict[str, Any]:
    """The report with its scores, written to `out` with runs and submissions."""
    for language in dataset.languages:
        part = dataset.in_languages([language])
        run = result.run.restricted(claim.id for claim in part.claims)
        write_trec_run(run, out / "runs" / f"{language}.trec")
        write_submission_2026(
            run,
            out / "submission_2026" / f"predictions_{language}.tsv",
            k=_SUBMITTED,
            written_id=written_index(dataset.split, language),
        )
    write_submission_2025(
        result.run, out / "submission_2025" / "predictions.tsv", k=_SUBMITTED, split=dataset.split
    )
    if dataset.golds:
        evaluation: Evaluation = evaluate_result(result, dataset, config.metrics)
        report |= {"languages": evaluation.languages, "macro": evaluation.macro}
        if config.compares:
            report["intervals"] = intervals_of(result.run, dataset, config.repeats, config.seed)
    write_json(out / "report.json", report)
    return report


def _end(
    config: CheckpointConfig,
    dataset: Dataset,
    reports: dict[str, dict[str, Any]],
    chosen: str | None,
    top: dict[str, Any],
) -> str:
    """Test, write the top `report.json` and `report.md`, log; returns the text for a terminal."""
    end, notes = None, _notes(config, dataset, reports)
    if config.compares and dataset.golds:
        saved = systems_in(top, config.out)
        end = ending_of(saved, _families(reports), dataset, config.repeats, config.seed)
    columns, rows = _scores(reports, chosen, config.metrics)
    text = _summary(config, columns, rows, notes, end)
    write_json(config.out / "report.json", {**top, "notes": notes, **(end.plain() if end else {})})
    tables = {"scores": LoggedTable(columns, rows), **(end.tables() if end else {})}
    log_tables(
        config.wandb, tables, folder=config.out, program="checkpoint", config=as_plain(config)
    )
    return text


def _notes(
    config: CheckpointConfig, dataset: Dataset, reports: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Why forms that were asked for are not there."""
    own = next(iter(reports.values()))["rendering"]["claims"]
    asked = [form for form in CLAIM_FORMS if form in (config.claims or ())]
    others = [form for form in asked if form != own]
    if others and (why := why_same_forms(dataset.claims)):
        return [f"{' and '.join(others)}: the same as {own} here, since {why}."]
    return [f"{own}: as trained, so under the checkpoint's own name."] if own in asked else []


def _scores(
    reports: dict[str, dict[str, Any]], chosen: str | None, metrics: Sequence[str]
) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: one a checkpoint and language."""
    rows: list[list[Any]] = []
    bounded = any("intervals" in report for report in reports.values())
    interval = [f"95 % of {SHOWN}"] if bounded else []
    columns = ["checkpoint", "language", *metrics, *interval, "queries", *COST_COLUMNS]
    for name, report in reports.items():
        if "macro" not in report:
            continue
        shown = f"{name} (chosen)" if name == chosen else name
        for language, row in {**report["languages"], "macro": report["macro"]}.items():
            cells = [row[metric] for metric in metrics]
            cost = cost_cells(report["cost"] if language == "macro" else None)
            bounds = report.get("intervals", {}).get(SHOWN, {}).get(language)
            if bounded:
                cells.append(f"{bounds[0]:.4f} to {bounds[1]:.4f}" if bounds else None)
            rows.append([shown, language, *cells, int(row["queries"]), *cost])
    return columns, rows


def _summary(
    config: CheckpointConfig,
    columns: list[str],
    rows: list[list[Any]],
    notes: list[str],
    end: Ending | None,
) -> str:
    title = f"{config.dataset}, {config.split}"
    if not rows:
        write_text(config.out / "report.md", f"# {title}\n\nNo golds: nothing to score.\n")
        return f"{title}: no golds, nothing to score; submissions are in {config.out}"

    def text(table: Callable[..., str]) -> str:
        ended = end.text(table) if end else ""
        return "\n\n".join(filter(None, [table(columns, rows), *notes, ended]))

    write_text(config.out / "report.md", f"# {title}\n\n{text(markdown_table)}\n")
    return f"{title}\n{text(plain_table)}"
