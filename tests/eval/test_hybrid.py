"""`eval/hybrid.py` from its arguments to its files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import run_program
from claim2source.core.run import Run
from claim2source.datasets import carve_val, load
from claim2source.evaluation.metrics import evaluate
from claim2source.io.trec import read_run
from claim2source.models import ModelConfig, resolve
from claim2source.pipeline import runner
from claim2source.pipeline.choosing import choose, weigh
from claim2source.pipeline.evaluate import METRICS, evaluate_encoder
from claim2source.pipeline.evaluate import evaluate as evaluate_result
from claim2source.retrieve import BM25, BM25Config, FusionConfig, fuse
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


@pytest.mark.slow
def test_the_cost_counts_each_claim_once_and_is_read_with_the_runs(
    done: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    for out in ("a", "b"):
        main(
            [
                f"--checkpoint={done[0]}",
                f"--dataset={done[1]}",
                f"--out={tmp_path / out}",
                f"--store={tmp_path}",
                *OPTIONS,
            ]
        )
    first, again = (
        json.loads((tmp_path / out / "report.json").read_text())["systems"] for out in ("a", "b")
    )
    for name in ("bm25", "dense", "hybrid"):
        assert first[name]["cost"]["claims"] == 12 and first[name]["cost"]["seconds"] > 0
        assert again[name]["cost"] == {**first[name]["cost"], "stored": True}
    # The sources' encoding is in it, though settings are chosen in the same program.
    assert first["dense"]["cost"]["reused"] == 0
    assert first["hybrid"]["cost"]["tokens"] == first["dense"]["cost"]["tokens"] > 36


@pytest.mark.slow
def test_vectors_encoded_before_as_float16_are_found_and_an_index_is_reported(
    done: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    from eval.encode import main as encode

    model = ["--model.pooling=mean", "--model.max_length=24"]
    rendering = ["--rendering.sources=title_abstract", "--rendering.claims=bilingual"]
    stored = [f"--store={tmp_path / 'store'}", "--vectors=float16"]
    encode(
        [
            f"--model.name={done[0]}",
            f"--dataset={done[1]}",
            *model,
            *rendering,
            *stored,
            "--device=cpu",
            "--splits",
            "dev",
            "train",
        ]
    )
    shards = sorted((tmp_path / "store").rglob("embeddings/*/*.safetensors"))
    main(
        [
            f"--checkpoint={done[0]}",
            f"--dataset={done[1]}",
            f"--out={tmp_path / 'o'}",
            *OPTIONS,
            *stored,
        ]
    )
    assert sorted((tmp_path / "store").rglob("embeddings/*/*.safetensors")) == shards
    report = json.loads((tmp_path / "o" / "report.json").read_text())
    cost = report["systems"]["dense"]["cost"]
    assert cost["tokens"] == 0 and cost["reused"] >= 36


def test_the_markdown_says_what_was_chosen(done: tuple[Path, Path, Path]) -> None:
    text, chosen = (done[2] / "report.md").read_text(), chosen_in(report_of(done))
    bm25, fusion = (chosen[what]["settings"] for what in ("bm25", "fusion"))
    assert f"k1 {bm25['k1']:g}, b {bm25['b']:g}" in text and "on 48 claims of train (mrr@5 " in text
    assert f"alpha {fusion['alpha']:g}" in text
    assert "| hybrid | dense |" in text and "Holm over the 2 tests of this family" in text
    assert "| hybrid | macro |" in text


@pytest.mark.slow
def test_nothing_of_the_reported_split_reaches_the_choice(
    done: tuple[Path, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[str]] = []
    bm25, fusion = runner.choose_bm25, runner.choose_fusion

    def first(data: Any, *more: Any) -> Any:
        seen.append({claim.id for claim in data.claims})
        return bm25(data, more[0], [(1.2, 0.75, 1)])

    def second(sparse: Any, dense: Any, data: Any, **_: Any) -> Any:
        seen.append({claim.id for claim in data.claims} | {*sparse.claim_ids, *dense.claim_ids})
        return fusion(sparse, dense, data, [FusionConfig()])

    monkeypatch.setattr(runner, "choose_bm25", first)
    monkeypatch.setattr(runner, "choose_fusion", second)
    main(
        [
            f"--checkpoint={done[0]}",
            f"--dataset={done[1]}",
            f"--out={tmp_path / 'o'}",
            "--val=carved",
            *OPTIONS,
        ]
    )
    train, dev = (load(done[1], split) for split in ("train", "dev"))
    assert seen[0] == {claim.id for claim in train.claims}
    _, val = carve_val(train, 0.1, 13, seen_share=0.1)
    assert seen[1] == {claim.id for claim in val.claims} < seen[0]
    assert not set.union(*seen) & {claim.id for claim in dev.claims}


@pytest.mark.parametrize("missing", ["lowest", "scored"])
def test_the_chosen_settings_are_the_ones_used(
    missing: Any,
    done: tuple[Path, Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, data, _ = done
    bm25 = BM25Config(k1=0.3, b=0.1, title_weight=3, claims="bilingual")
    method: Any = "rrf" if missing == "lowest" else "linear"
    fusion = FusionConfig(method, alpha=0.9, rrf_k=3, depth=7, missing=missing)
    on_val: list[Run] = []

    def only(what: str, setting: Any, data: Any) -> Any:
        return choose(what, {setting: np.full(len(data.claims), 0.5)}, weigh(data))

    def choose_fusion(sparse: Run, dense: Run, data: Any, **_: Any) -> Any:
        on_val.append(sparse)
        return only("fusion", fusion, data)

    monkeypatch.setattr(runner, "choose_bm25", lambda data, *_: only("bm25", bm25, data))
    monkeypatch.setattr(runner, "choose_fusion", choose_fusion)
    main([f"--checkpoint={model}", f"--dataset={data}", f"--out={tmp_path}", *OPTIONS])
    train, dev = (load(data, split) for split in ("train", "dev"))
    expected = BM25(bm25).index(train.sources).search(train.claims).run
    assert list(on_val[0]) == list(expected)
    part = BM25(bm25).index(dev.sources).search(dev.claims).run
    written = {
        name: read_run(tmp_path / "runs" / name / "en.trec").run
        for name in ("bm25", "dense", "hybrid")
    }
    english = [claim.id for claim in dev.claims if claim.lang == "en"]
    whole = written["bm25"], written["dense"]
    scored = None
    if missing == "scored":
        # Both rank the whole small pool: BM25 lacks only what it gives 0.
        empty = Run.from_lists({})
        scored = empty, empty
    fused = fuse(*whole, fusion, scored=scored)
    for claim in english:
        assert written["bm25"].scored(claim) == pytest.approx(part.scored(claim))
        assert written["hybrid"].sources(claim) == fused.sources(claim)
    assert any(written["hybrid"].sources(c) != written["bm25"].sources(c) for c in english)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--split=train", "split"),
        ("--val=dev", "val"),
        ("--dataset=none", "none"),
        ("--k1=2", "k1"),
    ],
)
def test_what_a_user_does_wrong_ends_with_2(
    done: tuple[Path, Path, Path],
    option: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = [
        f"--checkpoint={done[0]}",
        f"--dataset={done[1]}",
        f"--out={tmp_path / 'o'}",
        *OPTIONS,
        option,
    ]
    with pytest.raises(SystemExit) as ended:
        run_program(main, arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "o").exists()


def test_a_split_without_golds_is_ranked_and_submitted(
    done: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    data, out = tmp_path / "data", tmp_path / "o"
    (data / "qrels").mkdir(parents=True)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
        (data / name).write_bytes((done[1] / name).read_bytes())
    main([f"--checkpoint={done[0]}", f"--dataset={data}", f"--out={out}", *OPTIONS])
    report = json.loads((out / "report.json").read_text())
    assert not any("macro" in system for system in report["systems"].values())
    assert not report["tests"] and chosen_in(report) == chosen_in(report_of(done))
    assert "No golds" in (out / "report.md").read_text()
    for name in ("runs/hybrid/de.trec", "submission_2026/predictions_de.tsv"):
        assert (out / name).read_bytes() == (done[2] / name).read_bytes()
    submitted = read_run(out / "submission_2026" / "predictions_de.tsv").run
    ranked = read_run(out / "runs" / "hybrid" / "de.trec").run
    assert {f"dev-{claim}" for claim in submitted.claim_ids} == set(ranked.claim_ids)
    for claim in submitted.claim_ids:
        assert submitted.sources(claim) == ranked.sources(f"dev-{claim}", 5)
