"""Score baselines and write a page of figures when a training run has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.terminal import say
from claim2source.evaluation.html.page import html_report
from claim2source.io.wandb import wandb_mode
from claim2source.pipeline.attached import read_attached
from claim2source.pipeline.baselines import BaselinesConfig, evaluate_baselines, named_systems
from claim2source.pipeline.checkpoints import CheckpointConfig, evaluate_checkpoints
from claim2source.training.config import AfterConfig, FinetuneConfig
from claim2source.training.run_folder import RunFolder

log = logging.getLogger(__name__)

FOLDER = "evaluation"
CHECKPOINTS, BASELINES, PAGE = "checkpoints", "baselines", "report.html"


def check_after(config: FinetuneConfig) -> None:
    """Raise `UserError` for unknown baselines, missing texts and bad pipelines before training."""
    after = AfterConfig.read(config.after)
    try:
        read_attached("stages", after.stages)
        if "styles" in after.stages:
            after.styles.require_texts()
        if after.baselines:
            named_systems(after.files, after.baselines)
    except ConfigError as error:
        key = "baselines" if error.key == "systems" else error.key
        raise InputError.at(str(config.after), None, key, error.why) from None


def evaluate_after(config: FinetuneConfig, run: RunFolder) -> tuple[Path, ...]:
    """Score the kept checkpoints and the named baselines on the report split; write the page.

    Everything goes to the run's folder `evaluation`; what was written is returned. A failure is
    logged and skipped: the run is finished, and stays so.
    """
    try:
        after = AfterConfig.read(config.after)
    except UserError as error:  # it was another when the run began
        _warn("what is to be scored", error)
        return ()
    if not after.wanted:
        return ()
    folder = run.path / FOLDER
    done = []
    checkpoints = _checkpoints(config, after, run, folder)
    if _tried("the checkpoints", lambda: evaluate_checkpoints(checkpoints)):
        done.append(folder / CHECKPOINTS)
    if after.baselines:
        settings, split = _baselines(config, after, folder), config.data.train_split
        if _tried("the baselines", lambda: evaluate_baselines(settings, split)):
            done.append(folder / BASELINES)
    if after.report and done:
        reports = list(done)
        if _tried("the page", lambda: _page(config, folder, reports)):
            done.append(folder / PAGE)
    return tuple(done)


def _tried(what: str, work: Callable[[], str]) -> bool:
    """Print what `work` returns; log its failure and return False."""
    try:
        say(f"\n{work()}")
    except Exception as error:  # whatever it was, the run must not be lost for it
        _warn(what, error)
        return False
    return True


def _warn(what: str, error: Exception) -> None:
    why = " ".join(str(error).split()) or type(error).__name__
    log.warning("after the run: %s: %s: %s", what, type(error).__name__, why)


def _checkpoints(
    config: FinetuneConfig, after: AfterConfig, run: RunFolder, folder: Path
) -> CheckpointConfig:
    return CheckpointConfig(
        checkpoint=str(run.path),
        out=folder / CHECKPOINTS,
        dataset=config.data.dataset,
        split=config.data.report_split,
        model=config.model.for_checkpoint(run.path),
        models=after.models,
        store=config.store,
        wandb=wandb_mode(config.wandb.mode),
        device=config.device,
        languages=config.languages,
        lenient=config.data.lenient,
        claims=list(after.claims),
        hybrid=after.hybrid,
        stages=list(after.stages),
        styles=after.styles,
    )


def _baselines(config: FinetuneConfig, after: AfterConfig, folder: Path) -> BaselinesConfig:
    """Configure the baselines with the run's rendering."""
    return BaselinesConfig(
        out=folder / BASELINES,
        dataset=config.data.dataset,
        split=config.data.report_split,
        files=list(after.files),
        systems=list(after.baselines),
        claims=list(dict.fromkeys([config.rendering.claims, *after.claims])),
        languages=config.languages,
        rule=config.rule,
        models=after.models,
        store=config.store,
        wandb=wandb_mode(config.wandb.mode),
        device=config.device,
        lenient=config.data.lenient,
    )


def _page(config: FinetuneConfig, folder: Path, reports: list[Path]) -> str:
    return html_report(
        reports,
        folder / PAGE,
        dataset=config.data.dataset,
        split=config.data.report_split,
        languages=config.languages,
        lenient=config.data.lenient,
        wandb=wandb_mode(config.wandb.mode),
    )
