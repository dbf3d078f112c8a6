"""`eval/checkpoint.py`: one checkpoint, a whole run, a plain model."""

from __future__ import annotations

import ast
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claim2source.config import REPOSITORY, read_config
from claim2source.datasets import load, write_beir
from claim2source.errors import ConfigError, UserError
from claim2source.evaluation import checkpoint
from claim2source.evaluation.checkpoint import CheckpointConfig, evaluate_checkpoints
from claim2source.evaluation.metrics import evaluate
from claim2source.run_files import read_run
from claim2source.training.finetune import finetune
from tests.training.small import small_config, small_setup, small_splits


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Path]]:
    """A finished run and its data; this file's store holds nothing of other files' tests."""
    folder = tmp_path_factory.mktemp("trained")
    model, data = small_setup(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLAIM2SOURCE_STORE", str(folder / "store"))
        finetune(small_config(model, data, folder / "run", optimisation__epochs=2))
        yield folder / "run", data


def configured(*arguments: str) -> CheckpointConfig:
    return read_config(CheckpointConfig, list(arguments), program="t", description="t")


def evaluated(checkpoint: Path | str, data: Path, out: Path, *more: str) -> str:
    return evaluate_checkpoints(
        configured(f"--checkpoint={checkpoint}", f"--dataset={data}", f"--out={out}", *more)
    )


def test_a_checkpoint_scores_what_training_reported(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    said = json.loads((run / "report.json").read_text())
    text = evaluated(run / "checkpoints" / f"epoch-{said['chosen_epoch']}", data, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["macro"] == pytest.approx(said["after"]["macro"])
    for lang in ("en", "de"):
        assert report["languages"][lang] == pytest.approx(said["after"][lang])
        assert set(report["languages"][lang]) == {
            "mrr@1", "mrr@5", "mrr@10", "recall@5", "recall@100", "queries",
        }  # fmt: skip
    assert report["rendering"] == {"claims": "bilingual", "sources": "metadata"}
    assert report["cost"]["seconds"] > 0 and report["cost"]["parameters"] > 0
    assert "macro" in text and "macro" in (tmp_path / "report.md").read_text()


def test_its_runs_and_submissions_hold_the_same_ranking(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    evaluated(run / "checkpoints" / "epoch-1", data, tmp_path)
    dev = load(data, "dev")
    report = json.loads((tmp_path / "report.json").read_text())
    for lang in ("en", "de"):
        part = dev.in_languages([lang])
        ranked = read_run(tmp_path / "runs" / f"{lang}.trec").run
        assert set(ranked.claim_ids) == {claim.id for claim in part.claims}
        scores = evaluate(ranked, part.qrels, ["mrr@5"])
        assert scores.mean("mrr@5") == pytest.approx(report["languages"][lang]["mrr@5"])
        with open(tmp_path / "submission_2026" / f"predictions_{lang}.tsv", newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t"))
        assert {row["index"] for row in rows} == {c.id.removeprefix("dev-") for c in part.claims}
        for row in rows:
            assert ast.literal_eval(row["preds"]) == ranked.sources(f"dev-{row['index']}", 5)
    with open(tmp_path / "submission_2025" / "predictions.tsv", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert list(rows[0]) == ["post_id", "preds"] and len(rows) == 12
    assert all(len(ast.literal_eval(row["preds"])) == 5 for row in rows)


def test_a_run_gives_a_table_of_every_kept_epoch_and_step_zero(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    evaluated(run, data, tmp_path)
    said = json.loads((run / "report.json").read_text())
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["checkpoints"]) == ["epoch-0", "epoch-1", "epoch-2"]
    assert report["chosen"] == f"epoch-{said['chosen_epoch']}"
    zero, chosen = report["checkpoints"]["epoch-0"], report["checkpoints"][report["chosen"]]
    assert zero["macro"] == pytest.approx(said["before"]["macro"])
    assert chosen["macro"] == pytest.approx(said["after"]["macro"])
    table = (tmp_path / "report.md").read_text()
    scores, tests = table.split("Every epoch against step 0: ")
    assert scores.count("| epoch-") == 3 * 3 and "(chosen)" in scores and " to " in scores
    assert tests.count("| epoch-") == 3 * 3  # macro, English, German


def test_every_epoch_has_intervals_and_is_tested_against_step_zero(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    run, data = trained
    evaluated(run, data, tmp_path, "--repeats=300")
    report = json.loads((tmp_path / "report.json").read_text())
    assert [test["average"] for test in report["tests"]] == ["macro", "en", "de"]
    for test in report["tests"]:
        assert [c["system"] for c in test["comparisons"]] == ["epoch-1", "epoch-2"]
        assert test["draws"] == 300
        for c in test["comparisons"]:
            for key, name in (("mean", c["system"]), ("baseline_mean", "epoch-0")):
                part = report["checkpoints"][name]
                row = part["languages"].get(test["average"], part["macro"])
                assert c[key] == pytest.approx(row["mrr@5"])
    for part in report["checkpoints"].values():
        assert list(part["intervals"]["mrr@5"]) == ["en", "de", "macro"]
        low, high = part["intervals"]["mrr@5"]["macro"]
        assert low <= part["macro"]["mrr@5"] <= high and part["intervals"]["repeats"] == 300
    assert "Holm over the 2 tests" in (tmp_path / "report.md").read_text()
    evaluated(run, data, tmp_path / "bare", "--no_tests")
    bare = json.loads((tmp_path / "bare" / "report.json").read_text())
    assert bare["tests"] == [] and "intervals" not in bare["checkpoints"]["epoch-1"]


def test_wandb_gets_the_table_of_the_report(
    trained: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, Any] = {}
    monkeypatch.setattr(checkpoint, "log_tables", lambda mode, tables, **_: logged.update(tables))
    run, data = trained
    evaluated(run, data, tmp_path, "--wandb=offline")
    report = json.loads((tmp_path / "report.json").read_text())
    (table,) = logged.values()
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert len(rows) == 9
    last = report["checkpoints"]["epoch-2"]["macro"]
    assert {metric: rows[-1][metric] for metric in last} == pytest.approx(last)


def test_the_chosen_checkpoint_alone(trained: tuple[Path, Path], tmp_path: Path) -> None:
    """What a submission is made of, whatever its name."""
    run, data = trained
    copied = Path(shutil.copytree(run, tmp_path / "run"))
    points = copied / "checkpoints"
    (points / "epoch-1").rename(points / "epoch-1-scale-0.5")
    said = json.loads((copied / "run.json").read_text())
    (copied / "run.json").write_text(json.dumps(said | {"chosen": "epoch-1-scale-0.5"}))
    text = evaluated(copied, data, tmp_path / "out", "--only=chosen")
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["checkpoint"] == str(points / "epoch-1-scale-0.5")
    assert "epoch-1-scale-0.5 (chosen)" in text and "epoch-0" not in text
    assert (tmp_path / "out" / "submission_2026" / "predictions_en.tsv").is_file()
    for place in (points / "epoch-0", "sentence-transformers/all-MiniLM-L6-v2"):
        with pytest.raises(ConfigError, match="only: 'chosen'"):
            evaluated(place, data, tmp_path / "other", "--only=chosen")
    (copied / "run.json").write_text(json.dumps(said | {"chosen": None}))
    with pytest.raises(UserError, match="has not ended"):
        evaluated(copied, data, tmp_path / "other", "--only=chosen")


def test_languages_restrict(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    evaluated(run / "checkpoints" / "epoch-1", data, tmp_path, "--languages", "de")
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report["languages"]) == ["de"]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["de.trec"]


def test_flags_cannot_contradict_a_manifest(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    for flag in ("--rendering.claims=original", "--model.pooling=cls", "--model.max_length=16"):
        with pytest.raises(UserError, match="manifest|as it was trained"):
            evaluated(run / "checkpoints" / "epoch-1", data, tmp_path, flag)


def test_a_plain_model_and_a_missing_one(trained: tuple[Path, Path], tmp_path: Path) -> None:
    run, data = trained
    model = run.parent / "model"
    evaluated(
        model, data, tmp_path / "plain", "--model.pooling=mean", "--model.max_length=24",
        "--rendering.claims=bilingual",
    )  # fmt: skip
    plain = json.loads((tmp_path / "plain" / "report.json").read_text())
    said = json.loads((run / "report.json").read_text())
    assert plain["macro"] == pytest.approx(said["before"]["macro"])
    with pytest.raises(UserError, match="no/such"):
        evaluated("no/such", data, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_as_a_program_with_a_mistake(tmp_path: Path) -> None:
    command = [
        sys.executable, str(REPOSITORY / "eval" / "checkpoint.py"), "--checkpoint", "x",
        "--dataset", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out"),
    ]  # fmt: skip
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=tmp_path, timeout=300,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 2
    assert "nowhere" in done.stderr and "Traceback" not in done.stderr


def test_what_training_encoded_is_not_encoded_again(
    trained: tuple[Path, Path], tmp_path: Path
) -> None:
    """The weights trained in memory and those loaded from the checkpoint share one store key."""
    run, data = trained
    chosen = json.loads((run / "report.json").read_text())["chosen_epoch"]
    evaluated(run, data, tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["checkpoints"][f"epoch-{chosen}"]["stored"]
    assert report["checkpoints"]["epoch-0"]["stored"]
    # What it cost is what training paid for it.
    assert report["checkpoints"]["epoch-0"]["cost"]["tokens"] > 0


def test_an_approximate_index_is_reported_and_the_second_time_read(
    tiny_folder: Path, tmp_path: Path
) -> None:
    write_beir(small_splits(), tmp_path / "data")
    reports = []
    for name in ("first", "second"):
        evaluated(
            tiny_folder, tmp_path / "data", tmp_path / name, "--model.pooling=mean",
            "--model.max_length=24", "--index.kind=hnsw", "--index.compared=5",
            f"--store={tmp_path / 'store'}", "--vectors=float16",
        )  # fmt: skip
        reports.append(json.loads((tmp_path / name / "report.json").read_text()))
    first, second = reports
    assert first["index"]["kind"] == "hnsw" and first["index"]["claims"] == 5
    assert first["index"]["recall@36"] == 1.0  # the whole pool is 36 sources
    assert (first["stored"], second["stored"]) == (False, True)
    assert second["index"] == first["index"] and second["macro"] == first["macro"]
    assert first["cost"]["tokens"] > 0 and not first["cost"]["stored"]
    assert second["cost"] == {**first["cost"], "stored": True}
    runs = [(tmp_path / name / "runs" / "de.trec").read_bytes() for name in ("first", "second")]
    assert runs[0] == runs[1]
