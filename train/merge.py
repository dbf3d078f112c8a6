"""Export a weighted sum of checkpoints and their base for sentence-transformers.

`python train/merge.py --checkpoints RUN --out DIR` exports a run's chosen checkpoint. With
`--scales 0 0.25 0.5 0.75 1` points between the base (0) and the trained weights (1) are scored on
val, and the chosen one is exported. `--checkpoints A B` sums epochs, or runs with other seeds, by
`--weights`; the sum is exported, and its score on val is compared with that of each part. The
folder loads in sentence-transformers, with `encode_query` for claims and `encode_document` for
sources, and in this package. A tuned re-ranker is exported as a `CrossEncoder` that returns its
logits. Checkpoints and base are never changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

from claim2source.core.config import Between, as_plain, flag, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import atomic_folder, clean_leftovers, require_writable
from claim2source.core.folders import RUN_FILE
from claim2source.core.records import Dataset
from claim2source.core.report import FILE as REPORT_FILE
from claim2source.core.report import Choice, Report, Rule, Settings
from claim2source.core.tables import render
from claim2source.core.terminal import say
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.data.wandb import Tracking, log_tables, require_tracking
from claim2source.evaluation.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    require_golds,
    score_encoder,
    score_named,
)
from claim2source.evaluation.options import StoreOptions
from claim2source.evaluation.reports import distinct_ends
from claim2source.evaluation.views import report_parts, report_tables, write_report
from claim2source.models import Dtype, Manifest, ModelConfig, checkpoint_folder, resolve
from claim2source.models.local import with_local_models
from claim2source.models.manifest import EXPORT_FILE, FILE, trained_reranker
from claim2source.search.choose import Preference, choose
from claim2source.systems.heldout import (
    ChoosingOn,
    HeldOut,
    NothingToChooseOn,
    SelectionData,
)
from claim2source.training.export.card import push_to_hub, require_hub, write_card
from claim2source.training.export.reranker import export_reranker
from claim2source.training.export.sentence_transformers import export
from claim2source.training.export.weighted_sum import ScaledCheckpoint, read_parts, write_sum
from claim2source.training.run_folder import RunFile, RunFolder

if TYPE_CHECKING:
    from claim2source.models import Encoder

AS_BASE, AS_TRAINED, PICKED, SUM = "scale 0", "scale 1", "picked", "their sum"
Weight = Annotated[float, Between(0, 100)]
Option = TypeVar("Option", float, str)


# Keys that are listed first in the help.
COMMON = (
    "checkpoints",
    "out",
    "weights",
    "scales",
    "dataset",
    "split",
    "dtype",
    "push_to_hub",
    "overwrite",
    "device",
)


@dataclass(frozen=True)
class MergeConfig(StoreOptions):
    """Settings of `train/merge.py`.

    Args:
        checkpoints: a checkpoint, or the folder of a training run (its chosen epoch; for
            `scales`, if the base was chosen, the best trained epoch), or several to sum.
        out: folder to write.
        dtype: type of the written weights; none: the checkpoint's. Sums are computed in float32.
        dataset: data set for scores if there is something to choose: folder in BEIR layout, or its
            name in CLAIM2SOURCE_DATA, or `demo`; none: the training data of the first checkpoint.
        split: split to report on; nothing is chosen on it.
        rule: rule of choice on val: `one_se`, among candidates within one standard error of the
            best, by paper, the scale nearest to 1, or the sum; or the plain `best`.
        model: `allow_bin`, `allow_remote_code` and `attention`, if the base needs them; the
            manifest sets all else.
        wandb: log the tables to Weights & Biases.
        push_to_hub: name of a model repository on the hub to upload the folder to, with
            `HF_TOKEN`; a new one is private. None: nothing is uploaded.
    """

    checkpoints: list[str]
    out: Path
    weights: list[Weight] | None = list_field(
        help="one weight per checkpoint; the base gets the rest to 1; none: the mean"
    )
    scales: list[Weight] | None = list_field(
        help="0 is the base, 1 the trained weights; val chooses one; none: the checkpoint's own"
    )
    dtype: Dtype | None = None
    dataset: str | None = None
    split: str = "dev"
    rule: Rule = "one_se"
    model: ModelConfig = field(default_factory=ModelConfig)
    wandb: Tracking = "off"
    push_to_hub: str | None = None
    overwrite: bool = flag("replace an earlier export in the output folder")

    def check(self) -> None:
        count = len(self.checkpoints)
        require(count > 0, "checkpoints", self.checkpoints, "one or more")
        allowed = "one or more numbers with one checkpoint; use --weights for several"
        good = self.scales is None or (len(self.scales) > 0 and count == 1)
        require(good, "scales", self.scales, allowed)
        good = self.weights is None or (len(self.weights) == count > 1)
        require(good, "weights", self.weights, "one number per checkpoint, if there are several")


def main(argv: Sequence[str] | None = None) -> None:
    """Sum, score if there is a choice, write the folder and print its description."""
    config = read_config(
        MergeConfig, argv, program="train/merge.py", description=__doc__ or "", common=COMMON
    )
    for line in merge(config):
        say(line)


@with_local_models
def merge(config: MergeConfig) -> list[str]:
    """Write the export atomically; return its scores and description as lines.

    Raises `UserError` if the checkpoints cannot be summed, if there is nothing to choose on, or if
    sentence-transformers would compute other vectors.
    """
    require_tracking(config.wandb)
    require_free(config.out, config.overwrite)
    if config.push_to_hub is not None:
        require_hub(config.push_to_hub)
    lines = _merged(config)
    if config.push_to_hub is not None:
        lines.append(f"Uploaded to {push_to_hub(config.out, config.push_to_hub)}.")
    return lines


def require_free(out: Path, overwrite: bool) -> None:
    """Raise `UserError` unless `out` is free, or has an export that may be replaced.

    Removes or restores what a killed process left there.
    """
    require_writable(out, "folder")
    clean_leftovers(out.parent, out.name)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / EXPORT_FILE).is_file():
        raise UserError(f"{out}: not empty and not an export; choose another --out")
    if not overwrite:
        raise UserError(f"{out}: has an export; add --overwrite or choose another --out")


def require_scalable(checkpoint: Path) -> None:
    """Raise `UserError` if nothing can be scaled, or if full weights were scaled before."""
    weights = Manifest.read(checkpoint).weights
    if weights.kind == "base":
        raise UserError(f"{checkpoint}: is the untrained base, so there is nothing to scale")
    if weights.projection is not None:
        reason = "has a projection into its teacher's space, so it cannot be scaled"
        raise UserError(f"{checkpoint}: {reason}")
    if weights.kind == "full" and weights.scale != 1:
        raise UserError(
            f"{checkpoint}: its weights are already an interpolation at {weights.scale:g}; "
            "use the checkpoint that it was made from"
        )


def _merged(config: MergeConfig) -> list[str]:
    if any(trained_reranker(name) is not None for name in config.checkpoints):
        return [*_merge_reranker(config), f"In {config.out}."]
    with _checkpoint(config) as checkpoint:
        scale = None
        report = None
        name = None
        if len(config.checkpoints) > 1:
            report = compare_parts(config, checkpoint)
            name = _formula(config)
        elif config.scales:
            require_scalable(checkpoint)
            scale = config.scales[0]
            if len({*config.scales}) > 1:
                report, scale = compare_scales(config, checkpoint)
        scores = _run_report(checkpoint) if scale is None and report is None else report
        scaled = ScaledCheckpoint(checkpoint, "cpu", "float32", config.model)
        with atomic_folder(config.out) as folder:
            lines = export(scaled, folder, scale, config.dtype, name)
            write_card(folder, scaled.manifest, lines, _title(config), scores)
            if report is not None:
                write_report(report, folder, "Merge", report_parts(report))
    if report is not None:
        tables = report_tables(report)
        log_tables(
            config.wandb,
            tables,
            folder=config.out,
            program="merge",
            config=as_plain(config),
        )
        lines = [render(report_parts(report)), "", *lines]
    return [*lines, f"In {config.out}."]


def _merge_reranker(config: MergeConfig) -> list[str]:
    allowed = "only one if it is a re-ranker, because re-rankers are not summed"
    require(len(config.checkpoints) == 1, "checkpoints", config.checkpoints, allowed)
    require(config.scales is None, "scales", config.scales, "none for a re-ranker")
    reranker = trained_reranker(config.checkpoints[0])
    assert reranker is not None
    checkpoint, manifest = reranker
    scores = _run_report(checkpoint)
    with atomic_folder(config.out) as folder:
        lines = export_reranker(checkpoint, manifest, folder, config.dtype, config.model)
        write_card(folder, manifest, lines, _title(config), scores)
    return lines


def _title(config: MergeConfig) -> str:
    return config.push_to_hub or config.out.name


def _run_report(checkpoint: Path) -> Report | None:
    """Read the report of the run that chose a checkpoint; None if there is none."""
    run = checkpoint.parent.parent
    is_chosen = (run / RUN_FILE).is_file() and checkpoint_folder(run).name == checkpoint.name
    return Report.read(run) if is_chosen and (run / REPORT_FILE).is_file() else None


@contextmanager
def _checkpoint(config: MergeConfig) -> Iterator[Path]:
    """Locate the checkpoint to export; the sum of several is a temporary checkpoint."""
    if len(config.checkpoints) == 1:
        (name,) = config.checkpoints
        yield scalable_checkpoint(name) if config.scales else checkpoint_folder(name)
        return
    parts = read_parts(config.checkpoints)
    config.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{config.out.name}.",
        suffix=".tmp",
        dir=config.out.parent,
    ) as temporary:
        folder = Path(temporary, "sum")
        write_sum(parts, folder, config.weights, config.model)
        yield folder


def scalable_checkpoint(name: str | Path) -> Path:
    """Return a run's chosen checkpoint, or its best trained epoch if it chose the base.

    The path of anything but a run is returned unchanged.
    """
    folder = checkpoint_folder(name)
    run = Path(name)
    if folder == run or not (folder / FILE).is_file():
        return folder
    manifest = Manifest.read(folder)
    if manifest.weights.kind != "base":
        unscaled = RunFolder(run).checkpoint(manifest.epoch)
        return unscaled if manifest.weights.scale != 1 and unscaled.is_dir() else folder
    run_folder = RunFolder(run, file=RunFile.read(run))
    return run_folder.checkpoint(run_folder.best_trained())


class Comparison:
    """Score models on the data that a manifest names, choose among them, and report them."""

    def __init__(self, config: MergeConfig, manifest: Manifest) -> None:
        self.config = config
        self.manifest = manifest
        self.dataset = config.dataset or manifest.data.dataset or "demo"
        self.store = Store(config.store)

    def selection(self) -> SelectionData:
        """Find the claims to choose on. Raises `NothingToChooseOn` if there are none."""
        on = ChoosingOn(val="carved", lenient=self.config.lenient)
        return HeldOut(self.dataset, self.config.split, on).claims([self.manifest])

    def reported(self) -> Dataset:
        """Load the split to report on."""
        data = load(self.dataset, self.config.split, lenient=self.config.lenient)
        require_golds(data, self.dataset)
        return data

    def score(self, encoder: Encoder, data: Dataset, settings: Settings) -> ScoredSystem:
        """Score a model with its manifest's settings; with intervals on the reported split."""
        rendering = self.manifest.rendering
        scoring = Scoring() if data.split == self.config.split else Scoring(repeats=0)
        scored = score_encoder(encoder, data, rendering, scoring, store=self.store, progress=True)
        return scored.with_report(settings=settings)

    def choose(
        self,
        key: str,
        on_val: Mapping[Option, ScoredSystem],
        selection: SelectionData,
        distance: Callable[[Option], float],
        floor: Option | None = None,
    ) -> tuple[Option, Choice]:
        """Choose a setting by its scores on val."""
        weighing = selection.weighing()
        return choose(
            key,
            {option: weighing.of(scored.run) for option, scored in on_val.items()},
            weighing,
            settings=lambda option: {key: option},
            by=Preference(self.config.rule, distance, floor),
            tables={option: scored.report.table for option, scored in on_val.items()},
            trials=True,
            note=selection.note,
        )

    def report(
        self,
        data: Dataset,
        systems: Mapping[str, ScoredSystem],
        main: str,
        choice: Choice | None,
    ) -> Report:
        """Report the systems, with the choice in the main one's row."""
        choices = () if choice is None else (choice,)
        systems = {**systems, main: systems[main].with_report(choices=choices)}
        report = make_report(data, systems, main, name=self.dataset, program="train/merge.py")
        return replace(report, chosen=main)


def compare_scales(config: MergeConfig, checkpoint: Path) -> tuple[Report, float]:
    """Score every scale on val, choose one, and report it with both ends.

    The default is 1. If 0 is among the scales, none that scores below it is chosen. With the rule
    `best`, the smallest of equally good scales is chosen.
    """
    scaled = ScaledCheckpoint(checkpoint, config.device, model=config.model)
    comparison = Comparison(config, scaled.manifest)
    selection = comparison.selection()
    reported = comparison.reported()

    def scored(scale: float, dataset: Dataset) -> ScoredSystem:
        scaled.set(scale)
        settings = {"checkpoint": str(scaled.folder), "kind": scaled.kind, "scale": scale}
        return comparison.score(scaled.encoder, dataset, settings)

    scales = sorted({float(scale) for scale in config.scales or ()})
    on_val = {scale: scored(scale, selection.val) for scale in scales}
    floor = 0.0 if 0.0 in on_val else None
    picked, choice = comparison.choose(
        "scale",
        on_val,
        selection,
        lambda scale: abs(1 - scale),
        floor,
    )
    named = {AS_BASE: 0.0, AS_TRAINED: 1.0, PICKED: picked}
    systems = score_named(named, lambda scale: scored(scale, reported))
    return comparison.report(reported, systems, PICKED, choice), picked


def compare_parts(config: MergeConfig, checkpoint: Path) -> Report:
    """Score a sum and its parts on val, choose among them, and report all."""
    folders = [checkpoint_folder(name) for name in config.checkpoints]
    models = {SUM: checkpoint, **dict(zip(_short_names(config), folders, strict=True))}
    # The first part locates the data; the sum's training claims are those of all parts.
    trained_on = Manifest.read(checkpoint).trained_on
    manifest = replace(Manifest.read(folders[0]), trained_on=trained_on)
    comparison = Comparison(config, manifest)
    note = ""
    selection = None
    choice = None
    try:
        selection = comparison.selection()
    except NothingToChooseOn as error:
        note = f"Not scored on val: {error}"
    reported = comparison.reported()
    on_val: dict[str, ScoredSystem] = {}
    systems: dict[str, ScoredSystem] = {}
    for name, folder in models.items():
        encoder = resolve(config.model.for_checkpoint(folder), config.device).encoder
        settings = {"checkpoint": _formula(config) if name == SUM else str(folder)}
        if selection is not None:
            on_val[name] = comparison.score(encoder, selection.val, settings)
        systems[name] = comparison.score(encoder, reported, settings).with_report(name=name)
    if selection is not None:
        # A difference between seeds is more likely noise than one from their mean.
        _, choice = comparison.choose("checkpoint", on_val, selection, lambda name: name != SUM)
    report = comparison.report(reported, systems, SUM, choice)
    return replace(report, notes=(*report.notes, note)) if note else report


def _formula(config: MergeConfig) -> str:
    weights = config.weights or [1 / len(config.checkpoints)] * len(config.checkpoints)
    pairs = zip(weights, _short_names(config), strict=True)
    return " + ".join(f"{weight:.4g} * {name}" for weight, name in pairs)


def _short_names(config: MergeConfig) -> list[str]:
    return distinct_ends([checkpoint_folder(name).resolve() for name in config.checkpoints])


if __name__ == "__main__":
    run_program(main)
