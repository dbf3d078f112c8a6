"""The splits of a training run."""

from __future__ import annotations

from dataclasses import dataclass

from claim2source.datasets import carve_val, load
from claim2source.errors import UserError
from claim2source.records import Dataset
from claim2source.training.checks import check_data
from claim2source.training.config import FinetuneConfig


@dataclass(frozen=True)
class TrainingData:
    """The splits of a run: what is trained on, selected on, reported on."""

    train: Dataset
    val: Dataset
    report: Dataset


def load_data(config: FinetuneConfig) -> TrainingData:
    """Load the splits and carve val out of train.

    Raises `ConfigError` where a loss asks for what the claims do not have.
    """
    data, languages = config.data, config.languages
    whole = load(data.dataset, data.train_split, languages)
    train, val = carve_val(whole, data.val_share, data.val_seed)
    check_data(config, train)
    report = load(data.dataset, data.report_split, languages)
    if not report.golds:
        raise UserError(f"{data.dataset}: split {data.report_split!r} has no golds to report on")
    return TrainingData(train, val, report)
