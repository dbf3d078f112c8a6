"""Evaluate a run's checkpoints as the file of `after` sets, and print the next commands."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from claim2source.core.config import read_config, read_yaml
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.program import next_command
from claim2source.core.terminal import say
from claim2source.data.wandb import Tracking
from claim2source.evaluation.html.page import html_report
from claim2source.evaluation.plan import CHOSEN, STEP_0
from claim2source.evaluation.reports import ReportConfig
from claim2source.evaluation.table import EvaluateConfig, evaluate_table
from claim2source.text.styles import require_texts
from claim2source.training.config import FinetuneConfig

log = logging.getLogger(__name__)

FOLDER, PAGE = "evaluation", "report.html"
# Keys that the training run sets itself.
_SET_BY_RUN = (
    "out dataset split checkpoint routes run languages lenient model rendering label".split()
)
_SET_BY_RUN += "device store wandb val rule submit".split()


def read_after(config: FinetuneConfig, tracking: Tracking) -> EvaluateConfig:
    """Read the evaluation that follows a training run: FILE's settings, on the run's checkpoints.

    Claims are evaluated in the form that the run was trained with, and in the forms that FILE
    lists. Raises `UserError` with the file and the key, before training, for a wrong key, a key
    that the run sets itself, and systems or files that do not exist.
    """
    assert config.after is not None
    file, run = config.after, str(config.out)
    values = read_yaml(file)
    for key in values if isinstance(values, dict) else ():
        if key in _SET_BY_RUN:
            raise InputError(file, None, key, "is set by the training run; leave it out")
    words = ["--config", str(file), "--out", f"{run}/{FOLDER}", "--checkpoint", run]
    try:
        evaluation = read_config(EvaluateConfig, words, program="after", description=None)
        evaluation = replace(
            evaluation,
            dataset=config.data.dataset,
            split=config.data.report_split,
            claims=list(dict.fromkeys([config.rendering.claims, *evaluation.claims])),
            languages=config.languages,
            lenient=config.data.lenient,
            model=config.model.for_checkpoint(config.out),
            store=config.store,
            device=config.device,
            wandb=tracking,
            rule=config.rule,
        )
        # It is not known yet which checkpoints there will be, except step 0.
        only = [name for name in evaluation.only if not name.startswith((CHOSEN, "epoch-"))]
        step_0 = f"{config.out}/checkpoints/{STEP_0}"
        replace(evaluation, only=only, checkpoint=[step_0]).plans()
        if evaluation.styles is not None:
            require_texts(evaluation.styles.texts, evaluation.styles.rewritten)
    except ConfigError as error:
        raise InputError(file, None, error.key, error.reason) from None
    return evaluation


def evaluate_after(evaluation: EvaluateConfig, train_split: str) -> bool:
    """Evaluate a run's checkpoints as `after` sets; return whether everything was written.

    Tables and a page are written to the run's folder `evaluation`. A failure is logged and
    skipped: the run itself is finished.
    """
    page = ReportConfig(
        reports=[evaluation.out],
        html=evaluation.out / PAGE,
        dataset=evaluation.dataset,
        split=evaluation.split,
        languages=evaluation.languages,
        lenient=evaluation.lenient,
        wandb=evaluation.wandb,
    )
    try:
        say(f"\n{evaluate_table(evaluation, train_split)}")
        say(f"\n{html_report(page)}")
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        log.warning("the evaluation after the run failed: %s: %s", type(error).__name__, reason)
        return False
    return True


def next_steps(
    config: FinetuneConfig, checkpoint: Path, trained: bool, evaluated: bool = False
) -> str:
    """Name the chosen checkpoint and the commands that evaluate and export it.

    Existing results are named, and their commands left out. If a run chose the model before
    training, there is nothing to export.
    """
    run, data, folder = str(config.out), config.data, config.out / FOLDER
    needs = [
        *_option("--model.allow_remote_code", config.model.allow_remote_code),
        *_option("--model.allow_bin", config.model.allow_bin),
        *_option("--model.attention", [config.model.attention] if config.model.attention else ()),
    ]
    evaluate = [
        *("--checkpoint", run, "--dataset", data.dataset, "--split", data.report_split),
        *_option("--languages", config.languages or ()),
        *_option("--store", [str(config.store)] if config.store else ()),
        *_option("--device", [config.device] if config.device else ()),
        *(["--lenient"] if data.lenient else []),
        *needs,
        *("--out", str(folder)),
    ]
    merge = ["--checkpoints", run, *needs, "--out", f"{run}-merged"]
    commands = [] if evaluated else [("eval/evaluate.py", evaluate)]
    commands += [("train/merge.py", merge)] if trained else []
    lines = [f"  {next_command(program)} {shlex.join(words)}" for program, words in commands]
    steps = [f"evaluation: {folder}, {folder / PAGE}"] if evaluated else []
    return "\n".join(
        ["", f"chosen checkpoint: {checkpoint}", *steps, *(["next:", *lines] if lines else [])]
    )


def _option(name: str, values: Sequence[str]) -> list[str]:
    return [name, *values] if values else []
