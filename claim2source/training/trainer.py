"""Make the arguments of Lightning's trainer from a config's `trainer:` settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_type_hints

from claim2source.core.errors import ConfigError, did_you_mean, value_text

# Values of YAML.
_Value = bool | int | float | str | list | dict | None  # type: ignore[type-arg]
TrainerSettings = dict[str, _Value]

_LAUNCHER = "the launcher's options (accelerate launch) set it"
_VAL = "all of val is ranked at every epoch's end, not in batches"
# Argument of pl.Trainer that would contradict the run -> reason.
REFUSED = {
    "accelerator": "the key `device` sets it",
    "devices": _LAUNCHER,
    "num_nodes": _LAUNCHER,
    "precision": "the key `optimisation.precision` sets it",
    "max_epochs": "the key `optimisation.epochs` sets it",
    "accumulate_grad_batches": "the key `optimisation.accumulation` sets it",
    "gradient_clip_val": "the key `optimisation.max_grad_norm` sets it",
    "gradient_clip_algorithm": "gradients are clipped by `optimisation.max_grad_norm`",
    "log_every_n_steps": "the run logs every step",
    "logger": "the run logs to CSV, and to W&B by the key `wandb.mode`",
    "default_root_dir": "the key `out` sets it",
    "enable_checkpointing": "without checkpoints a run can neither resume nor choose",
    "enable_progress_bar": "the run shows its own progress",
    "barebones": "a run needs its logs and callbacks",
    "use_distributed_sampler": "the run deals batches so that none has a paper twice",
    "reload_dataloaders_every_n_epochs": "the batches of all epochs are planned",
    "num_sanity_val_steps": _VAL,
    "limit_val_batches": _VAL,
    "val_check_interval": _VAL,
    "check_val_every_n_epoch": _VAL,
    "limit_test_batches": "all of `data.report_split` is ranked at the end",
    "limit_predict_batches": "a run makes no predictions",
}
_EPOCHS = "the trained weights are scored and saved; train/merge.py averages epochs"
# Lightning's callbacks and plugins that would bypass these arguments, including their subclasses
# -> reason.
_BACK_DOORS = {
    "GradientAccumulationScheduler": REFUSED["accumulate_grad_batches"],
    "BatchSizeFinder": "the key `optimisation.batch_size` sets it",
    "LearningRateFinder": "the key `optimisation.learning_rate` sets it",
    "StochasticWeightAveraging": _EPOCHS,
    "WeightAveraging": _EPOCHS,
    "BaseFinetuning": "the keys `tuning` and `optimisation.train_layers` set the trained weights",
    "ModelPruning": "the key `tuning` sets which weights are trained, and none are removed",
    "Checkpoint": "the keys `keep` and `optimisation.save_every` set the saved checkpoints",
    "SpikeDetection": "steps that are not finite are skipped; `optimisation.max_grad_norm` clips",
    "ThroughputMonitor": "the run logs them at every step",
    "ProgressBar": REFUSED["enable_progress_bar"],
    "BasePredictionWriter": REFUSED["limit_predict_batches"],
    "Precision": REFUSED["precision"],
    "CheckpointIO": "the run writes its state; the key `optimisation.save_every` sets how often",
    "ClusterEnvironment": _LAUNCHER,
}


def check_names(settings: Mapping[str, _Value]) -> None:
    """Raise `ConfigError` for an argument that would contradict the run, with the reason."""
    for name, value in settings.items():
        if name in REFUSED:
            raise _contradiction(name, value, REFUSED[name])


def _contradiction(name: str, value: object, reason: str) -> ConfigError:
    issue = f"{value_text(value)} is not allowed here: {reason}"
    return ConfigError(f"trainer.{name}", value, "", issue)


def trainer_arguments(settings: Mapping[str, _Value]) -> dict[str, Any]:
    """Make the arguments of `pl.Trainer`: classes by their paths, with their `init_args`.

    The format is LightningCLI's. Raises `ConfigError` for an argument that the Trainer does not
    have, a value of a wrong type, and a class that cannot be made.
    """
    import pytorch_lightning as pl
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    from claim2source.training.lightning_parts import instances

    hints = get_type_hints(pl.Trainer.__init__)
    names = hints.keys() - REFUSED.keys() - {"return"}
    loose = ConfigDict(arbitrary_types_allowed=True)
    arguments: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in names:
            advice = did_you_mean(name, sorted(names))
            raise ConfigError(f"trainer.{name}", value, f"arguments of pl.Trainer; {advice}")
        try:
            arguments[name] = instances(value)
            TypeAdapter(hints[name], config=loose).validate_python(arguments[name], strict=True)
        except Exception as error:  # a user's module or class may raise anything
            first = error.errors()[0] if isinstance(error, ValidationError) else None
            text = first["msg"] if first else str(error) or type(error).__name__
            reason = " ".join(text.split())
            raise ConfigError(f"trainer.{name}", value, f"arguments of Trainer: {reason}") from None
    for name in ("callbacks", "plugins"):
        parts = arguments.get(name) or []
        for part in parts if isinstance(parts, list) else [parts]:
            _check_part(name, part)
    # A strategy may contain such parts.
    strategy = arguments.get("strategy")
    for part in ("_precision_plugin", "_checkpoint_io"):
        _check_part("strategy", getattr(strategy, part, None))
    if getattr(strategy, "_model_averaging_period", None):
        raise _contradiction("strategy", "model_averaging_period", _EPOCHS)
    return arguments


def _check_part(name: str, part: object) -> None:
    for kind in type(part).__mro__:
        library = kind.__module__.split(".")[0]
        if kind.__name__ in _BACK_DOORS and library in ("pytorch_lightning", "lightning_fabric"):
            raise _contradiction(name, type(part).__name__, _BACK_DOORS[kind.__name__])
