"""Compare the rules by which settings are chosen, on papers of train that they were not chosen on.

python scripts/compare_rules.py [--dataset ct25] [--model MODEL]

BM25's grid (with a model also the grid of its fusion with BM25) is scored on all claims of train.
Then its papers are dealt to folds: each rule chooses on all folds but one and is scored on that
one. No other split is read.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, get_args

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import read_config, require_between, require_seed
from claim2source.core.errors import run_program
from claim2source.core.records import Dataset
from claim2source.core.report import Rule, Table
from claim2source.core.tables import Cell, TextTable, render
from claim2source.core.terminal import say
from claim2source.datasets import load
from claim2source.evaluation.significance import paired_randomisation
from claim2source.io.store import Store
from claim2source.models import ModelConfig
from claim2source.pipeline.choosing import Weighing, choose, weigh
from claim2source.pipeline.selection import (
    bm25_distance,
    choose_bm25,
    fusion_distance,
    try_bm25,
    try_fusion,
)
from claim2source.retrieve import BM25, BM25Config, Dense, FusionConfig
from claim2source.text import Rendering

Setting = TypeVar("Setting")
Tried = Mapping[Setting, np.ndarray]


@dataclass(frozen=True)
class RulesConfig:
    """Settings of `scripts/compare_rules.py`.

    Args:
        dataset: folder in BEIR layout, its name in CLAIM2SOURCE_DATA, or `demo`.
        split: the claims; those that settings are chosen on.
        model: a dense model that was not trained on them: its fusion with BM25 too.
        folds: parts of the papers.
        repeats: times that the papers are dealt anew.
        seed: of the dealing.
        store: folder of the embedding store; none: the user's cache.
        bm25: BM25's settings beside those of the grid.
    """

    dataset: str = "demo"
    split: str = "train"
    model: ModelConfig | None = None
    folds: int = 5
    repeats: int = 20
    seed: int = 13
    store: Path | None = None
    bm25: BM25Config = field(default_factory=lambda: BM25Config(metadata=True))

    def __post_init__(self) -> None:
        require_between("folds", self.folds, 2, 100)
        require_between("repeats", self.repeats, 1, 1000)
        require_seed("seed", self.seed)


def compare_rules(config: RulesConfig) -> str:
    """Score both rules on held-out papers; return the table as text."""
    data = load(config.dataset, config.split)
    weighing = weigh(data)
    bm25 = try_bm25(data, config.bm25)
    rows = _rows("BM25", config, weighing, bm25, bm25_distance(list(bm25)))
    if config.model is not None:
        fused = _fusions(config, data, weighing)
        rows += _rows("hybrid", config, weighing, fused, fusion_distance, _without_alpha)
    columns = ["grid", "rule", "chosen on all", "there", "held out", "lowest", "highest"]
    table = TextTable([*columns, "difference (p)"], rows)
    papers = len(set(weighing.groups.tolist()))
    title = f"MRR@5 on {config.split}: {len(weighing.claim_ids)} claims on {papers} papers"
    return render([f"{title}, {config.repeats} times {config.folds} folds of papers", table])


def _fusions(
    config: RulesConfig, data: Dataset, weighing: Weighing
) -> Mapping[FusionConfig, np.ndarray]:
    """Score the fusions of the model with the BM25 that the default rule chooses."""
    assert config.model is not None
    best, _ = choose_bm25(data, config.bm25)
    store = Store(config.store)
    dense = Dense(config.model, rendering=Rendering("original", "title_abstract"), store=store)
    sparse = BM25(best, store=store).index(data.sources).search(data.claims, 1000).run
    ranked = dense.index(data.sources).search(data.claims, 1000).run
    return try_fusion(sparse, ranked, weighing)


def _without_alpha(config: FusionConfig) -> FusionConfig:
    return replace(config, alpha=0.5)


def _rows(
    name: str,
    config: RulesConfig,
    weighing: Weighing,
    tried: Tried[Setting],
    distance: Callable[[Setting], float],
    group: Callable[[Setting], object] | None = None,
) -> list[list[Cell]]:
    """Choose by both rules on each part of the papers, and score what was chosen on the rest."""

    def chosen(rule: Rule, among: np.ndarray) -> Setting:
        part = {setting: values[among] for setting, values in tried.items()}
        on = weighing.among(among)
        # What a report would say of each setting is not read here: none of it is made.
        none: dict[Setting, Table] = dict.fromkeys(part, {})
        return choose(
            name,
            part,
            on,
            settings=lambda setting: {},
            distance=distance,
            rule=rule,
            group=group,
            tables=none,
        )[0]

    rules: tuple[Rule, ...] = get_args(Rule)
    papers, everything = np.unique(weighing.groups), np.ones(len(weighing.groups), dtype=bool)
    random = np.random.default_rng(config.seed)
    held = {rule: np.empty((config.repeats, len(everything))) for rule in rules}
    for repeat in range(config.repeats):
        dealt = dict(zip(random.permutation(papers).tolist(), range(len(papers)), strict=True))
        folds = np.array([dealt[g] % config.folds for g in weighing.groups.tolist()])
        for fold in range(config.folds):
            for rule in rules:
                setting = chosen(rule, folds != fold)
                held[rule][repeat, folds == fold] = tried[setting][folds == fold]
    default = min(tried, key=distance)
    score = weighing.score(tried[default])
    rows: list[list[Cell]] = [[name, "default", _shown(default), None, score, *[None] * 3]]
    for rule in rules:
        setting = chosen(rule, everything)
        scores = held[rule] @ weighing.weights
        row: list[Cell] = [name, rule, _shown(setting), weighing.score(tried[setting])]
        row += [float(scores.mean()), float(scores.min()), float(scores.max())]
        # Each claim's mean over the repeats, against that of the rule above.
        ours, theirs = held[rule].mean(axis=0), held[rules[0]].mean(axis=0)
        test = paired_randomisation(ours, theirs, weighing.groups)
        same = rule == rules[0]
        row.append(None if same else f"{test.difference:+.4f} ({test.p_value:.3f})")
        rows.append(row)
    return rows


def _shown(setting: object) -> str:
    """Name what the grid changes."""
    if isinstance(setting, BM25Config):
        return f"k1 {setting.k1:g}, b {setting.b:g}, title {setting.title_weight}"
    if isinstance(setting, FusionConfig):
        scale = f"k {setting.rrf_k}" if setting.method == "rrf" else setting.scale
        return f"{setting.method}, {scale}, depth {setting.depth}, alpha {setting.alpha:g}"
    return str(setting)


def main(argv: Sequence[str] | None = None) -> None:
    """Compare the rules and print the table."""
    config = read_config(RulesConfig, argv, program="scripts/compare_rules.py", description=__doc__)
    say(compare_rules(config))


if __name__ == "__main__":
    run_program(main)
