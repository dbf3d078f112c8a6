"""What `eval/compare.py` does: saved systems side by side, by slice, tested and explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from claim2source.core.config import list_field, require
from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import write_json, write_text
from claim2source.core.records import Dataset
from claim2source.core.run import Run
from claim2source.core.tables import COST_COLUMNS, cost_cells, markdown_table, plain_table
from claim2source.datasets import load
from claim2source.evaluation.analysis.anova import Anova, two_way_anova
from claim2source.evaluation.analysis.language_errors import LostReport, lost_claims, lost_text
from claim2source.evaluation.by_language import tested_families
from claim2source.evaluation.families import Family, FamilyResult, family_text
from claim2source.evaluation.metrics import Scores, cutoff, evaluate, judged_claims
from claim2source.evaluation.ranks import NOT_FOUND, bucket_changes, first_ranks, summarise
from claim2source.evaluation.saved import SavedSystem, common_data, judged_run, read_reports
from claim2source.evaluation.slices import (
    SliceScore,
    breakdown,
    rank_slices,
    slices_of,
)


@dataclass(frozen=True)
class CompareConfig:
    """Settings of `eval/compare.py`.

    Args:
        out: folder for `compare.json` and `compare.md`.
        dataset: folder in BEIR layout, or `demo`: the claims that the runs are of; none: as all
            the reports say.
        split: split that the runs are of; none: as all the reports say.
        baseline: the system that every other is tested against; none: the first.
        metric: what is compared.
        train_split: split whose golds count as seen in training; without such a split, none do.
        alpha: level of the family of tests.
        repeats: permutations and draws; permutations are raised where Holm needs more.
        seed: of permutations and draws.
        lost_language: language whose lost claims are explained, where there are claims in it.
        posted: system that ranks the claims as posted; none: the baseline.
        translated: system that ranks their translations; none: English claims alone explain.
        k: a claim is lost when its gold is not among the first k.
    """

    out: Path
    reports: list[Path] = list_field(
        Path, repeats=True, help="folders that eval/checkpoint.py or eval/hybrid.py wrote"
    )
    dataset: str | None = None
    split: str | None = None
    baseline: str | None = None
    metric: str = "mrr@5"
    train_split: str = "train"
    alpha: float = 0.05
    repeats: int = 10_000
    seed: int = 0
    lost_language: str = "de"
    posted: str | None = None
    translated: str | None = None
    k: int = 5

    def __post_init__(self) -> None:
        require(bool(self.reports), "reports", self.reports, "one or more folders")
        require(0 < self.alpha < 1, "alpha", self.alpha, "between 0 and 1")
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")
        require(self.k >= 1, "k", self.k, "1 or more")
        cutoff(self.metric)


def compare_systems(config: CompareConfig) -> str:
    """Read the runs, score, test, explain; writes `config.out` and returns the text.

    Raises `UserError` where a run is of other claims, or a system named is not there.
    """
    systems = {system.name: system for system in read_reports(config.reports)}
    if not systems:
        raise UserError("reports: none of them holds a system with scores")
    folder, split = common_data([*systems.values()], config.dataset, config.split)
    dataset = load(folder, split)
    baseline = _named("baseline", config.baseline or next(iter(systems)), systems)
    posted = _named("posted", config.posted or baseline, systems)
    translated = config.translated and _named("translated", config.translated, systems)
    runs = {name: judged_run(system, dataset) for name, system in systems.items()}
    claims = judged_claims(dataset.qrels)
    scores = {
        name: evaluate(run, dataset.qrels, [config.metric], claims) for name, run in runs.items()
    }
    ranks = {name: first_ranks(run, dataset.qrels, claims)[1] for name, run in runs.items()}
    parts = [
        *slices_of(dataset.claims, _seen_golds(folder, config.train_split)),
        *rank_slices(claims, ranks[baseline], f"rank of {baseline}"),
    ]
    slices = breakdown(
        scores, config.metric, dataset, parts, repeats=config.repeats, seed=config.seed
    )
    family, anova = _tests(scores, baseline, dataset, config)
    lost = _lost(config, dataset, runs[posted], runs[translated] if translated else None)
    summaries = {name: summarise(found) for name, found in ranks.items()}
    changes = {
        name: bucket_changes(ranks[baseline], found)
        for name, found in ranks.items()
        if name != baseline
    }
    write_json(
        config.out / "compare.json",
        {
            "dataset": folder,
            "split": split,
            "metric": config.metric,
            "baseline": baseline,
            "slices": [asdict(row) for row in slices],
            "ranks": {name: asdict(found) for name, found in summaries.items()},
            "rank_changes": changes,
            "tests": [asdict(result) for result in family],
            "anova": None if anova is None else _finite(asdict(anova)),
            "lost": None if lost is None else _finite(asdict(lost)),
        },
    )

    costs = {name: system.cost for name, system in systems.items()}

    def text(table: Callable[..., str]) -> str:
        return "\n\n".join(
            [
                f"{folder}, {split}: {config.metric}",
                _systems_text(systems, summaries, slices, table),
                _slices_text(slices, list(systems), table),
                *(family_text(result, config.metric, table, costs) for result in family),
                *([] if anova is None else [_anova_text(anova, table)]),
                *(_changes_text(baseline, name, found, table) for name, found in changes.items()),
                *([] if lost is None else [lost_text(lost, table)]),
            ]
        )

    write_text(config.out / "compare.md", f"# Comparison\n\n{text(markdown_table)}\n")
    return text(plain_table)


def _named(key: str, name: str, systems: dict[str, SavedSystem]) -> str:
    if name not in systems:
        raise ConfigError(key, name, f"a system of the reports: {', '.join(systems)}")
    return name


def _seen_golds(folder: str, split: str) -> frozenset[str] | None:
    try:
        return load(folder, split).golds
    except InputError:
        return None  # a data set without a training split


def _tests(
    scores: dict[str, Scores], baseline: str, dataset: Dataset, config: CompareConfig
) -> tuple[list[FamilyResult], Anova | None]:
    """All others against the baseline, macro, micro and by language; the ANOVA of all."""
    others = tuple(name for name in scores if name != baseline)
    if not others:
        return [], None
    claims = scores[baseline].claim_ids
    values = {name: found[config.metric] for name, found in scores.items()}
    family = Family(f"All against {baseline}", baseline, others)
    tested = tested_families(
        values,
        [family],
        dataset,
        claims,
        micro=True,
        alpha=config.alpha,
        repeats=config.repeats,
        seed=config.seed,
    )
    return tested, two_way_anova(values, config.alpha)


def _lost(
    config: CompareConfig, dataset: Dataset, posted: Run, translated: Run | None
) -> LostReport | None:
    if not any(c.lang == config.lost_language and c.golds for c in dataset.claims):
        return None
    return lost_claims(dataset, posted, translated, language=config.lost_language, k=config.k)


def _finite(value: Any) -> Any:
    """The same with None for what JSON cannot hold: the rank of a gold that was not found."""
    if isinstance(value, float) and value in (float("inf"), float("-inf")) or value != value:
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _systems_text(
    systems: dict[str, SavedSystem],
    summaries: dict[str, Any],
    slices: Sequence[SliceScore],
    table: Callable[..., str],
) -> str:
    """Quality, ranks and cost of every system."""
    whole = {(row.part, row.system): row for row in slices if row.by == "all"}
    rows: list[list[Any]] = []
    for name, system in systems.items():
        ranks, row = summaries[name], whole["macro", name]
        median = None if ranks.median is None else f"{ranks.median:g}"
        mean = None if ranks.mean is None else f"{ranks.mean:.1f}"
        found = f"{ranks.found}/{ranks.claims}"
        rows.append(
            [
                name,
                row.value,
                row.low,
                row.high,
                whole["micro", name].value,
                mean,
                median,
                found,
                *cost_cells(system.cost),
            ]
        )
    columns = [
        "system",
        "macro",
        "low",
        "high",
        "micro",
        "mean rank",
        "median",
        "found",
        *COST_COLUMNS,
    ]
    return table(columns, rows)


def _slices_text(
    slices: Sequence[SliceScore], names: Sequence[str], table: Callable[..., str]
) -> str:
    cells: dict[tuple[str, str], dict[str, SliceScore]] = {}
    for row in slices:
        cells.setdefault((row.by, row.part), {})[row.system] = row
    rows = [
        [
            by,
            part,
            found[names[0]].claims,
            found[names[0]].papers,
            *(f"{found[n].value:.4f} [{found[n].low:.3f}, {found[n].high:.3f}]" for n in names),
        ]
        for (by, part), found in cells.items()
    ]
    return table(["by", "part", "claims", "papers", *names], rows)


def _anova_text(anova: Anova, table: Callable[..., str]) -> str:
    rows = [
        [name, effect.squares, effect.freedom, effect.f, effect.p]
        for name, effect in (("systems", anova.systems), ("claims", anova.claims))
    ]
    rows.append(["residual", anova.residual_squares, anova.residual_freedom, None, None])
    pairs = [
        [f"{p.second} - {p.first}", p.difference, p.low, p.high, p.p, "yes" if p.differs else "no"]
        for p in anova.pairs
    ]
    return "\n\n".join(
        [
            "Two-way ANOVA over systems and claims (claims taken as independent):",
            table(["factor", "squares", "df", "F", "p"], rows),
            f"Tukey's HSD at {anova.alpha:g}:",
            table(["pair", "difference", "low", "high", "p", "differs"], pairs),
        ]
    )


def _changes_text(
    baseline: str, name: str, changes: dict[str, dict[str, int]], table: Callable[..., str]
) -> str:
    columns = list(changes[NOT_FOUND])
    rows: list[list[Any]] = [
        [before, *(row[after] for after in columns)] for before, row in changes.items()
    ]
    heading = f"Rank of the gold: {baseline} (rows) and {name} (columns), claims"
    return f"{heading}\n\n{table(['', *columns], rows)}"
