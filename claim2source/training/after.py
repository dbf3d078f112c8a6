"""Score baselines and write a page of figures when a training run has ended."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from claim2source.core.errors import ConfigError
from claim2source.core.terminal import say
from claim2source.evaluation.html.page import html_report
from claim2source.io.wandb import wandb_mode
from claim2source.pipeline.attached import read_attached
from claim2source.pipeline.baselines import BaselinesConfig, evaluate_baselines, named_systems
from claim2source.pipeline.checkpoints import CheckpointConfig, evaluate_checkpoints
from claim2source.training.config import FinetuneConfig
from claim2source.training.run_folder import RunFolder

log = logging.getLogger(__name__)

FOLDER = "evaluation"
CHECKPOINTS, BASELINES, PAGE = "checkpoints", "baselines", "report.html"


def check_after(config: FinetuneConfig) -> None:
    """Raise `UserError` for unknown baselines, missing texts and bad pipelines before training."""
    read_attached("after.stages", config.after.stages)
    if "styles" in config.after.stages:
        config.after.styles.require_texts()
    if config.after.baselines:
        try:
            named_systems(config.after.files, config.after.baselines)
        except ConfigError as error:
            raise ConfigError("after.baselines", error.value, error.allowed) from None


def evaluate_after(config: FinetuneConfig, run: RunFolder) -> tuple[Path, ...]:
    """Score the kept checkpoints and the named baselines on the report split; write the page.

    Everything goes to the run's folder `evaluation`; what was written is returned. A failure is
    logged and skipped: the run is finished, and stays so.
    """
    if not config.after.wanted:
        return ()
    folder = run.path / FOLDER
    done = []
    if _tried("the checkpoints", lambda: evaluate_checkpoints(_checkpoints(config, run, folder))):
        done.append(folder / CHECKPOINTS)
    if config.after.baselines:
        settings = _baselines(config, folder)
        if _tried("the baselines", lambda: evaluate_baselines(settings, config.data.train_split)):
            done.append(folder / BASELINES)
    if config.after.report and done:
        reports = list(done)
        if _tried("the page", lambda: _page(config, folder, reports)):
            done.append(folder / PAGE)
    return tuple(done)


def _tried(what: str, work: Callable[[], str]) -> bool:
    """Print what `work` returns; log its failure and return False."""
    try:
        say(f"\n{work()}")
    except Exception as error:  # whatever it was, the run must not be lost for it
        why = " ".join(str(error).split()) or type(error).__name__
        log.warning("after the run: %s: %s: %s", what, type(error).__name__, why)
        return False
    return True


def _checkpoints(config: FinetuneConfig, run: RunFolder, folder: Path) -> CheckpointConfig:
    return CheckpointConfig(
        checkpoint=str(run.path),
        out=folder / CHECKPOINTS,
        dataset=config.data.dataset,
        split=config.data.report_split,
        model=config.model.for_checkpoint(run.path),
        models=config.after.models,
        store=config.store,
        wandb=wandb_mode(config.wandb.mode),
        device=config.device,
        languages=config.languages,
        lenient=config.data.lenient,
        claims=list(config.after.claims),
        hybrid=config.after.hybrid,
        stages=list(config.after.stages),
        styles=config.after.styles,
    )


def _baselines(config: FinetuneConfig, folder: Path) -> BaselinesConfig:
    """Configure the baselines with the run's rendering."""
    return BaselinesConfig(
        out=folder / BASELINES,
        dataset=config.data.dataset,
        split=config.data.report_split,
        files=list(config.after.files),
        systems=list(config.after.baselines),
        claims=list(dict.fromkeys([config.rendering.claims, *config.after.claims])),
        languages=config.languages,
        rule=config.rule,
        models=config.after.models,
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
