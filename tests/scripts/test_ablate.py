"""The ablation runner on small runs: rows add up, finished rows stay, gaps are reported."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.report import Epoch, Report, TrainingReport
from claim2source.metrics.metrics import language_table, macro
from claim2source.training.config import FinetuneConfig
from claim2source.training.run_folder import RunFolder
from scripts import ablate as script
from scripts.ablate import METRIC, TABLES, AblateConfig, Ablation, Outcome, Row, Table, ablate
from tests.training.small import arguments as small_arguments
from tests.training.small import small_setup


def parsed(words: list[str]) -> FinetuneConfig:
    """The settings of a command's words."""
    return read_config(FinetuneConfig, words, program="t", description="t")


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_a_command_that_parses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = set()
    rows = TABLES[name].rows
    order = [*rows]
    for number, (row, own) in enumerate(rows.items()):
        against = own.against
        if own.scale is None:
            ablation = Ablation(AblateConfig(tmp_path), name)
            config = parsed(ablation.arguments(row))
            command = str(config).replace(str(config.out), "")
            commands.add(command)
        # A row is scaled from, and tested against, one that is run before it.
        is_base = against is None and own.scale == 0
        assert against in order[:number] or is_base
        assert own.scale is None or against is None or rows[against].scale is None
    # Each row changes something.
    trained = sum(own.scale is None for own in rows.values())
    assert len(commands) == trained


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (None, []),
        (1e-4, ["--resume"]),
        (5e-4, ["--overwrite"]),
    ],
)
def test_a_row_begun_with_other_settings_begins_again(
    rate: float | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ablation = Ablation(AblateConfig(tmp_path), "ct25")
    words = ablation.arguments("pool-all")
    folder = tmp_path / "ct25-pool-all-42"
    score = {"macro": {"mrr@5": 0.5}}
    if rate is not None:
        config = parsed([*words, f"--optimisation.learning_rate={rate}"])
        run = RunFolder.find(config)
        run.begin()
        run.record(Epoch(0, score))
        run.release()
    started: list[list[str]] = []

    def train(command: list[str], check: bool) -> Any:
        started.append(command[2:])
        epoch = Epoch(1, score)
        training = TrainingReport((epoch,), "best", 1, "checkpoints/epoch-1")
        folder.mkdir(exist_ok=True)
        report = Report("d", "dev", {}, training=training)
        report.write(folder)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(script.subprocess, "run", train)
    fresh = Ablation(AblateConfig(tmp_path), "ct25")
    fresh.training_report("pool-all")
    assert started == [[*words, *expected]]


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    sets = tmp_path / "sets"
    model, _ = small_setup(sets)
    monkeypatch.setenv("CLAIM2SOURCE_DATA", str(sets))
    unused = tmp_path / "unused"
    words = small_arguments(model, Path(), unused, optimisation__epochs=1)
    recipe: dict[str, Any] = {}
    for word in words:
        key, value = word.removeprefix("--").split("=", 1)
        recipe[key] = value
    for key in ("out", "wandb.mode"):
        recipe.pop(key)
    recipe |= {"data.dataset": "data", "data.report_split": "dev"}

    splits = {
        "dev": ("data", "dev"),
        "de": ("data", "dev", ["de"]),
    }
    small_step = {"optimisation.learning_rate": 1e-12}
    rows = {
        "plain": Row("as it is"),
        "slow": Row("a small step", "plain", small_step),
        "half": Row("half of it", "plain", scale=0.5),
        "none": Row("the base", "plain", scale=0.0),
    }
    table = Table(recipe, splits, rows)
    monkeypatch.setattr(script, "TABLES", {"small": table})
    return tmp_path / "out"


def macro_of(outcome: Outcome, ablation: Ablation) -> float:
    claims = ablation.load("dev").claims
    by_language = language_table(outcome.scores["dev"], claims)
    return float(macro(by_language)[METRIC])


@pytest.mark.slow
def test_rows_run_once_and_gaps_are_said(
    small_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ablate(AblateConfig(small_table, rows=["plain"]))
    assert "not run: --tables small --rows slow" in text
    file = small_table / "small-plain-42" / "report.json"
    report = json.loads(file.read_text())
    ablation = Ablation(AblateConfig(small_table, rows=[]), "small")
    plain = ablation.run("plain")
    assert plain is not None
    assert ablation.run("slow") is None
    reported = report["macro"][METRIC]
    reported_german = report["languages"]["de"][METRIC]
    german = plain.scores["de"][METRIC]
    assert macro_of(plain, ablation) == pytest.approx(reported)
    assert german.mean() == pytest.approx(reported_german)

    started: list[list[str]] = []
    real = script.subprocess.run

    def remember(command: list[str], **options: Any) -> Any:
        started.append(command)
        return real(command, **options)

    monkeypatch.setattr(script.subprocess, "run", remember)
    text = ablate(AblateConfig(small_table))
    runs = [command for command in started if "finetune.py" in " ".join(command)]
    assert len(runs) == 1
    assert "--optimisation.learning_rate=1e-12" in runs[0]

    # A row that is not selected is shown if it is trained, but not scored again.
    slow = ablation.run("slow")
    assert slow is not None
    assert ablation.run("none") is None
    scaled = Ablation(AblateConfig(small_table), "small")
    none = scaled.run("none")
    assert none is not None
    gap = slow.scores["dev"][METRIC] - plain.scores["dev"][METRIC]
    assert f"{gap.mean():+.4f} (" in text
    assert "against plain" in text
    assert "not run" not in text

    step_0 = report["systems"]["step 0"]
    before = step_0["macro"][METRIC]
    assert macro_of(none, ablation) == pytest.approx(before)
    checkpoints = small_table / "small-half-42" / "checkpoints"
    assert not checkpoints.exists()
    table = (small_table / "small-42.md").read_text()
    assert table.count("| slow |") == 1
