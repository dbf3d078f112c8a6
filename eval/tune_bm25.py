"""Choose BM25's settings off the reported split: `python eval/tune_bm25.py --out DIR`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from claim2source.core.config import (
    Between,
    Seed,
    Settings,
    Share,
    flag,
    list_field,
    read_config,
    require,
    to_yaml,
)
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import write_text
from claim2source.core.folders import require_output
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.progress import watched
from claim2source.core.records import Dataset
from claim2source.core.report import (
    COST_COLUMNS,
    MAIN_METRIC,
    Choice,
    FamilyResult,
    Report,
    Rule,
    SystemCost,
    Trial,
    cost_cells,
)
from claim2source.core.run import Cost
from claim2source.core.tables import Part, TextTable, render
from claim2source.core.terminal import say
from claim2source.datasets import LENIENT, carve_val, load
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.families import Family, compare_family, language_strata
from claim2source.metrics.metrics import cutoff, evaluate, judged_claims
from claim2source.pipeline.evaluate import (
    ScoredSystem,
    Scoring,
    make_report,
    require_golds,
    score_result,
    write_runs,
)
from claim2source.pipeline.views import tests_parts, write_markdown
from claim2source.retrieve import BM25, BM25Config, BM25Index
from claim2source.systems.choose import BM25_B, BM25_K1, BM25_TITLE_WEIGHT, choose_bm25
from claim2source.systems.heldout import TRAIN_SPLIT, VAL_SEED, VAL_SHARE
from claim2source.systems.system import DEPTH

TUNED, DEFAULT = "bm25-tuned", "bm25-default"


@dataclass(frozen=True)
class TuneConfig(Settings):
    """Settings of `eval/tune_bm25.py`.

    Args:
        out: folder for `bm25.yaml` (the chosen settings), the report and the runs.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on, never chosen on; none: choose only.
        val: choose on all of `train` (BM25 has no weights that could know it), or on the part
            `carved` from it as in training.
        rule: `one_se`: of the k1, b and title weights within one standard error of the best, by
            paper, those nearest to the first of the lists; or the `best`.
        bm25: what is not chosen, and where choosing starts from: the setting compared with.
        seed: seed of the paired test.
    """

    out: Path
    dataset: str = "demo"
    split: str | None = "dev"
    val: Literal["train", "carved"] = "train"
    rule: Rule = "one_se"
    bm25: BM25Config = field(default_factory=BM25Config)
    k1: list[Annotated[float, Between(0, 1000)]] = list_field(BM25_K1, help="values of k1 to try")
    b: list[Share] = list_field(BM25_B, help="values of b to try")
    title_weight: list[Annotated[int, Between(1, 100)]] = list_field(
        BM25_TITLE_WEIGHT, help="title weights to try"
    )
    analyses: list[Literal["stop_words", "stemmer", "metadata"]] = list_field(
        ["stop_words", "stemmer", "metadata"], help="parts of the analysis tried on and off"
    )
    seed: Seed = 0
    lenient: bool = flag(LENIENT)

    def check(self) -> None:
        for key in ("k1", "b", "title_weight"):
            require(bool(getattr(self, key)), key, getattr(self, key), "one or more values")
        require(self.split != TRAIN_SPLIT, "split", self.split, f"another than {TRAIN_SPLIT}")


def main(argv: Sequence[str] | None = None) -> None:
    """Choose, write the settings and the report, print it."""
    config = read_config(TuneConfig, argv, program="eval/tune_bm25.py", description=__doc__)
    say(tune_bm25(config))


def tune_bm25(config: TuneConfig) -> str:
    """Choose, then report; write `config.out` and return the report as text.

    Every analysis is tried with every k1, b and title weight, and gets the best of them. The
    given analysis stays unless another is better by more than noise (`settle`). Raises `UserError`
    where there is nothing to choose by, or no gold to report on.
    """
    require_output(config.out)
    dataset = None
    if config.split:
        dataset = load(config.dataset, config.split, lenient=config.lenient)
        require_golds(dataset, config.dataset)
    val = load(config.dataset, TRAIN_SPLIT, lenient=config.lenient)
    if config.val == "carved":
        _, val = carve_val(val, VAL_SHARE, VAL_SEED, seen_share=VAL_SHARE)
    if not val.golds:
        raise UserError(f"{config.dataset}: no claim of {val.split} has a gold to choose by")
    tried, costs = try_analyses(config, val)
    place, verdicts = settle(tried, val, config.seed)
    chosen, choice = tried[place]
    trials = tuple(
        Trial(one.settings, one.score, verdict=verdict, cost=SystemCost.of(cost))
        for (_, one), verdict, cost in zip(tried, verdicts, costs, strict=True)
    )
    choice = replace(choice, tried=trials)
    systems = {} if dataset is None else _scored(config, chosen, dataset)
    report = make_report(
        dataset or val,
        {name: one.report for name, one in systems.items()},
        TUNED if systems else None,
        name=config.dataset,
        program="eval/tune_bm25.py",
    )
    report = replace(report, choices=(choice,))
    if dataset is not None:
        report = replace(report, tests=(_test(systems, dataset, config.seed),))
    write_text(config.out / "bm25.yaml", _as_yaml(chosen, config, choice))
    report.write(config.out)
    parts = _parts(report, choice)
    write_markdown(config.out, "BM25", parts)
    return render(parts)


def try_analyses(
    config: TuneConfig, val: Dataset
) -> tuple[list[tuple[BM25Config, Choice]], list[Cost]]:
    """Choose the best k1, b and title weight of every analysis; measure what trying all cost."""
    grid = [(k1, b, w) for w, k1, b in product(config.title_weight, config.k1, config.b)]
    variants = list(_analyses(config, val))
    found, costs = [], []
    for variant in watched(variants, "BM25's analyses", len(variants)):
        started = time.perf_counter()
        reset_peak_memory()
        found.append(choose_bm25(val, variant, grid, config.rule))
        items = len(grid) * len(judged_claims(val.qrels))
        costs.append(Cost(time.perf_counter() - started, items, peak_memory(gpu=False)))
    return found, costs


def settle(
    tried: Sequence[tuple[BM25Config, Choice]], val: Dataset, seed: int = 0
) -> tuple[int, list[str]]:
    """Find the analysis to take, and a verdict on each against the first.

    The first stays unless others are better by the paired test by gold paper, after Holm; then
    the best of those. Claims of one paper repeat its words, so that the plain maximum follows a
    few papers with many claims.
    """
    if len(tried) == 1:
        return 0, ["given"]
    claims = judged_claims(val.qrels)
    scores = {}
    for place, (setting, _) in enumerate(tried):
        run = BM25Index(val.sources, setting).rank(val.claims, cutoff(MAIN_METRIC) or 1)
        scores[str(place)] = evaluate(run, val.qrels, [MAIN_METRIC], claims)[MAIN_METRIC]
    groups, strata = gold_groups(val.qrels, claims), language_strata(val.claims, claims)
    names = list(scores)
    family = Family.against("analyses", names[0], names[1:])
    found = compare_family(scores, family, groups, strata, seed=seed)
    verdicts = ["given", *(c.verdict for c in found.comparisons)]
    better = [place for place, verdict in enumerate(verdicts) if verdict == "better"]
    return max(better, key=lambda place: tried[place][1].score, default=0), verdicts


def _analyses(config: TuneConfig, val: Dataset) -> Iterator[BM25Config]:
    """Give the analyses to try, the given one first; what can change nothing is not tried."""
    base = config.bm25
    names = list(dict.fromkeys(config.analyses)) if base.analysis == "terms" else []
    if base.analysis == "whitespace" and "metadata" in config.analyses:
        names = ["metadata"]
    if not any(source.venue or source.authors for source in val.sources):
        names = [name for name in names if name != "metadata"]
    for flips in product((False, True), repeat=len(names)):
        changed = {n: getattr(base, n) is not flip for n, flip in zip(names, flips, strict=True)}
        yield replace(base, **changed)  # type: ignore[arg-type]


def _scored(config: TuneConfig, chosen: BM25Config, dataset: Dataset) -> dict[str, ScoredSystem]:
    """Score the chosen setting and the given one on the reported split."""
    found = {}
    for name, setting in ((TUNED, chosen), (DEFAULT, config.bm25)):
        result = BM25(setting).index(dataset.sources).search(dataset.claims, DEPTH)
        one = score_result(name, result, dataset, Scoring(repeats=0))
        report = replace(one.report, claims=setting.claims, runs=f"runs/{name}")
        found[name] = replace(one, report=report)
        write_runs(one.run, dataset, config.out / "runs" / name)
    return found


def _test(systems: Mapping[str, ScoredSystem], dataset: Dataset, seed: int) -> FamilyResult:
    """Test the chosen setting against the given one, on the macro average."""
    claims = judged_claims(dataset.qrels)
    scores = {
        name: evaluate(one.run, dataset.qrels, [MAIN_METRIC], claims)[MAIN_METRIC]
        for name, one in systems.items()
    }
    groups, strata = gold_groups(dataset.qrels, claims), language_strata(dataset.claims, claims)
    family = Family.against("BM25", DEFAULT, [TUNED])
    return compare_family(scores, family, groups, strata, seed=seed)


def _as_yaml(chosen: BM25Config, config: TuneConfig, choice: Choice) -> str:
    """Write the chosen settings that differ from the defaults, for other programs' `--config`."""
    plain = BM25Config()
    differing = {
        f.name: getattr(chosen, f.name)
        for f in fields(BM25Config)
        if getattr(chosen, f.name) != getattr(plain, f.name)
    }
    return (
        f"# BM25 for {Path(config.dataset).name}, chosen on {choice.claims} claims of "
        f"{choice.split}: macro {MAIN_METRIC} {choice.score:.4f} there.\n"
        + to_yaml({"bm25": differing})
    )


def _parts(report: Report, choice: Choice) -> list[Part]:
    settings = ("stop_words", "stemmer", "metadata", "title_weight", "k1", "b")
    rows: list[list[Any]] = [
        [
            *("yes" if one.settings[name] else "no" for name in settings[:3]),
            one.settings["title_weight"],
            *(f"{one.settings[name]:g}" for name in settings[4:]),
            one.score,
            one.verdict,
            *cost_cells(one.cost),
        ]
        for one in choice.tried
    ]
    best = choice.settings
    parts: list[Part] = [
        f"{report.dataset}: chosen on {choice.claims} claims of {choice.split}: "
        f"k1 {best['k1']:g}, b {best['b']:g}, title weight {best['title_weight']}, stop words "
        f"{'out' if best['stop_words'] else 'kept'}, {'stems' if best['stemmer'] else 'words'}, "
        f"{'with' if best['metadata'] else 'without'} metadata.",
        "Best of every analysis there; another than the given one is taken only where a paired "
        "test by gold paper calls it better; the cost is of all settings tried with it:",
        TextTable(
            ["stop words out", "stems", *settings[2:], MAIN_METRIC, "verdict", *COST_COLUMNS], rows
        ),
    ]
    if (scores := report.score_table()) is not None:
        parts += [f"On {report.split}, which nothing was chosen on:", scores]
    return [*parts, *tests_parts(report)]


if __name__ == "__main__":
    run_program(main)
