"""Hold how systems are run, and what they gave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from claim2source.core.report import Choice
from claim2source.core.run import Cost, Result
from claim2source.io.store import Store
from claim2source.pipeline.selection import ChoosingOn
from claim2source.text import ClaimForm

DEPTH = 100


@dataclass(frozen=True)
class RunSettings:
    """Say how systems are run.

    `dataset` is the folder that further splits are loaded from; `models` a folder of models by
    the last part of their name; `rewrites` a text appended to each claim; `depth` the sources
    kept per claim.
    """

    dataset: str = ""
    choosing: ChoosingOn = ChoosingOn()
    rewrites: Mapping[str, str] = field(default_factory=dict)
    models: Path | None = None
    store: Store | None = None
    device: str | None = None
    depth: int = DEPTH
    progress: bool = True


@dataclass(frozen=True)
class StageResult:
    """Hold what one stage of a system gave."""

    name: str
    result: Result


@dataclass(frozen=True)
class SystemResult:
    """Hold what a system gave for one claim form: a result for each stage, the last its own.

    `cost` is that of all stages; `parameters` counts the weights of its dense model,
    `untrained_base` names the base of a checkpoint that nothing was trained of (step 0).
    """

    system: str
    form: ClaimForm
    sources: str
    stages: tuple[StageResult, ...]
    cost: Cost
    choices: tuple[Choice, ...] = ()
    parameters: int | None = None
    untrained_base: str | None = None

    @property
    def result(self) -> Result:
        """Return the last stage's result."""
        return self.stages[-1].result
