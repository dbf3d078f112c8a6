"""Compute the training losses, one file each; `combined` adds them by weight."""

from claim2source.training.losses.alignment import AlignmentConfig, alignment
from claim2source.training.losses.combined import LossesConfig, LossInputs, LossTargets, combined
from claim2source.training.losses.consistency import ConsistencyConfig, consistency
from claim2source.training.losses.distillation import DistillationConfig, distillation, taught
from claim2source.training.losses.info_nce import InfoNCEConfig, info_nce
from claim2source.training.losses.keep_base import KeepBaseConfig, keep_base
from claim2source.training.losses.matryoshka import MatryoshkaConfig, shortened

__all__ = [
    "AlignmentConfig",
    "ConsistencyConfig",
    "DistillationConfig",
    "InfoNCEConfig",
    "KeepBaseConfig",
    "LossInputs",
    "LossTargets",
    "LossesConfig",
    "MatryoshkaConfig",
    "alignment",
    "combined",
    "consistency",
    "distillation",
    "info_nce",
    "keep_base",
    "shortened",
    "taught",
]
