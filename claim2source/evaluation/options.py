"""Define the options that every evaluation program has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from claim2source.core.config import Repeats, Seed, flag
from claim2source.core.report import Rule
from claim2source.data.lenient import LENIENT
from claim2source.data.wandb import Tracking
from claim2source.models.local import ModelOptions


@dataclass(frozen=True, kw_only=True)
class StoreOptions(ModelOptions):
    """Set the loading of data, the store of vectors and runs, and the device.

    Args:
        store: folder of the store of vectors and runs; none: the user's cache.
        device: none uses a GPU if there is one.
    """

    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None
    lenient: bool = flag(LENIENT)


@dataclass(frozen=True, kw_only=True)
class EvaluationOptions(StoreOptions):
    """Set the tests and the logging of systems.

    Args:
        repeats: draws of the bootstrap and permutations of the tests, both by gold paper.
        seed: seed of the bootstrap and the permutations.
        wandb: log the tables to Weights & Biases.
        submit: zip file for the lab's submission of the one system that is reported. It is checked
            and has five sources for each claim.
    """

    repeats: Repeats = 10_000
    seed: Seed = 0
    tests: bool = flag(
        "add intervals, paired tests and the papers' numbers to the report", default=True
    )
    wandb: Tracking = "off"
    submit: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ChoosingOptions(StoreOptions):
    """Set the rule of choices; these use the manifest's claims, else those of the split train.

    Args:
        rule: `one_se`: the setting nearest to the default within one standard error of the best, by
            paper; or the `best`.
    """

    rule: Rule = "one_se"
