"""Score on val, and choose the checkpoint that a run stands for: an epoch, a scale, the base."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from claim2source.core.files import atomic_folder
from claim2source.core.report import Choice, Epoch, Intervals, Table, Trial
from claim2source.io.store import Store
from claim2source.models import Encoder
from claim2source.pipeline.choosing import SEEN, UNSEEN, choose
from claim2source.pipeline.evaluate import METRICS, Scoring, score_encoder
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig
from claim2source.training.export.scaling import ScaledCheckpoint
from claim2source.training.run_folder import RunFolder, score_to_choose_by
from claim2source.training.splits import TrainingData

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
    """Name what a run may stand for: an epoch (0: the base), at a scale from the base (0)."""

    epoch: int
    scale: float = 1.0


@dataclass(frozen=True)
class ChosenCheckpoint:
    """Name a checkpoint's folder, its epoch, and its scale between base and trained weights.

    `tried` holds every scale of `scaled_epoch` that was scored on val.
    """

    folder: Path
    epoch: int
    scale: float
    tried: tuple[Trial, ...]
    scaled_epoch: int | None
    choice: Choice


def choose_checkpoint(
    run: RunFolder, data: TrainingData, config: FinetuneConfig, store: Store
) -> ChosenCheckpoint:
    """Choose among the base, the trained epochs, and `config.scales` of the best trained epoch.

    Scales other than 1 lie between the base and the epoch (LoRA: W + scale * delta; full: as
    WiSE-FT); the one that wins is written as a checkpoint beside the epochs. With `choose: last`
    there are the last epoch and its scales.
    """
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
            point = Point(best, scale)
            scores[point] = score_on_val(scaled.encoder, data, config.rendering, store)
            print(f"epoch {best} at scale {scale:g}: val MRR@5  {scores[point]}", flush=True)
    chosen, choice = choose_point(run, data, config, scores)
    tried = tuple(
        replace(trial, settings={"scale": trial.settings["scale"]})
        for trial in choice.tried
        if trial.settings["epoch"] == best and scaled is not None
    )
    folder = run.checkpoint(chosen.epoch)
    if scaled is not None and chosen in scores:
        folder = run.scaled_checkpoint(*chosen)
        with atomic_folder(folder) as temporary:
            scaled.save_checkpoint(temporary, chosen.scale, scores[chosen].by_split())
    of_epoch = None if scaled is None else best
    return ChosenCheckpoint(
        folder, chosen.epoch, chosen.scale, tried, of_epoch, replace(choice, tried=())
    )


def choose_point(
    run: RunFolder,
    data: TrainingData,
    config: FinetuneConfig,
    scaled: Mapping[Point, ValScores] | None = None,
) -> tuple[Point, Choice]:
    """Choose among a run's epochs, the base and what was `scaled`, by `config.rule`.

    The default is the last epoch as trained, and distance is how much less, or more, of the way
    from the base a point went. What is below the base on val is not taken.
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
    for point, found in (scaled or {}).items():
        values[point] = np.array([found.claims[claim] for claim in weighing.claim_ids])
        tables[point] = found.table
    last = max(run.history[-1].epoch, 1)
    return choose(
        "checkpoint",
        values,
        weighing,
        settings=Point._asdict,
        distance=lambda point: abs(1 - point.epoch / last * point.scale),
        rule=config.rule if known else "best",
        floor=Point(0) if Point(0) in values else None,
        tables=tables,
        trials=True,
        note="" if known else _OLDER,
    )


def _candidates(run: RunFolder, config: FinetuneConfig) -> dict[int, Epoch]:
    """Map the epochs that may be chosen to their records: those whose checkpoint is kept."""
    last = run.history[-1].epoch
    return {
        entry.epoch: entry
        for entry in run.history
        if (config.choose == "best" or entry.epoch == last)
        and (entry.epoch == last or run.checkpoint(entry.epoch).is_dir())
    }
