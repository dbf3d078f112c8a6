"""Attach the stages of pipelines' files to checkpoints, scored beside their retrieval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import NotRun
from claim2source.evaluation.families import Family
from claim2source.pipeline.evaluate import ScoredSystem, Scoring, unjudged
from claim2source.pipeline.evaluate_systems import Cell, form_of_failed, not_run_row
from claim2source.pipeline.staged import ScoredStages, read_pipeline, score_stages
from claim2source.pipeline.style_texts import STAGES
from claim2source.pipeline.views import write_markdown
from claim2source.systems.nodes import AnyNode, DenseNode, HybridNode, RouteNode
from claim2source.systems.system import RunSettings, System, SystemRunner


def on_checkpoint(
    system: System,
    checkpoint: str,
    routes: Mapping[str, str],
    dense: Callable[[str], DenseNode],
) -> System:
    """Put a checkpoint in the place of the first stage's dense model, by `routes` others.

    `dense` describes how a model is read, the same for all that is said of a checkpoint.
    """
    read = {str(Path(path)): dense(path) for path in (checkpoint, *routes.values())}

    def as_read(node: AnyNode) -> AnyNode:
        if isinstance(node, DenseNode) and (own := read.get(node.model.name)) is not None:
            return replace(
                node, model=own.model, sources_form=own.sources_form, rendering=own.rendering
            )
        if isinstance(node, HybridNode):
            return replace(node, sparse=as_read(node.sparse), dense=as_read(node.dense))
        if isinstance(node, RouteNode):
            parts = {lang: tuple(map(as_read, each)) for lang, each in node.routes.items()}
            return replace(node, routes=parts)
        return node

    found = system.on_checkpoint(checkpoint, routes)
    return replace(found, first=as_read(found.first))


def read_attached(key: str, stages: Sequence[str]) -> list[System]:
    """Read the pipelines' files among what is attached to checkpoints.

    Raises `ConfigError` for a file that is no pipeline, whose first stage has no dense model, or
    whose name another one has.
    """
    found: dict[str, System] = {}
    for file in stages:
        if file in STAGES:
            continue
        try:
            system = read_pipeline(Path(file))
            system.on_checkpoint("checkpoint")
        except UserError as error:
            why = str(error).splitlines()[0].removeprefix("config: ")
            if isinstance(error, ConfigError) and error.key == "checkpoint":
                why = error.allowed
            raise ConfigError(key, file, f"the file of a pipeline ({why})") from None
        if system.name in found:
            raise ConfigError(key, file, f"one pipeline of the name {system.name}")
        found[system.name] = system
    return list(found.values())


class AttachedRun:
    """Run and score pipelines over one checkpoint after another, on one split.

    `rows` are the stages by the names that the report of all checkpoints gives them, `notes` what
    is to be said of them, `not_run` the pipelines that could not run.
    """

    def __init__(
        self,
        pipelines: Sequence[System],
        dataset: Dataset,
        settings: RunSettings,
        scoring: Scoring | None = None,
        *,
        out: Path,
        program: str = "",
    ) -> None:
        self.pipelines, self.dataset, self.settings = pipelines, dataset, settings
        self.scoring = scoring or Scoring()
        self.out, self.program = out, program
        self.rows: dict[str, ScoredSystem] = {}
        self.notes: list[str] = []
        self.not_run: list[NotRun] = []
        self._pairs: dict[str, list[tuple[str, str]]] = {}
        self._last: dict[str, dict[str, str]] = {}

    def add(
        self,
        checkpoint: str,
        path: str,
        routes: Mapping[str, str],
        dense: Callable[[str], DenseNode],
    ) -> dict[str, ScoredSystem]:
        """Score every stage of each pipeline on a checkpoint, and return the rows.

        A pipeline's runs, report and page of claims lie in the folder `CHECKPOINT+PIPELINE`.
        """
        added: dict[str, ScoredSystem] = {}
        for pipeline in self.pipelines:
            whole = f"{checkpoint}+{pipeline.name}"
            system = on_checkpoint(pipeline, path, routes, dense)
            runner = SystemRunner(self.dataset, self.settings)
            try:
                stages = self._scored(runner, system)
            except (UserError, MemoryError, RuntimeError) as error:
                # One pipeline's failure is not the checkpoint's.
                form = form_of_failed(system, runner.runtime)
                row = not_run_row(Cell(pipeline.name, form), system, error)
                self.not_run.append(replace(row, system=whole))
                continue
            stages.write(self.dataset, self.out / whole)
            write_markdown(self.out / whole, whole, stages.parts())
            added |= self._named(checkpoint, pipeline.name, stages)
        self.rows |= added
        return added

    def _scored(self, runner: SystemRunner, system: System) -> ScoredStages:
        return score_stages(
            runner.run(system),
            system,
            self.dataset,
            self.scoring,
            name=self.settings.dataset,
            program=self.program,
        )

    def _named(
        self, checkpoint: str, pipeline: str, stages: ScoredStages
    ) -> dict[str, ScoredSystem]:
        """Name stages for the report of all checkpoints, and remember what is tested there."""
        whole = f"{checkpoint}+{pipeline}"
        names = {stage: f"{whole}: {stage}" for stage in stages.scored}
        known = {*self.dataset.notes, *unjudged(self.dataset)}
        said = [note for note in stages.report.notes if note not in known]
        self.notes += [f"{whole}: {note}" for note in said]
        # Simulated stages, and what follows them, are in none of these tests.
        tests = stages.report.tests[:1]
        pairs = [(c.system, c.baseline) for test in tests for c in test.comparisons]
        self._pairs.setdefault(pipeline, []).extend((names[a], names[b]) for a, b in pairs)
        if any(system == list(names)[-1] for system, _ in pairs):
            self._last.setdefault(pipeline, {})[checkpoint] = list(names.values())[-1]
        rows = {}
        for stage, one in stages.scored.items():
            name = names[stage]
            runs = f"{whole}/{one.report.runs}"
            report = replace(one.report, name=name, system=name, model=name, runs=runs)
            rows[name] = replace(one, report=report)
        return rows

    def families(self, before: str) -> list[Family]:
        """Declare the tests: stages against the one before, last stages against `before`'s."""
        found = []
        for name, pairs in self._pairs.items():
            last = dict(self._last.get(name, {}))
            zero = last.pop(before, None)
            if pairs:
                found.append(Family(f"Each stage against the one before, {name}", tuple(pairs)))
            if zero is not None and last:
                title = f"Every epoch against step 0, after {name}"
                found.append(Family.against(title, zero, last.values()))
        return found
