"""`eval/evaluate.py` over training runs, checkpoints and models: what each row is made of."""

from __future__ import annotations

import ast
import csv
import json
import shutil
import zipfile
from pathlib import Path

import pytest
from claim2source.eval.evaluate import main

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.report import Report
from claim2source.data.loading import load
from claim2source.data.trec import read_run
from claim2source.evaluation.rows import failed_form
from claim2source.metrics.metrics import evaluate
from claim2source.models import resolve
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import FusionConfig, fuse
from claim2source.systems.read import make_system, read_systems
from claim2source.systems.system import System, SystemRunner
from claim2source.text import Rendering
from tests.eval.test_evaluate import pairs
from tests.refusals import refused
from tests.shared_data import REPOSITORY

HYBRID = REPOSITORY / "configs" / "systems" / "hybrid.yaml"
EPOCHS = ["epoch-0", "epoch-1", "epoch-2"]


def evaluated(checkpoint: Path | str, data: Path, out: Path, *options: str) -> Report:
    main([f"--checkpoint={checkpoint}", f"--dataset={data}", f"--out={out}", *options])
    return Report.read(out)


@pytest.mark.slow
def test_a_training_run_gives_every_epoch_and_what_stands_on_it(
    trained: tuple[Path, Path], tmp_path: Path, tiny_folder: Path
) -> None:
    run, data = trained
    waiting, stages = tmp_path / "waiting.yaml", tmp_path / "behind.yaml"
    waiting.write_text("H: {retrieve: {hybrid: [{bm25: {k1: 1.2}}, {dense: checkpoint}]}}\n")
    stages.write_text(
        "Staged:\n  retrieve: {dense: another/model}\n  stages:\n"
        f"    - {{rerank: max_sim, model: {tiny_folder}, max_length: 64, depth: 5}}\n"
    )
    words = ("--systems", str(waiting), "--stages", str(stages), "--repeats=50")
    report, trainings = evaluated(run, data, tmp_path / "out", *words), Report.read(run)
    wholes = [name for name in report.systems if ":" not in name]
    assert wholes == [
        f"{epoch}{end}.bilingual" for epoch in EPOCHS for end in ("", "+Staged", "+H")
    ]
    assert trainings.training and report.chosen == f"epoch-{trainings.training.chosen_epoch}"
    zero, best = (report.systems[f"{name}.bilingual"] for name in ("epoch-0", report.chosen))
    assert zero.macro == pytest.approx(trainings.systems["step 0"].macro)
    assert report.macro == best.macro == pytest.approx(trainings.macro)
    assert (best.claims, best.sources) == ("bilingual", "metadata")
    assert best.val and set(best.slices) == {"seen", "unseen"} and not zero.slices
    # Of step 0 the base is known, of the others their folder.
    assert Path(zero.model).name == "model"
    assert report.systems["epoch-0+H.bilingual"].model == f"bm25-own-hybrid:{zero.model}"
    assert best.model == str(run / "checkpoints" / report.chosen)
    # Vectors of the training are read from its store: the same weights have the same key.
    assert all(system.cost and system.cost.stored and system.cost.tokens for system in (zero, best))
    text = (tmp_path / "out" / "report.md").read_text()
    assert f"| {report.chosen} (chosen) |" in text and "| recall@100 macro |" in text
    assert "Scores on val:" in text
    tests = pairs(report)
    after = [(f"{epoch}.bilingual", "epoch-0.bilingual") for epoch in EPOCHS[1:]]
    assert tests["Every epoch against step 0"] == set(after)
    assert tests["Every epoch against step 0, H"] == {
        (f"{epoch}+H.bilingual", "epoch-0+H.bilingual") for epoch in EPOCHS[1:]
    }
    assert tests["Hybrids against their dense part"] == {
        (f"{epoch}+H.bilingual", f"{epoch}.bilingual") for epoch in EPOCHS
    }
    # A hybrid equals the fusion of its parts.
    dev, encoder = load(data, "dev"), resolve(str(run / "checkpoints" / "epoch-2"), "cpu").encoder
    dense = Dense(encoder, rendering=Rendering("bilingual", "metadata")).index(dev.sources)
    sparse = BM25(k1=1.2, claims="bilingual").index(dev.sources)
    parts = [index.search(dev.claims).run for index in (sparse, dense)]
    fused = fuse(*parts, FusionConfig("linear", alpha=0.5, scale="min-max"))
    for name, expected in (("epoch-2", parts[1]), ("epoch-2+H", fused)):
        row = report.systems[f"{name}.bilingual"]
        ranked = read_run(tmp_path / "out" / row.runs / "de.trec").run
        for claim in ranked.claim_ids:
            assert ranked.sources(claim) == expected.sources(claim)[:100]
    # Only the chosen checkpoint can be submitted.
    submit = f"--submit={tmp_path / 'chosen.zip'}"
    (name,) = evaluated(run, data, tmp_path / "one", "--only=chosen", submit).systems
    assert name == f"{report.chosen}.bilingual" and zipfile.is_zipfile(tmp_path / "chosen.zip")
    with refused(UserError, "submit: ", "chosen.zip", "--only"):
        evaluated(run, data, tmp_path / "no", submit)


def test_each_language_may_have_a_checkpoint_of_its_own(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    zero, two = (run / "checkpoints" / f"epoch-{n}" for n in (0, 2))
    (first,), (second,), (routed,) = (
        evaluated(checkpoint, data, tmp_path / out, "--no_tests", *words).systems.values()
        for checkpoint, out, words in (
            *((zero, "zero", ()), (two, "two", ())),
            (zero, "both", ("--route", f"de={two}")),
        )
    )
    assert routed.name == "routed.bilingual"
    for language in routed.languages:
        expected = second if language == "de" else first
        assert routed.languages[language] == expected.languages[language]


def test_its_runs_and_submissions_hold_the_same_ranking(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    report = evaluated(run / "checkpoints" / "epoch-1", data, tmp_path)
    (row,) = report.systems.values()
    dev, folder = load(data, "dev"), tmp_path / "epoch-1.bilingual"
    for lang in ("en", "de"):
        part = dev.in_languages([lang])
        ranked = read_run(tmp_path / row.runs / f"{lang}.trec").run
        assert set(ranked.claim_ids) == {claim.id for claim in part.claims}
        scores = evaluate(ranked, part.qrels, ["mrr@5"])
        assert scores.mean("mrr@5") == pytest.approx(row.languages[lang]["mrr@5"])
        with open(folder / "submission_2026" / f"predictions_{lang}.tsv", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert {row["index"] for row in rows} == {c.id.removeprefix("dev-") for c in part.claims}
        for line in rows:
            assert ast.literal_eval(line["preds"]) == ranked.sources(f"dev-{line['index']}", 5)
    with open(folder / "submission_2025" / "predictions.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert list(rows[0]) == ["post_id", "preds"] and len(rows) == 12
    assert all(len(ast.literal_eval(row["preds"])) == 5 for row in rows)


def test_the_chosen_checkpoint_alone(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """What a submission is made of, whatever its name."""
    run, data = trained
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    points = copied / "checkpoints"
    (points / "epoch-1").rename(points / "epoch-1-scale-0.5")
    record = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(record | {"chosen": "epoch-1-scale-0.5"}))
    words = ("--no_tests", "--systems", str(HYBRID), "--only")
    report = evaluated(copied, data, tmp_path / "one", *words, "chosen+H")
    assert list(report.systems) == ["epoch-1-scale-0.5+H.bilingual"]
    report = evaluated(copied, data, tmp_path / "all", *words, "chosen")
    assert [name.removeprefix("epoch-1-scale-0.5") for name in report.systems] == [
        ".bilingual", "+H.bilingual", "+HT.bilingual"
    ]  # fmt: skip
    report = evaluated(copied, data, tmp_path / "some", *words, "epoch-*+H", "BM25")
    assert [name.partition(".")[0] for name in report.systems] == [
        "BM25", "epoch-0+H", "epoch-1-scale-0", "epoch-2+H"
    ]  # fmt: skip
    for model in (points / "epoch-0", "sentence-transformers/all-MiniLM-L6-v2"):
        with refused(ConfigError, "only: 'chosen'"):
            evaluated(model, data, tmp_path / "other", "--only=chosen")
    (copied / "run.json").write_text(json.dumps(record | {"chosen": None}))
    with refused(ConfigError, "only: 'chosen'"):
        evaluated(copied, data, tmp_path / "other", "--only=chosen")


def test_metrics_deeper_than_the_lists_are_left_out(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, data = trained
    checkpoint = run / "checkpoints" / "epoch-1"
    report = evaluated(checkpoint, data, tmp_path / "10", "--depth=10", "--repeats=50")
    text = capsys.readouterr().out + (tmp_path / "10" / "report.md").read_text(encoding="utf-8")
    assert set(report.macro) == {"mrr@1", "mrr@5", "mrr@10", "recall@5", "queries"}
    assert "mrr@10" in text and "recall@100: left out, deeper than --depth 10." in text
    (row,) = report.systems.values()
    assert row.intervals is not None and "mrr@5" in row.intervals.values
    ranked = read_run(tmp_path / "10" / row.runs / "de.trec").run
    assert {len(ranked.sources(claim)) for claim in ranked.claim_ids} == {10}


def test_flags_cannot_contradict_a_manifest(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    for flag in ("--rendering.claims=original", "--model.pooling=cls", "--model.max_length=16"):
        with pytest.raises(UserError):
            evaluated(run / "checkpoints" / "epoch-1", data, tmp_path, flag)
        (row,) = Report.read(tmp_path).not_run
        assert "manifest" in row.reason or "was trained with" in row.reason


def test_a_plain_model_scores_as_step_zero(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    flags = ("--model.pooling=mean", "--model.max_length=24", "--rendering.claims=bilingual")
    report = evaluated(run.parent / "model", data, tmp_path / "plain", *flags)
    assert report.macro == pytest.approx(Report.read(run).systems["step 0"].macro)


def test_finished_rows_are_read_without_their_models(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, data = trained
    checkpoint = run / "checkpoints" / "epoch-1"
    first = evaluated(checkpoint, data, tmp_path, "--repeats=20")

    def loaded(*arguments: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("claim2source.systems.runtime.resolve", loaded)
    assert evaluated(checkpoint, data, tmp_path, "--repeats=20").systems == first.systems
    with refused(AssertionError, "loaded"):
        evaluated(checkpoint, data, tmp_path / "other", "--repeats=20")


def test_the_claim_form_of_what_cannot_run_is_read_from_its_files(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    stage = f"stages:\n  - {{rerank: max_sim, model: {tmp_path / 'absent'}, depth: 6}}\n"
    (tmp_path / "p.yaml").write_text(f"retrieve: {{dense: elsewhere}}\n{stage}")
    checkpoint = run / "checkpoints" / "epoch-1"
    words = ("--stages", str(tmp_path / "p.yaml"), "--repeats=20")
    report = evaluated(checkpoint, data, tmp_path / "out", *words)
    assert list(report.systems) == ["epoch-1.bilingual"]
    (row,) = report.not_run
    assert (row.system, row.claims) == ("epoch-1+p", "bilingual") and "absent" in row.reason
    broken = tmp_path / "broken"
    shutil.copytree(checkpoint, broken)
    for weights in broken.glob("*.safetensors"):
        weights.unlink()

    def failing(system: System, form: str) -> None:
        runner = SystemRunner(load(data, "dev"))
        with pytest.raises(UserError):
            runner.run(system)
        assert failed_form(system, runner.runtime) == form

    own = "claims: translated\n" + (tmp_path / "p.yaml").read_text()
    for text, form in ((own, "translated"), ((tmp_path / "p.yaml").read_text(), "bilingual")):
        (tmp_path / "q.yaml").write_text(text)
        system = read_systems([tmp_path / "q.yaml"])["q"]
        failing(system.on_checkpoint(str(broken)), form)
    # One of the routes has missing weights, the other has none.
    routes = {"retrieve": {"dense": f"{tmp_path}/gone"}, "routes": {"de": {"dense": str(broken)}}}
    failing(make_system("q", routes), "bilingual")
