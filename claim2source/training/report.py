"""The end of a run: step 0 beside the chosen epoch, as `report.json` and as a table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from claim2source.core.errors import UserError
from claim2source.core.files import write_json
from claim2source.core.tables import plain_table
from claim2source.evaluation.retrieval import Evaluation, evaluate_dense, seen_and_unseen
from claim2source.io.store import Store
from claim2source.io.wandb import LoggedTable
from claim2source.models import resolve
from claim2source.training.choose import Choice
from claim2source.training.config import FinetuneConfig
from claim2source.training.curve import METRIC, Picked, curve_table, draw
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData

SCALES_PLOT = "scales.png"


def build_report(
    run: RunFolder, chosen: Choice, data: TrainingData, config: FinetuneConfig, store: Store
) -> dict[str, Any]:
    """Score step 0 and the chosen checkpoint on the report split, through their manifests."""
    before = _evaluated(run.checkpoint(0), data, config, store)
    after = before if chosen.epoch == 0 else _evaluated(chosen.folder, data, config, store)
    seen = data.train.golds
    parts_before = seen_and_unseen(before, data.report, seen)
    parts_after = seen_and_unseen(after, data.report, seen)
    report = {
        "split": config.data.report_split,
        "metric": METRIC,
        "before": before.flat(),
        "after": after.flat(),
        "seen_unseen": {
            part: {"before": parts_before[part], "after": parts_after[part]}
            for part in ("seen", "unseen")
        },
        "history": [asdict(entry) for entry in run.history],
        "choose": config.choose,
        "chosen_epoch": chosen.epoch,
        "chosen_scale": chosen.scale,
        "chosen_checkpoint": str(chosen.folder.relative_to(run.path)),
        "scales": chosen.tried,
        "dataset": config.data.dataset,
    }
    write_json(run.report, report)
    return report


def _evaluated(
    folder: Path, data: TrainingData, config: FinetuneConfig, store: Store
) -> Evaluation:
    resolved = resolve(config.model.for_checkpoint(folder), config.device)
    if resolved.rendering is None:
        raise UserError(f"{folder}: its manifest has no rendering")
    return evaluate_dense(
        resolved.encoder, data.report, resolved.rendering, store=store, progress=True
    )


def report_tables(report: dict[str, Any]) -> dict[str, LoggedTable]:
    """By name: scores on val after every epoch, before and after training, by seen golds.

    Each of these has a row for each language and `macro`, and all metrics. Where scales were
    tried, `scales` has a row for each, and MRR@5 on val.
    """
    metrics = list(report["before"]["macro"])
    history = [
        [entry["epoch"], language, *(row[m] for m in metrics), entry["loss"]]
        for entry in report["history"]
        for language, row in entry["val"].items()
    ]
    both = [
        [name, language, *(row[m] for m in metrics)]
        for name in ("before", "after")
        for language, row in report[name].items()
    ]
    parts = [
        [part, name, language, *(row[m] for m in metrics)]
        for part, tables in report["seen_unseen"].items()
        for name, table in tables.items()
        for language, row in table.items()
    ]
    scales = {"scales": LoggedTable(*curve_table(_curve(report)))} if report["scales"] else {}
    return {
        "history": LoggedTable(["epoch", "language", *metrics, "loss"], history),
        "before and after": LoggedTable(["model", "language", *metrics], both),
        "seen and unseen golds": LoggedTable(["golds", "model", "language", *metrics], parts),
        **scales,
    }


def _curve(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The scales that were tried, the smallest first, and the base at 0."""
    base = {"scale": 0.0, "val": report["history"][0]["val"]}
    by_scale = {at["scale"]: at for at in (base, *report["scales"])}
    return [by_scale[scale] for scale in sorted(by_scale)]


def plot_scales(report: dict[str, Any], folder: Path) -> Path:
    """Draw the tried scales' scores on val, the chosen one circled; the file written."""
    curve = {at["scale"]: at["val"] for at in _curve(report)}
    title = f"epoch {report['chosen_epoch']} on val of {Path(report['dataset']).name}"
    draw(curve, Picked({}, report["chosen_scale"]), title).savefig(folder / SCALES_PLOT, dpi=150)
    return folder / SCALES_PLOT


def report_text(report: dict[str, Any]) -> str:
    """The report as a table: MRR@5 by language, and by whether the gold was seen in training."""
    before, after = report["before"], report["after"]
    languages = list(before)
    columns = [f"MRR@5 on {report['split']}", *languages]
    scale = "" if report["chosen_scale"] == 1 else f" at scale {report['chosen_scale']:g}"
    how = "chosen on val" if report["choose"] == "best" or report["scales"] else "the last"
    chosen = f"epoch {report['chosen_epoch']}{scale} ({how})"
    rows: list[list[Any]] = [
        ["step 0", *(before[lang][METRIC] for lang in languages)],
        [chosen, *(after[lang][METRIC] for lang in languages)],
        ["gain", *(after[lang][METRIC] - before[lang][METRIC] for lang in languages)],
    ]
    for part, tables in report["seen_unseen"].items():
        if tables["before"]:
            for name, table in (("step 0", tables["before"]), ("chosen", tables["after"])):
                cells = [table.get(lang, {}).get(METRIC) for lang in languages]
                rows.append([f"{part} golds, {name}", *cells])
    lines = ["", plain_table(columns, rows)]
    if report["chosen_epoch"] == 0:
        lines += [
            "",
            "!!! No epoch was better on val than the model before training: step 0 is chosen.",
            "!!! The training did not help; see the history in report.json.",
        ]
    return "\n".join(lines)
