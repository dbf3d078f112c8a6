"""Tables for W&B: what is taken, what is refused before the work, and a real offline run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.core.tables import TextTable
from claim2source.io.wandb import (
    log_tables,
    require_tracking,
    table_key,
    wandb_mode,
)
from tests.shared_data import REPOSITORY

TABLES = {"a": TextTable(["x"], [[1]])}


def test_off_needs_nothing_and_does_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    require_tracking("off")
    log_tables("off", TABLES, folder=tmp_path, program="p", config={})
    assert not list(tmp_path.iterdir())


def test_online_without_a_key_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    require_tracking("offline")
    with pytest.raises(UserError, match="online needs a key"):
        require_tracking("online")
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    require_tracking("online")
    assert wandb_mode("auto") == "online"


def test_without_wandb_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install wandb"):
        require_tracking("offline")


def test_keys_are_fit_for_files() -> None:
    name = "Rank of the gold: from a/b (rows) to C (columns)"
    assert table_key(name) == "rank_of_the_gold_from_a_b_rows_to_c_columns"


def test_a_real_offline_run_holds_the_tables(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    code = f"""
from pathlib import Path
from claim2source.core.tables import TextTable
from claim2source.io.wandb import log_tables
tables = {{"Not run": TextTable(["system", "cost"], [["a", 1.5], ["b", "text"], ["c", None]]),
          "scores": TextTable(["n"], [[1]])}}
log_tables("offline", tables, folder=Path({str(tmp_path)!r}), program="p", config={{"x": 1}})
"""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("WANDB")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={**kept, "PYTHONPATH": str(REPOSITORY), "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = {
        path.name.rsplit("_", 2)[0]: json.loads(path.read_text())
        for path in tmp_path.glob("wandb/offline-run-*/files/media/table/*.json")
    }
    assert found["not_run"]["data"] == [["a", 1.5], ["b", "text"], ["c", None]]
    assert found["scores"]["columns"] == ["n"]
