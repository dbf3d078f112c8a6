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
    names = listed(sharing, 8)
    highest = scores[sharing[0]]
    return [f"{names} share the highest {metric}: {highest:.4f}."]


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
        return one_line(
            self,
            metric=self.metric,
            baseline=self.baseline,
            runs=tuple(self.runs),
        )

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
            allowed = f"one of the systems: {', '.join(runs)}"
            raise ConfigError("baseline", baseline, allowed)
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
        dataset = self.dataset
        claim_ids = self.claim_ids
        values = np.stack([*self.values.values()])
        groups = gold_groups(dataset.qrels, claim_ids)
        strata = language_strata(dataset.claims, claim_ids)
        masks = language_masks(dataset.claims, claim_ids)
        everything = np.ones(len(strata), dtype=bool)
        parts: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
        parts[MACRO] = everything, strata
        for language, mask in masks.items():
            parts[language] = mask, None
        if len(masks) > 1:
            parts[MICRO] = everything, None

        bounds: dict[str, dict[str, Interval]] = {}
        for part, (mask, by) in parts.items():
            own = values[:, mask]
            limits = bootstrap_intervals(own, groups[mask], by, repeats, seed)
            # Not by `claim_weights`: these must equal the reports' numbers to the last digit.
            averaged = [mask] if by is None else [*masks.values()]
            stratum_means = [values[:, stratum].mean(axis=1) for stratum in averaged]
            means = np.mean(stratum_means, axis=0)
            rows = zip(self.scores, means.tolist(), limits.tolist(), strict=True)
            bounds[part] = {}
            for name, mean, (low, high) in rows:
                bounds[part][name] = Interval(mean, low, high)
        return bounds

    @cached_property
    def ranks(self) -> dict[str, np.ndarray]:
        """Map every system to the rank of each claim's first gold, [claims], inf if absent."""
        ranks: dict[str, np.ndarray] = {}
        for name, run in self.runs.items():
            _, own = first_ranks(run, self.dataset.qrels, self.claim_ids)
            ranks[name] = own
        return ranks

    @property
    def notes(self) -> list[str]:
        """Note a highest score that is shared, lists that lack claims, and those that are short."""
        # Judgements alone do not know their sources.
        sources = len(self.dataset.sources) or None
        deep = depth_notes(self.runs, [self.metric], sources)
        shared = highest_notes(f"{self.metric} ({MACRO})", self.macro)
        missing = missing_notes(self.runs, self.dataset.qrels)
        return [*shared, *missing, *deep]

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
        values = self.values
        family = Family.against(f"All against {self.baseline}", self.baseline, systems)
        return compare_families(
            values,
            [family],
            self.dataset,
            self.claim_ids,
            micro=micro,
            alpha=alpha,
            repeats=repeats,
            seed=seed,
        )


def read_scored(
    config: ReportConfig,
    more_metrics: Sequence[str] = (),
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
        report = system.report
        retriever, _, _ = report.name.rpartition(".")
        is_cell = report.style != "S0C0"
        if is_cell and (system.report_folder, retriever) in names:
            continue
        systems[system.name] = system
    if not systems:
        raise UserError("reports: no system has scores, or all systems are simulated")

    compared = [*systems.values()]
    folder, split = common_data(compared, config.dataset, config.split)
    languages = config.languages or common_languages(compared)
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
        bounds = scored.bounds(repeats, seed)
        return cls(folder, systems, scored, bounds, tests)

    @property
    def title(self) -> str:
        return f"{self.folder}, {self.scored.dataset.split}: {self.scored.metric}"

    def tables(self) -> tuple[TextTable, TextTable]:
        """Tabulate the systems by their macro average, then their costs.

        Only the first family of tests is shown. A column has the checkpoints' scores on val if a
        report has them.
        """
        overall = self.bounds[MACRO]
        order = sorted(self.systems, key=lambda name: -overall[name].value)
        return self._score_table(order), self._cost_table(order)

    def _score_table(self, order: Sequence[str]) -> TextTable:
        """Tabulate the systems' scores on the claims and on val, and the first family's tests."""
        scored = self.scored
        languages = scored.dataset.languages
        on_val: dict[str, float | None] = {}
        for name, system in self.systems.items():
            on_val[name] = _val_score(system.report, scored.metric)
        has_val = any(score is not None for score in on_val.values())
        comparisons = self.results[0].comparisons if self.results else ()
        pairs = {pair.system: pair for pair in comparisons}
        columns = ["#", "system", *languages, MACRO, "95 %"]
        if has_val:
            columns.append("val")
        if pairs:
            columns += [f"- {scored.baseline}", "p (Holm)", "verdict"]

        rows: list[list[Cell]] = []
        for rank, name in enumerate(order, start=1):
            row: list[Cell] = [rank, name]
            for language in languages:
                bound = self.bounds[language][name]
                row.append(bound.value)
            overall = self.bounds[MACRO][name]
            row.append(overall.value)
            row.append(f"{overall.low:.4f} to {overall.high:.4f}")
            if has_val:
                row.append(on_val[name])
            pair = pairs.get(name)
            if pair is not None:
                row += [pair.difference, pair.p_holm, pair.verdict]
            elif pairs:
                row += [None, None, "baseline"]
            rows.append(row)
        return TextTable(columns, rows)

    def _cost_table(self, order: Sequence[str]) -> TextTable:
        """Tabulate the systems' models, the golds that they found, and their costs."""
        ranks = self.scored.ranks
        claims = len(self.scored.claim_ids)
        cost_names = cost_columns(system.report.cost for system in self.systems.values())
        rows: list[list[Cell]] = []
        for rank, name in enumerate(order, start=1):
            report = self.systems[name].report
            found = np.isfinite(ranks[name]).sum()
            rows.append(
                [
                    rank,
                    name,
                    report.model,
                    report.claims,
                    f"{found}/{claims}",
                    *cost_cells(report.cost, cost_names),
                ]
            )
        columns = ["#", "system", "model", "claims", "golds found", *cost_names]
        return TextTable(columns, rows)

    def markdown(self) -> str:
        tests = tests_parts(self.results, self.scored.metric)
        parts: list[Part] = [
            self.title,
            *self.tables(),
            *self.scored.notes,
            *tests,
        ]
        body = render(parts, "markdown")
        return f"# Comparison\n\n{body}"

    def text(self, rest: str) -> str:
        """Write the scores with the first family's tests; `rest` says where the others are."""
        board, _ = self.tables()
        short = {
            f"- {self.scored.baseline}": "difference",
            "p (Holm)": "p",
        }
        columns = [short.get(name, name) for name in board.columns]
        board = board._replace(columns=columns)
        last = f"costs, and every test by language: {rest}"
        parts: list[Part] = [self.title, board, *self.scored.notes, last]
        return render(parts)

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
    if metric != MAIN_METRIC:
        return None
    table = system.val.get("val", {})
    scores = table.get(MACRO, {})
    return scores.get(metric)


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
        return one_line(
            self,
            metric=self.metric,
            baseline=self.baseline,
            macro=macro,
        )

    def parts(self) -> list[Part]:
        parts = set(self.scores[self.baseline])
        languages = [*sorted_languages(parts - {MACRO}), MACRO]
        columns = ["system", *languages]
        numeric = [False, *[True] * len(languages)]
        rows: list[list[Cell]] = []
        for name in self.scores:
            cells = [self._cell(name, lang) for lang in languages]
            rows.append([name, *cells])
        table = TextTable(columns, rows, numeric=numeric)
        head = f"{self.metric} with 95 % intervals by gold paper"
        tests = tests_parts(self.tests, self.metric)
        return [head, table, *self.notes, *tests]

    def _cell(self, system: str, language: str) -> str:
        low, high = self.intervals[system][language]
        score = self.scores[system][language]
        return f"{score:.4f} [{low:.4f}, {high:.4f}]"

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
            bound = row[name]
            scores[name][part] = bound.value
            intervals[name][part] = (bound.low, bound.high)
    tests = scored.tests(repeats=repeats, seed=seed)
    return ComparisonReport(
        metric=metric,
        baseline=scored.baseline,
        scores=scores,
        intervals=intervals,
        tests=tuple(tests),
        notes=tuple(scored.notes),
    )


def read_runs(
    results: Mapping[str, Ranking],
    dataset: Dataset,
) -> dict[str, Run]:
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
