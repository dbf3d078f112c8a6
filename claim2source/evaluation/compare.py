"""Compare systems over the same claims: scores, intervals, ranks, paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from claim2source.core.arguments import require_kind, whole_number
from claim2source.core.config import require
from claim2source.core.costs import cost_cells, cost_columns
from claim2source.core.errors import ConfigError, UserError
from claim2source.core.files import finite
from claim2source.core.records import DATASET_WANTED, Dataset, sorted_languages
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    FamilyResult,
    SystemReport,
)
from claim2source.core.run import Run
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import listed, one_line
from claim2source.data.grouping import gold_groups
from claim2source.data.loading import load
from claim2source.evaluation.rankings import Ranking, read_ranking
from claim2source.evaluation.ranks import first_ranks
from claim2source.evaluation.reports import (
    LoadedSystem,
    ReportConfig,
    common_data,
    common_languages,
    judged_run,
    read_reports,
)
from claim2source.metrics.families import Family, compare_families, tests_parts
from claim2source.metrics.metrics import (
    Scores,
    coverage,
    depth_notes,
    evaluate,
    judged_claims,
    language_masks,
    language_strata,
    missing_notes,
)
from claim2source.metrics.significance import bootstrap_intervals, claim_weights

MICRO = "micro"
ROUNDING = 1e-12


def sharing_highest(scores: Mapping[str, float]) -> list[str]:
    """List the systems that share the highest score, up to rounding, in their order."""
    if not scores:
        return []
    highest = max(scores.values())
    return [name for name, score in scores.items() if highest - score <= ROUNDING]


def highest_notes(metric: str, scores: Mapping[str, float]) -> list[str]:
    """Note the systems that share the highest score; nothing if there is only one."""
    sharing = sharing_highest(scores)
    if len(sharing) < 2:
        return []
    return [f"{listed(sharing, 8)} share the highest {metric}: {scores[sharing[0]]:.4f}."]


class Interval(NamedTuple):
    """Mean with its 95 % interval by gold paper."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class ScoredRuns:
    """Several systems over one data set, scored on the same claims.

    Without `runs` there are no ranks and no notes: the scores may be means of several runs.
    """

    dataset: Dataset
    metric: str
    baseline: str
    runs: Mapping[str, Run]
    scores: Mapping[str, Scores]

    def __repr__(self) -> str:
        return one_line(self, metric=self.metric, baseline=self.baseline, runs=tuple(self.runs))

    @classmethod
    def of(
        cls,
        runs: Mapping[str, Run],
        dataset: Dataset,
        metric: str = MAIN_METRIC,
        baseline: str | None = None,
        more_metrics: Sequence[str] = (),
    ) -> ScoredRuns:
        """Score every run; the baseline defaults to the first system.

        Raises `ConfigError` on an unknown metric or baseline, `UserError` if no claim has a
        gold.
        """
        first = next(iter(runs)) if baseline is None else baseline
        if first not in runs:
            raise ConfigError("baseline", baseline, f"one of the systems: {', '.join(runs)}")
        metrics = list(dict.fromkeys([metric, *more_metrics]))
        claims = judged_claims(dataset.qrels)
        scores = {}
        for name, run in runs.items():
            scores[name] = evaluate(run, dataset.qrels, metrics, claims)
        return cls(dataset, metric, first, runs, scores)

    @property
    def claim_ids(self) -> tuple[str, ...]:
        return self.scores[self.baseline].claim_ids

    @property
    def values(self) -> dict[str, np.ndarray]:
        """Map every system to its scores by claim, [claims]."""
        return {name: scores[self.metric] for name, scores in self.scores.items()}

    @property
    def macro(self) -> dict[str, float]:
        """Map every system to its mean over languages."""
        strata = language_strata(self.dataset.claims, self.claim_ids)
        weights = claim_weights(strata, len(strata))
        return {name: float(values @ weights) for name, values in self.values.items()}

    def bounds(self, repeats: int, seed: int) -> dict[str, dict[str, Interval]]:
        """Bound every system's mean: `macro`, each language and `micro` -> system -> bound.

        With a single language, there are only `macro` and that language.
        """
        values = np.stack([*self.values.values()])
        groups = gold_groups(self.dataset.qrels, self.claim_ids)
        strata = language_strata(self.dataset.claims, self.claim_ids)
        masks = language_masks(self.dataset.claims, self.claim_ids)
        everything = np.ones(len(strata), dtype=bool)
        parts: dict[str, tuple[np.ndarray, np.ndarray | None]] = {MACRO: (everything, strata)}
        for language, mask in masks.items():
            parts[language] = mask, None
        if len(masks) > 1:
            parts[MICRO] = everything, None
        bounds: dict[str, dict[str, Interval]] = {}
        for part, (mask, by) in parts.items():
            own = values[:, mask]
            limits = bootstrap_intervals(own, groups[mask], by, repeats, seed).tolist()
            # Not by `claim_weights`: these must equal the reports' numbers to the last digit.
            averaged = [mask] if by is None else [*masks.values()]
            means = np.mean([values[:, stratum].mean(axis=1) for stratum in averaged], axis=0)
            bounds[part] = {}
            for name, mean, (low, high) in zip(self.scores, means.tolist(), limits, strict=True):
                bounds[part][name] = Interval(mean, low, high)
        return bounds

    @cached_property
    def ranks(self) -> dict[str, np.ndarray]:
        """Map every system to the rank of each claim's first gold, [claims], inf if absent."""
        return {
            name: first_ranks(run, self.dataset.qrels, self.claim_ids)[1]
            for name, run in self.runs.items()
        }

    @property
    def notes(self) -> list[str]:
        """Note a highest score that is shared, lists that lack claims, and those that are short."""
        # Judgements alone do not know their sources.
        deep = depth_notes(self.runs, [self.metric], len(self.dataset.sources) or None)
        shared = highest_notes(f"{self.metric} ({MACRO})", self.macro)
        return [*shared, *missing_notes(self.runs, self.dataset.qrels), *deep]

    def tests(
        self,
        *,
        micro: bool = False,
        alpha: float = 0.05,
        repeats: int = 10_000,
        seed: int = 0,
    ) -> list[FamilyResult]:
        """Test all others against the baseline by `compare_families`; [] for one system."""
        systems = []
        for name in self.scores:
            if name != self.baseline:
                systems.append(name)
        if not systems:
            return []
        return compare_families(
            self.values,
            [Family.against(f"All against {self.baseline}", self.baseline, systems)],
            self.dataset,
            self.claim_ids,
            micro=micro,
            alpha=alpha,
            repeats=repeats,
            seed=seed,
        )


def read_scored(
    config: ReportConfig, more_metrics: Sequence[str] = ()
) -> tuple[str, dict[str, LoadedSystem], ScoredRuns]:
    """Read reports' systems and score their runs; return the data set's folder, systems, scores.

    Simulated systems are left out. So are the cells of a style grid if their system is in the same
    report. The data set, split and languages default to those that all reports name. Raises
    `UserError` if the reports differ, have no scores, or have runs of other claims.
    """
    loaded = []
    for system in read_reports(config.reports):
        if not system.report.simulated:
            loaded.append(system)
    names = set()
    for system in loaded:
        names.add((system.report_folder, system.report.name))
    systems = {}
    for system in loaded:
        if (
            system.report.style == "S0C0"
            or (system.report_folder, system.report.name.rpartition(".")[0]) not in names
        ):
            systems[system.name] = system
    if not systems:
        raise UserError("reports: no system has scores, or all systems are simulated")
    folder, split = common_data([*systems.values()], config.dataset, config.split)
    languages = config.languages or common_languages([*systems.values()])
    data = load(folder, split, languages, lenient=config.lenient)
    if config.against is not None and config.against not in systems:
        allowed = f"a system of the reports: {', '.join(systems)}"
        raise ConfigError("against", config.against, allowed)
    runs = {}
    for name, system in systems.items():
        runs[name] = judged_run(system, data)
    # Languages without a gold are ranked but not compared.
    judged = data.with_claims(claim for claim in data.claims if claim.golds)
    scored = ScoredRuns.of(runs, judged, config.metric, config.against, more_metrics)
    return folder, systems, scored


@dataclass(frozen=True)
class Leaderboard:
    """Systems of reports with their bounds, and their tests against the baseline."""

    folder: str
    systems: Mapping[str, LoadedSystem]
    scored: ScoredRuns
    bounds: Mapping[str, Mapping[str, Interval]]
    results: Sequence[FamilyResult]

    @classmethod
    def read(cls, config: ReportConfig) -> Leaderboard:
        """Read, score and test the systems of reports; raise `UserError` as `read_scored` does."""
        repeats = config.repeats
        seed = config.seed
        folder, systems, scored = read_scored(config)
        tests = scored.tests(micro=True, alpha=config.alpha, repeats=repeats, seed=seed)
        return cls(folder, systems, scored, scored.bounds(repeats, seed), tests)

    @property
    def title(self) -> str:
        return f"{self.folder}, {self.scored.dataset.split}: {self.scored.metric}"

    def tables(self) -> tuple[TextTable, TextTable]:
        """Tabulate the systems by their macro average, then their costs.

        Only the first family of tests is shown. A column has the checkpoints' scores on val if a
        report has them.
        """
        scored = self.scored
        languages = scored.dataset.languages
        on_val = {
            name: _val_score(system.report, scored.metric) for name, system in self.systems.items()
        }
        val = ["val"] if any(score is not None for score in on_val.values()) else []
        pairs = {pair.system: pair for pair in self.results[0].comparisons} if self.results else {}
        against = [f"- {scored.baseline}", "p (Holm)", "verdict"] if pairs else []
        columns = ["#", "system", *languages, MACRO, "95 %", *val, *against]
        rows: list[list[Cell]] = []
        costs: list[list[Cell]] = []
        cost_names = cost_columns(system.report.cost for system in self.systems.values())
        order = sorted(self.systems, key=lambda name: -self.bounds[MACRO][name].value)
        for rank, name in enumerate(order, start=1):
            system = self.systems[name].report
            pair = pairs.get(name)
            overall = self.bounds[MACRO][name]
            tested: list[Cell] = [None, None, "baseline"]
            if pair is not None:
                tested = [pair.difference, pair.p_holm, pair.verdict]
            means = []
            for language in languages:
                means.append(self.bounds[language][name].value)
            row: list[Cell] = [rank, name, *means, overall.value]
            row.append(f"{overall.low:.4f} to {overall.high:.4f}")
            rows.append([*row, *([on_val[name]] if val else []), *(tested if pairs else [])])
            ranked = f"{np.isfinite(scored.ranks[name]).sum()}/{len(scored.claim_ids)}"
            cells = cost_cells(system.cost, cost_names)
            costs.append([rank, name, system.model, system.claims, ranked, *cells])
        head = ["#", "system", "model", "claims", "golds found", *cost_names]
        return TextTable(columns, rows), TextTable(head, costs)

    def markdown(self) -> str:
        tests = tests_parts(self.results, self.scored.metric)
        parts: list[Part] = [self.title, *self.tables(), *self.scored.notes, *tests]
        return f"# Comparison\n\n{render(parts, 'markdown')}"

    def text(self, rest: str) -> str:
        """Write the scores with the first family's tests; `rest` says where the others are."""
        board, _ = self.tables()
        short = {f"- {self.scored.baseline}": "difference", "p (Holm)": "p"}
        board = board._replace(columns=[short.get(name, name) for name in board.columns])
        last = f"costs, and every test by language: {rest}"
        return render([self.title, board, *self.scored.notes, last])

    def as_json(self) -> object:
        scores: dict[str, dict[str, dict[str, float]]] = {}
        for part, bars in self.bounds.items():
            scores[part] = {name: interval._asdict() for name, interval in bars.items()}
        record = {
            "dataset": self.folder,
            "split": self.scored.dataset.split,
            "metric": self.scored.metric,
            "baseline": self.scored.baseline,
            "scores": scores,
            "tests": [asdict(result) for result in self.results],
        }
        return finite(record)


def _val_score(system: SystemReport, metric: str) -> float | None:
    table = system.val.get("val", {}) if metric == MAIN_METRIC else {}
    return table.get(MACRO, {}).get(metric)


@dataclass(frozen=True)
class ComparisonReport:
    """Systems side by side: scores with 95 % intervals, and tests against the baseline.

    `scores` and `intervals` are by system, then by language and `macro`. Printed, it is a text of
    tables; in a notebook, HTML.
    """

    metric: str
    baseline: str
    scores: Mapping[str, Mapping[str, float]]
    intervals: Mapping[str, Mapping[str, tuple[float, float]]]
    tests: tuple[FamilyResult, ...]
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        macro = {}
        for name, row in self.scores.items():
            macro[name] = row[MACRO]
        return one_line(self, metric=self.metric, baseline=self.baseline, macro=macro)

    def parts(self) -> list[Part]:
        languages = [*sorted_languages(set(self.scores[self.baseline]) - {MACRO}), MACRO]
        rows: list[list[Cell]] = []
        for name in self.scores:
            rows.append([name, *(self._cell(name, lang) for lang in languages)])
        table = TextTable(["system", *languages], rows, numeric=[False, *[True] * len(languages)])
        head = f"{self.metric} with 95 % intervals by gold paper"
        return [head, table, *self.notes, *tests_parts(self.tests, self.metric)]

    def _cell(self, system: str, language: str) -> str:
        low, high = self.intervals[system][language]
        return f"{self.scores[system][language]:.4f} [{low:.4f}, {high:.4f}]"

    def __str__(self) -> str:
        return render(self.parts())

    def _repr_html_(self) -> str:
        return render(self.parts(), "html")


def compare(
    results: Mapping[str, Ranking],
    dataset: Dataset,
    metric: str = MAIN_METRIC,
    baseline: str | None = None,
    repeats: int = 10_000,
    seed: int = 0,
) -> ComparisonReport:
    """Compare systems by intervals and paired tests against a baseline, by default the first.

    A value is a ranking as `evaluate` accepts it: a result, a file, scores, a frame, a model. Holm
    corrects the tests over the family "All against BASELINE": on the macro average, then in
    each language. Raises `UserError` on runs of other claims, `ConfigError` on an unknown metric
    or baseline.

    Example:
        >>> import claim2source as c2s
        >>> dev = c2s.load("demo", "dev")
        >>> runs = {
        ...     "stems": c2s.BM25().index(dev.sources).search(dev.claims),
        ...     "words": c2s.BM25(stemmer=False).index(dev.sources).search(dev.claims),
        ... }
        >>> "words" in str(c2s.compare(runs, dev, repeats=200))
        True
    """
    repeats = whole_number(repeats, "repeats")
    seed = whole_number(seed, "seed", 0)
    runs = read_runs(results, dataset)
    scored = ScoredRuns.of(runs, dataset, metric, baseline)
    bounds = scored.bounds(repeats, seed)
    bounds.pop(MICRO, None)
    scores: dict[str, dict[str, float]] = {}
    intervals: dict[str, dict[str, tuple[float, float]]] = {}
    for name in runs:
        scores[name] = {}
        intervals[name] = {}
        for part, row in bounds.items():
            scores[name][part] = row[name].value
            intervals[name][part] = row[name].low, row[name].high
    tests = tuple(scored.tests(repeats=repeats, seed=seed))
    return ComparisonReport(metric, scored.baseline, scores, intervals, tests, tuple(scored.notes))


def read_runs(results: Mapping[str, Ranking], dataset: Dataset) -> dict[str, Run]:
    """Read rankings by name, one or more, each with some of the data set's judged claims."""
    require_kind(results, Mapping, "results", "a mapping of names to rankings")
    require_kind(dataset, Dataset, "dataset", DATASET_WANTED)
    require(bool(results), "results", dict(results), "one or more systems by name")
    runs: dict[str, Run] = {}
    for name, given in results.items():
        ranking = read_ranking(given, dataset, name)
        runs[name] = ranking if isinstance(ranking, Run) else ranking.run
    for name, run in runs.items():
        coverage(run, dataset.qrels, name)
    return runs
