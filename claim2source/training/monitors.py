"""Check before training that callbacks monitor logged names, and in the right direction."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import ConfigError, did_you_mean
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, MAIN_METRIC
from claim2source.evaluation.evaluate import METRICS
from claim2source.metrics.metrics import judged_claims, language_masks
from claim2source.training.config import TrainingRecipe
from claim2source.training.lightning_parts import ARGUMENTS, CLASS, listed
from claim2source.training.splits import TrainingData
from claim2source.training.trainer import TrainerSettings

MONITORS = "trainer.callbacks"
# Names logged after every optimizer step of any training, besides a recipe's `measures`.
LOSS = "loss"
STEP_VALUES = (
    LOSS,
    "learning_rate",
    "gradient_norm",
    "skipped_steps",
    "claims_per_second",
    "real_tokens_per_second",
    "padded_tokens_per_second",
    "peak_memory_mib",
)
_VAL, _STOPPING = "val/", "EarlyStopping"
_LIGHTNING = ("pytorch_lightning", "lightning_fabric", "lightning")
# How a callback logs its own values.
_LOGS = (".log(", ".log_dict(", "callback_metrics[", "logged_metrics[")
# Beginning of Lightning's error at an epoch's end.
NOT_LOGGED = "Early stopping conditioned on metric"


def score_name(language: str, metric: str) -> str:
    """Return the name under which a score on val is logged."""
    return f"{_VAL}{language}/{metric}"


def part_score_name(part: str) -> str:
    """Return the logged name of the macro MRR@5 on val's claims of seen or unseen papers."""
    return f"{_VAL}{part} papers/{MAIN_METRIC}"


def logged_scores(val: Dataset, parts: Sequence[str] = ()) -> list[str]:
    """List the scores that are logged after every epoch; `parts` are those of val."""
    languages = language_masks(val.claims, judged_claims(val.qrels))
    names = [score_name(lang, metric) for lang in (*languages, MACRO) for metric in METRICS]
    return [*names, *map(part_score_name, parts)]


def logged_names(recipe: TrainingRecipe, data: TrainingData) -> list[str]:
    """List the names that callbacks can monitor: values of steps, and scores of epochs on val."""
    return [*STEP_VALUES, *recipe.measures, *logged_scores(data.val, data.val_parts)]


@dataclass(frozen=True)
class Monitor:
    """Monitored name of a callback; `mode` is that of an EarlyStopping."""

    callback: str
    name: str
    mode: str | None = None
    at_epoch_end: bool = True


def named_monitors(settings: TrainerSettings) -> list[Monitor] | None:
    """List the monitors of Lightning's own callbacks, without making any.

    None if there are other callbacks: their monitors are known only once they are made.
    """
    monitors: list[Monitor] = []
    for part in listed(settings.get("callbacks")):
        path = part.get(CLASS) if isinstance(part, dict) else None
        values = part.get(ARGUMENTS) or {} if isinstance(part, dict) else None
        if not isinstance(path, str) or not isinstance(values, dict):
            return None
        if "." in path and path.split(".")[0] not in _LIGHTNING:
            return None
        name = values.get("monitor")
        if path.split(".")[-1] == _STOPPING and isinstance(name, str):
            at_epoch_end = values.get("check_on_train_epoch_end") is not False
            monitors.append(Monitor(_STOPPING, name, values.get("mode", "min"), at_epoch_end))
    return monitors


def check_callbacks(callbacks: Sequence[object], logged: Sequence[str]) -> None:
    """Raise `ConfigError` for a wrong monitor of callbacks, as `check_monitors` does.

    An unknown name is accepted if a callback of the user may log it.
    """
    from pytorch_lightning.callbacks import EarlyStopping

    monitors: list[Monitor] = []
    for callback in callbacks:
        name = getattr(callback, "monitor", None)
        if not isinstance(name, str):
            continue
        monitor = Monitor(type(callback).__name__, name)
        if isinstance(callback, EarlyStopping):
            at_epoch_end = callback._check_on_train_epoch_end is not False
            monitor = Monitor(monitor.callback, name, callback.mode, at_epoch_end)
        monitors.append(monitor)
    has_own_names = any(_logs_values(callback) for callback in callbacks)
    check_monitors(monitors, logged, has_own_names=has_own_names)


def check_monitors(
    monitors: Iterable[Monitor], logged: Sequence[str], *, has_own_names: bool = False
) -> None:
    """Raise `ConfigError` for a monitor that is not logged, or that would stop a run that improves.

    With `has_own_names` names outside of `logged` may be logged too.
    """
    for monitor in monitors:
        if monitor.name not in logged and not has_own_names:
            raise monitor_error(monitor, logged)
        if monitor.mode is not None:
            _check_early_stopping(monitor)


def monitor_error(monitor: Monitor, logged: Sequence[str]) -> ConfigError:
    """Make the error for a monitor that is never logged; it lists the logged names."""
    languages: list[str] = []
    others: list[str] = []
    for name in logged:
        if name.endswith(f"/{METRICS[0]}"):
            languages.append(name.split("/")[1])
        if not name.endswith(METRICS) or name.count("/") != 2:
            others.append(name)
    if languages:
        others.append(f"{_VAL}[{' '.join(languages)}]/[{' '.join(METRICS)}]")
    advice = did_you_mean(monitor.name, logged)
    allowed = f"a logged name; {advice}there are: {', '.join(others)}"
    return ConfigError(MONITORS, f"{monitor.callback} with monitor {monitor.name}", allowed)


def _check_early_stopping(monitor: Monitor) -> None:
    value = f"{_STOPPING} with mode {monitor.mode}"
    name, is_loss = monitor.name, monitor.name == LOSS or monitor.name.startswith(f"{LOSS}/")
    if name.startswith(_VAL) and monitor.mode == "min":
        allowed = (
            f"mode: max, because a higher {name} is better; with min, Lightning's default, the run "
            "would stop while it improves"
        )
        raise ConfigError(MONITORS, value, allowed)
    if is_loss and monitor.mode == "max":
        allowed = f"mode: min, because a lower {name} is better; the run would stop as it improves"
        raise ConfigError(MONITORS, value, allowed)
    if not monitor.at_epoch_end:
        allowed = "true, or leave it out: val is not run in batches, so it would check nothing"
        value = f"{_STOPPING} with check_on_train_epoch_end false"
        raise ConfigError(MONITORS, value, allowed)


def _logs_values(callback: object) -> bool:
    """Whether a callback of the user may log values, by its source if there is one."""
    for kind in type(callback).__mro__:
        library = kind.__module__.split(".")[0]
        if library in _LIGHTNING or library in sys.stdlib_module_names:
            continue
        try:
            source = Path(inspect.getfile(kind)).read_text(encoding="utf-8")
        except (OSError, TypeError, UnicodeError):
            return True
        if any(call in source for call in _LOGS):
            return True
    return False
