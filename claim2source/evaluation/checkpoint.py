"""What `eval/checkpoint.py` does: checkpoints -> runs, scores by language, submissions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from claim2source.config import several
from claim2source.datasets import load
from claim2source.datasets.checkthat2026 import written_index
from claim2source.encode import ModelConfig, resolve
from claim2source.encode.resolve import RUN_FILE, chosen_checkpoint
from claim2source.errors import ConfigError, UserError
from claim2source.evaluation.retrieval import (
    DEPTH,
    METRICS,
    Evaluation,
    evaluate_result,
    rendering_of,
)  # fmt: skip
from claim2source.evaluation.tables import COST_COLUMNS, cost_cells, markdown_table, plain_table
from claim2source.files import write_json, write_text
from claim2source.records import Dataset
from claim2source.retrieve import DenseRetriever, IndexConfig
from claim2source.run_files import write_submission_2025, write_submission_2026, write_trec_run
from claim2source.store import Store, VectorType
from claim2source.text import Rendering
from claim2source.text.claims import missing_translations

_SUBMITTED = 5


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
        index: how source vectors are searched; its recall is reported where it is not exact.
        store: folder of the store of vectors and runs; none: the user's cache.
        vectors: float32, or float16 to keep vectors in half the room.
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
    index: IndexConfig = field(default_factory=IndexConfig)
    store: Path | None = None
    vectors: VectorType = "float32"
    device: Literal["cpu", "cuda"] | None = None
    only: Literal["chosen"] | None = None
    languages: list[str] | None = several(str, help="score claims in these languages only")


def evaluate_checkpoints(config: CheckpointConfig) -> str:
    """Score every checkpoint named; writes `config.out` and returns the table as text.

    One checkpoint, or a run's chosen one alone: `report.json` holds {"languages": .., "macro":
    ..}, with runs and submissions beside it. A training run: each checkpoint's report lies in a
    folder of its name, and the top `report.json` holds {"checkpoints": {name: report},
    "chosen": name}.
    """
    dataset = load(config.dataset, config.split, config.languages)
    folder = Path(config.checkpoint)
    if config.only == "chosen":
        if not (folder / RUN_FILE).is_file():
            raise ConfigError("only", "chosen", f"none: {folder} is no training run's folder")
        folder = chosen_checkpoint(folder)
        report = _evaluate_one(config, str(folder), dataset, config.out)
        return _summary(config, {folder.name: report}, folder.name)
    if not (folder / RUN_FILE).is_file():
        report = _evaluate_one(config, config.checkpoint, dataset, config.out)
        return _summary(config, {folder.name or config.checkpoint: report}, None)
    names = _kept_epochs(folder)
    reports = {
        path.name: _evaluate_one(config, str(path), dataset, config.out / path.name)
        for path in names
    }
    try:
        chosen: str | None = chosen_checkpoint(folder).name
    except UserError:
        chosen = None  # the run has not ended: its epochs so far are scored all the same
    text = _summary(config, reports, chosen)
    write_json(config.out / "report.json", {"checkpoints": reports, "chosen": chosen})
    return text


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
        "cost": {
            "seconds": round(result.cost.seconds, 3),
            "claims": result.cost.items,
            "peak_memory_bytes": result.cost.peak_memory,
            "tokens": result.cost.tokens,
            "parameters": resolved.encoder.parameters,
        },
        "without_translation": len(missing_translations(dataset.claims, rendering.claims)),
    }
    if dataset.golds:
        evaluation: Evaluation = evaluate_result(result, dataset, METRICS)
        report |= {"languages": evaluation.languages, "macro": evaluation.macro}
    write_json(out / "report.json", report)
    return report


def _summary(
    config: CheckpointConfig, reports: dict[str, dict[str, Any]], chosen: str | None
) -> str:
    """Write `report.md`; returns the same table for a terminal."""
    rows: list[list[Any]] = []
    columns = ["checkpoint", "language", *METRICS, "queries", *COST_COLUMNS]
    for name, report in reports.items():
        if "macro" not in report:
            continue
        shown = f"{name} (chosen)" if name == chosen else name
        for language, row in {**report["languages"], "macro": report["macro"]}.items():
            cells = [row[metric] for metric in METRICS]
            cost = cost_cells(report["cost"] if language == "macro" else None)
            rows.append([shown, language, *cells, int(row["queries"]), *cost])
    title = f"{config.dataset}, {config.split}"
    if not rows:
        write_text(config.out / "report.md", f"# {title}\n\nNo golds: nothing to score.\n")
        return f"{title}: no golds, nothing to score; submissions are in {config.out}"
    write_text(config.out / "report.md", f"# {title}\n\n{markdown_table(columns, rows)}\n")
    return f"{title}\n{plain_table(columns, rows)}"
