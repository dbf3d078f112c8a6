"""Attach the stages of pipelines' files to checkpoints, scored beside their retrieval."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.core.report import NotRun
from claim2source.evaluation.families import Family
from claim2source.pipeline.evaluate import ScoredSystem, Scoring, unjudged
from claim2source.pipeline.evaluate_systems import Cell, form_of_failed, not_run_row
from claim2source.pipeline.results import RunSettings
from claim2source.pipeline.runner import SystemRunner
from claim2source.pipeline.staged import ScoredStages, read_pipeline, score_stages
from claim2source.pipeline.style_texts import STAGES
from claim2source.pipeline.systems import SystemConfig, Systems, on_checkpoint
from claim2source.pipeline.views import write_markdown


@dataclass(frozen=True)
class Pipeline:
    """Hold a pipeline's systems, `expanded`, and the name of the one to run."""

    name: str
    systems: Systems

    def on(
        self, checkpoint: str, routes: Mapping[str, str], dense: Callable[[str], SystemConfig]
    ) -> Systems:
        """Put a checkpoint in the place of the first stage's dense model, by `routes` others.

        `dense` describes how a model is read, the same for all that is said of a checkpoint.
        """
        found = on_checkpoint(self.systems, self.name, checkpoint, routes)
        read = {str(Path(path)): dense(path) for path in (checkpoint, *routes.values())}
        for name, system in found.items():
            if system.model is not None and (own := read.get(system.model.name)) is not None:
                found[name] = replace(
                    system, model=own.model, sources=own.sources, rendering=own.rendering
                )
        return found


def read_attached(key: str, stages: Sequence[str]) -> list[Pipeline]:
    """Read the pipelines' files among what is attached to checkpoints.

    Raises `ConfigError` for a file that is no pipeline, whose first stage has no dense model, or
    whose name another one has.
    """
    found: dict[str, Pipeline] = {}
    for file in stages:
        if file in STAGES:
            continue
        try:
            systems, name = read_pipeline(Path(file))
            on_checkpoint(systems, name, "")
        except UserError as error:
            why = str(error).splitlines()[0].removeprefix("config: ")
            if isinstance(error, ConfigError) and error.key == "checkpoint":
                why = error.allowed
            raise ConfigError(key, file, f"the file of a pipeline ({why})") from None
        if name in found:
            raise ConfigError(key, file, f"one pipeline of the name {name}")
        found[name] = Pipeline(name, systems)
    return list(found.values())


class AttachedRun:
    """Run and score pipelines over one checkpoint after another, on one split.

    `rows` are the stages by the names that the report of all checkpoints gives them, `notes` what
    is to be said of them, `not_run` the pipelines that could not run.
    """

    def __init__(
        self,
        pipelines: Sequence[Pipeline],
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
        dense: Callable[[str], SystemConfig],
    ) -> dict[str, ScoredSystem]:
        """Score every stage of each pipeline on a checkpoint, and return the rows.

        A pipeline's runs, report and page of claims lie in the folder `CHECKPOINT+PIPELINE`.
        """
        added: dict[str, ScoredSystem] = {}
        for pipeline in self.pipelines:
            whole = f"{checkpoint}+{pipeline.name}"
            systems = pipeline.on(path, routes, dense)
            runner = SystemRunner(systems, self.dataset, self.settings)
            try:
                stages = self._scored(runner, pipeline.name)
            except (UserError, MemoryError, RuntimeError) as error:
                # One pipeline's failure is not the checkpoint's.
                form = form_of_failed(runner, pipeline.name)
                row = not_run_row(Cell(pipeline.name, form), systems, error)
                self.not_run.append(replace(row, system=whole))
                continue
            stages.write(self.dataset, self.out / whole)
            write_markdown(self.out / whole, whole, stages.parts())
            added |= self._named(checkpoint, pipeline.name, stages)
        self.rows |= added
        return added

    def _scored(self, runner: SystemRunner, name: str) -> ScoredStages:
        return score_stages(
            runner.run(name),
            runner.systems,
            self.dataset,
            self.scoring.repeats,
            self.scoring.seed,
            name=self.settings.dataset,
            program=self.program,
            metrics=self.scoring.metrics,
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
