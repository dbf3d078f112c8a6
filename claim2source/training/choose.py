"""Choose the checkpoint that a run stands for: an epoch and, where asked, a scale."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from claim2source.core.files import atomic_folder
from claim2source.core.report import Table, Trial
from claim2source.io.store import Store
from claim2source.pipeline.evaluate import evaluate_encoder
from claim2source.pipeline.selection import choose, score_of
from claim2source.training.config import FinetuneConfig
from claim2source.training.export.scaling import ScaledCheckpoint
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData


@dataclass(frozen=True)
class ChosenCheckpoint:
    """Name a checkpoint's folder, its epoch, and its scale between base and trained weights.

    `tried` holds every scale that was scored on val.
    """

    folder: Path
    epoch: int
    scale: float = 1.0
    tried: tuple[Trial, ...] = ()


def choose_checkpoint(
    run: RunFolder, data: TrainingData, config: FinetuneConfig, store: Store
) -> ChosenCheckpoint:
    """Choose the epoch that is best on val, or the last, and the best of `config.scales` of it.

    Scales other than 1 lie between the base and the epoch (LoRA: W + scale * delta; full: as
    WiSE-FT); the one that wins is written as a checkpoint beside the epochs. Of equal scores
    the epoch as it was trained wins.
    """
    epoch = run.best_epoch() if config.choose == "best" else run.history[-1].epoch
    folder = run.checkpoint(epoch)
    scales = [float(scale) for scale in config.scales or () if scale != 1]
    if epoch == 0 or not scales:
        return ChosenCheckpoint(folder, epoch)
    trained = next(entry.val for entry in run.history if entry.epoch == epoch)
    tried: dict[float, Table] = {1.0: trained}
    scaled = ScaledCheckpoint(folder, config.device, model=config.model.for_checkpoint(folder))
    for scale in scales:
        scaled.set(scale)
        report = evaluate_encoder(
            scaled.encoder, data.val, config.rendering, store=store, progress=True
        )
        tried[scale] = report.table
        score = score_of(report.table)
        print(f"epoch {epoch} at scale {scale:g}: val MRR@5 {score:.4f}", flush=True)
    best, choice = choose(
        "scale", tried, data.val, settings=lambda scale: {"scale": scale}, trials=True
    )
    if best == 1:
        return ChosenCheckpoint(folder, epoch, 1.0, choice.tried)
    folder = run.scaled_checkpoint(epoch, best)
    with atomic_folder(folder) as temporary:
        scaled.save_checkpoint(temporary, best, {"val": tried[best]})
    return ChosenCheckpoint(folder, epoch, best, choice.tried)
