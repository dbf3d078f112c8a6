"""`eval/report.py` as text: saved systems on one leaderboard, tested against any row."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.eval.report import main

from claim2source.core.errors import UserError, run_program
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.core.run import Run
from claim2source.data.loading import load
from claim2source.data.trec import write_trec_run
from claim2source.evaluation.evaluate import evaluate as evaluate_result
from claim2source.metrics.metrics import evaluate
from claim2source.search.bm25 import BM25
from tests.refusals import refused
from tests.report_files import write_report

FORMS = ("original", "translated", "bilingual")


@pytest.fixture(scope="module")
def dev() -> Dataset:
    return load("demo", "dev")


@pytest.fixture(scope="module")
def runs(dev: Dataset) -> dict[str, Run]:
    return {
        form: BM25(claims=form).index(dev.sources).search(dev.claims, 100).run  # type: ignore[arg-type]
        for form in FORMS
    }


@pytest.fixture(scope="module")
def folders(dev: Dataset, runs: dict[str, Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One report a representation, as eval/evaluate.py writes them."""
    root = tmp_path_factory.mktemp("compare")
    for form, run in runs.items():
        result = evaluate_result(run, dev, repeats=0)
        system = {
            "claims": form,
            "sources": "metadata",
            "cost": {
                "seconds": 2.0,
                "claims": 90,
                "peak_memory_bytes": 2**21,
                "tokens": 7,
                "parameters": 11,
            },
            "languages": result.languages,
            "macro": result.macro,
            "runs": "runs",
        }
        for lang in dev.languages:
            claims = [c.id for c in dev.claims if c.lang == lang]
            write_trec_run(run.restricted(claims), root / form / "runs" / f"{lang}.trec")
        write_report(root / form, {form: system}, "demo")
    return root


def arguments(folders: Path, out: Path, *options: str) -> list[str]:
    reports = [f"--reports={folders / form}" for form in FORMS]
    return [*reports, f"--out={out}", "--repeats=500", *options]


@pytest.fixture(scope="module")
def output(folders: Path) -> tuple[dict[str, Any], str]:
    out = folders / "out"
    main(arguments(folders, out))
    return json.loads((out / "compare.json").read_text()), (out / "compare.md").read_text()


def test_scores_are_those_of_the_runs(
    output: tuple[dict[str, Any], str], dev: Dataset, runs: dict[str, Run]
) -> None:
    scores = output[0]["scores"]
    assert [*scores] == ["macro", *dev.languages, "micro"]
    for form, run in runs.items():
        by_language = []
        for lang in dev.languages:
            claims = [c.id for c in dev.claims if c.lang == lang and c.golds]
            mean = evaluate(run, dev.qrels, ["mrr@5"], claims).mean("mrr@5")
            assert scores[lang][form]["value"] == pytest.approx(mean)
            by_language.append(mean)
        micro = evaluate(run, dev.qrels, ["mrr@5"]).mean("mrr@5")
        for part, mean in (("macro", np.mean(by_language)), ("micro", micro)):
            interval = scores[part][form]
            assert interval["value"] == pytest.approx(mean)
            assert interval["low"] < interval["value"] < interval["high"]


def test_all_others_are_tested_against_the_first(output: tuple[dict[str, Any], str]) -> None:
    macro, micro, *languages = output[0]["tests"]
    assert (macro["average"], micro["average"]) == ("macro", "micro")
    assert [test["average"] for test in languages] == ["en", "de", "fr"]
    assert [c["system"] for c in macro["comparisons"]] == ["translated", "bilingual"]
    assert {c["baseline"] for c in macro["comparisons"]} == {"original"}


def test_the_leaderboard_is_by_score_and_tests_are_against_any_row(
    folders: Path, tmp_path: Path, dev: Dataset
) -> None:
    main(arguments(folders, tmp_path, "--against=bilingual"))
    lines = (tmp_path / "compare.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    tables = [rows[: len(FORMS) + 2], rows[len(FORMS) + 2 : 2 * len(FORMS) + 4]]
    board, costs = (
        [dict(zip(head, row, strict=True)) for row in rows] for head, _, *rows in tables
    )
    assert [row["system"] for row in costs] == [row["system"] for row in board]
    assert {row["tokens"] for row in costs} == {"7"} and costs[0]["golds found"].endswith("/150")
    report = json.loads((tmp_path / "compare.json").read_text())
    rows = report["scores"]
    scores = [rows["macro"][row["system"]]["value"] for row in board]
    assert sorted(scores, reverse=True) == scores and {row["system"] for row in board} == {*FORMS}
    assert [row["#"] for row in board] == ["1", "2", "3"]
    pairs = {pair["system"]: pair for pair in report["tests"][0]["comparisons"]}
    assert pairs.keys() == {"original", "translated"}
    for row, score in zip(board, scores, strict=True):
        name = row["system"]
        assert row["macro"] == f"{score:.4f}"
        for language in dev.languages:
            assert row[language] == f"{rows[language][name]['value']:.4f}"
        if name in pairs:
            assert row["- bilingual"] == f"{pairs[name]['difference']:.4f}"
            assert (row["verdict"], row["p (Holm)"]) == (
                pairs[name]["verdict"],
                f"{pairs[name]['p_holm']:.4f}",
            )
        else:
            assert row["verdict"] == "baseline"


def test_cells_of_a_grid_of_styles_are_no_rows_beside_their_system(
    folders: Path, tmp_path: Path
) -> None:
    report = Report.read(folders / "original")
    (system,) = report.systems.values()
    cell = replace(system, name="original.S0C1", system="other", style="S0C1, not the papers'")
    lone = replace(system, name="alone.S0C1", style="S0C1")
    rows = {system.name: system for system in (system, cell, lone)}
    shutil.copytree(folders / "original" / "runs", tmp_path / "cells" / "runs")
    replace(report, systems=rows).write(tmp_path / "cells")
    main([f"--reports={tmp_path / 'cells'}", f"--out={tmp_path / 'o'}", "--repeats=50"])
    record = json.loads((tmp_path / "o" / "compare.json").read_text())
    assert [*record["scores"]["macro"]] == ["original", "alone.S0C1"]


def test_one_system_is_shown_without_tests(folders: Path, tmp_path: Path) -> None:
    main([f"--reports={folders / 'original'}", f"--out={tmp_path}", "--repeats=50"])
    report = json.loads((tmp_path / "compare.json").read_text())
    assert report["tests"] == [] and report["scores"]["macro"].keys() == {"original"}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--against=nobody"], "against: 'nobody'"),
        (["--baseline=translated"], "baseline: no such key"),
        (["--alpha=0.0001"], "alpha"),
        (["--split=train"], "ids do not match"),
    ],
)
def test_what_a_user_does_wrong_ends_with_2(
    options: list[str],
    reason: str,
    folders: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_program(main, arguments(folders, tmp_path / "o", *options))
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_without_out_nothing_is_written_and_fewer_languages_are_fewer_tests(
    folders: Path, tmp_path: Path
) -> None:
    few = [f"--reports={folders / form}" for form in FORMS[:2]] + ["--repeats=50"]
    main(few)
    assert not [*tmp_path.iterdir()]
    kept = []
    for languages in (["en", "de"], ["en"]):
        main([*few, f"--out={tmp_path}", "--languages", *languages])
        kept.append((tmp_path / "compare.md").read_text())
    assert "de claims (a family of its own)" in kept[0] and "de claims" not in kept[1]


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        ([], ("reports: ",)),
        (["--published", "--html=p.html"], ("reports: ",)),
        (["--reports=r", "--out=page.html"], ("out: ", "page.html", "--html FILE")),
        (["--reports=r", "--tables=2026"], ("tables: ", "2026", "--published")),
        (["--reports=r", "--wandb=offline"], ("wandb: 'offline'", "--html")),
    ],
)
def test_keys_that_do_not_go_together(words: list[str], facts: tuple[str, ...]) -> None:
    with refused(UserError, *facts):
        main(words)
