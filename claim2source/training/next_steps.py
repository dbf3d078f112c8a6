"""Say where the chosen checkpoint lies, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.program import command_of
from claim2source.training.config import FinetuneConfig


def next_steps(config: FinetuneConfig, chosen: Path, trained: bool) -> str:
    """Name the chosen checkpoint, and the commands that evaluate it and that export it.

    Where the model before training was chosen there is nothing to export: the second command
    writes the evaluation as a page.
    """
    run, data = str(config.out), config.data
    evaluation = str(config.out / "evaluation")
    needs = [
        *_option("--model.allow_remote_code", config.model.allow_remote_code),
        *_option("--model.allow_bin", config.model.allow_bin),
        *_option("--model.attention", [config.model.attention] if config.model.attention else ()),
    ]
    lenient = ["--lenient"] if data.lenient else []
    evaluate = [
        *("--checkpoint", run, "--dataset", data.dataset, "--split", data.report_split),
        *_option("--languages", config.languages or ()),
        *_option("--store", [str(config.store)] if config.store else ()),
        *_option("--device", [config.device] if config.device else ()),
        *lenient,
        *needs,
        *("--out", evaluation),
    ]
    if trained:
        second = "train/merge.py", ["--checkpoint", run, *needs, "--out", f"{run}-merged"]
    else:
        second = (
            "eval/report.py",
            ["--reports", evaluation, *lenient, "--out", f"{evaluation}/report.html"],
        )
    commands = [("eval/checkpoint.py", evaluate), second]
    lines = [f"  {command_of(program)} {shlex.join(words)}" for program, words in commands]
    return "\n".join(["", f"chosen checkpoint: {chosen}", "next:", *lines])


def _option(name: str, values: Sequence[str]) -> list[str]:
    return [name, *values] if values else []
