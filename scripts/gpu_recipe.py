"""Train a config with several seeds by `train/finetune.py`; collect scores and seconds."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from claim2source.core.report import MAIN_METRIC, Report
from scripts.data_folder import REPOSITORY


def train_seeds(recipe: str, seeds: Sequence[int], *more: str) -> dict[str, Any]:
    """Train once a seed; give each run's score and seconds, their mean and standard deviation.

    `more` are words for the program. A run that fails has its error's last line instead.
    """
    rows = [_train(recipe, seed, more) for seed in seeds]
    scores = [row["score"] for row in rows if row["score"] is not None]
    return {
        "recipe": recipe,
        "metric": MAIN_METRIC,
        "runs": rows,
        "mean": statistics.mean(scores) if scores else None,
        "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
    }


def _train(recipe: str, seed: int, more: Sequence[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        words = ["--config", recipe, f"--optimisation.seed={seed}", "--wandb.mode=off"]
        command = [sys.executable, "train/finetune.py", *words, *more, f"--out={out}"]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        row: dict[str, Any] = {"seed": seed, "score": None}
        row["seconds"] = round(time.perf_counter() - started, 1)
        if done.returncode:
            return row | {"failed": (done.stderr.strip().splitlines() or ["no message"])[-1]}
        return row | {"score": round(Report.read(out).macro[MAIN_METRIC], 4)}
