"""Say where the chosen checkpoint lies, and what to type next."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.program import command_of
from claim2source.training.after import FOLDER
from claim2source.training.config import FinetuneConfig


def next_steps(
    config: FinetuneConfig, chosen: Path, trained: bool, evaluated: Sequence[Path] = ()
) -> str:
    """Name the chosen checkpoint, and the commands that evaluate it and that export it.

    `evaluated` are the reports, and the page, that the run's end has written: what is there is
    named, not suggested. Where the model before training was chosen there is nothing to export:
    the second command writes the evaluation as a page.
    """
    run, data = str(config.out), config.data
    evaluation = str(config.out / FOLDER)
    needs = [
        *_option("--model.allow_remote_code", config.model.allow_remote_code),
        *_option("--model.allow_bin", config.model.allow_bin),
        *_option("--model.attention", [config.model.attention] if config.model.attention else ()),
    ]
    lenient = ["--lenient"] if data.lenient else []
    reports = [str(path) for path in evaluated if path.suffix != ".html"]
    commands = []
    if config.out / FOLDER not in evaluated:
        evaluate = [
            *("--checkpoint", run, "--dataset", data.dataset, "--split", data.report_split),
            *_option("--languages", config.languages or ()),
            *_option("--store", [str(config.store)] if config.store else ()),
            *_option("--device", [config.device] if config.device else ()),
            *lenient,
            *needs,
            *("--out", evaluation),
        ]
        commands.append(("eval/evaluate.py", evaluate))
    if trained:
        merge = ["--checkpoints", run, *needs, "--out", f"{run}-merged"]
        commands.append(("train/merge.py", merge))
    elif len(reports) == len(evaluated):
        page = [*_option("--reports", reports or [evaluation]), *lenient]
        commands.append(("eval/report.py", [*page, "--html", f"{evaluation}/report.html"]))
    lines = [f"  {command_of(program)} {shlex.join(words)}" for program, words in commands]
    found = [f"evaluation: {', '.join(map(str, evaluated))}"] if evaluated else []
    lines = ["next:", *lines] if lines else []
    return "\n".join(["", f"chosen checkpoint: {chosen}", *found, *lines])


def _option(name: str, values: Sequence[str]) -> list[str]:
    return [name, *values] if values else []
