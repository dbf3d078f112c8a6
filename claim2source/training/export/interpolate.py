"""What `train/interpolate.py` does: score a checkpoint at several scales on val and pick one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from claim2source.core.config import as_plain, flag, list_field, require
from claim2source.core.errors import UserError
from claim2source.core.files import atomic_folder, write_json, write_text
from claim2source.core.records import Dataset
from claim2source.core.tables import markdown_table, plain_table
from claim2source.datasets import load
from claim2source.evaluation.hybrid import HybridConfig, Selection, selection_data
from claim2source.evaluation.retrieval import Table, evaluate_dense, mean_of
from claim2source.io.store import Store
from claim2source.io.wandb import wandb_mode
from claim2source.models import ModelConfig
from claim2source.models.resolve import RUN_FILE
from claim2source.training.config import WandbConfig
from claim2source.training.curve import METRIC, Picked, curve_table, draw
from claim2source.training.export.scaling import ScaledCheckpoint, refuse_existing, require_scalable

OUT = "interpolation"
CURVE_FILE, PLOT_FILE = "interpolation.json", "interpolation.png"
SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class InterpolateConfig:
    """Settings of `train/interpolate.py`.

    Args:
        checkpoint: a trained checkpoint, or the folder of a training run (its chosen epoch).
        out: folder for the report, the plot and the checkpoints picked; none: `interpolation`
            in the checkpoint's run, or beside a checkpoint that lies in none.
        dataset: folder in BEIR layout, or `demo`; none: what it was trained on.
        split: split to report on; nothing is picked on it.
        pick: `one` scale by the macro average over languages, or one `per_language`.
        train_split: split that val is carved from; none: as the manifest says.
        val_share: share carved out; none: as the manifest says.
        val_seed: seed of the carving; none: as the manifest says.
        model: `allow_bin`, `allow_remote_code` and `attention`, where its base needs them; all
            else is the manifest's.
        wandb: Weights & Biases: the plot and the table.
        store: folder of the embedding store; none: the user's cache.
        device: none takes a GPU if there is one.
    """

    checkpoint: str
    out: Path | None = None
    dataset: str | None = None
    split: str = "dev"
    pick: Literal["one", "per_language"] = "one"
    train_split: str | None = None
    val_share: float | None = None
    val_seed: int | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    scales: list[float] = list_field(float, SCALES, help="0 is the base, 1 what was trained")
    overwrite: bool = flag("replace an earlier interpolation in the output folder")

    def __post_init__(self) -> None:
        good = bool(self.scales) and all(math.isfinite(s) and s >= 0 for s in self.scales)
        require(good, "scales", self.scales, "one or more numbers, 0 or more")
        if self.out is None:
            object.__setattr__(self, "out", _default_out(self.checkpoint))

    @property
    def folder(self) -> Path:
        """Where everything is written."""
        assert self.out is not None
        return self.out


def interpolate(config: InterpolateConfig) -> str:
    """Score, pick, report, write `config.folder` whole or not at all; returns the table as text.

    Of equal scales the smallest is picked: the nearer to the base, the less is forgotten.
    Raises `UserError` where nothing was trained or nothing can be picked cleanly.
    """
    refuse_existing(config.folder, CURVE_FILE, config.overwrite, "an interpolation")
    scaled = ScaledCheckpoint(config.checkpoint, config.device, model=config.model)
    require_scalable(scaled, 1.0)
    dataset = config.dataset or scaled.manifest.data.dataset or "demo"
    selection = _selection(config, scaled, dataset)
    reported = load(dataset, config.split)
    if not reported.golds:
        raise UserError(f"{dataset}: split {config.split!r} has no golds to report on")
    store = Store(config.store)
    scales = sorted({float(scale) for scale in config.scales})
    curve = {scale: _scored(scaled, scale, selection.val, store) for scale in scales}
    picked = pick(curve, config.pick)
    wanted = sorted({0.0, 1.0, picked.default, *picked.scales.values()})
    found = {scale: _scored(scaled, scale, reported, store) for scale in wanted}
    report: dict[str, Any] = {
        "checkpoint": str(scaled.folder),
        "kind": scaled.kind,
        "base": {"name": scaled.manifest.base.name, "sha256": scaled.manifest.base.sha256},
        "dataset": dataset,
        "split": config.split,
        "metric": METRIC,
        "selection": {
            "split": selection.val.split,
            "claims": len(selection.val.claims),
            "note": selection.note,
        },
        "curve": [{"scale": scale, "val": table} for scale, table in curve.items()],
        "picked": {
            "by": config.pick,
            "scales": picked.scales,
            "default": picked.default,
            "checkpoints": {name: _name(scale) for name, scale in picked.scales.items()},
            "val": picked.table(curve),
        },
        "step_0": found[0.0],
        "as_trained": found[1.0],
        "after": picked.table(found),
    }
    figure = draw(curve, picked, f"{scaled.folder.name} on val of {Path(dataset).name}")
    with atomic_folder(config.folder) as folder:
        for scale in picked.distinct:
            scaled.save_checkpoint(folder / _name(scale), scale, {"val": curve[scale]})
        write_json(folder / CURVE_FILE, report["curve"])
        write_json(folder / "report.json", report)
        write_text(folder / "report.md", f"# Interpolation\n\n{_text(report, markdown_table)}\n")
        figure.savefig(folder / PLOT_FILE, dpi=150)
    _log(config, report)
    return f"{_text(report, plain_table)}\n\nIn {config.folder}."


def pick(curve: Mapping[float, Table], by: Literal["one", "per_language"]) -> Picked:
    """Pick from tables by scale that hold languages and `macro`, by MRR@5.

    `one` takes the scale with the best macro average for all languages, `per_language` each
    language's best (and that of the macro average for languages that the tables lack). Of
    equal scales the smallest wins.
    """

    def best(name: str) -> float:
        return min(curve, key=lambda scale: (-mean_of(curve[scale], METRIC, name), scale))

    languages = [name for name in next(iter(curve.values())) if name != "macro"]
    return Picked(
        {name: best("macro" if by == "one" else name) for name in languages}, best("macro")
    )


def _default_out(checkpoint: str) -> Path:
    """`interpolation` in the run that a checkpoint belongs to, else beside the checkpoint."""
    folder = Path(checkpoint).resolve()
    if (folder / RUN_FILE).is_file():
        return folder / OUT
    run = folder.parent.parent
    return (run if (run / RUN_FILE).is_file() else folder.parent) / OUT


def _selection(config: InterpolateConfig, scaled: ScaledCheckpoint, dataset: str) -> Selection:
    """The val that this checkpoint's training held out, carved again as its manifest says."""
    settings = HybridConfig(
        checkpoint=config.checkpoint,
        out=config.folder,
        dataset=dataset,
        split=config.split,
        val="carved",
        train_split=config.train_split,
        val_share=config.val_share,
        val_seed=config.val_seed,
    )
    return selection_data(settings, scaled.resolved)


def _scored(scaled: ScaledCheckpoint, scale: float, data: Dataset, store: Store) -> Table:
    scaled.set(scale)
    rendering = scaled.manifest.rendering
    return evaluate_dense(scaled.encoder, data, rendering, store=store, progress=True).flat()


def _name(scale: float) -> str:
    """A checkpoint's folder."""
    return f"scale-{scale:.12g}"


def _text(report: Mapping[str, Any], table: Any) -> str:
    """The report for a person, its tables drawn by `table`."""
    picked, held = report["picked"], report["selection"]
    names = list(report["after"])
    scales = {name: picked["scales"].get(name, picked["default"]) for name in names}
    shown = f"{picked['default']:.12g}" if picked["by"] == "one" else "by language"
    parts = {"step 0": "step_0", "scale 1": "as_trained", f"picked ({shown})": "after"}
    rows: list[list[Any]] = [
        [title, *(report[part][name][METRIC] for name in names)] for title, part in parts.items()
    ]
    queries = ["claims", *(int(report["after"][name]["queries"]) for name in names)]
    by_language = ", ".join(
        f"{name} {scale:.12g} ({picked['checkpoints'].get(name, 'not in val')})"
        for name, scale in scales.items()
        if name != "macro"
    )
    return "\n\n".join(
        [
            f"{report['checkpoint']} ({report['kind']}), MRR@5 on val of {report['dataset']} "
            f"({held['claims']} claims), by scale:",
            table(*curve_table(report["curve"])),
            *([f"Note: {held['note']}"] if held["note"] else []),
            f"Picked on val ({picked['by']}; of equal scales the smallest): {by_language}.",
            f"MRR@5 on {report['split']}, on which nothing was picked:",
            table([report["split"], *names], [*rows, queries]),
        ]
    )


def _log(config: InterpolateConfig, report: Mapping[str, Any]) -> None:
    """The plot and the table, to Weights & Biases."""
    mode = wandb_mode(config.wandb.mode)
    if mode == "off":
        return
    try:
        import wandb
    except ModuleNotFoundError:
        raise UserError(
            "wandb is not installed: pip install wandb, or turn it off with --wandb.mode off"
        ) from None
    run = wandb.init(
        project=config.wandb.project,
        name=config.wandb.name or config.folder.resolve().name,
        dir=config.folder,
        job_type="interpolate",
        config=as_plain(config),
        mode="offline" if mode == "offline" else "online",
    )
    columns, rows = curve_table(report["curve"])
    run.log(
        {
            "interpolation": wandb.Image(str(config.folder / PLOT_FILE)),
            "interpolation_table": wandb.Table(columns=columns, data=rows),
        }
    )
    for name, row in report["after"].items():
        run.summary[f"{config.split}/{name}/{METRIC}"] = row[METRIC]
    run.finish()
