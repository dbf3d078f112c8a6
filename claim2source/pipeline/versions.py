"""Score each version of a stage that asks several times, for the mean and the spread of all."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from claim2source.core.records import Dataset
from claim2source.core.report import MACRO
from claim2source.core.stage import Stage
from claim2source.core.tables import Cell, TextTable
from claim2source.metrics.metrics import macro, score_languages
from claim2source.pipeline.evaluate import METRICS
from claim2source.stages.facts import VersionedScores
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import apply_stage, is_answered
from claim2source.systems.system import StageResult, System
from claim2source.systems.when import Conditional

METRIC = "mrr@5"
# Stage -> language -> the score of each version.
VersionScores = Mapping[str, Mapping[str, Sequence[float]]]


def each_version(stage: Stage) -> Iterator[Stage]:
    """Yield the stages that rank by one version alone; none where there is one only."""
    if isinstance(stage, Conditional):
        yield from (replace(stage, stage=version) for version in each_version(stage.stage))
    elif isinstance(stage, VersionedScores):
        yield from stage.each_version()


def score_versions(
    system: System,
    names: Sequence[str],
    results: Sequence[StageResult],
    data: Dataset,
    runtime: SystemRuntime,
) -> VersionScores:
    """Score each version of every stage that has several, by language and macro.

    `results` are those of the first stage and of the stages, which have `names`. Nothing is asked
    again: answers are in the store. Without one nothing is scored, nor where some were not
    answered.
    """
    judged = data.with_claims(claim for claim in data.claims if claim.golds)
    if runtime.store is None or not judged.claims:
        return {}
    found: dict[str, dict[str, list[float]]] = {}
    for place, (name, (_, stage)) in enumerate(zip(names, system.loaded_stages(), strict=True)):
        if not is_answered(results[place + 1].result):
            continue
        for version in each_version(stage):
            result = apply_stage(
                version,
                data.claims,
                data.sources,
                results[place].result,
                runtime.store,
                device=runtime.device,
                progress=runtime.progress,
                earlier=results[place - 1].result.run if place else None,
            )
            languages = score_languages(result.run, judged.claims, judged.qrels, METRICS)
            for language, row in {**languages, MACRO: macro(languages)}.items():
                found.setdefault(name, {}).setdefault(language, []).append(row[METRIC])
    return found


def versions_table(scores: VersionScores) -> TextTable:
    """Tabulate mean, standard deviation (of a sample) and each version."""
    most = max(len(each) for table in scores.values() for each in table.values())
    numbers = [f"version {number + 1}" for number in range(most)]
    rows: list[list[Cell]] = [
        [
            stage,
            language,
            statistics.mean(each),
            statistics.stdev(each),
            *each,
            *[None] * (most - len(each)),
        ]
        for stage, table in scores.items()
        for language, each in table.items()
    ]
    return TextTable(["stage", "language", f"mean {METRIC}", "SD", *numbers], rows)
