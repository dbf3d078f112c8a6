"""Choose how far to go from the base: `python train/interpolate.py --checkpoint DIR`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from claim2source.core.config import (
    as_plain,
    flag,
    list_field,
    read_config,
    require,
    require_between,
)
from claim2source.core.errors import run_program
from claim2source.core.files import atomic_folder, real_path, write_json
from claim2source.core.folders import RUN_FILE
from claim2source.core.records import Dataset
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Choice,
    Report,
    Rule,
    SystemReport,
    Table,
)
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.evaluation.choices import choice_notes
from claim2source.io.wandb import Tracker, as_wandb, require_tracking, wandb_mode
from claim2source.models import Manifest, ModelConfig, checkpoint_folder
from claim2source.models.local import with_local_models
from claim2source.models.manifest import FILE as MANIFEST
from claim2source.pipeline.choosing import choose
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    require_golds,
    score_encoder,
)
from claim2source.pipeline.selection import ChoosingOptions, SelectionData, selection_data
from claim2source.pipeline.views import write_markdown
from claim2source.training.config import WandbConfig
from claim2source.training.curve import Picked, curve_table, draw
from claim2source.training.export.scaling import (
    ScaledCheckpoint,
    refuse_existing,
    require_scalable,
)
from claim2source.training.run_folder import RunFolder, read_history

OUT = "interpolation"
CURVE_FILE, PLOT_FILE = "interpolation.json", "interpolation.png"
SCALES = (0.0, 0.25, 0.5, 0.75, 1.0)
STEP_0, AS_TRAINED, PICKED = "step 0", "scale 1", "picked"


@dataclass(frozen=True)
class InterpolateConfig(ChoosingOptions):
    """Settings of `train/interpolate.py`.

    Args:
        checkpoint: a trained checkpoint, or the folder of a training run: its chosen epoch, or
            where the base was chosen the best trained one.
        out: folder for the report, the plot and the checkpoints picked; none: `interpolation`
            in the checkpoint's run, or beside a checkpoint that lies in none.
        dataset: folder in BEIR layout, or `demo`; none: what it was trained on.
        split: split to report on; nothing is picked on it.
        pick: `one` scale by the macro average over languages, or one `per_language`.
        model: `allow_bin`, `allow_remote_code` and `attention`, where its base needs them; all
            else is the manifest's.
        wandb: Weights & Biases: the plot and the table.
    """

    checkpoint: str
    out: Path | None = None
    dataset: str | None = None
    split: str = "dev"
    pick: Literal["one", "per_language"] = "one"
    model: ModelConfig = field(default_factory=ModelConfig)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    scales: list[float] = list_field(SCALES, help="0 is the base, 1 what was trained")
    overwrite: bool = flag("replace an earlier interpolation in the output folder")

    def check(self) -> None:
        require(bool(self.scales), "scales", self.scales, "one or more numbers, 0 to 100")
        for scale in self.scales:
            require_between("scales", scale, 0, 100)

    @property
    def folder(self) -> Path:
        """Return the folder that everything is written to."""
        return self.out or _default_out(self.checkpoint)


def main(argv: Sequence[str] | None = None) -> None:
    """Score every scale on val, pick, report on the split, write what was picked."""
    config = read_config(
        InterpolateConfig, argv, program="train/interpolate.py", description=__doc__
    )
    say(interpolate(config))


@with_local_models
def interpolate(config: InterpolateConfig) -> str:
    """Score, pick, report, write the folder whole or not at all; return the table as text.

    Raises `UserError` where nothing was trained or nothing can be picked on unseen claims.
    """
    require_tracking(wandb_mode(config.wandb.mode), "--wandb.mode")
    refuse_existing(config.folder, CURVE_FILE, config.overwrite, "an interpolation")
    checkpoint = scalable_checkpoint(config.checkpoint)
    scaled = ScaledCheckpoint(checkpoint, config.device, model=config.model)
    require_scalable(scaled, 1.0)
    dataset = config.dataset or scaled.manifest.data.dataset or "demo"
    selection = selection_data(dataset, config.split, config.choosing("carved"), scaled.manifest)
    reported = load(dataset, config.split, lenient=config.lenient)
    require_golds(reported, dataset)
    scales = sorted({float(scale) for scale in config.scales})
    on_val = {scale: _scored(config, scaled, scale, selection.val) for scale in scales}
    curve = {scale: one.report.table for scale, one in on_val.items()}
    runs = {scale: one.run for scale, one in on_val.items()}
    picked, choice = pick(runs, curve, config.pick, selection, config.rule)
    wanted = sorted({0.0, 1.0, picked.default, *picked.scales.values()})
    found = {scale: _scored(config, scaled, scale, reported).report for scale in wanted}
    systems = {
        STEP_0: replace(found[0.0], name=STEP_0),
        AS_TRAINED: replace(found[1.0], name=AS_TRAINED),
        PICKED: _picked_system(found, picked),
    }
    report = make_report(reported, systems, PICKED, name=dataset, program="train/interpolate.py")
    report = replace(report, chosen=PICKED, choices=(choice,))
    parts = _parts(report, scaled, picked)
    figure = draw(curve, picked, f"{scaled.folder.name} on val of {Path(dataset).name}")
    with atomic_folder(config.folder) as folder:
        for scale in picked.distinct:
            scaled.save_checkpoint(folder / _name(scale), scale, {"val": curve[scale]})
        write_json(
            folder / CURVE_FILE, [{"scale": scale, "val": row} for scale, row in curve.items()]
        )
        report.write(folder)
        write_markdown(folder, "Interpolation", parts)
        figure.savefig(folder / PLOT_FILE, dpi=150)
    _log(config, report)
    return f"{render(parts)}\n\nIn {config.folder}."


def pick(
    runs: Mapping[float, Run],
    curve: Mapping[float, Table],
    by: Literal["one", "per_language"],
    selection: SelectionData,
    rule: Rule = "one_se",
) -> tuple[Picked, Choice]:
    """Pick scales from runs on val by scale; `curve` holds their tables.

    `one` picks one scale by the macro average for all languages, `per_language` each language's
    own (and that of the macro average for languages that val lacks). The default is 1, and where
    0 is among the scales none below it is picked. By the rule `best`, of equal scales the
    smallest is picked.
    """
    scales = sorted(runs)
    values = {scale: selection.weighing().of(runs[scale]) for scale in scales}

    def best(name: str) -> tuple[float, Choice]:
        return choose(
            "scale",
            values,
            selection.weighing(language=name),
            settings=lambda scale: {"scale": scale},
            distance=lambda scale: abs(1 - scale),
            rule=rule,
            floor=0.0 if 0.0 in values else None,
            tables=curve,
            trials=True,
            note=selection.note,
        )

    default, choice = best(MACRO)
    languages = [name for name in next(iter(curve.values())) if name != MACRO]
    picked = {name: default if by == "one" else best(name)[0] for name in languages}
    settings = {
        "by": by,
        "default": default,
        "scales": picked,
        "checkpoints": {name: _name(scale) for name, scale in picked.items()},
    }
    return Picked(picked, default), replace(choice, settings=settings)


def scalable_checkpoint(name: str | Path) -> Path:
    """Return the trained checkpoint that a run's chosen one is of.

    Where the run chose its base, it is the best trained epoch. What is no run stays as it is.
    """
    folder = checkpoint_folder(name)
    run = Path(name)
    if folder == run or not (folder / MANIFEST).is_file():
        return folder
    manifest = Manifest.read(folder)
    if manifest.weights.kind != "base":
        unscaled = RunFolder(run).checkpoint(manifest.epoch)
        return unscaled if manifest.weights.scale != 1 and unscaled.is_dir() else folder
    found = RunFolder(run, read_history(run))
    return found.checkpoint(found.best_epoch(trained=True))


def _default_out(checkpoint: str) -> Path:
    """Return `interpolation` in the run that a checkpoint belongs to, else beside it."""
    folder = real_path(checkpoint)
    if (folder / RUN_FILE).is_file():
        return folder / OUT
    run = folder.parent.parent
    return (run if (run / RUN_FILE).is_file() else folder.parent) / OUT


def _scored(
    config: InterpolateConfig, scaled: ScaledCheckpoint, scale: float, data: Dataset
) -> ScoredSystem:
    scaled.set(scale)
    rendering, store = scaled.manifest.rendering, config.open_store()
    found = score_encoder(
        scaled.encoder,
        data,
        rendering,
        Scoring(repeats=0),
        store=store,
        progress=True,
    )
    settings = {"checkpoint": str(scaled.folder), "kind": scaled.kind, "scale": scale}
    forms = replace(found.report, claims=rendering.claims, sources=rendering.sources)
    return replace(found, report=replace(forms, settings=settings))


def _picked_system(found: Mapping[float, SystemReport], picked: Picked) -> SystemReport:
    """Put every language's row at its own scale, with their macro average."""
    table = dict(picked.table({scale: system.table for scale, system in found.items()}))
    macro = table.pop(MACRO)
    one = found[picked.default]
    cost = one.cost if len(picked.distinct) == 1 else None
    return replace(one, name=PICKED, languages=table, macro=macro, cost=cost)


def _name(scale: float) -> str:
    """Name a checkpoint's folder."""
    return f"scale-{scale:.12g}"


def _parts(report: Report, scaled: ScaledCheckpoint, picked: Picked) -> list[Part]:
    """Describe the report: the curve, what was picked, the scores of the reported split."""
    (choice,) = report.choices
    by = choice.settings["by"]
    names = list(report.systems[PICKED].table)
    scale_of = {name: f"{picked.of(name):.12g}" for name in names if name != MACRO}
    checkpoints = choice.settings["checkpoints"]
    by_language = ", ".join(
        f"{name} {scale} ({checkpoints.get(name, 'not in val')})"
        for name, scale in scale_of.items()
    )
    shown = f"{picked.default:.12g}" if by == "one" else "by language"
    titles = {STEP_0: STEP_0, AS_TRAINED: AS_TRAINED, PICKED: f"{PICKED} ({shown})"}
    rows: list[list[Cell]] = [
        [title, *(report.systems[system].table[name][MAIN_METRIC] for name in names)]
        for system, title in titles.items()
    ]
    rows.append(["claims", *(int(report.systems[PICKED].table[n]["queries"]) for n in names)])
    return [
        f"{scaled.folder} ({scaled.kind}), MRR@5 on val of {report.dataset} "
        f"({choice.claims} claims), by scale:",
        curve_table(choice.tried),
        f"Picked on val ({'; '.join([by, *choice_notes(choice)])}): {by_language}.",
        f"MRR@5 on {report.split}, on which nothing was picked:",
        TextTable([report.split, *names], rows),
    ]


def _log(config: InterpolateConfig, report: Report) -> None:
    """Log the plot and the table to Weights & Biases."""
    mode = wandb_mode(config.wandb.mode)
    if mode == "off":
        return
    tracker = Tracker(
        mode,
        config.folder,
        project=config.wandb.project,
        name=config.wandb.name,
        job_type="interpolate",
        config=as_plain(config),
    )
    tracker.log_figure("interpolation", config.folder / PLOT_FILE)
    tracker.log({"interpolation_table": as_wandb(curve_table(report.choices[0].tried))})
    scores = report.systems[PICKED].table.items()
    tracker.summarise(
        {f"{config.split}/{name}/{MAIN_METRIC}": row[MAIN_METRIC] for name, row in scores}
    )
    tracker.close()


if __name__ == "__main__":
    run_program(main)
