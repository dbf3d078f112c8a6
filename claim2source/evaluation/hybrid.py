"""What `eval/hybrid.py` does: BM25, a dense model and their fusion, tuned off the split."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

from claim2source.core.config import as_plain
from claim2source.core.errors import UserError
from claim2source.core.files import write_json, write_text
from claim2source.core.records import Dataset
from claim2source.core.report import FamilyResult, SystemCost
from claim2source.core.run import Result, Run
from claim2source.core.tables import COST_COLUMNS, cost_cells, markdown_table, plain_table, render
from claim2source.datasets import carve_val, load
from claim2source.datasets.checkthat2026 import written_index
from claim2source.evaluation.by_language import SHOWN, intervals_of, tested_families
from claim2source.evaluation.families import Family, family_parts
from claim2source.evaluation.metrics import evaluate, judged_claims, macro, score_languages
from claim2source.evaluation.retrieval import (
    DEPTH,
    METRICS,
    cost_report,
    evaluate_result,
    rendering_of,
)
from claim2source.io.store import Store, VectorType
from claim2source.io.submissions import write_submission_2026
from claim2source.io.trec import write_trec_run
from claim2source.models import DataRecord, ModelConfig, Resolved, resolve
from claim2source.retrieve import (
    BM25,
    BM25Config,
    BM25Index,
    Dense,
    FusionConfig,
    IndexConfig,
)
from claim2source.retrieve.fuse import Fusion
from claim2source.text import Rendering

CHOSEN_BY = "mrr@5"
_CUT = 5
_TRAIN_SPLIT, _VAL_SHARE, _VAL_SEED = "train", 0.1, 13

# The usual settings first: of equal ones the first is taken. `eval/tune_bm25.py` has the same.
BM25_K1 = (1.2, 0.9, 1.5, 2.0, 0.6)
BM25_B = (0.75, 0.5, 0.9, 0.3)
BM25_TITLE_WEIGHT = (1, 2, 3)
BM25_GRID = tuple((k1, b, weight) for weight, k1, b in product(BM25_TITLE_WEIGHT, BM25_K1, BM25_B))
FUSION_GRID = tuple(
    replace(fusion, depth=depth)
    for depth in (100, 1000)
    for fusion in (
        FusionConfig("linear"),
        FusionConfig("linear", scale="z-score"),
        FusionConfig("linear", scale="none"),
        FusionConfig("rrf", rrf_k=60),
        FusionConfig("rrf", rrf_k=10),
    )
)
ALPHAS = tuple(round(step / 20, 2) for step in range(1, 20))
# Unscaled, a BM25 score is some twenty times a cosine: what matters happens at small weights.
UNSCALED_ALPHAS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)


@dataclass(frozen=True)
class HybridConfig:
    """Settings of `eval/hybrid.py`.

    Args:
        checkpoint: a checkpoint, the folder of a training run (its chosen epoch), or a model.
        out: folder for the report and the runs.
        dataset: folder in BEIR layout, or `demo`.
        split: split to report on; nothing is chosen on it.
        val: claims that the fusion is chosen on: `carved` from the training split as in
            training, all of `train` (only for a model that was not trained on it), or `auto`:
            carved for a trained checkpoint, else train. BM25's settings are always chosen on
            all of train: it has no weights that could know those claims.
        train_split: none: as the checkpoint's manifest says, else `train`.
        val_share: share carved out; none: as the manifest says, else 0.1.
        val_seed: seed of the carving; none: as the manifest says, else 13.
        bm25: its k1, b and title_weight are chosen, the rest is taken as it is.
        model: how a model that is no checkpoint of ours is read; its name is `checkpoint`.
        rendering: representation for such a model; a checkpoint has its own.
        repeats: draws of the bootstrap and permutations of the tests, both by gold paper.
        seed: of both.
        index: how source vectors are searched; its recall is reported where it is not exact.
        store: folder of the store of vectors and runs; none: the user's cache.
        vectors: float32, or float16 to keep vectors in half the room.
        device: none takes a GPU if there is one.
    """

    checkpoint: str
    out: Path
    dataset: str = "demo"
    split: str = "dev"
    val: Literal["auto", "carved", "train"] = "auto"
    train_split: str | None = None
    val_share: float | None = None
    val_seed: int | None = None
    bm25: BM25Config = field(default_factory=BM25Config)
    model: ModelConfig = field(default_factory=ModelConfig)
    rendering: Rendering | None = None
    repeats: int = 10_000
    seed: int = 0
    index: IndexConfig = field(default_factory=IndexConfig)
    store: Path | None = None
    vectors: VectorType = "float32"
    device: Literal["cpu", "cuda"] | None = None


@dataclass(frozen=True)
class Selection:
    """The claims settings are chosen on; `note` says where they are not what training held out."""

    train: Dataset
    val: Dataset
    note: str | None


def evaluate_hybrid(config: HybridConfig) -> str:
    """Choose, retrieve, score and test; writes `config.out` and returns the table as text.

    `report.json` holds {"systems": {bm25 | dense | hybrid: {"languages", "macro",
    "intervals"}}, "chosen", "selection", "tests": the hybrid against both parts, ...}. Raises
    `UserError` where nothing can be chosen cleanly.
    """
    resolved = resolve(replace(config.model, name=config.checkpoint), config.device)
    rendering = rendering_of(resolved, config.rendering)
    dataset = load(config.dataset, config.split)
    selection = selection_data(config, resolved)
    bm25, bm25_val = choose_bm25(selection.train, config.bm25)
    store = Store(config.store, config.vectors)
    dense = Dense(
        resolved.encoder, rendering=rendering, store=store, index=config.index, progress=True
    )
    sparse = BM25(bm25, store=store)
    depth = max(DEPTH, *(fusion.depth for fusion in FUSION_GRID))
    # The reported split first: its cost then holds the encoding of the sources, as a user pays it.
    indexes = [retriever.index(dataset.sources) for retriever in (sparse, dense)]
    sparse_result, dense_result = (index.search(dataset.claims, depth) for index in indexes)
    if selection.val.sources != dataset.sources:
        indexes = [retriever.index(selection.val.sources) for retriever in (sparse, dense)]
    sparse_val, dense_val = (index.search(selection.val.claims, depth).run for index in indexes)
    fusion, fusion_val = choose_fusion(sparse_val, dense_val, selection.val)
    fused = Fusion(sparse_result.run, dense_result.run, fusion).run(fusion.alpha, DEPTH)
    results = {
        "bm25": sparse_result.top(DEPTH),
        "dense": dense_result.top(DEPTH),
        "hybrid": Result(
            fused,
            cost=sparse_result.cost.over_same(dense_result.cost),
            stored=sparse_result.stored and dense_result.stored,
        ),
    }
    report: dict[str, Any] = {
        "checkpoint": config.checkpoint,
        "dataset": config.dataset,
        "split": config.split,
        "rendering": asdict(rendering),
        "index": dense_result.index.plain() if dense_result.index else None,
        "chosen": {
            "by": f"macro {CHOSEN_BY}",
            "bm25": {**asdict(bm25), CHOSEN_BY: bm25_val},
            "fusion": {**asdict(fusion), CHOSEN_BY: fusion_val},
        },
        "selection": {
            "bm25": {"split": selection.train.split, "claims": len(selection.train.claims)},
            "fusion": {"split": selection.val.split, "claims": len(selection.val.claims)},
            "note": selection.note,
        },
    }
    tests: list[FamilyResult] = []
    if dataset.golds:
        weights = {
            "bm25": None,
            "dense": resolved.encoder.parameters,
            "hybrid": resolved.encoder.parameters,
        }
        report["systems"] = {
            name: _system(result, dataset, weights[name], config)
            for name, result in results.items()
        }
        runs = {name: result.run for name, result in results.items()}
        tests = part_tests(runs, dataset, config.repeats, config.seed)
        report["tests"] = as_plain(tests)
    _write(config, results, dataset, report, tests)
    return _text(report, tests, plain_table)


def selection_data(config: HybridConfig, resolved: Resolved) -> Selection:
    """Train, and the claims the fusion is chosen on.

    A checkpoint's manifest says how its val was carved; settings that contradict it are refused.
    """
    known = resolved.manifest.data if resolved.manifest is not None else DataRecord()
    trained = resolved.is_trained
    split = said("train_split", config.train_split, known, _TRAIN_SPLIT)
    share = said("val_share", config.val_share, known, _VAL_SHARE)
    seed = said("val_seed", config.val_seed, known, _VAL_SEED)
    if split == config.split:
        raise UserError(f"split: {config.split!r} is what settings are chosen on, not reported on")
    train = load(config.dataset, split)
    if config.val == "train" and trained:
        raise UserError(f"val: {config.checkpoint} was trained on train; only `carved` is unseen")
    if config.val == "train" or config.val == "auto" and not trained:
        return Selection(train, train, None)
    # A run on some languages carved its val out of those alone.
    carved_from = load(config.dataset, split, known.languages)
    rest, val = carve_val(carved_from, share, seed)
    note = None
    if trained and known.val_sha256 != val.fingerprint:
        note = "the val carved here is not the one training held out: the data differ"
    if not val.golds:
        raise UserError(f"{config.dataset}: no claim of val has a gold to choose by")
    return Selection(train, val, note)


def is_trained(resolved: Resolved) -> bool:
    """Whether a training of ours may have seen train's claims."""
    return resolved.is_trained


def said(key: str, given: Any, known: DataRecord, default: Any) -> Any:
    """A setting: the manifest's, else the given one, else the default."""
    recorded = getattr(known, key)
    if recorded is None:
        return default if given is None else given
    if given is not None and given != recorded:
        raise UserError(
            f"{key}: {given!r} contradicts the checkpoint's manifest, which says {recorded!r}"
        )
    return recorded


def choose_bm25(
    data: Dataset, base: BM25Config, grid: Iterable[tuple[float, float, int]] = BM25_GRID
) -> tuple[BM25Config, float]:
    """The (k1, b, title weight) of `grid` with the best macro MRR@5, and that score.

    The texts are analysed once per title weight. Of equal settings the first wins.
    """
    cells = list(grid)
    judged = data.with_claims(claim for claim in data.claims if claim.golds)
    scores: dict[tuple[float, float, int], float] = {}
    for weight in dict.fromkeys(cell[2] for cell in cells):
        index = BM25Index(data.sources, replace(base, title_weight=weight))
        terms = index.terms(judged.claims)
        for cell in cells:
            if cell[2] == weight:
                found = index.reweighted(*cell[:2]).rank(judged.claims, _CUT, terms)
                scores[cell] = _score(found, judged)
    k1, b, weight = max(cells, key=lambda cell: scores[cell])
    return replace(base, k1=k1, b=b, title_weight=weight), scores[k1, b, weight]


def choose_fusion(
    sparse: Run,
    dense: Run,
    data: Dataset,
    grid: Sequence[FusionConfig] = FUSION_GRID,
) -> tuple[FusionConfig, float]:
    """The fusion of `grid`, with the alpha, that has the best macro MRR@5, and that score.

    Of equal settings the first of the grid wins, with the middle one of its best alphas.
    """
    judged = data.with_claims(claim for claim in data.claims if claim.golds)
    claims = [claim.id for claim in judged.claims]
    sparse, dense = sparse.restricted(claims), dense.restricted(claims)
    best: tuple[FusionConfig, float] | None = None
    for config in grid:
        fusion = Fusion(sparse, dense, config)
        alphas = UNSCALED_ALPHAS if _unscaled(config) else ALPHAS
        scores = {alpha: _score(fusion.run(alpha, _CUT), judged) for alpha in alphas}
        top = max(scores.values())
        if best is None or top > best[1]:
            tied = [alpha for alpha, score in scores.items() if score == top]
            best = replace(config, alpha=tied[len(tied) // 2]), top
    if best is None:
        raise ValueError("no fusions to choose from")
    return best


def _unscaled(config: FusionConfig) -> bool:
    return config.method == "linear" and config.scale == "none"


def _score(run: Run, data: Dataset) -> float:
    table = score_languages(run, data.claims, data.qrels, [CHOSEN_BY])
    return macro(table)[CHOSEN_BY]


def part_tests(
    runs: Mapping[str, Run], dataset: Dataset, repeats: int, seed: int
) -> list[FamilyResult]:
    """The hybrid of `runs` against both its parts: the macro average, then each language."""
    claims = judged_claims(dataset.qrels)
    scores = {
        name: evaluate(run, dataset.qrels, [SHOWN], claims)[SHOWN] for name, run in runs.items()
    }
    family = Family("The hybrid against its parts", (("hybrid", "bm25"), ("hybrid", "dense")))
    return tested_families(scores, [family], dataset, claims, repeats=repeats, seed=seed)


def _system(
    result: Result, dataset: Dataset, parameters: int | None, config: HybridConfig
) -> dict[str, Any]:
    evaluation = evaluate_result(result, dataset, METRICS)
    return {
        "languages": evaluation.languages,
        "macro": evaluation.macro,
        "intervals": intervals_of(result.run, dataset, config.repeats, config.seed),
        "failures": result.failure_counts(),
        "cost": cost_report(result, parameters),
    }


def _write(
    config: HybridConfig,
    results: Mapping[str, Result],
    dataset: Dataset,
    report: dict[str, Any],
    tests: Sequence[FamilyResult],
) -> None:
    for name, result in results.items():
        for language in dataset.languages:
            part = dataset.in_languages([language])
            run = result.run.restricted(claim.id for claim in part.claims)
            write_trec_run(run, config.out / "runs" / name / f"{language}.trec")
            if name == "hybrid":
                write_submission_2026(
                    run,
                    config.out / "submission_2026" / f"predictions_{language}.tsv",
                    k=_CUT,
                    written_id=written_index(dataset.split, language),
                )
    write_json(config.out / "report.json", report)
    write_text(config.out / "report.md", f"# Hybrid\n\n{_text(report, tests, markdown_table)}\n")


def _text(report: Mapping[str, Any], tests: Sequence[FamilyResult], table: Any) -> str:
    """The report for a person, its tables drawn by `table`."""
    rows: list[list[Any]] = []
    for name, system in report.get("systems", {}).items():
        for language, row in {**system["languages"], "macro": system["macro"]}.items():
            cells = [row[metric] for metric in METRICS]
            cost = cost_cells(system["cost"] if language == "macro" else None)
            low, high = system["intervals"][SHOWN][language]
            bounds = f"{low:.4f} to {high:.4f}"
            rows.append([name, language, *cells, bounds, int(row["queries"]), *cost])
    chosen, held = report["chosen"], report["selection"]
    bm25, fusion = chosen["bm25"], chosen["fusion"]
    how = f"depth {fusion['depth']}, alpha {fusion['alpha']:g} (weight of BM25)"
    kind = f"rrf_k {fusion['rrf_k']}" if fusion["method"] == "rrf" else f"scale {fusion['scale']}"
    notes = [f"Note: {held['note']}"] if held["note"] else []
    columns = ["system", "language", *METRICS, f"95 % of {SHOWN}", "queries", *COST_COLUMNS]
    lines = [
        f"{report['dataset']}, {report['split']}: {report['checkpoint']}",
        table(columns, rows)
        if rows
        else "No golds: nothing to score; runs and submissions are written.",
        f"BM25, chosen on {held['bm25']['claims']} claims of {held['bm25']['split']} "
        f"({CHOSEN_BY} {bm25[CHOSEN_BY]:.4f}): k1 {bm25['k1']:g}, b {bm25['b']:g}, "
        f"title weight {bm25['title_weight']}.",
        f"Fusion, chosen on {held['fusion']['claims']} claims of {held['fusion']['split']} "
        f"({CHOSEN_BY} {fusion[CHOSEN_BY]:.4f}): {fusion['method']}, {kind}, {how}.",
        *notes,
    ]
    costs = {
        name: SystemCost(**system["cost"]) for name, system in report.get("systems", {}).items()
    }
    style: Literal["markdown", "plain"] = "markdown" if table is markdown_table else "plain"
    lines += [render(family_parts(test, SHOWN, costs), style) for test in tests]
    return "\n\n".join(lines)
