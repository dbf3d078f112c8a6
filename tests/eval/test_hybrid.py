"""`eval/hybrid.py` from its arguments to its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claim2source.datasets import load
from claim2source.io.trec import read_run
from claim2source.metrics.metrics import evaluate
from claim2source.models import ModelConfig, resolve
from claim2source.pipeline.evaluate import METRICS, evaluate_encoder
from claim2source.pipeline.evaluate import evaluate as evaluate_result
from claim2source.retrieve import BM25
from claim2source.text import Rendering
from eval.hybrid import main
from tests.training.small import small_setup

OPTIONS = [
    "--model.pooling=mean",
    "--model.max_length=24",
    "--rendering.sources=title_abstract",
    "--bm25.claims=bilingual",
    "--rendering.claims=bilingual",
    "--repeats=200",
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Model, data and the folder written."""
    folder = tmp_path_factory.mktemp("hybrid")
    model, data = small_setup(folder)
    out = folder / "out"
    main([f"--checkpoint={model}", f"--dataset={data}", f"--out={out}", *OPTIONS])
    return model, data, out


def report_of(done: tuple[Path, Path, Path]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((done[2] / "report.json").read_text(encoding="utf-8"))
    return found


def chosen_in(report: dict[str, Any]) -> dict[str, Any]:
    """What was chosen for the hybrid, by what it is."""
    return {choice["what"]: choice for choice in report["systems"]["hybrid"]["choices"]}


def test_the_report_holds_three_systems_by_language(done: tuple[Path, Path, Path]) -> None:
    report = report_of(done)
    assert list(report["systems"]) == ["bm25", "dense", "hybrid"]
    for system in report["systems"].values():
        assert list(system["languages"]) == ["en", "de"]
        for metric in METRICS:
            mean = sum(system["languages"][lang][metric] for lang in ("en", "de")) / 2
            assert system["macro"][metric] == pytest.approx(mean)
        assert system["macro"]["queries"] == 12
    fusion = chosen_in(report)["fusion"]
    assert (fusion["split"], fusion["claims"]) == ("train", 48)
    dense = report["systems"]["dense"]
    assert (dense["claims"], dense["sources"]) == ("bilingual", "title_abstract")
    assert report["macro"] == report["systems"]["hybrid"]["macro"]
    assert [test["average"] for test in report["tests"]] == ["macro", "en", "de"]
    for test in report["tests"]:
        for c in test["comparisons"]:
            for key, name in (("mean", c["system"]), ("baseline_mean", c["baseline"])):
                system = report["systems"][name]
                row = system["languages"].get(test["average"], system["macro"])
                assert c[key] == pytest.approx(row["mrr@5"])
    low, high = report["systems"]["hybrid"]["intervals"]["values"]["mrr@5"]["macro"]
    assert low <= report["systems"]["hybrid"]["macro"]["mrr@5"] <= high


def test_the_parts_are_what_they_are_alone(done: tuple[Path, Path, Path]) -> None:
    model, data, _ = done
    report, split = report_of(done), load(data, "dev")
    settings = chosen_in(report)["bm25"]["settings"]
    bm25 = BM25(**settings).index(split.sources).search(split.claims)
    assert settings["claims"] == "bilingual"
    assert report["systems"]["bm25"]["macro"] == pytest.approx(evaluate_result(bm25, split).macro)
    encoder = resolve(ModelConfig(str(model), pooling="mean", max_length=24), "cpu").encoder
    alone = evaluate_encoder(encoder, split, Rendering("bilingual", "title_abstract"))
    assert report["systems"]["dense"]["macro"] == pytest.approx(alone.macro)


def test_the_runs_are_the_reported_ones(done: tuple[Path, Path, Path]) -> None:
    report, split = report_of(done), load(done[1], "dev")
    for name, system in report["systems"].items():
        for lang in ("en", "de"):
            run = read_run(done[2] / "runs" / name / f"{lang}.trec").run
            claims = [c.id for c in split.claims if c.lang == lang]
            found = evaluate(run, split.qrels, METRICS, claims).means()
            assert {m: system["languages"][lang][m] for m in METRICS} == pytest.approx(found)
            assert set(run.claim_ids) <= set(claims)
    assert not list(done[2].rglob("*.tmp"))
