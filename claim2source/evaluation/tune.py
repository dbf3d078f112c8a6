"""What `eval/tune_bm25.py` does: BM25's settings chosen off the split that is reported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from claim2source.core.config import list_field, require, to_yaml
from claim2source.core.errors import UserError
from claim2source.core.files import write_json, write_text
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.records import Dataset
from claim2source.core.report import FamilyResult, SystemCost
from claim2source.core.run import Cost, Result
from claim2source.core.tables import COST_COLUMNS, cost_cells, markdown_table, plain_table, render
from claim2source.datasets import carve_val, load
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.families import Family, compare_family, family_parts
from claim2source.evaluation.hybrid import (
    BM25_B,
    BM25_K1,
    BM25_TITLE_WEIGHT,
    CHOSEN_BY,
    choose_bm25,
)
from claim2source.evaluation.metrics import cutoff, evaluate, judged_claims, language_strata
from claim2source.evaluation.retrieval import DEPTH, METRICS, evaluate_result
from claim2source.io.trec import write_trec_run
from claim2source.retrieve import BM25, BM25Config

TUNED, DEFAULT = "bm25-tuned", "bm25-default"


@dataclass(frozen=True)
class TuneConfig:
    """Settings of `eval/tune_bm25.py`.

    Args:
        out: folder for `bm25.yaml` (the chosen settings), the report and the runs.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on, never chosen on; none: choose only.
        train_split: split to choose on.
        val: choose on all of `train` (BM25 has no weights that could know it), or on the part
            `carved` from it as in training.
        val_share: share carved out.
        val_seed: seed of the carving.
        bm25: what is not chosen, and where choosing starts from: the setting compared with.
        seed: seed of the paired test.
    """

    out: Path
    dataset: str = "demo"
    split: str | None = "dev"
    train_split: str = "train"
    val: Literal["train", "carved"] = "train"
    val_share: float = 0.1
    val_seed: int = 13
    bm25: BM25Config = field(default_factory=BM25Config)
    k1: list[float] = list_field(float, BM25_K1, help="values of k1 to try")
    b: list[float] = list_field(float, BM25_B, help="values of b to try")
    title_weight: list[int] = list_field(int, BM25_TITLE_WEIGHT, help="title weights to try")
    analyses: list[str] = list_field(
        str, ["stop_words", "stemmer", "metadata"], help="parts of the analysis tried on and off"
    )
    seed: int = 0

    def __post_init__(self) -> None:
        for key in ("k1", "b", "title_weight"):
            require(bool(getattr(self, key)), key, getattr(self, key), "one or more values")
        for k1, b, weight in product(self.k1, self.b, self.title_weight):
            replace(self.bm25, k1=k1, b=b, title_weight=weight)
        allowed = {"stop_words", "stemmer", "metadata"}
        for name in self.analyses:
            require(name in allowed, "analyses", name, ", ".join(sorted(allowed)))
        require(self.split != self.train_split, "split", self.split, "another than train_split's")


def tune_bm25(config: TuneConfig) -> str:
    """Choose, then report; writes `config.out` and returns the report as text.

    Every analysis is tried with every k1, b and title weight, and gets those with the best
    macro MRR@5, of equal ones the first. The given analysis stays unless another is better by
    more than noise (`settled`). Raises `UserError` where there is nothing to choose by, or no
    gold to report on.
    """
    dataset = load(config.dataset, config.split) if config.split else None
    if dataset is not None and not dataset.golds:
        raise UserError(f"{config.dataset}: split {config.split!r} has no golds to report on")
    val = load(config.dataset, config.train_split)
    if config.val == "carved":
        _, val = carve_val(val, config.val_share, config.val_seed)
    if not val.golds:
        raise UserError(f"{config.dataset}: no claim of {val.split} has a gold to choose by")
    tried, costs = _choices(config, val)
    place, verdicts = settled(tried, val, config.seed)
    chosen, score = tried[place]
    report: dict[str, Any] = {
        "dataset": config.dataset,
        "split": config.split,
        "rendering": {"claims": chosen.claims},
        "chosen": {"by": f"macro {CHOSEN_BY}", "bm25": {**asdict(chosen), CHOSEN_BY: score}},
        "selection": {"split": val.split, "claims": sum(bool(c.golds) for c in val.claims)},
        "tried": [
            {**asdict(setting), CHOSEN_BY: value, "verdict": verdict, "cost": asdict(cost)}
            for (setting, value), verdict, cost in zip(tried, verdicts, costs, strict=True)
        ],
        "systems": {},
    }
    test = None
    if dataset is not None:
        results = {
            name: BM25(setting).index(dataset.sources).search(dataset.claims, DEPTH)
            for name, setting in ((TUNED, chosen), (DEFAULT, config.bm25))
        }
        report["systems"] = {name: _system(result, dataset) for name, result in results.items()}
        test = _test(results, dataset, config.seed)
        report["paired_test"] = asdict(test)
        _write_runs(config.out, results, dataset)
    write_text(config.out / "bm25.yaml", _as_yaml(chosen, config, report, score))
    write_json(config.out / "report.json", report)
    write_text(config.out / "report.md", f"# BM25\n\n{_text(report, test, markdown_table)}\n")
    return _text(report, test, plain_table)


def _choices(config: TuneConfig, val: Dataset) -> tuple[list[tuple[BM25Config, float]], list[Cost]]:
    """The best k1, b and title weight of every analysis with its score; what trying all cost."""
    from tqdm import tqdm

    grid = [(k1, b, w) for w, k1, b in product(config.title_weight, config.k1, config.b)]
    variants = list(_analyses(config, val))
    found, costs = [], []
    for variant in tqdm(variants, desc="BM25", unit="analysis", disable=None):
        started = time.perf_counter()
        reset_peak_memory()
        found.append(choose_bm25(val, variant, grid))
        items = len(grid) * len(judged_claims(val.qrels))
        costs.append(Cost(time.perf_counter() - started, items, peak_memory(gpu=False)))
    return found, costs


def settled(
    tried: Sequence[tuple[BM25Config, float]], val: Dataset, seed: int = 0
) -> tuple[int, list[str]]:
    """Place of the analysis to take, and a verdict on each against the first.

    The first stays unless others are better by the paired test by gold paper, after Holm; then
    the best of those. Claims of one paper repeat its words, so that the plain maximum follows a
    few papers with many claims.
    """
    if len(tried) == 1:
        return 0, ["given"]
    claims = judged_claims(val.qrels)
    scores = {}
    for place, (setting, _) in enumerate(tried):
        run = BM25(setting).index(val.sources).search(val.claims, cutoff(CHOSEN_BY) or 1).run
        scores[str(place)] = evaluate(run, val.qrels, [CHOSEN_BY], claims)[CHOSEN_BY]
    groups, strata = gold_groups(val.qrels, claims), language_strata(val.claims, claims)
    names = list(scores)
    found = compare_family(
        scores, Family.against("analyses", names[0], names[1:]), groups, strata, seed=seed
    )
    verdicts = ["given", *(c.verdict for c in found.comparisons)]
    better = [place for place, verdict in enumerate(verdicts) if verdict == "better"]
    return max(better, key=lambda place: tried[place][1], default=0), verdicts


def _analyses(config: TuneConfig, val: Dataset) -> Iterator[BM25Config]:
    """The analyses to try, the given one first; what can change nothing is not tried."""
    base = config.bm25
    names = list(dict.fromkeys(config.analyses)) if base.analysis == "terms" else []
    if base.analysis == "whitespace" and "metadata" in config.analyses:
        names = ["metadata"]
    if not any(source.venue or source.authors for source in val.sources):
        names = [name for name in names if name != "metadata"]
    for flips in product((False, True), repeat=len(names)):
        changed = {n: getattr(base, n) is not flip for n, flip in zip(names, flips, strict=True)}
        yield replace(base, **changed)  # type: ignore[arg-type]


def _system(result: Result, dataset: Dataset) -> dict[str, Any]:
    evaluation = evaluate_result(result, dataset, METRICS)
    return {
        "languages": evaluation.languages,
        "macro": evaluation.macro,
        "failures": result.failure_counts(),
        "cost": asdict(result.cost),
    }


def _test(results: dict[str, Result], dataset: Dataset, seed: int) -> FamilyResult:
    """Tuned against the setting that choosing started from, on the macro average."""
    claims = judged_claims(dataset.qrels)
    scores = {
        name: evaluate(result.run, dataset.qrels, [CHOSEN_BY], claims)[CHOSEN_BY]
        for name, result in results.items()
    }
    family = Family.against("BM25", DEFAULT, (TUNED,))
    groups, strata = gold_groups(dataset.qrels, claims), language_strata(dataset.claims, claims)
    return compare_family(scores, family, groups, strata, seed=seed)


def _write_runs(out: Path, results: dict[str, Result], dataset: Dataset) -> None:
    for name, result in results.items():
        for language in dataset.languages:
            claims = [claim.id for claim in dataset.claims if claim.lang == language]
            write_trec_run(result.run.restricted(claims), out / "runs" / name / f"{language}.trec")


def _as_yaml(chosen: BM25Config, config: TuneConfig, report: dict[str, Any], score: float) -> str:
    """The chosen settings that differ from the defaults, as other programs' `--config` takes."""
    plain = BM25Config()
    differing = {
        f.name: getattr(chosen, f.name)
        for f in fields(BM25Config)
        if getattr(chosen, f.name) != getattr(plain, f.name)
    }
    held = report["selection"]
    return (
        f"# BM25 for {Path(config.dataset).name}, chosen on {held['claims']} claims of "
        f"{held['split']}: macro {CHOSEN_BY} {score:.4f} there.\n" + to_yaml({"bm25": differing})
    )


def _costs(report: dict[str, Any]) -> dict[str, Any]:
    return {name: SystemCost(**system["cost"]) for name, system in report["systems"].items()}


def _text(report: dict[str, Any], test: FamilyResult | None, table: Callable[..., str]) -> str:
    settings = ("stop_words", "stemmer", "metadata", "title_weight", "k1", "b", CHOSEN_BY)
    tried = [
        [
            *("yes" if one[n] else "no" for n in settings[:3]),
            *(one[n] for n in settings[3:4]),
            *(f"{one[n]:g}" for n in settings[4:6]),
            one[CHOSEN_BY],
            one["verdict"],
            *cost_cells(one["cost"]),
        ]
        for one in report["tried"]
    ]
    held, best = report["selection"], report["chosen"]["bm25"]
    parts = [
        f"{report['dataset']}: chosen on {held['claims']} claims of {held['split']}: "
        f"k1 {best['k1']:g}, b {best['b']:g}, title weight {best['title_weight']}, stop words "
        f"{'out' if best['stop_words'] else 'kept'}, {'stems' if best['stemmer'] else 'words'}, "
        f"{'with' if best['metadata'] else 'without'} metadata.",
        "Best of every analysis there; another than the given one is taken only where a paired "
        "test by gold paper calls it better; the cost is of all settings tried with it:",
        table(["stop words out", "stems", *settings[2:], "verdict", *COST_COLUMNS], tried),
    ]
    if test is not None:
        rows: list[list[Any]] = []
        for name, system in report["systems"].items():
            for language, row in {**system["languages"], "macro": system["macro"]}.items():
                cost = cost_cells(system["cost"] if language == "macro" else None)
                cells = [row[metric] for metric in METRICS]
                rows.append([name, language, *cells, int(row["queries"]), *cost])
        parts += [
            f"On {report['split']}, which nothing was chosen on:",
            table(["system", "language", *METRICS, "queries", *COST_COLUMNS], rows),
            render(
                family_parts(test, CHOSEN_BY, _costs(report)),
                "markdown" if table is markdown_table else "plain",
            ),
        ]
    return "\n\n".join(parts)
