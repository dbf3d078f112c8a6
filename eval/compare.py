"""Compare evaluated systems: `python eval/compare.py --reports DIR... --out DIR`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from claim2source.core.config import (
    Between,
    Repeats,
    Seed,
    Settings,
    flag,
    list_field,
    read_config,
    require,
)
from claim2source.core.errors import ConfigError, InputError, run_program
from claim2source.core.files import finite, write_json, write_text
from claim2source.core.folders import require_output
from claim2source.core.report import COST_COLUMNS, cost_cells
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.datasets import LENIENT, load
from claim2source.evaluation.analysis.anova import anova_parts, two_way_anova
from claim2source.evaluation.analysis.language_errors import LostReport, lost_claims, lost_parts
from claim2source.evaluation.compare import ScoredRuns, read_scored
from claim2source.evaluation.families import family_parts
from claim2source.evaluation.metrics import cutoff
from claim2source.evaluation.ranks import RankSummary, bucket_changes, changes_table, summarise
from claim2source.evaluation.reports import LoadedSystem
from claim2source.evaluation.slices import (
    SliceScore,
    breakdown,
    rank_slices,
    slices_of,
    slices_table,
)


@dataclass(frozen=True)
class Config(Settings):
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
    reports: list[Path] = list_field(help="folders that eval/checkpoint.py or eval/hybrid.py wrote")
    dataset: str | None = None
    split: str | None = None
    baseline: str | None = None
    metric: str = "mrr@5"
    train_split: str = "train"
    alpha: Annotated[float, Between(0.0001, 0.9999)] = 0.05
    repeats: Repeats = 10_000
    seed: Seed = 0
    lost_language: str = "de"
    posted: str | None = None
    translated: str | None = None
    k: Annotated[int, Between(1, 10**6)] = 5
    lenient: bool = flag(LENIENT)

    def check(self) -> None:
        require(bool(self.reports), "reports", self.reports, "one or more folders")
        # The permutations that Holm needs grow with 1 / alpha.
        cutoff(self.metric)


def main(argv: Sequence[str] | None = None) -> None:
    """Read the runs, score, test and explain them; write and print the comparison."""
    config = read_config(Config, argv, program="eval/compare.py", description=__doc__)
    require_output(config.out)
    folder, systems, scored = read_scored(
        config.reports,
        config.dataset,
        config.split,
        metric=config.metric,
        baseline=config.baseline,
        lenient=config.lenient,
    )
    baseline, ranks, split = scored.baseline, scored.ranks, scored.dataset.split
    seen = seen_golds(folder, config.train_split, config.lenient)
    slices = breakdown(
        scored.scores,
        config.metric,
        scored.dataset,
        [
            *slices_of(scored.dataset.claims, seen),
            *rank_slices(scored.claim_ids, ranks[baseline], f"rank of {baseline}"),
        ],
        repeats=config.repeats,
        seed=config.seed,
    )
    lost = explain_lost(config, scored)
    tests = scored.tests(micro=True, alpha=config.alpha, repeats=config.repeats, seed=config.seed)
    anova = two_way_anova(scored.values, config.alpha) if len(systems) > 1 else None
    summaries = {name: summarise(found) for name, found in ranks.items()}
    changes = {
        name: bucket_changes(ranks[baseline], found)
        for name, found in ranks.items()
        if name != baseline
    }
    costs = {name: system.cost for name, system in systems.items()}
    parts: list[Part] = [
        f"{folder}, {split}: {config.metric}",
        systems_table(systems, summaries, slices),
        *scored.notes,
        slices_table(slices),
        *(part for test in tests for part in family_parts(test, config.metric, costs)),
        *([] if anova is None else anova_parts(anova)),
    ]
    for name, moved in changes.items():
        heading = f"Rank of the gold: {baseline} (rows) and {name} (columns), claims"
        parts += [heading, changes_table(moved)]
    parts += [] if lost is None else lost_parts(lost)
    report = {
        "dataset": folder,
        "split": split,
        "metric": config.metric,
        "baseline": baseline,
        "slices": [asdict(row) for row in slices],
        "ranks": {name: asdict(found) for name, found in summaries.items()},
        "rank_changes": changes,
        "tests": [asdict(result) for result in tests],
        "anova": None if anova is None else asdict(anova),
        "lost": None if lost is None else asdict(lost),
    }
    write_json(config.out / "compare.json", finite(report))
    write_text(config.out / "compare.md", f"# Comparison\n\n{render(parts, 'markdown')}\n")
    say(render(parts))


def seen_golds(folder: str, split: str, lenient: bool) -> frozenset[str] | None:
    """Return the golds of the training split; None where the data set has none."""
    try:
        return load(folder, split, lenient=lenient).golds
    except InputError:
        return None


def explain_lost(config: Config, scored: ScoredRuns) -> LostReport | None:
    """Explain the lost claims of a language; None where no claim in it has a gold."""
    posted = config.posted or scored.baseline
    for key, name in (("posted", posted), ("translated", config.translated)):
        if name and name not in scored.runs:
            raise ConfigError(key, name, f"a system of the reports: {', '.join(scored.runs)}")
    if not any(c.lang == config.lost_language and c.golds for c in scored.dataset.claims):
        return None
    return lost_claims(
        scored.dataset,
        scored.runs[posted],
        scored.runs[config.translated] if config.translated else None,
        language=config.lost_language,
        k=config.k,
    )


def systems_table(
    systems: Mapping[str, LoadedSystem],
    summaries: Mapping[str, RankSummary],
    slices: Sequence[SliceScore],
) -> TextTable:
    """Tabulate quality, ranks and cost of every system."""
    overall = {(row.part, row.system): row for row in slices if row.by == "all"}
    rows: list[list[Cell]] = []
    for name, system in systems.items():
        ranks, macro = summaries[name], overall["macro", name]
        rows.append(
            [
                name,
                macro.value,
                macro.low,
                macro.high,
                overall["micro", name].value,
                None if ranks.mean is None else f"{ranks.mean:.1f}",
                None if ranks.median is None else f"{ranks.median:g}",
                f"{ranks.found}/{ranks.claims}",
                *cost_cells(system.cost),
            ]
        )
    scores = ("system", "macro", "low", "high", "micro", "mean rank", "median", "found")
    return TextTable([*scores, *COST_COLUMNS], rows)


if __name__ == "__main__":
    run_program(main)
