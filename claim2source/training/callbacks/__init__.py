"""Callbacks of a training, each in a file; `trainer.callbacks` in a config adds others."""

from claim2source.training.callbacks.evaluate import EvaluateEpoch, EvaluateOnVal
from claim2source.training.callbacks.gather_weights import GatherWeights
from claim2source.training.callbacks.keep_checkpoints import DropCheckpoints, KeepCheckpoints
from claim2source.training.callbacks.keep_state import KeepState
from claim2source.training.callbacks.progress import TrainingProgress
from claim2source.training.callbacks.remine import Remine
from claim2source.training.callbacks.throughput import Throughput
from claim2source.training.callbacks.wandb_tables import WandbTables

__all__ = [
    "DropCheckpoints",
    "EvaluateEpoch",
    "EvaluateOnVal",
    "GatherWeights",
    "KeepCheckpoints",
    "KeepState",
    "Remine",
    "Throughput",
    "TrainingProgress",
    "WandbTables",
]
