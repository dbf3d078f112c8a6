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


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_a_command_that_parses(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands, rows = set(), TABLES[name].rows
    for number, (row, own) in enumerate(rows.items()):
        if own.scale is None:
            words = Ablation(AblateConfig(tmp_path), name).arguments(row)
            config = read_config(FinetuneConfig, words, program="t", description="t")
            commands.add(str(config).replace(str(config.out), ""))
        # A row is scaled from, and tested against, one that is run before it.
        assert own.against in [*rows][:number] or (own.against is None and own.scale == 0)
        assert own.scale is None or own.against is None or rows[own.against].scale is None
    # Each row changes something.
    assert len(commands) == sum(own.scale is None for own in rows.values())


@pytest.mark.parametrize(
    ("rate", "expected"), [(None, []), (1e-4, ["--resume"]), (5e-4, ["--overwrite"])]
)
def test_a_row_begun_with_other_settings_begins_again(
    rate: float | None, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = Ablation(AblateConfig(tmp_path), "ct25").arguments("pool-all")
    folder = tmp_path / "ct25-pool-all-42"
    if rate is not None:
        extra = [*words, f"--optimisation.learning_rate={rate}"]
        config = read_config(FinetuneConfig, extra, program="t", description="t")
        run = RunFolder.find(config)
        run.begin()
        run.record(Epoch(0, {"macro": {"mrr@5": 0.5}}))
        run.release()
    started: list[list[str]] = []

    def train(command: list[str], check: bool) -> Any:
        started.append(command[2:])
        score = {"macro": {"mrr@5": 0.5}}
        training = TrainingReport((Epoch(1, score),), "best", 1, "checkpoints/epoch-1")
        folder.mkdir(exist_ok=True)
        Report("d", "dev", {}, training=training).write(folder)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(script.subprocess, "run", train)
    Ablation(AblateConfig(tmp_path), "ct25").training_report("pool-all")
    assert started == [[*words, *expected]]


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model, _ = small_setup(tmp_path / "sets")
    monkeypatch.setenv("CLAIM2SOURCE_DATA", str(tmp_path / "sets"))
    words = small_arguments(model, Path(), tmp_path / "unused", optimisation__epochs=1)
    recipe: dict[str, Any] = dict(word.removeprefix("--").split("=", 1) for word in words)
    for key in ("out", "wandb.mode"):
        recipe.pop(key)
    recipe |= {"data.dataset": "data", "data.report_split": "dev"}
    table = Table(
        recipe,
        {"dev": ("data", "dev"), "de": ("data", "dev", ["de"])},
        {
            "plain": Row("as it is"),
            "slow": Row("a small step", "plain", {"optimisation.learning_rate": 1e-12}),
            "half": Row("half of it", "plain", scale=0.5),
            "none": Row("the base", "plain", scale=0.0),
        },
    )
    monkeypatch.setattr(script, "TABLES", {"small": table})
    return tmp_path / "out"


def macro_of(outcome: Outcome, ablation: Ablation) -> float:
    claims = ablation.load("dev").claims
    return float(macro(language_table(outcome.scores["dev"], claims))[METRIC])


@pytest.mark.slow
def test_rows_run_once_and_gaps_are_said(
    small_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ablate(AblateConfig(small_table, rows=["plain"]))
    assert "not run: --tables small --rows slow" in text
    report = json.loads((small_table / "small-plain-42" / "report.json").read_text())
    ablation = Ablation(AblateConfig(small_table, rows=[]), "small")
    plain = ablation.run("plain")
    assert plain is not None and ablation.run("slow") is None
    assert macro_of(plain, ablation) == pytest.approx(report["macro"][METRIC])
    assert plain.scores["de"][METRIC].mean() == pytest.approx(report["languages"]["de"][METRIC])
    started: list[list[str]] = []
    real = script.subprocess.run

    def remember(command: list[str], **options: Any) -> Any:
        started.append(command)
        return real(command, **options)

    monkeypatch.setattr(script.subprocess, "run", remember)
    text = ablate(AblateConfig(small_table))
    runs = [command for command in started if "finetune.py" in " ".join(command)]
    assert len(runs) == 1 and "--optimisation.learning_rate=1e-12" in runs[0]
    # A row that is not selected is shown if it is trained, but not scored again.
    slow = ablation.run("slow")
    assert slow is not None and ablation.run("none") is None
    none = Ablation(AblateConfig(small_table), "small").run("none")
    assert none is not None
    gap = slow.scores["dev"][METRIC] - plain.scores["dev"][METRIC]
    assert f"{gap.mean():+.4f} (" in text and "against plain" in text
    assert "not run" not in text
    before = report["systems"]["step 0"]["macro"][METRIC]
    assert macro_of(none, ablation) == pytest.approx(before)
    assert not (small_table / "small-half-42" / "checkpoints").exists()
    assert (small_table / "small-42.md").read_text().count("| slow |") == 1
