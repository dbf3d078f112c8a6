"""The rows scored out of fold: each is a command of train/folds.py, run once, tested by claim."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.datasets import load
from claim2source.training import folds
from claim2source.training.folds_config import FoldsConfig
from scripts import ablate_folds as script
from scripts.ablate_folds import ROWS, SCORES, FoldRowsConfig, Row, ablate_folds, arguments
from tests.shared_data import REPOSITORY
from tests.training.small import arguments as small_arguments
from tests.training.small import small_setup


def test_every_row_is_a_command_that_parses_and_changes_something(tmp_path: Path) -> None:
    commands = set()
    for number, row in enumerate(ROWS):
        above = [other.name for other in ROWS[:number]]
        assert row.against is None or row.against in above
        assert row.on is None or row.on in above
        if script.settings_of(row):
            words = arguments(FoldRowsConfig(tmp_path), row)
            config = read_config(FoldsConfig, words, program="t", description="t")
            commands.add(str(replace(config, out=tmp_path)))
            # Claims of dev are not among what is trained, chosen on or scored.
            assert config.data.train_split == "train" and not config.refit
    assert len(commands) == len(ROWS) - 1


def test_the_base_recipe_is_the_one_of_the_config() -> None:
    file = REPOSITORY / "configs" / "finetune" / "ct25_minilm.yaml"
    config = read_config(FoldsConfig, ["--config", str(file)], program="t", description="t")
    words = [f"--{key}={value}" for key, value in script.RECIPE.items()]
    ours = read_config(FoldsConfig, words, program="t", description="t")
    for part in ("tuning", "model", "rendering", "optimisation", "mining", "batches", "losses"):
        assert getattr(ours, part) == getattr(config, part), part


def test_a_teacher_lies_beside_the_rows(tmp_path: Path) -> None:
    row = next(row for row in ROWS if row.name == "teacher")
    assert f"--{SCORES}={tmp_path / 'teacher'}" in arguments(FoldRowsConfig(tmp_path), row)


@pytest.fixture
def small_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model, data = small_setup(tmp_path / "small")
    words = small_arguments(model, data, tmp_path / "unused", optimisation__epochs=1)
    recipe: dict[str, Any] = dict(word.removeprefix("--").split("=", 1) for word in words)
    for key in ("out", "data.dataset", "data.report_split", "wandb.mode"):
        recipe.pop(key, None)
    monkeypatch.setattr(script, "MINILM", str(model))
    monkeypatch.setattr(script, "LENGTH", 32)
    monkeypatch.setattr(script, "data_folder", lambda name: data)
    monkeypatch.setattr(
        script,
        "ROWS",
        (
            Row("zero-shot", "the base"),
            Row("plain", "as it is", recipe, against="zero-shot"),
            Row("other", "a small step", {"optimisation.learning_rate": 1e-12}, "plain", "plain"),
        ),
    )
    return tmp_path / "out"


@pytest.mark.slow
def test_rows_are_run_once_and_tested_over_all_claims_of_train(
    small_rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = ablate_folds(FoldRowsConfig(small_rows, rows=["plain"], first=True))
    assert not (small_rows / "plain-42-of-2" / "fold-2").exists()
    text = ablate_folds(FoldRowsConfig(small_rows, rows=["plain"]))
    assert "not run: python scripts/ablate_folds.py --rows other" in text
    record = json.loads((small_rows / "plain-42-of-2" / "folds.json").read_text())
    data = load(str(script.data_folder("ct25")), "train")
    first, second = (len(fold["claims"]) for fold in record["folds"])
    assert first + second == len(data.claims)
    assert f": {first} claims, " in half and f": {first + second} claims, " in text

    def never(*a: Any, **k: Any) -> Any:
        raise AssertionError("a finished fold is not trained again")

    monkeypatch.setattr(folds, "finetune", never)
    text = ablate_folds(FoldRowsConfig(small_rows, rows=["zero-shot"]))
    score = record["scores"]["all"]["macro"]["mrr@5"]
    assert f"{score:.4f}" in text and "against zero-shot" in text
    spent = small_rows / "plain-42-of-2" / "row.json"
    assert json.loads(spent.read_text())["seconds"] is None  # its first fold was trained before
    spent.write_text(spent.read_text().replace("--folds=2", "--folds=3"))
    with pytest.raises(UserError, match="other settings"):
        ablate_folds(FoldRowsConfig(small_rows, rows=["zero-shot"]))
