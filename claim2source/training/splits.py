"""The splits of a training run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.datasets import carve_val, load
from claim2source.training.checks import check_data
from claim2source.training.config import FinetuneConfig
from claim2source.training.teacher import read_teacher


@dataclass(frozen=True)
class TrainingData:
    """The splits of a run: what is trained on, selected on, reported on.

    `teacher` holds a teacher's scores where one teaches: claim id -> source id -> score.
    """

    train: Dataset
    val: Dataset
    report: Dataset
    teacher: Mapping[str, Mapping[str, float]] | None = None


def load_data(config: FinetuneConfig) -> TrainingData:
    """Load the splits, carve val out of train, and read the teacher's scores.

    Raises `ConfigError` where a loss asks for what the claims do not have, `InputError` for a
    teacher's run or mined negatives that do not fit them.
    """
    data, languages = config.data, config.languages
    whole = load(data.dataset, data.train_split, languages)
    train, val = carve_val(whole, data.val_share, data.val_seed)
    check_data(config, train)
    report = load(data.dataset, data.report_split, languages)
    if not report.golds:
        raise UserError(f"{data.dataset}: split {data.report_split!r} has no golds to report on")
    distillation, teacher = config.losses.distillation, None
    if distillation.weight and distillation.scores is not None:
        teacher = read_teacher(distillation.scores, train)
    return TrainingData(train, val, report, teacher)
