"""The commands that a training ends with are ones that their programs take."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from claim2source.core.config import read_config
from claim2source.models import ModelConfig
from claim2source.pipeline.table import EvaluateConfig
from claim2source.training.after import next_steps
from claim2source.training.config import DataConfig, FinetuneConfig
from train.merge import MergeConfig

CONFIG = FinetuneConfig(
    data=DataConfig(dataset="my data", report_split="test", lenient=True),
    model=ModelConfig(name="org/own", attention="eager", allow_remote_code=("org/own", "org/two")),
    out=Path("runs/it's mine"),
    store=Path("a store"),
    device="cpu",
    languages=["en", "no"],
)


def commands(config: FinetuneConfig, trained: bool) -> list[list[str]]:
    text = next_steps(config, config.out / "checkpoints" / "epoch-1", trained)
    _, checkpoint, following, *lines = text.split("\n")
    assert checkpoint == f"chosen checkpoint: {config.out}/checkpoints/epoch-1"
    assert following == "next:" and len(lines) == 2
    return [shlex.split(line) for line in lines]


def test_they_are_quoted_and_repeat_what_evaluation_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/claim2source", "finetune"])
    (*start, _, _), (*_, second) = (words[:4] for words in commands(CONFIG, True))
    assert start == ["claim2source", "evaluate"] and second == "runs/it's mine"
    evaluate, export = (words[2:] for words in commands(CONFIG, True))
    read = read_config(EvaluateConfig, evaluate, program="p", description="d")
    assert (read.checkpoint, read.dataset, read.split) == (["runs/it's mine"], "my data", "test")
    assert (read.store, read.device, read.languages) == (CONFIG.store, "cpu", ["en", "no"])
    assert read.lenient and read.model.attention == "eager"
    assert read.model.allow_remote_code == ("org/own", "org/two")
    # Beside the run's own report, not over it.
    assert read.out == CONFIG.out / "evaluation"
    merged = read_config(MergeConfig, export, program="p", description="d")
    assert (merged.checkpoints, merged.out) == (read.checkpoint, Path("runs/it's mine-merged"))
    assert merged.model.allow_remote_code == ("org/own", "org/two")


def test_what_the_runs_end_has_done_is_named_and_not_suggested() -> None:
    folder, checkpoint = CONFIG.out / "evaluation", CONFIG.out / "checkpoints" / "epoch-1"
    text = next_steps(CONFIG, checkpoint, True, evaluated=True)
    assert "evaluate.py" not in text and "merge.py" in text
    assert str(folder) in text and str(folder / "report.html") in text
    # Nothing is left to do where nothing was trained.
    assert "next:" not in next_steps(CONFIG, checkpoint, False, evaluated=True)
    assert "merge.py" not in next_steps(CONFIG, checkpoint, False)
