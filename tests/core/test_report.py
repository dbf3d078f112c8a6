"""Reports as JSON: keys that differ from the names of fields."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.core.report import Choice, Report, SystemReport, TrainingReport


def test_the_reason_of_a_choice_is_called_why_in_json(tmp_path: Path) -> None:
    choice = Choice("bm25", {"b": 0.5}, 0.5, "train", 3, reason="nearer to the default")
    system = SystemReport("BM25", "bm25", "BM25", choices=(choice,))
    training = TrainingReport((), "val", 0, "checkpoints/epoch-0", choice=choice)
    report = Report("demo", "dev", {"BM25": system}, training=training)
    report.write(tmp_path)
    file = tmp_path / "report.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    for written in (raw["systems"]["BM25"]["choices"][0], raw["training"]["choice"]):
        assert written["why"] == "nearer to the default" and "reason" not in written
    assert Report.read(tmp_path) == report
    # Errors use the key of the file.
    raw["training"]["choice"]["why"] = 3
    file.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(InputError) as caught:
        Report.read(tmp_path)
    assert caught.value.problems[0].field == "training.choice.why"
