"""The learning rate of every step: linear warm-up, then half a cosine down to 0."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from claim2source.training.finetune import finetune
from tests.training.small import small_config, small_setup

PEAK = 1e-3


def rate(step: int, warmup: int, steps: int) -> float:
    """Of the step that is number `step` from 0, written out from the paper's words."""
    if step < warmup:
        return PEAK * step / warmup
    return PEAK * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def test_every_logged_rate_is_the_formulas(tmp_path: Path) -> None:
    out = tmp_path / "run"
    finetune(
        small_config(
            *small_setup(tmp_path),
            out,
            optimisation__learning_rate=PEAK,
            optimisation__warmup_ratio=0.3,
            optimisation__save_every=0,
        )
    )
    with open(out / "logs" / "step-000000" / "metrics.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["loss"]]
    found = [float(row["learning_rate"]) for row in rows]
    steps, warmup = len(found), round(0.3 * len(found))
    assert warmup >= 3 and steps - warmup >= 8
    assert found == pytest.approx([rate(k, warmup, steps) for k in range(steps)], abs=1e-9)
    # A guard against a run too short to tell: in its first quarter a line lies well below.
    quarter = warmup + (steps - warmup) // 4
    line = PEAK * (steps - quarter) / (steps - warmup)
    assert found[quarter] > 1.05 * line
