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


Setup = tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = tmp_path_factory.mktemp("baselines")
    model, data = small_setup(folder)
    systems = folder / "systems.yaml"
    systems.write_text(SYSTEMS.format(model=model), encoding="utf-8")
    return model, data, systems


def arguments(setup: Setup, out: Path, *options: str) -> list[str]:
    _, data, systems = setup
    return [
        f"--dataset={data}",
        f"--out={out}",
        "--repeats=200",
        *options,
        "--systems",
        str(systems),
    ]


@pytest.fixture(scope="module")
def out(setup: Setup, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("out")
    main(arguments(setup, folder, "--claims", *FORMS))
    return folder


def report_of(out: Path, cell: str = "") -> dict[str, Any]:
    path = out / cell / "report.json"
    text = path.read_text(encoding="utf-8")
    report: dict[str, Any] = json.loads(text)
    return report


def printed(out: Path) -> str:
    """Return the text of the report."""
    path = out / "report.md"
    return path.read_text(encoding="utf-8")


def cell_of(out: Path, cell: str) -> dict[str, Any]:
    report = report_of(out, cell)
    (system,) = report["systems"].values()
    only: dict[str, Any] = system
    return only


def small(model: Path) -> Any:
    config = ModelConfig(str(model), pooling="mean", max_length=24)
    return resolve(config, "cpu").encoder


def test_every_cell_is_there_or_said_not_to_be(out: Path) -> None:
    report = report_of(out)
    ran = ["BM25", "BM25-tuned", "Small", "H-Small", "HT-Small"]
    names = [f"{name}.{form}" for name in ran for form in FORMS]
    assert list(report["systems"]) == names
    not_run = ("Absent", "H-Absent", "Odd")
    left = {(row["system"], row["claims"]): row for row in report["not_run"]}
    keys = [(name, form) for name in not_run for form in FORMS]
    assert list(left) == keys
    absent = left["Absent", "original"]
    assert "nobody/has-this" in absent["reason"]
    # A hybrid's row has the advice of its part.
    hybrid = left["H-Absent", "original"]
    assert absent["advice"] == "ask for it"
    assert hybrid["advice"] == "ask for it"
    odd = left["Odd", "bilingual"]
    assert odd["reason"] == "it cannot be expressed"
    assert all(row["advice"] for row in left.values())

    text = printed(out)
    assert "Not run (9):" in text
    assert "| Absent | original |" in text
    assert "ask for it" in text
    assert "k1" in text
    assert "48 claims of train" in text
    assert "of val" not in text


def test_a_cell_is_what_its_system_gives_alone(setup: Setup, out: Path) -> None:
    model, data, _ = setup
    split = load(data, "dev")
    encoder = small(model)
    half = FusionConfig("linear", alpha=0.5)
    judged = judged_claims(split.qrels)
    for form in FORMS:
        bm25 = BM25("whitespace", k1=1.2, b=1.0, claims=form)  # type: ignore[arg-type]
        sparse_index = bm25.index(split.sources)
        sparse = sparse_index.search(split.claims)
        rendering = Rendering(form, "title_abstract")  # type: ignore[arg-type]
        retriever = Dense(encoder, rendering=rendering)
        dense_index = retriever.index(split.sources)
        dense = dense_index.search(split.claims)
        fused = fuse(sparse.run, dense.run, half)
        expected = {
            "BM25": sparse.run,
            "Small": dense.run,
            "H-Small": fused.top(100),
        }
        for name, run in expected.items():
            cell = f"{name}.{form}"
            report = report_of(out, cell)
            means = evaluate(run, split.qrels, METRICS, judged).means()
            for lang in ("en", "de"):
                claims = [c.id for c in split.claims if c.lang == lang]
                mean = evaluate(run, split.qrels, METRICS, claims).means()
                row = report["languages"][lang]
                saved = {metric: row[metric] for metric in METRICS}
                assert saved == pytest.approx(mean), (name, form, lang)
                path = out / cell / "runs" / "0" / f"{lang}.trec"
                trec = read_run(path).run
                written = evaluate(trec, split.qrels, METRICS, claims).means()
                assert written == pytest.approx(mean)
            assert report["macro"]["mrr@5"] == pytest.approx(means["mrr@5"])  # as many of each
            assert cell_of(out, cell)["claims"] == form
    # The forms are not all one: else all of the above could be the same number.
    scores: set[float] = set()
    for form in FORMS:
        report = report_of(out, f"Small.{form}")
        german = report["languages"]["de"]
        scores.add(german["mrr@5"])
    assert len(scores) > 1


def both_scored(
    indexes: Any,
    claims: Any,
    runs: Any,
) -> tuple[Run, Run]:
    """What each of two rankings lacks, scored by its own index."""
    first = score_missing(indexes[0], claims, runs[0], runs[1])
    second = score_missing(indexes[1], claims, runs[1], runs[0])
    return first.run, second.run


@pytest.mark.slow
def test_tuned_systems_are_chosen_on_train_alone(setup: Setup, out: Path) -> None:
    model, data, _ = setup
    split = load(data, "dev")
    encoder = small(model)
    train = load(data, "train")
    bm25, first = BM25(k1=1.2, claims="bilingual").fit(train)
    rendering = Rendering("bilingual", "title_abstract")
    dense = Dense(encoder, rendering=rendering)
    indexes = [
        bm25.index(train.sources),
        dense.index(train.sources),
    ]
    parts = [index.search(train.claims, 1000).run for index in indexes]
    scored = both_scored(indexes, train.claims, parts)
    fusion, second = choose_fusion(
        parts[0],
        parts[1],
        train,
        scored=scored,
    )

    report = report_of(out, "HT-Small.bilingual")
    choices = cell_of(out, "HT-Small.bilingual")["choices"]
    assert [choice["what"] for choice in choices] == ["bm25", "fusion"]
    configs = (bm25, fusion)
    bests = (first, second)
    for choice, config, best in zip(choices, configs, bests, strict=True):
        assert choice["settings"] == asdict(config)
        assert choice["split"] == "train"
        assert choice["claims"] == 48
        assert choice["score"] == pytest.approx(best.score)

    parts = [index.search(split.claims, 1000).run for index in indexes]
    scored = both_scored(indexes, split.claims, parts)
    depth = max(fusion.depth, 100)
    deep = replace(fusion, depth=depth)
    fused = fuse(parts[0], parts[1], deep, scored=scored)
    expected = fused.top(100)
    claims = judged_claims(split.qrels)
    means = evaluate(expected, split.qrels, ["mrr@5"], claims).means()
    assert report["macro"]["mrr@5"] == pytest.approx(means["mrr@5"])
    assert "choices" not in cell_of(out, "H-Small.bilingual")


def test_the_families_and_their_cost(setup: Setup, out: Path) -> None:
    report = report_of(out)
    kinds: set[tuple[str, str]] = set()
    for test in report["tests"]:
        family = test["family"].split(", ")[0]
        kinds.add((family, test["average"]))
    families = (
        "Dense systems against BM25",
        "Hybrids against their dense part",
        "Hybrids against their sparse part",
        "Other BM25s against the papers'",
        "Other claim forms against original claims",
    )
    averages = ("macro", "en", "de")
    assert kinds == {(name, average) for name in families for average in averages}
    assert not [note for note in report["notes"] if "Not tested" in note]

    for test in report["tests"]:
        for comparison in test["comparisons"]:
            sides = (
                ("mean", comparison["system"]),
                ("baseline_mean", comparison["baseline"]),
            )
            for key, name in sides:
                cell = report["systems"][name]
                row = cell["languages"].get(test["average"], cell["macro"])
                assert comparison[key] == pytest.approx(row["mrr@5"])

    text = printed(out)
    headers = (line for line in text.splitlines() if "p (Holm)" in line)
    header = next(headers)
    assert "| against |" in header
    assert "| parameters |" in text
    assert "Holm over the 6 tests of this family" in text


@pytest.mark.slow
def test_the_papers_numbers_stand_beside_ours(
    setup: Setup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    logged: dict[str, Any] = {}
    monkeypatch.setattr(table, "log_tables", lambda mode, tables, **_: logged.update(tables))
    model, original, systems_file = setup
    data = tmp_path / "ct25"
    shutil.copytree(original, data)
    out = tmp_path / "o"
    options = [
        "--only",
        "BM25",
        "BM25-tuned",
        "Absent",
        "--claims=original",
    ]
    words = arguments((model, data, systems_file), out, *options)
    main(words)

    report = report_of(out)
    tuned = report["systems"]["BM25-tuned.original"]
    assert "published" not in tuned
    bm25 = report["systems"]["BM25.original"]
    rows = {(row["table"], row["row"], row["column"]): row for row in bm25["published"]}
    row = rows["2025-styles", "BM25", "S0C0"]
    ours = bm25["languages"]["en"]["mrr@5"]
    assert row["published"] == 0.5575
    assert row["ours"] == pytest.approx(ours)
    # Six claims are not the paper's 1,400.
    assert row["same_claims"] is False
    assert row["difference"] is None
    assert row["inside"] == "unknown"
    text = printed(out)
    assert rf"{ours:.4f}\*" in text
    assert "0.5575?" in text
    names = [row[:3] for row in logged["Published"].rows]
    assert ["2025-styles", "BM25", "S0C0"] in names

    # W&B gets the report's tables.
    families = [f"Tests: {test['family']}" for test in report["tests"]]
    assert list(logged) == [
        "scores",
        "intervals",
        "not run",
        *families,
        "Published",
    ]
    scores = as_dict(logged["scores"], 0)
    assert scores["system"] == "BM25"
    assert scores["mrr@5 macro"] == bm25["macro"]["mrr@5"]
    tested = as_dict(logged[families[0]], -1)
    comparison = report["tests"][0]["comparisons"][0]
    assert tested["difference"] == comparison["difference"]
    assert [row[0] for row in logged["not run"].rows] == ["Absent"]
    assert logged["intervals"].columns == ["system", "claims", "en", "de"]

    main([*words, "--no_tests"])
    systems = report_of(out)["systems"].values()
    assert not any("published" in system for system in systems)
    assert "Published" not in printed(out)


def as_dict(logged: Any, row: int) -> dict[str, Any]:
    """Return one row of a table that was logged, by its columns."""
    cells = logged.rows[row]
    return dict(zip(logged.columns, cells, strict=True))


@pytest.mark.slow
def test_what_is_done_is_not_done_again(
    setup: Setup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [
        "--only",
        "BM25",
        "Small",
        "--claims",
        "original",
        "translated",
    ]
    words = arguments(setup, tmp_path, *options)
    main(words)
    calls: list[tuple[str, str]] = []
    find = SystemRunner.run

    def count(
        self: Any,
        system: Any,
        form: Any,
        dataset: Any,
    ) -> Any:
        calls.append((system.name, form))
        return find(self, system, form, dataset)

    monkeypatch.setattr(SystemRunner, "run", count)
    first = report_of(tmp_path)
    main(words)
    assert calls == []
    assert report_of(tmp_path) == first

    trec = tmp_path / "BM25.original" / "runs" / "0" / "de.trec"
    trec.unlink()
    broken = tmp_path / "Small.original" / "report.json"
    broken.write_text("{", encoding="utf-8")
    main(words)
    assert calls == [("BM25", "original"), ("Small", "original")]

    calls.clear()
    model, data, systems_file = setup
    changed = tmp_path / "changed.yaml"
    text = systems_file.read_text(encoding="utf-8")
    text = text.replace("k1: 1.2, b: 1.0", "k1: 0.1, b: 1.0")
    changed.write_text(text, encoding="utf-8")
    changed_words = arguments((model, data, changed), tmp_path, *options)
    main(changed_words)
    assert calls == [("BM25", "original"), ("BM25", "translated")]

    calls.clear()
    # Other weights in the same folder are another model.
    weights = model / "model.safetensors"
    weights.touch()
    main(changed_words)
    assert calls == [("Small", "original"), ("Small", "translated")]

    calls.clear()
    main([*changed_words, "--seed=1"])
    assert len(calls) == 4


@pytest.mark.slow
def test_a_second_program_prints_what_it_cost(setup: Setup, tmp_path: Path) -> None:
    names = ("BM25", "Small", "H-Small")
    options = [
        "--only",
        *names,
        "--claims=original",
        f"--store={tmp_path}",
    ]
    main(arguments(setup, tmp_path / "a", *options))
    main(arguments(setup, tmp_path / "b", *options))
    costs: list[dict[str, Any]] = []
    for name in names:
        first = cell_of(tmp_path / "a", f"{name}.original")["cost"]
        rerun = cell_of(tmp_path / "b", f"{name}.original")["cost"]
        # The parts of a hybrid in one program are not made again either way: the same cost.
        assert rerun == {**first, "stored": True}
        assert first["seconds"] > 0
        assert first["claims"] == 12
        assert first["reused"] == 0
        costs.append(rerun)

    bm25, dense, hybrid = costs
    seconds = bm25["seconds"] + dense["seconds"]
    assert hybrid["seconds"] == pytest.approx(seconds, abs=2e-3)
    assert hybrid["tokens"] == dense["tokens"]
    assert dense["tokens"] > 0


def test_a_missing_model_is_asked_for_once(
    setup: Setup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: list[str] = []

    def refuse(model: ModelConfig, device: str | None) -> Any:
        names.append(model.name)
        raise UserError("not here")

    monkeypatch.setattr(runtime, "resolve", refuse)
    words = arguments(
        setup,
        tmp_path,
        "--only",
        "Absent",
        "H-Absent",
        "--claims",
        *FORMS,
    )
    with refused(UserError, "Absent", "not here"):
        main(words)
    assert names == ["nobody/has-this"]
    not_run = report_of(tmp_path)["not_run"]
    assert {row["reason"] for row in not_run} == {"not here"}
    # The kind of a failure is that of every row that it stops.
    assert {row["advice"] for row in not_run} == {"ask for it"}


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
    setup: Setup,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
    advice: str,
) -> None:
    def fail(model: ModelConfig, device: str | None) -> Any:
        raise error

    monkeypatch.setattr(runtime, "resolve", fail)
    words = arguments(
        setup,
        tmp_path,
        "--only",
        "Absent",
        "BM25",
        "--claims",
        "original",
    )
    main(words)
    report = report_of(tmp_path)
    assert list(report["systems"]) == ["BM25.original"]
    (row,) = report["not_run"]
    assert row["reason"].startswith(reason)
    assert advice in row["advice"]


def rewriting(claim: str, text: str) -> str:
    """Return the line that rewrites a claim."""
    return json.dumps({"_id": claim, "text": text})


def test_rewritings_change_what_is_searched_and_the_key(
    setup: Setup,
    out: Path,
    tmp_path: Path,
) -> None:
    _, data, _ = setup
    split = load(data, "dev")
    title = {source.id: source.title for source in split.sources}
    rewrites = tmp_path / "r.jsonl"
    lines = [rewriting(c.id, title[c.golds[0]]) for c in split.claims]
    # What is chosen is not, though for claims of train they name one paper.
    other = split.sources[0].title
    train = load(data, "train")
    lines += [rewriting(c.id, other) for c in train.claims]
    rewrites.write_text("\n".join(lines), encoding="utf-8")
    options = [
        "--only",
        "BM25",
        "BM25-tuned",
        "--claims=original",
        f"--rewrites={rewrites}",
    ]
    rewritten = tmp_path / "o"
    main(arguments(setup, rewritten, *options))

    cell = cell_of(rewritten, "BM25.original")
    without = cell_of(out, "BM25.original")
    assert cell["macro"]["mrr@5"] == 1.0
    assert without["macro"]["mrr@5"] < 1.0
    assert cell["key"] != without["key"]
    tuned = cell_of(rewritten, "BM25-tuned.original")
    tuned_without = cell_of(out, "BM25-tuned.original")
    assert tuned["choices"]
    assert tuned["choices"] == tuned_without["choices"]
    reports = read_reports([rewritten, out])
    styles = [system.report.style for system in reports]
    assert styles[:2] == ["rewritten"] * 2
    assert set(styles[2:]) == {"S0C0"}

    refused_out = tmp_path / "p"
    styled = "--styles.claim_styles=[C1]"
    with refused(ConfigError, "rewrites: ", "styles"):
        main(arguments(setup, refused_out, *options, styled))
    with refused(ConfigError, "depth: 3 ", "styles"):
        main(arguments(setup, refused_out, styled, "--depth=3"))
    elsewhere = '{"_id": "elsewhere", "text": "x"}\n'
    rewrites.write_text(elsewhere, encoding="utf-8")
    with refused(UserError, rewrites, "dev"):
        main(arguments(setup, refused_out, *options))


def test_forms_that_are_the_same_run_once(setup: Setup, tmp_path: Path) -> None:
    options = ["--only=BM25", "--languages", "en", "--claims", *FORMS]
    main(arguments(setup, tmp_path, *options))
    report = report_of(tmp_path)
    assert list(report["systems"]) == ["BM25.original"]
    note = "translated and bilingual: the same as original here, since all claims are English."
    assert report["notes"] == [note]
    assert note in printed(tmp_path)


def test_a_system_that_is_not_there(setup: Setup, tmp_path: Path) -> None:
    with refused(UserError, "only: 'BM52' ", " BM25?"):
        main(arguments(setup, tmp_path, "--only", "BM52"))
    with refused(UserError, "claims: 'orginal'"):
        main(arguments(setup, tmp_path, "--claims", "orginal"))
