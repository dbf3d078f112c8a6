"""Score on val, and choose what a run stands for: an epoch, a scale, a soup, the base."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from claim2source.core.files import atomic_folder
from claim2source.core.report import (
    Choice,
    Epoch,
    Intervals,
    Settings,
    Table,
    Trial,
    soup_name,
)
from claim2source.io.store import Store
from claim2source.models import Encoder, resolve
from claim2source.models.manifest import FILE
from claim2source.pipeline.evaluate import METRICS, Scoring, score_encoder
from claim2source.systems.choose import SEEN, UNSEEN, choose
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig, RunConfig
from claim2source.training.data import TrainingData
from claim2source.training.distributed import SharedVal, World
from claim2source.training.export.weighted_sum import ScaledCheckpoint, read_parts, write_sum
from claim2source.training.run_folder import RunFolder, score_to_choose_by

if TYPE_CHECKING:
    pass

_OLDER = "some epochs are of version 0.1.0, which kept no scores by claim: the plain best"


@dataclass(frozen=True)
class ValScores:
    """Hold a model's scores on val: all, by part, the one to choose by, and by claim."""

    table: Table
    parts: Mapping[str, Table]
    score: float
    claims: Mapping[str, float]
    intervals: Intervals | None = None

    def epoch(self, number: int, loss: float | None) -> Epoch:
        """Return the record of an epoch of a run."""
        return Epoch(number, self.table, loss, self.parts, self.score, self.claims)

    def by_split(self) -> dict[str, Table]:
        """Name the tables as a manifest does."""
        return {"val": self.table, **{part_name(part): row for part, row in self.parts.items()}}

    def __str__(self) -> str:
        """Write MRR@5 by language, of both parts, and what is chosen by."""
        return val_line(self.epoch(0, None))


def part_name(part: str) -> str:
    """Name a part of val: `val, seen papers`."""
    return f"val, {part} papers"


def val_line(entry: Epoch) -> str:
    """Write an epoch's MRR@5 on val by language, of both parts, and what is chosen by."""
    line = "  ".join(f"{lang} {row['mrr@5']:.4f}" for lang, row in entry.val.items())
    if not entry.parts:
        return line
    seen, unseen = (entry.parts[part]["macro"]["mrr@5"] for part in (SEEN, UNSEEN))
    by = score_to_choose_by(entry)
    return f"{line}  (seen papers {seen:.4f}, unseen {unseen:.4f}, to choose by {by:.4f})"


def score_on_val(
    encoder: Encoder, data: TrainingData, rendering: Rendering, store: Store, repeats: int = 0
) -> ValScores:
    """Score a model on val; `repeats` bootstrap draws give intervals, 0 none."""
    settings = Scoring(METRICS, repeats, 0, data.seen_golds)
    one = score_encoder(encoder, data.val, rendering, settings, store=store, progress=True)
    values = data.weighing.of(one.run)
    # Without claims of seen papers there are no parts to tell apart.
    parts = one.report.slices if all(one.report.slices.values()) else {}
    return ValScores(
        one.report.table,
        parts,
        data.weighing.score(values),
        dict(zip(data.weighing.claim_ids, values.tolist(), strict=True)),
        one.report.intervals,
    )


class Point(NamedTuple):
    """Name what a run may stand for: an epoch (0: the base), at a scale from the base (0).

    A `soup` is the mean of these epochs, of which `epoch` is the last.
    """

    epoch: int
    scale: float = 1.0
    soup: tuple[int, ...] = ()

    def settings(self) -> Settings:
        """Return the settings of a choice."""
        if self.soup:
            return {"mean of epochs": soup_name(self.soup)}
        return {"epoch": self.epoch, "scale": self.scale}

    def way(self, last: int) -> float:
        """Return how much of the way from the base (0) to the end of epoch `last` it went."""
        epochs = self.soup or (self.epoch,)
        return sum(epochs) / len(epochs) / last * self.scale


@dataclass(frozen=True)
class ChosenCheckpoint:
    """Name a checkpoint's folder, its epoch, and its scale between base and trained weights.

    `tried` holds every scale of `scaled_epoch` that was scored on val; `soup` has the epochs that
    were averaged.
    """

    folder: Path
    epoch: int
    scale: float
    tried: tuple[Trial, ...]
    scaled_epoch: int | None
    choice: Choice
    soup: tuple[int, ...] = ()


def choose_checkpoint(
    run: RunFolder, data: TrainingData, config: FinetuneConfig, store: Store, world: World
) -> ChosenCheckpoint | None:
    """Choose among base, trained epochs, `config.scales` of the best one, and means of epochs.

    Scales other than 1 lie between the base and the epoch (LoRA: W + scale * delta; full: as
    WiSE-FT); the one that wins is written as a checkpoint beside the epochs, as is a mean. With
    `choose: last` there are the last epoch, its scales and the means. The first process scores and
    chooses; the others encode their shares of val with it, and get None.
    """
    if not world.is_first:
        _help_to_choose(data, config, store, world)
        return None
    shared = SharedVal(config.rendering, data.val.claims, data.val.sources, store, world)
    last = run.history[-1].epoch
    best = run.best_epoch(trained=True) if config.choose == "best" else last
    scores: dict[Point, ValScores] = {}
    scales = [float(scale) for scale in config.scales or () if scale != 1]
    folder = run.checkpoint(best)
    scaled = None
    if best and scales:
        model = config.model.for_checkpoint(folder)
        scaled = ScaledCheckpoint(folder, config.device, model=model)
        for scale in scales:
            scaled.set(scale)
            shared.encode(scaled.encoder, folder, scale)
            point = Point(best, scale)
            scores[point] = score_on_val(scaled.encoder, data, config.rendering, store)
            print(f"epoch {best} at scale {scale:g}: val MRR@5  {scores[point]}", flush=True)
    with tempfile.TemporaryDirectory(
        prefix=".soup.", suffix=".tmp", dir=run.checkpoint(0).parent
    ) as kitchen:
        if config.soup:
            scores |= _greedy_soups(run, data, config, store, Path(kitchen), shared)
        shared.end()
        chosen, choice = choose_point(run, data, config, scores)
        folder = run.checkpoint(chosen.epoch)
        if chosen.soup:
            folder = run.soup_checkpoint(chosen.soup)
            with atomic_folder(folder) as temporary:
                shutil.copytree(Path(kitchen, folder.name), temporary, dirs_exist_ok=True)
        elif scaled is not None and chosen in scores:
            folder = run.scaled_checkpoint(chosen.epoch, chosen.scale)
            with atomic_folder(folder) as temporary:
                scaled.save_checkpoint(temporary, chosen.scale, scores[chosen].by_split())
    tried = tuple(
        replace(trial, settings={"scale": trial.settings["scale"]})
        for trial in choice.tried
        if trial.settings.get("epoch") == best and scaled is not None
    )
    return ChosenCheckpoint(
        folder,
        chosen.epoch,
        chosen.scale,
        tried,
        None if scaled is None else best,
        replace(choice, tried=tuple(replace(trial, scores={}) for trial in choice.tried)),
        chosen.soup,
    )


def _help_to_choose(data: TrainingData, config: FinetuneConfig, store: Store, world: World) -> None:
    """Encode this process's share of val with every scale and mean that the first process scores.

    A machine that has another disk has no checkpoints, and leaves its share to the first process.
    """
    scaled: ScaledCheckpoint | None = None

    def load(folder: Path, scale: float | None) -> Encoder | None:
        nonlocal scaled
        if not (folder / FILE).is_file():
            return None
        model = config.model.for_checkpoint(folder)
        if scale is None:
            return resolve(model, config.device).encoder
        if scaled is None:
            scaled = ScaledCheckpoint(folder, config.device, model=model)
        scaled.set(scale)
        return scaled.encoder

    shared = SharedVal(config.rendering, data.val.claims, data.val.sources, store, world)
    shared.follow(load)


def _greedy_soups(
    run: RunFolder,
    data: TrainingData,
    config: FinetuneConfig,
    store: Store,
    folder: Path,
    shared: SharedVal,
) -> dict[Point, ValScores]:
    """Score means of kept epochs on val, and write them below `folder`.

    The best epoch with the next one on val; that stays in the mean where it is not worse for it,
    and so on with each next one (greedy soup, Wortsman et al. 2022).
    """
    kept = [one for one in run.history if one.epoch and run.checkpoint(one.epoch).is_dir()]
    kept.sort(key=lambda one: (-score_to_choose_by(one), one.epoch))
    scores: dict[Point, ValScores] = {}
    mixed, best = [one.epoch for one in kept[:1]], score_to_choose_by(kept[0]) if kept else 0.0
    for entry in kept[1:]:
        point = Point(max(*mixed, entry.epoch), soup=tuple(sorted([*mixed, entry.epoch])))
        place = folder / run.soup_checkpoint(point.soup).name
        parts = read_parts([run.checkpoint(epoch) for epoch in point.soup])
        written = write_sum(parts, place)
        encoder = resolve(config.model.for_checkpoint(place), config.device).encoder
        shared.encode(encoder, place)
        scores[point] = found = score_on_val(encoder, data, config.rendering, store)
        replace(written, scores=found.by_split()).write(place)
        print(f"mean of epochs {soup_name(point.soup)}: val MRR@5  {found}", flush=True)
        if found.score >= best:
            mixed, best = list(point.soup), found.score
    return scores


def choose_point(
    run: RunFolder,
    data: TrainingData,
    config: RunConfig,
    more: Mapping[Point, ValScores] | None = None,
) -> tuple[Point, Choice]:
    """Choose among a run's epochs, the base and `more` (scales, soups), by `config.rule`.

    The default is the last epoch as trained, and distance is how much less, or more, of the way
    from the base a point went; a mean went as far as its epochs did on average. What is below the
    base on val is not taken.
    """
    entries, weighing = _candidates(run, config), data.weighing
    known = all(entry.claims.keys() >= set(weighing.claim_ids) for entry in entries.values())
    values = {
        Point(epoch): np.array([entry.claims[claim] for claim in weighing.claim_ids])
        if known
        else np.full(len(weighing.claim_ids), score_to_choose_by(entry))
        for epoch, entry in entries.items()
    }
    tables = {Point(epoch): entry.val for epoch, entry in entries.items()}
    for point, found in (more or {}).items():
        values[point] = np.array([found.claims[claim] for claim in weighing.claim_ids])
        tables[point] = found.table
    last = max(run.history[-1].epoch, 1)
    return choose(
        "checkpoint",
        values,
        weighing,
        settings=Point.settings,
        distance=lambda point: abs(1 - point.way(last)),
        rule=config.rule if known else "best",
        floor=Point(0) if Point(0) in values else None,
        tables=tables,
        trials=True,
        note="" if known else _OLDER,
    )


def _candidates(run: RunFolder, config: RunConfig) -> dict[int, Epoch]:
    """Map the epochs that may be chosen to their records: those whose checkpoint is kept."""
    last = run.history[-1].epoch
    return {
        entry.epoch: entry
        for entry in run.history
        if (config.choose == "best" or entry.epoch == last)
        and (entry.epoch == last or run.checkpoint(entry.epoch).is_dir())
    }
