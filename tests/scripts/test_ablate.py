"""The ablation runner on small runs: rows add up, done rows stay done, gaps are said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from claim2source.config import read_config
from claim2source.errors import UserError
from claim2source.training.config import FinetuneConfig
from scripts import ablate as script
from scripts.ablate import TABLES, AblateConfig, Row, Table, ablate, arguments
from tests.training.small import arguments as small_arguments
from tests.training.small import small_setup


@pytest.mark.parametrize("name", TABLES)
def test_every_row_is_a_command_that_parses(name: str, tmp_path: Path) -> None:
    commands = set()
    for row in TABLES[name].rows:
        if row.trained:
            words = arguments(AblateConfig(tmp_path), name, row)
            config = read_config(FinetuneConfig, words, program="t", description="t")
            commands.add(str(config).replace(str(config.out), ""))
        known = [other.name for other in TABLES[name].rows]
        assert row.against is None or known.index(row.against) < known.index(row.name)
        assert row.on is None or row.on in known
    # Each row changes something.
    assert len(commands) == sum(row.trained for row in TABLES[name].rows)


def test_rows_build_on_each_other(tmp_path: Path) -> None:
    words = arguments(AblateConfig(tmp_path, seed=7), "ct25", TABLES["ct25"].rows[4])
    assert "--mining.pool=train-golds" in words and "--mining.max_share=0.95" in words
    assert "--optimisation.batch_size=128" in words and "--optimisation.seed=7" in words
    at = words.index("--languages") if "--languages" in words else None
    assert at is None


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    model, data = small_setup(tmp_path / "small")
    words = small_arguments(model, data, tmp_path / "unused", optimisation__epochs=1)
    recipe: dict[str, Any] = dict(word.removeprefix("--").split("=", 1) for word in words)
    for key in ("out", "data.dataset", "data.report_split", "wandb.mode"):
        recipe.pop(key)
    table = Table(
        "small", recipe, {"dev": ("small", "dev", None), "de": ("small", "dev", ["de"])},
        (
            Row("plain", "as it is"),
            Row("slow", "a small step", {"optimisation.learning_rate": 1e-12}, "plain", "plain"),
            Row("half", "half of it", {}, "plain", "plain", trained=False, scale=0.5),
            Row("none", "the base", trained=False, on="plain", scale=0.0),
        ),
    )  # fmt: skip
    monkeypatch.setattr(script, "TABLES", {"small": table})
    monkeypatch.setattr(script, "_folder", lambda name: str(data))
    return tmp_path / "out"


@pytest.mark.slow
def test_rows_run_once_and_gaps_are_said(
    small_table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ablate(AblateConfig(small_table, rows=["half"]))  # of what is not trained yet
    assert "not run: python scripts/ablate.py --tables small --rows half" in text
    text = ablate(AblateConfig(small_table, rows=["plain"]))
    assert "not run: python scripts/ablate.py --tables small --rows slow" in text
    report = json.loads((small_table / "small-plain-42" / "report.json").read_text())
    row = json.loads((small_table / "small-plain-42" / "row.json").read_text())
    assert row["targets"]["dev"]["scores"]["macro"] == pytest.approx(
        report["after"]["macro"]["mrr@5"]
    )
    assert row["targets"]["de"]["scores"]["macro"] == pytest.approx(report["after"]["de"]["mrr@5"])
    started: list[list[str]] = []
    real = script.subprocess.run

    def remember(command: list[str], **more: Any) -> Any:
        started.append(command)
        return real(command, **more)

    monkeypatch.setattr(script.subprocess, "run", remember)
    text = ablate(AblateConfig(small_table))
    runs = [command for command in started if "finetune.py" in " ".join(command)]
    assert len(runs) == 1 and "--optimisation.learning_rate=1e-12" in runs[0]
    slow = json.loads((small_table / "small-slow-42" / "row.json").read_text())
    gap = [
        a - b
        for a, b in zip(slow["targets"]["dev"]["values"], row["targets"]["dev"]["values"],
                        strict=True)
    ]  # fmt: skip
    assert f"{sum(gap) / len(gap):+.4f} (" in text and "against plain" in text
    assert "not run" not in text
    half, none = (
        json.loads((small_table / f"small-{name}-42" / "row.json").read_text())
        for name in ("half", "none")
    )
    assert half["note"] == "scale 0.5" and half["targets"].keys() == {"dev", "de"}
    assert none["targets"]["dev"]["scores"]["macro"] == pytest.approx(
        report["before"]["macro"]["mrr@5"]
    )
    assert not (small_table / "small-half-42" / "checkpoints").exists()
    assert (small_table / "small-42.md").read_text().count("| slow |") == 1


def test_the_program_says_every_gap(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script, "_outcome", lambda *a: None)
    script.main(["--tables", "demo", "--rows", "limits", "--out", str(tmp_path)])
    said = capsys.readouterr().out
    assert all(f"--tables demo --rows {row.name} " in said for row in TABLES["demo"].rows)


def test_names_are_checked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tables: 'x'"):
        ablate(AblateConfig(tmp_path, tables=["x"]))
    with pytest.raises(UserError, match="rows: 'x'"):
        ablate(AblateConfig(tmp_path, rows=["x"]))
