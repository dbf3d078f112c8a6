"""What `eval/checkpoint.py` does: checkpoints -> runs, scores by language, submissions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from claim2source.config import as_plain, flag, require, several
from claim2source.datasets import load
from claim2source.datasets.checkthat2026 import written_index
from claim2source.encode import ModelConfig, resolve
from claim2source.encode.resolve import RUN_FILE, chosen_checkpoint
from claim2source.errors import ConfigError, UserError
from claim2source.evaluation.by_language import SHOWN, intervals_of, saved_families
from claim2source.evaluation.comparison import Family, FamilyResult, family_text
from claim2source.evaluation.retrieval import (
    DEPTH,
    METRICS,
    Evaluation,
    cost_report,
    evaluate_result,
    rendering_of,
)  # fmt: skip
from claim2source.evaluation.saved import systems_in
from claim2source.evaluation.tables import COST_COLUMNS, cost_cells, markdown_table, plain_table
from claim2source.files import write_json, write_text
from claim2source.records import Dataset
from claim2source.retrieve import DenseRetriever, IndexConfig
from claim2source.run_files import write_submission_2025, write_submission_2026, write_trec_run
from claim2source.store import Store, VectorType
from claim2source.text import Rendering
from claim2source.text.claims import missing_translations
from claim2source.tracking import LoggedTable, Tracking, log_tables, require_tracking

_SUBMITTED = 5
_STEP_0 = "epoch-0"
_SCORES = ("languages", "macro")


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
        depth: sources kept per claim.
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
    depth: int = DEPTH
    repeats: int = 10_000
    seed: int = 0
    tests: bool = flag("intervals, and tests of a run's epochs against step 0", default=True)
    index: IndexConfig = field(default_factory=IndexConfig)
    store: Path | None = None
    vectors: VectorType = "float32"
    wandb: Tracking = "off"
    device: Literal["cpu", "cuda"] | None = None
    only: Literal["chosen"] | None = None
    languages: list[str] | None = several(str, help="score claims in these languages only")

    def __post_init__(self) -> None:
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")


def evaluate_checkpoints(config: CheckpointConfig) -> str:
    """Score every checkpoint named; writes `config.out` and returns the table as text.

    One checkpoint, or a run's chosen one alone: `report.json` holds {"languages": .., "macro":
    ..}, with runs and submissions beside it. A training run: each checkpoint's report lies in a
    folder of its name, and the top `report.json` holds {"checkpoints": {name: report},
    "chosen": name, "tests": every epoch against step 0}, and the chosen one's "languages" and
    "macro".
    """
    require_tracking(config.wandb)
    dataset = load(config.dataset, config.split, config.languages)
    folder = Path(config.checkpoint)
    if config.only == "chosen":
        if not (folder / RUN_FILE).is_file():
            raise ConfigError("only", "chosen", f"none: {folder} is no training run's folder")
        folder = chosen_checkpoint(folder)
        report = _evaluate_one(config, str(folder), dataset, config.out)
        return _end(config, {folder.name: report}, folder.name, [])
    if not (folder / RUN_FILE).is_file():
        report = _evaluate_one(config, config.checkpoint, dataset, config.out)
        return _end(config, {folder.name or config.checkpoint: report}, None, [])
    names = _kept_epochs(folder)
    reports = {
        path.name: _evaluate_one(config, str(path), dataset, config.out / path.name)
        for path in names
    }
    try:
        chosen: str | None = chosen_checkpoint(folder).name
    except UserError:
        chosen = None  # the run has not ended: its epochs so far are scored all the same
    tests = _against_step_0(config, reports, dataset) if config.tests and dataset.golds else []
    text = _end(config, reports, chosen, tests)
    write_json(
        config.out / "report.json",
        {
            "checkpoints": reports,
            "chosen": chosen,
            "tests": as_plain(tests),
            **{
                key: value for key, value in reports.get(chosen or "", {}).items() if key in _SCORES
            },
        },
    )
    return text


def _against_step_0(
    config: CheckpointConfig, reports: dict[str, dict[str, Any]], dataset: Dataset
) -> list[FamilyResult]:
    """Paired tests of every epoch against the model before training; none without both."""
    before, *epochs = reports
    if before != _STEP_0 or not epochs:
        return []
    saved = systems_in({"checkpoints": reports}, config.out)
    family = Family("Every epoch against step 0", before, tuple(epochs))
    return saved_families(saved, [family], dataset, repeats=config.repeats, seed=config.seed)


def _kept_epochs(run: Path) -> list[Path]:
    found = [path for path in (run / "checkpoints").glob("epoch-*") if path.is_dir()]
    if not found:
        raise UserError(f"{run}: a training run without checkpoints")
    return sorted(found, key=lambda path: (int(path.name.split("-")[1]), path.name))


def _evaluate_one(
    config: CheckpointConfig, name: str, dataset: Dataset, out: Path
) -> dict[str, Any]:
    resolved = resolve(replace(config.model, name=name), config.device)
    rendering = rendering_of(resolved, config.rendering)
    store = Store(config.store, config.vectors)
    retriever = DenseRetriever(resolved.encoder, rendering, store, True, config.index)
    result = retriever.retrieve(dataset.claims, dataset.sources, config.depth)
    for language in dataset.languages:
        part = dataset.in_languages([language])
        run = result.run.restricted(claim.id for claim in part.claims)
        write_trec_run(run, out / "runs" / f"{language}.trec")
        write_submission_2026(
            run, out / "submission_2026" / f"predictions_{language}.tsv", k=_SUBMITTED,
            written_id=written_index(dataset.split, language),
        )  # fmt: skip
    write_submission_2025(
        result.run, out / "submission_2025" / "predictions.tsv", k=_SUBMITTED, split=dataset.split
    )
    report: dict[str, Any] = {
        "checkpoint": name,
        "dataset": config.dataset,
        "split": dataset.split,
        "rendering": {"claims": rendering.claims, "sources": rendering.sources},
        **result.about,
        "cost": cost_report(result, resolved.encoder.parameters),
        "without_translation": len(missing_translations(dataset.claims, rendering.claims)),
    }
    if dataset.golds:
        evaluation: Evaluation = evaluate_result(result, dataset, METRICS)
        report |= {"languages": evaluation.languages, "macro": evaluation.macro}
        if config.tests:
            report["intervals"] = intervals_of(result.run, dataset, config.repeats, config.seed)
    write_json(out / "report.json", report)
    return report


def _end(
    config: CheckpointConfig,
    reports: dict[str, dict[str, Any]],
    chosen: str | None,
    tests: list[FamilyResult],
) -> str:
    """Write `report.md` and log the same table; returns it for a terminal."""
    columns, rows = _scores(reports, chosen)
    costs = {name: report["cost"] for name, report in reports.items()}
    text = _summary(config, columns, rows, tests, costs)
    log_tables(
        config.wandb, {"scores": LoggedTable(columns, rows)}, folder=config.out,
        program="checkpoint", config=as_plain(config),
    )  # fmt: skip
    return text


def _scores(
    reports: dict[str, dict[str, Any]], chosen: str | None
) -> tuple[list[str], list[list[Any]]]:
    """Columns and rows: one a checkpoint and language."""
    rows: list[list[Any]] = []
    columns = ["checkpoint", "language", *METRICS, f"95 % of {SHOWN}", "queries", *COST_COLUMNS]
    for name, report in reports.items():
        if "macro" not in report:
            continue
        shown = f"{name} (chosen)" if name == chosen else name
        for language, row in {**report["languages"], "macro": report["macro"]}.items():
            cells = [row[metric] for metric in METRICS]
            cost = cost_cells(report["cost"] if language == "macro" else None)
            bounds = report.get("intervals", {}).get(SHOWN, {}).get(language)
            interval = f"{bounds[0]:.4f} to {bounds[1]:.4f}" if bounds else None
            rows.append([shown, language, *cells, interval, int(row["queries"]), *cost])
    return columns, rows


def _summary(
    config: CheckpointConfig,
    columns: list[str],
    rows: list[list[Any]],
    tests: list[FamilyResult],
    costs: dict[str, Any],
) -> str:
    title = f"{config.dataset}, {config.split}"
    if not rows:
        write_text(config.out / "report.md", f"# {title}\n\nNo golds: nothing to score.\n")
        return f"{title}: no golds, nothing to score; submissions are in {config.out}"

    def text(table: Callable[..., str]) -> str:
        return "\n\n".join(
            [table(columns, rows), *(family_text(test, SHOWN, table, costs) for test in tests)]
        )

    write_text(config.out / "report.md", f"# {title}\n\n{text(markdown_table)}\n")
    return f"{title}\n{text(plain_table)}"
