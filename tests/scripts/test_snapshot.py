"""What a snapshot runs: every kind of system that needs no hub."""

from __future__ import annotations

import yaml

from scripts.snapshot import SHORT
from tests.shared_data import REPOSITORY


def test_a_snapshot_runs_every_kind_of_hybrid() -> None:
    offline = (REPOSITORY / "configs" / "systems" / "offline.yaml").read_text(encoding="utf-8")
    quick = set(SHORT["quick"].split())
    assert {"H-MiniLM", "HT-MiniLM", "HR-MiniLM"} <= quick <= yaml.safe_load(offline).keys()
