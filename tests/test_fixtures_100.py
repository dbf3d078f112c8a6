"""Finished runs of version 1.0: they load, score as they did and merge; older ones are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from claim2source.eval.evaluate import main as evaluate
from claim2source.train.finetune import main as train
from claim2source.train.merge import main as merge

from claim2source.core.errors import InputError, UserError
from claim2source.core.folders import is_run
from claim2source.evaluation.plan import list_checkpoints
from claim2source.models.manifest import FILE, Manifest
from tests.shared_data import FIXTURES

EXPECTED = json.loads((FIXTURES / "expected.json").read_text(encoding="utf-8"))
CLOSE = 1e-6
RUNS = ("lora", "full")
DEV = ("--dataset=data", "--split=dev", "--device=cpu", "--no_tests")


@pytest.fixture
def fixtures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use a copy of the runs as current folder, because they have a relative path to their base."""
    folder = tmp_path / "fixtures"
    shutil.copytree(FIXTURES, folder)
    monkeypatch.chdir(folder)
    return folder


def scores_in(folder: Path) -> dict[str, Any]:
    systems = json.loads((folder / "report.json").read_text(encoding="utf-8"))["systems"]
    scores = {}
    for name, system in systems.items():
        scores[name.partition(".")[0]] = {**system["languages"], "macro": system["macro"]}
    return scores


def check_close(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    for language, metrics in expected.items():
        assert actual[language] == pytest.approx(metrics, abs=CLOSE)


def cosines(out: Path, epoch: str) -> dict[tuple[str, str], float]:
    found = {}
    for path in out.glob(f"{epoch}.*/**/*.trec"):
        for line in path.read_text(encoding="utf-8").splitlines():
            claim, _, source, _, score, _ = line.split()
            found[claim, source] = float(score)
    return found


@pytest.mark.parametrize("run", RUNS)
def test_a_finished_run_scores_as_it_did(run: str, fixtures: Path) -> None:
    assert is_run(fixtures / run)
    evaluate([f"--checkpoint={run}", "--out=out", *DEV])
    scores, expected = scores_in(fixtures / "out"), EXPECTED[run]
    assert scores.keys() == expected["epochs"].keys()
    for epoch, by_language in expected["epochs"].items():
        check_close(scores[epoch], by_language)
    found = cosines(fixtures / "out", "epoch-2")
    for claim, source, cosine in expected["first"]:
        assert found[claim, source] == pytest.approx(cosine, abs=CLOSE)


@pytest.mark.parametrize("run", RUNS)
def test_a_finished_run_is_exported(run: str, fixtures: Path) -> None:
    merge([f"--checkpoints={run}", "--out=merged"])
    evaluate(["--checkpoint=merged", "--out=out", *DEV])
    (scores,) = scores_in(fixtures / "out").values()
    check_close(scores, EXPECTED[run]["epochs"][EXPECTED[run]["chosen"]])


def test_a_finished_run_is_finished_when_it_is_resumed(fixtures: Path) -> None:
    before = (fixtures / "lora" / "run.json").read_bytes()
    train(["--config=lora/config.yaml", "--resume"])
    assert (fixtures / "lora" / "run.json").read_bytes() == before


def test_copies_beside_the_checkpoints_are_left_out(fixtures: Path) -> None:
    run = fixtures / "full"
    expected = [checkpoint.name for checkpoint in list_checkpoints([str(run)])]
    assert expected == ["epoch-0", "epoch-1", "epoch-2"]
    for name in ("epoch-1.bak", "epoch-1 copy", "epoch-x", "epoch-", "epoch-2-old", "soup-old"):
        shutil.copytree(run / "checkpoints" / "epoch-1", run / "checkpoints" / name)
    assert [checkpoint.name for checkpoint in list_checkpoints([str(run)])] == expected
    merge(["--checkpoints=full", "--scales=1", "--out=merged"])
    assert (fixtures / "merged" / "model.safetensors").is_file()
    # A copy has the name of a checkpoint, and is treated as one.
    copy = str(run / "checkpoints" / "epoch-1.bak")
    assert [checkpoint.path for checkpoint in list_checkpoints([copy])] == [copy]
    for epoch in (0, 1, 2):
        shutil.rmtree(run / "checkpoints" / f"epoch-{epoch}")
    with pytest.raises(UserError):
        list_checkpoints([str(run)])


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_a_checkpoint_of_an_older_version_is_refused(version: str, fixtures: Path) -> None:
    path = fixtures / "lora" / "checkpoints" / "epoch-2" / FILE
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["versions"]["claim2source"] = version
    del manifest["config"]["optimisation"]["warmup_from_zero"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(InputError) as error:
        Manifest.read(path.parent)
    assert len(error.value.lines) == 1
    assert str(error.value).startswith(f"{path}: versions.claim2source: ")
    assert "1.0.0" in str(error.value)


def test_an_installation_that_was_not_renewed_is_no_older_version(fixtures: Path) -> None:
    """An editable installation of 0.2.0 runs 1.0 after its checkout was updated."""
    path = fixtures / "lora" / "checkpoints" / "epoch-2" / FILE
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["versions"]["claim2source"] = "0.2.0"
    path.write_text(json.dumps(manifest), encoding="utf-8")
    assert Manifest.read(path.parent).epoch == 2


def test_a_run_of_version_0_1_is_not_a_run(fixtures: Path) -> None:
    """Without a marker, nothing is replaced, and nothing is resumed."""
    (fixtures / "lora" / ".claim2source-run").unlink()
    assert not is_run(fixtures / "lora")
    for flag in ("--resume", "--overwrite"):
        with pytest.raises(UserError):
            train(["--config=lora/config.yaml", flag])
