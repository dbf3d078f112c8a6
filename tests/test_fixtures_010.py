"""Runs that version 0.1.0 made: they score as they did there, and do not go on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from claim2source.eval.evaluate import main as evaluate
from claim2source.train.finetune import main as train
from claim2source.train.merge import main as merge
from safetensors.numpy import load_file

from claim2source.core.errors import UserError
from claim2source.evaluation.plan import list_checkpoints

REPOSITORY = Path(__file__).resolve().parents[1]
MADE = REPOSITORY / "tests" / "fixtures_010"
PLACEHOLDER = "@FIXTURES@"
EXPECTED = json.loads((MADE / "expected.json").read_text(encoding="utf-8"))
CLOSE = 1e-6
FINISHED = ("lora", "full", "query_only")
# Keys that are gone since, with values that always hold now.
GONE = (
    *("after", "scales", "optimisation.log_every", "mining.max_gold_similarity"),
    *(f"mining.bm25.{key}" for key in ("language", "stop_words", "stemmer")),
    *("losses.distillation.kind", "losses.info_nce.both_ways", "losses.keep_base.temperature"),
    "losses.matryoshka",
)


@pytest.fixture(scope="module")
def fixtures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the runs, with the copy's path if they name their own."""
    folder = tmp_path_factory.mktemp("made") / "fixtures"
    shutil.copytree(MADE, folder, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    for path in folder.rglob("*"):
        # What peft wrote is in its manifest by its hash, and names the base to nobody.
        if path.suffix in (".json", ".yaml") and path.name != "adapter_config.json":
            text = path.read_text(encoding="utf-8")
            path.write_text(text.replace(PLACEHOLDER, str(folder)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def evaluated(fixtures: Path) -> Path:
    """Score the finished runs on dev, and what one of them chose."""
    out, data = fixtures.parent / "evaluated", fixtures / "data"
    extra = ["--split=dev", "--device=cpu", "--no_tests", f"--dataset={data}"]
    lines = [[f"--checkpoint={fixtures / run}", f"--out={out / run}", *extra] for run in FINISHED]
    for line in lines:
        evaluate(line)
    return out


def scores_in(folder: Path) -> dict[str, Any]:
    systems = json.loads((folder / "report.json").read_text(encoding="utf-8"))["systems"]
    return {
        name.partition(".")[0]: {**part["languages"], "macro": part["macro"]}
        for name, part in systems.items()
    }


def close(actual: Any, expected: Any) -> bool:
    if isinstance(expected, dict):
        return all(key in actual and close(actual[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(actual) == len(expected) and all(map(close, actual, expected))
    if isinstance(expected, float):
        return abs(actual - expected) <= CLOSE
    return bool(actual == expected)


def ranked(out: Path, epoch: str) -> dict[tuple[str, str], float]:
    rows = [
        line.split()
        for path in out.rglob("*.trec")
        if path.relative_to(out).parts[0].startswith(f"{epoch}.")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    return {(row[0], row[2]): float(row[4]) for row in rows}


@pytest.mark.parametrize("name", FINISHED)
def test_a_finished_run_scores_as_it_did(name: str, evaluated: Path) -> None:
    """Every epoch's scores, and cosines of what 0.1.0 took for the vectors."""
    expected = EXPECTED[name]
    assert close(scores_in(evaluated / name), expected["epochs"])
    scores = ranked(evaluated / name, f"epoch-{expected['chosen_epoch']}")
    vectors = expected["vectors"]
    for claim, claim_vector in vectors["claims"].items():
        for source, source_vector in vectors["sources"].items():
            cosine = sum(a * b for a, b in zip(claim_vector, source_vector, strict=True))
            assert scores[claim, source] == pytest.approx(cosine, abs=CLOSE)


@pytest.mark.slow
def test_a_killed_run_is_refused_and_begins_again_as_it_began(fixtures: Path) -> None:
    """Its state cannot be read; the recipe gives what it gave."""
    folder, expected = fixtures / "killed", EXPECTED["killed"]
    before = contents(folder)
    with pytest.raises(UserError, match=r"config.yaml:[0-9]+: .*: no such key"):
        train([f"--config={folder / 'config.yaml'}", "--overwrite"])
    values = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    for key in GONE:
        *groups, name = key.split(".")
        del reduce(getitem, groups, values)[name]
    recipe = fixtures / "killed.yaml"
    recipe.write_text(yaml.safe_dump(values), encoding="utf-8")
    config_option = f"--config={recipe}"
    with pytest.raises(UserError, match="earlier version.* begin again with --overwr"):
        train([config_option, "--resume"])
    assert contents(folder) == before
    train([config_option, "--overwrite"])
    check_training(folder, expected)
    ours = load_file(folder / "checkpoints" / "epoch-2" / "adapter_model.safetensors")
    theirs = load_file(fixtures / "killed_adapter.safetensors")
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        assert abs(ours[name] - weight).max() <= CLOSE, name


def test_copies_beside_the_checkpoints_are_left_out(fixtures: Path, tmp_path: Path) -> None:
    run = tmp_path / "full"
    shutil.copytree(fixtures / "full", run)
    expected = [checkpoint.name for checkpoint in list_checkpoints([str(run)])]
    assert expected == ["epoch-0", "epoch-1", "epoch-2"]
    for name in ("epoch-1.bak", "epoch-1 copy", "epoch-x", "epoch-", "epoch-2-old", "soup-old"):
        shutil.copytree(run / "checkpoints" / "epoch-1", run / "checkpoints" / name)
    assert [checkpoint.name for checkpoint in list_checkpoints([str(run)])] == expected
    merge(["--checkpoints", str(run), "--scales=1", f"--out={tmp_path / 'merged'}"])
    assert (tmp_path / "merged" / "model.safetensors").is_file()
    # By its name a copy is a checkpoint like any other.
    copy = str(run / "checkpoints" / "epoch-1.bak")
    assert [checkpoint.path for checkpoint in list_checkpoints([copy])] == [copy]
    for epoch in (0, 1, 2):
        shutil.rmtree(run / "checkpoints" / f"epoch-{epoch}")
    with pytest.raises(UserError):
        list_checkpoints([str(run)])


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def check_training(folder: Path, expected: Mapping[str, Any]) -> None:
    assert close(scores_in(folder), {name: expected[name] for name in ("step 0", "chosen")})
    training = json.loads((folder / "report.json").read_text(encoding="utf-8"))["training"]
    assert close(training["history"], expected["history"])
    assert training["chosen_epoch"] == expected["chosen_epoch"]
