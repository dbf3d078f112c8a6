"""Check before training that callbacks monitor what a run logs, and in the right direction."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pytorch_lightning.callbacks import EarlyStopping

from claim2source.core.errors import ConfigError, did_you_mean
from claim2source.core.records import Dataset
from claim2source.core.report import MACRO, MAIN_METRIC
from claim2source.evaluation.evaluate import METRICS
from claim2source.metrics.metrics import judged_claims, language_masks

MONITORS = "trainer.callbacks"
# What is logged after every optimizer step of any training; a recipe's `measures` come beside it.
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
_VAL = "val/"
_LIGHTNING = ("pytorch_lightning", "lightning_fabric", "lightning")
# How a callback logs values of its own.
_LOGS = (".log(", ".log_dict(", "callback_metrics[", "logged_metrics[")
# What Lightning raises at an epoch's end.
NOT_LOGGED = "Early stopping conditioned on metric"


def score_name(language: str, metric: str) -> str:
    """Name a score on val as it is logged."""
    return f"{_VAL}{language}/{metric}"


def part_score_name(part: str) -> str:
    """Name the macro MRR@5 of val's claims of seen, or of unseen, papers as it is logged."""
    return f"{_VAL}{part} papers/{MAIN_METRIC}"


def logged_scores(val: Dataset, parts: Sequence[str] = ()) -> list[str]:
    """List the scores that are logged after every epoch; `parts` are those of val."""
    languages = language_masks(val.claims, judged_claims(val.qrels))
    names = [score_name(lang, metric) for lang in (*languages, MACRO) for metric in METRICS]
    return [*names, *map(part_score_name, parts)]


def check_monitors(callbacks: Iterable[object], logged: Sequence[str]) -> None:
    """Raise `ConfigError` for a monitor that is not logged, or that would stop a run that improves.

    A name that is not known passes where a callback of the user's own may log it.
    """
    found = list(callbacks)
    own_names = any(_logs_values(callback) for callback in found)
    for callback in found:
        monitor = getattr(callback, "monitor", None)
        if not isinstance(monitor, str):
            continue
        if monitor not in logged and not own_names:
            raise monitor_error(callback, monitor, logged)
        if isinstance(callback, EarlyStopping):
            _check_early_stopping(callback, monitor)


def monitor_error(callback: object, monitor: str, logged: Sequence[str]) -> ConfigError:
    """Make the error of a monitor that is never logged; it lists what is."""
    languages = [name.split("/")[1] for name in logged if name.endswith(f"/{METRICS[0]}")]
    others = [name for name in logged if not name.endswith(METRICS) or name.count("/") != 2]
    if languages:
        others.append(f"{_VAL}[{' '.join(languages)}]/[{' '.join(METRICS)}]")
    advice = did_you_mean(monitor, logged)
    allowed = f"what is logged; {advice}there are: {', '.join(others)}"
    return ConfigError(MONITORS, f"{type(callback).__name__} with monitor {monitor}", allowed)


def _check_early_stopping(callback: EarlyStopping, monitor: str) -> None:
    name = f"EarlyStopping with mode {callback.mode}"
    if monitor.startswith(_VAL) and callback.mode == "min":
        allowed = (
            f"mode: max, since a higher {monitor} is better; by min, Lightning's default, the run "
            "would end while it improves"
        )
        raise ConfigError(MONITORS, name, allowed)
    if (monitor == LOSS or monitor.startswith(f"{LOSS}/")) and callback.mode == "max":
        allowed = f"mode: min, since a lower {monitor} is better; the run would end as it improves"
        raise ConfigError(MONITORS, name, allowed)
    if callback._check_on_train_epoch_end is False:
        allowed = "true, or leave it out: val is not run in batches, so nothing would be checked"
        raise ConfigError(MONITORS, "EarlyStopping with check_on_train_epoch_end false", allowed)


def _logs_values(callback: object) -> bool:
    """Whether a callback of the user's own may log values; its source says so, if there is one."""
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
