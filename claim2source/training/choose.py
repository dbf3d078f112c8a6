"""The end of a run: which checkpoint it stands for, chosen on val if at all."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claim2source.core.files import atomic_folder
from claim2source.evaluation.retrieval import evaluate_dense, mean_of
from claim2source.io.store import Store
from claim2source.training.config import FinetuneConfig
from claim2source.training.export.scaling import ScaledCheckpoint
from claim2source.training.run_folder import RunFolder
from claim2source.training.splits import TrainingData


@dataclass(frozen=True)
class Choice:
    """A checkpoint's folder, its epoch, how far it lies from the base to what was trained.

    `tried` holds {"scale", "val"} of every scale that was scored.
    """

    folder: Path
    epoch: int
    scale: float = 1.0
    tried: list[dict[str, Any]] = field(default_factory=list)


def choose(run: RunFolder, data: TrainingData, config: FinetuneConfig, store: Store) -> Choice:
    """The epoch that is best on val, or the last one, and of it the best of `config.scales`.

    Scales other than 1 lie between the base and the epoch (LoRA: W + scale * delta; full: as
    WiSE-FT); the one that wins is written as a checkpoint beside the epochs. Of equal scores
    the epoch as it was trained wins.
    """
    epoch = run.best_epoch() if config.choose == "best" else run.history[-1].epoch
    folder = run.checkpoint(epoch)
    scales = [float(scale) for scale in config.scales or () if scale != 1]
    if epoch == 0 or not scales:
        return Choice(folder, epoch)
    trained = next(entry.val for entry in run.history if entry.epoch == epoch)
    tried: list[dict[str, Any]] = [{"scale": 1.0, "val": trained}]
    scaled = ScaledCheckpoint(folder, config.device, model=config.model.for_checkpoint(folder))
    for scale in scales:
        scaled.set(scale)
        evaluation = evaluate_dense(
            scaled.encoder, data.val, config.rendering, store=store, progress=True
        )
        found = evaluation.flat()
        tried.append({"scale": scale, "val": found})
        print(f"epoch {epoch} at scale {scale:g}: val MRR@5 {mean_of(found):.4f}", flush=True)
    best = max(tried, key=lambda entry: mean_of(entry["val"]))
    if best["scale"] == 1:
        return Choice(folder, epoch, 1.0, tried)
    folder = run.scaled_checkpoint(epoch, best["scale"])
    with atomic_folder(folder) as temporary:
        scaled.save_checkpoint(temporary, best["scale"], {"val": best["val"]})
    return Choice(folder, epoch, best["scale"], tried)
