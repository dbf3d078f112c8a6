"""`eval/evaluate.py` over files of systems: what is a row, what is chosen, what fails."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from claim2source.eval.evaluate import main

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.run import Run
from claim2source.data.loading import load
from claim2source.data.trec import read_run
from claim2source.evaluation import table
from claim2source.evaluation.evaluate import METRICS
from claim2source.evaluation.reports import read_reports
from claim2source.metrics.metrics import evaluate, judged_claims
from claim2source.models import resolve
from claim2source.models.config import ModelConfig
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import FusionConfig, choose_fusion, fuse, score_missing
from claim2source.systems import runtime
from claim2source.systems.system import SystemRunner
from claim2source.text import Rendering
from tests.refusals import refused
from tests.training.small import small_setup

FORMS = ("original", "translated", "bilingual")
SYSTEMS = """
BM25: {{retrieve: {{bm25: {{analysis: whitespace, k1: 1.2, b: 1.0}}}}, label: bm25}}
BM25-tuned: {{retrieve: {{bm25: {{k1: fit}}}}, label: bm25-tuned}}
Small: {{retrieve: {{dense: {{name: "{model}", pooling: mean, max_length: 24}}}}, label: org/small}}
H-Small: {{retrieve: {{hybrid: [BM25, Small]}}}}
HT-Small: {{retrieve: {{hybrid: [BM25-tuned, Small], alpha: fit}}, label: tuned}}
Absent:
  retrieve: {{dense: {{name: nobody/has-this, pooling: cls, max_length: 24}}}}
  advice: ask for it
H-Absent: {{retrieve: {{hybrid: [BM25, Absent]}}}}
Odd: {{retrieve: {{dense: "{model}"}}, unsupported: it cannot be expressed}}
"""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("baselines")
    model, data = small_setup(folder)
    systems = folder / "systems.yaml"
    systems.write_text(SYSTEMS.format(model=model), encoding="utf-8")
    return model, data, systems


def arguments(setup: tuple[Path, Path, Path], out: Path, *options: str) -> list[str]:
    return [
        f"--dataset={setup[1]}",
        f"--out={out}",
        "--repeats=200",
        *options,
        "--systems",
        str(setup[2]),
    ]


@pytest.fixture(scope="module")
def out(setup: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    main(arguments(setup, folder, "--claims", *FORMS))
    return folder


def report_of(out: Path, cell: str = "") -> dict[str, Any]:
    report: dict[str, Any] = json.loads((out / cell / "report.json").read_text(encoding="utf-8"))
    return report


def cell_of(out: Path, cell: str) -> dict[str, Any]:
    (system,) = report_of(out, cell)["systems"].values()
    report: dict[str, Any] = system
    return report


def small(model: Path) -> Any:
    return resolve(ModelConfig(str(model), pooling="mean", max_length=24), "cpu").encoder


def test_every_cell_is_there_or_said_not_to_be(out: Path) -> None:
    report = report_of(out)
    ran = ["BM25", "BM25-tuned", "Small", "H-Small", "HT-Small"]
    assert list(report["systems"]) == [f"{name}.{form}" for name in ran for form in FORMS]
    left = {(row["system"], row["claims"]): row for row in report["not_run"]}
    assert list(left) == [(name, form) for name in ("Absent", "H-Absent", "Odd") for form in FORMS]
    assert "nobody/has-this" in left["Absent", "original"]["reason"]
    # A hybrid's row has the advice of its part.
    assert {left[name, "original"]["advice"] for name in ("Absent", "H-Absent")} == {"ask for it"}
    assert left["Odd", "bilingual"]["reason"] == "it cannot be expressed"
    assert all(row["advice"] for row in left.values())
    text = (out / "report.md").read_text(encoding="utf-8")
    assert "Not run (9):" in text and "| Absent | original |" in text and "ask for it" in text
    assert "k1" in text and "48 claims of train" in text and "of val" not in text


def test_a_cell_is_what_its_system_gives_alone(setup: tuple[Path, Path, Path], out: Path) -> None:
    split, encoder = load(setup[1], "dev"), small(setup[0])
    for form in FORMS:
        bm25 = BM25("whitespace", k1=1.2, b=1.0, claims=form)  # type: ignore[arg-type]
        sparse = bm25.index(split.sources).search(split.claims)
        rendering = Rendering(form, "title_abstract")  # type: ignore[arg-type]
        dense = Dense(encoder, rendering=rendering).index(split.sources).search(split.claims)
        fused = fuse(sparse.run, dense.run, FusionConfig("linear", alpha=0.5)).top(100)
        expected = {"BM25": sparse.run, "Small": dense.run, "H-Small": fused}
        for name, run in expected.items():
            report = report_of(out, f"{name}.{form}")
            means = evaluate(run, split.qrels, METRICS, judged_claims(split.qrels)).means()
            for lang in ("en", "de"):
                claims = [c.id for c in split.claims if c.lang == lang]
                mean = evaluate(run, split.qrels, METRICS, claims).means()
                saved = {m: report["languages"][lang][m] for m in METRICS}
                assert saved == pytest.approx(mean), (name, form, lang)
                trec = read_run(out / f"{name}.{form}" / "runs" / "0" / f"{lang}.trec").run
                assert evaluate(trec, split.qrels, METRICS, claims).means() == pytest.approx(mean)
            assert report["macro"]["mrr@5"] == pytest.approx(means["mrr@5"])  # as many of each
            assert cell_of(out, f"{name}.{form}")["claims"] == form
    # The forms are not all one: else all of the above could be the same number.
    scores = {report_of(out, f"Small.{form}")["languages"]["de"]["mrr@5"] for form in FORMS}
    assert len(scores) > 1


def both_scored(indexes: Any, claims: Any, runs: Any) -> tuple[Run, Run]:
    """What each of two rankings lacks, scored by its own index."""
    first = score_missing(indexes[0], claims, runs[0], runs[1]).run
    return first, score_missing(indexes[1], claims, runs[1], runs[0]).run


@pytest.mark.slow
def test_tuned_systems_are_chosen_on_train_alone(setup: tuple[Path, Path, Path], out: Path) -> None:
    split, encoder = load(setup[1], "dev"), small(setup[0])
    train = load(setup[1], "train")
    bm25, first = BM25(k1=1.2, claims="bilingual").fit(train)
    rendering = Rendering("bilingual", "title_abstract")
    indexes = [
        retriever.index(train.sources) for retriever in (bm25, Dense(encoder, rendering=rendering))
    ]
    parts = [index.search(train.claims, 1000).run for index in indexes]
    scored = both_scored(indexes, train.claims, parts)
    fusion, second = choose_fusion(parts[0], parts[1], train, scored=scored)
    report = report_of(out, "HT-Small.bilingual")
    choices = cell_of(out, "HT-Small.bilingual")["choices"]
    assert [choice["what"] for choice in choices] == ["bm25", "fusion"]
    for choice, config, best in zip(choices, (bm25, fusion), (first, second), strict=True):
        assert choice["settings"] == asdict(config) and (choice["split"], choice["claims"]) == (
            "train",
            48,
        )
        assert choice["score"] == pytest.approx(best.score)
    parts = [index.search(split.claims, 1000).run for index in indexes]
    scored = both_scored(indexes, split.claims, parts)
    deep = replace(fusion, depth=max(fusion.depth, 100))
    expected = fuse(parts[0], parts[1], deep, scored=scored).top(100)
    claims = judged_claims(split.qrels)
    score = evaluate(expected, split.qrels, ["mrr@5"], claims).means()["mrr@5"]
    assert report["macro"]["mrr@5"] == pytest.approx(score)
    assert "choices" not in cell_of(out, "H-Small.bilingual")


def test_the_families_and_their_cost(setup: tuple[Path, Path, Path], out: Path) -> None:
    report = report_of(out)
    kinds = {(test["family"].split(", ")[0], test["average"]) for test in report["tests"]}
    assert kinds == {
        (name, average)
        for name in (
            "Dense systems against BM25",
            "Hybrids against their dense part",
            "Hybrids against their sparse part",
            "Other BM25s against the papers'",
            "Other claim forms against original claims",
        )
        for average in ("macro", "en", "de")
    }
    assert not [note for note in report["notes"] if "Not tested" in note]
    for test in report["tests"]:
        for c in test["comparisons"]:
            for key, name in (("mean", c["system"]), ("baseline_mean", c["baseline"])):
                cell = report["systems"][name]
                row = cell["languages"].get(test["average"], cell["macro"])
                assert c[key] == pytest.approx(row["mrr@5"])
    text = (out / "report.md").read_text(encoding="utf-8")
    header = next(line for line in text.splitlines() if "p (Holm)" in line)
    assert "| against |" in header and "| parameters |" in text
    assert "Holm over the 6 tests of this family" in text


@pytest.mark.slow
def test_the_papers_numbers_stand_beside_ours(
    setup: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, Any] = {}
    monkeypatch.setattr(table, "log_tables", lambda mode, tables, **_: logged.update(tables))
    data = tmp_path / "ct25"
    shutil.copytree(setup[1], data)
    words = ["--only", "BM25", "BM25-tuned", "Absent", "--claims=original"]
    main(arguments((setup[0], data, setup[2]), tmp_path / "o", *words))
    report = report_of(tmp_path / "o")
    assert "published" not in report["systems"]["BM25-tuned.original"]
    beside = report["systems"]["BM25.original"]["published"]
    rows = {(row["table"], row["row"], row["column"]): row for row in beside}
    row = rows["2025-styles", "BM25", "S0C0"]
    ours = report["systems"]["BM25.original"]["languages"]["en"]["mrr@5"]
    assert (row["published"], row["ours"]) == (0.5575, pytest.approx(ours))
    # Six claims are not the paper's 1,400.
    assert (row["same_claims"], row["difference"], row["inside"]) == (False, None, "unknown")
    text = (tmp_path / "o" / "report.md").read_text(encoding="utf-8")
    assert rf"{ours:.4f}\*" in text
    assert "0.5575?" in text
    assert ["2025-styles", "BM25", "S0C0"] in [row[:3] for row in logged["Published"].rows]
    # W&B gets the report's tables.
    families = [f"Tests: {test['family']}" for test in report["tests"]]
    assert list(logged) == ["scores", "intervals", "not run", *families, "Published"]
    scores = dict(zip(logged["scores"].columns, logged["scores"].rows[0], strict=True))
    macro = report["systems"]["BM25.original"]["macro"]["mrr@5"]
    assert (scores["system"], scores["mrr@5 macro"]) == ("BM25", macro)
    tested = dict(zip(logged[families[0]].columns, logged[families[0]].rows[-1], strict=True))
    assert tested["difference"] == report["tests"][0]["comparisons"][0]["difference"]
    assert [row[0] for row in logged["not run"].rows] == ["Absent"]
    assert logged["intervals"].columns == ["system", "claims", "en", "de"]
    main(arguments((setup[0], data, setup[2]), tmp_path / "o", *words, "--no_tests"))
    systems = report_of(tmp_path / "o")["systems"].values()
    assert not any("published" in system for system in systems)
    assert "Published" not in (tmp_path / "o" / "report.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_is_done_is_not_done_again(
    setup: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--only", "BM25", "Small", "--claims", "original", "translated"]
    main(arguments(setup, tmp_path, *words))
    calls: list[tuple[str, str]] = []
    find = SystemRunner.run

    def count(self: Any, system: Any, form: Any, dataset: Any) -> Any:
        calls.append((system.name, form))
        return find(self, system, form, dataset)

    monkeypatch.setattr(SystemRunner, "run", count)
    first = report_of(tmp_path)
    main(arguments(setup, tmp_path, *words))
    assert calls == [] and report_of(tmp_path) == first
    (tmp_path / "BM25.original" / "runs" / "0" / "de.trec").unlink()
    (tmp_path / "Small.original" / "report.json").write_text("{", encoding="utf-8")
    main(arguments(setup, tmp_path, *words))
    assert calls == [("BM25", "original"), ("Small", "original")]
    calls.clear()
    changed = tmp_path / "changed.yaml"
    text = setup[2].read_text(encoding="utf-8").replace("k1: 1.2, b: 1.0", "k1: 0.1, b: 1.0")
    changed.write_text(text, encoding="utf-8")
    main([*arguments((setup[0], setup[1], changed), tmp_path, *words)])
    assert calls == [("BM25", "original"), ("BM25", "translated")]
    calls.clear()
    # Other weights in the same folder are another model.
    weights = setup[0] / "model.safetensors"
    weights.touch()
    main([*arguments((setup[0], setup[1], changed), tmp_path, *words)])
    assert calls == [("Small", "original"), ("Small", "translated")]
    calls.clear()
    main([*arguments((setup[0], setup[1], changed), tmp_path, *words), "--seed=1"])
    assert len(calls) == 4


@pytest.mark.slow
def test_a_second_program_prints_what_it_cost(
    setup: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    words = ["--only", "BM25", "Small", "H-Small", "--claims=original", f"--store={tmp_path}"]
    main(arguments(setup, tmp_path / "a", *words))
    main(arguments(setup, tmp_path / "b", *words))
    for name in ("BM25", "Small", "H-Small"):
        first, rerun = (cell_of(tmp_path / o, f"{name}.original")["cost"] for o in ("a", "b"))
        # The parts of a hybrid in one program are not made again either way: the same cost.
        assert rerun == {**first, "stored": True}
        assert first["seconds"] > 0 and first["claims"] == 12 and first["reused"] == 0
    costs = [cell_of(tmp_path / "b", f"{n}.original")["cost"] for n in ("BM25", "Small", "H-Small")]
    assert costs[2]["seconds"] == pytest.approx(costs[0]["seconds"] + costs[1]["seconds"], abs=2e-3)
    assert costs[2]["tokens"] == costs[1]["tokens"] > 0


def test_a_missing_model_is_asked_for_once(
    setup: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []

    def refuse(model: ModelConfig, device: str | None) -> Any:
        names.append(model.name)
        raise UserError("not here")

    monkeypatch.setattr(runtime, "resolve", refuse)
    with refused(UserError, "Absent", "not here"):
        main(arguments(setup, tmp_path, "--only", "Absent", "H-Absent", "--claims", *FORMS))
    assert names == ["nobody/has-this"]
    assert {row["reason"] for row in report_of(tmp_path)["not_run"]} == {"not here"}
    # The kind of a failure is that of every row that it stops.
    assert {row["advice"] for row in report_of(tmp_path)["not_run"]} == {"ask for it"}


@pytest.mark.parametrize(
    ("error", "reason", "advice"),
    [
        (MemoryError("no room"), "out of memory: no room", "more memory"),
        (torch.OutOfMemoryError("no room"), "out of memory: no room", "more memory"),
        (RuntimeError("CUDA error"), "failed: CUDA error", "--only Absent --device cpu"),
        (ConfigError("model.dtype", "x", "y"), "config: model.dtype: 'x' is", "correct"),
        (UserError("no such model"), "no such model", "ask for it"),
    ],
)
def test_what_fails_is_a_row_with_advice_of_its_kind(
    setup: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
    advice: str,
) -> None:
    def fail(model: ModelConfig, device: str | None) -> Any:
        raise error

    monkeypatch.setattr(runtime, "resolve", fail)
    main(arguments(setup, tmp_path, "--only", "Absent", "BM25", "--claims", "original"))
    report = report_of(tmp_path)
    assert list(report["systems"]) == ["BM25.original"]
    (row,) = report["not_run"]
    assert row["reason"].startswith(reason) and advice in row["advice"]


def test_rewritings_change_what_is_searched_and_the_key(
    setup: tuple[Path, Path, Path], out: Path, tmp_path: Path
) -> None:
    split = load(setup[1], "dev")
    title = {source.id: source.title for source in split.sources}
    rewrites = tmp_path / "r.jsonl"
    lines = [json.dumps({"_id": c.id, "text": title[c.golds[0]]}) for c in split.claims]
    # What is chosen is not, though for claims of train they name one paper.
    other = split.sources[0].title
    lines += [json.dumps({"_id": c.id, "text": other}) for c in load(setup[1], "train").claims]
    rewrites.write_text("\n".join(lines), encoding="utf-8")
    words = ["--only", "BM25", "BM25-tuned", "--claims=original", f"--rewrites={rewrites}"]
    main(arguments(setup, tmp_path / "o", *words))
    cell, without = cell_of(tmp_path / "o", "BM25.original"), cell_of(out, "BM25.original")
    assert cell["macro"]["mrr@5"] == 1.0 > without["macro"]["mrr@5"]
    assert cell["key"] != without["key"]
    choices = [cell_of(o, "BM25-tuned.original")["choices"] for o in (tmp_path / "o", out)]
    assert choices[0] and choices[0] == choices[1]
    styles = [system.report.style for system in read_reports([tmp_path / "o", out])]
    assert styles[:2] == ["rewritten"] * 2 and set(styles[2:]) == {"S0C0"}
    with refused(ConfigError, "rewrites: ", "styles"):
        main(arguments(setup, tmp_path / "p", *words, "--styles.claim_styles=[C1]"))
    with refused(ConfigError, "depth: 3 ", "styles"):
        main(arguments(setup, tmp_path / "p", "--styles.claim_styles=[C1]", "--depth=3"))
    rewrites.write_text('{"_id": "elsewhere", "text": "x"}\n', encoding="utf-8")
    with refused(UserError, rewrites, "dev"):
        main(arguments(setup, tmp_path / "p", *words))


def test_forms_that_are_the_same_run_once(setup: tuple[Path, Path, Path], tmp_path: Path) -> None:
    words = ["--only=BM25", "--languages", "en", "--claims", *FORMS]
    main(arguments(setup, tmp_path, *words))
    report = report_of(tmp_path)
    assert list(report["systems"]) == ["BM25.original"]
    note = "translated and bilingual: the same as original here, since all claims are English."
    assert report["notes"] == [note]
    assert note in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_a_system_that_is_not_there(setup: tuple[Path, Path, Path], tmp_path: Path) -> None:
    with refused(UserError, "only: 'BM52' ", " BM25?"):
        main(arguments(setup, tmp_path, "--only", "BM52"))
    with refused(UserError, "claims: 'orginal'"):
        main(arguments(setup, tmp_path, "--claims", "orginal"))
