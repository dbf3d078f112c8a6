"""Estimate the requests, tokens and hours of stages that call a language model.

python scripts/plan.py --systems FILE --dataset demo --llm FILE

The program runs the systems on ten claims of the split (`--claims N`), which are drawn at random.
It measures their requests, tokens and time, and scales these to all claims of the split. Answers
are kept in the store, so the run itself reuses them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from claim2source.core.config import Between, list_field, read_config, require
from claim2source.core.errors import UserError
from claim2source.core.report import Report, StageReport
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.evaluation.table import evaluate_systems
from claim2source.llm.config import LLMConfig
from claim2source.models.local import ModelOptions, with_local_models
from claim2source.systems.read import read_systems, shipped_files
from claim2source.systems.system import RunSettings

_COLUMNS = (
    "stage",
    "model",
    "requests",
    "thousand tokens",
    "hours",
)


@dataclass(frozen=True, kw_only=True)
class StagePlanConfig(ModelOptions):
    """Settings of a plan for stages.

    Args:
        dataset: folder in BEIR layout, or its name in CLAIM2SOURCE_DATA, or `demo`; or a file of
            pairs.
        split: split of the planned run.
        llm: language model of stages that name none.
        claims: number of claims to measure on.
        store: folder of vectors and answers; none: the user's cache.
        device: none takes a GPU if there is one.
    """

    systems: list[Path] = list_field((), help="YAML files of systems")
    only: list[str] = list_field((), help="run only these systems")
    dataset: str = "demo"
    split: str = "dev"
    llm: LLMConfig = field(default_factory=LLMConfig)
    claims: Annotated[int, Between(1, 1000)] = 10
    store: Path | None = None
    device: Literal["cpu", "cuda"] | None = None


def main(argv: Sequence[str] | None = None) -> None:
    """Print the plan."""
    config = read_config(
        StagePlanConfig,
        argv,
        program="scripts/plan.py",
        description=__doc__,
    )
    plan = plan_stages(config)
    say(plan)


@with_local_models
def plan_stages(config: StagePlanConfig) -> str:
    """Run systems on a few claims, and scale the requests of their stages. Raises `UserError`."""
    systems = read_systems(config.systems, shipped_files(), config.llm)
    unknown = [name for name in config.only if name not in systems]
    names = ", ".join(systems)
    require(not unknown, "only", unknown, f"some of {names}")
    if config.only:
        systems = {name: systems[name] for name in config.only}

    dataset = load(config.dataset, config.split)
    total = len(dataset.claims)
    count = min(config.claims, total)
    drawn = random.Random(0).sample(range(total), count)
    some = dataset.with_claims(dataset.claims[number] for number in sorted(drawn))
    settings = RunSettings(
        config.dataset,
        store=Store(config.store),
        device=config.device,
    )
    report = evaluate_systems(systems, some, settings=settings, repeats=0)
    for failed in report.not_run:
        raise UserError(f"{failed.system} did not run: {failed.reason}")
    parts = _parts(report, count, total)
    return render(parts)


def _parts(report: Report, measured: int, claims: int) -> list[Part]:
    scale = claims / measured
    rows: list[list[Cell]] = []
    hours = 0.0
    known = True
    for name, system in report.systems.items():
        for stage in system.stages:
            asked = _asked(stage)
            if not asked:
                continue
            replies = sum(asked.values())
            thousand_tokens = stage.cost.tokens * scale / 1000
            own = _hours(stage, replies, scale)
            known &= own is not None
            hours += own or 0.0
            rows.append(
                [
                    f"{name}: {stage.name}",
                    ", ".join(asked),
                    f"{replies * scale:,.0f}",
                    f"{thousand_tokens:,.1f}",
                    None if own is None else f"{own:,.2f}",
                ]
            )
    if not rows:
        return ["No stage calls a language model."]

    total = f"{hours:,.2f} hours" if known else "hours are not known"
    note = f"{claims} claims: {total}, at the rate of the {measured} that ran here."
    if not known:
        note += (
            " A stage without hours had all answers in the store: name another --store to time it."
        )
    numeric = [False, False, True, True, True]
    table = TextTable(_COLUMNS, rows, numeric=numeric)
    return [table, note]


def _asked(stage: StageReport) -> Mapping[str, int]:
    """Count a stage's replies by model; a stage may ask two."""
    asked: dict[str, int] = {}
    for value in stage.settings.values():
        if isinstance(value, Mapping) and "replies" in value:
            values: Mapping[str, Any] = value
            model = str(values["model"])
            before = asked.get(model, 0)
            asked[model] = before + int(values["replies"])
    return asked


def _hours(stage: StageReport, replies: int, scale: float) -> float | None:
    """Scale a stage's time, excluding stored answers; None if all were stored."""
    fresh = replies - stage.cost.reused
    if fresh <= 0:
        return None
    seconds = stage.cost.seconds / fresh * replies * scale
    return seconds / 3600
