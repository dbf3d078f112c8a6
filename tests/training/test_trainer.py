"""The `trainer:` settings: arguments of Lightning's Trainer that fit the run."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch

from claim2source.core.errors import ConfigError
from claim2source.core.report import Report
from claim2source.training.config import FinetuneConfig
from claim2source.training.finetune import finetune
from claim2source.training.trainer import REFUSED, trainer_arguments
from tests.refusals import refused
from tests.training.small import logged_steps, losses_of, power_cut, same_weights, small_config


def entry(path: str, **init: Any) -> dict[str, Any]:
    """An object of Lightning's as a config names it."""
    return {"class_path": f"pytorch_lightning.{path}", "init_args": init}


EARLY = entry(
    "callbacks.EarlyStopping", monitor="val/macro/mrr@5", mode="max", patience=1, min_delta=2.0
)
DOUBLE = entry("plugins.precision.DoublePrecision")


class Seen(pl.Callback):
    """Callback for a config: records Lightning's metrics at every epoch's end."""

    found: list[dict[str, float]] = []

    def __init__(self, mark: int) -> None:
        self.mark = mark

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.found.append(values | {"mark": self.mark})


def trained(setup: tuple[Path, Path], out: Path, trainer: dict[str, Any], **options: Any) -> Report:
    report = finetune(replace(small_config(*setup, out, **options), trainer=trainer))
    assert report is not None and report.training is not None
    return report


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_contradicts_the_run_is_refused_with_the_reason(name: str) -> None:
    with refused(ConfigError, f"trainer.{name}: 2 ", REFUSED[name]):
        FinetuneConfig(trainer={name: 2})


def test_every_other_argument_of_the_trainer_is_known() -> None:
    """Refused names are arguments of the Trainer that is installed."""
    assert REFUSED.keys() <= signature(pl.Trainer.__init__).parameters.keys()
    args = trainer_arguments({"callbacks": [EARLY], "profiler": "simple", "max_steps": 5})
    assert isinstance(args["callbacks"][0], pl.callbacks.EarlyStopping)
    assert args["callbacks"][0].patience == 1 and args["max_steps"] == 5 and len(args) == 3


@pytest.mark.parametrize(
    ("settings", "facts"),
    [
        ({"max_step": 5}, ["trainer.max_step: 5 ", "did you mean max_steps"]),
        ({"max_steps": "five"}, ["trainer.max_steps: 'five'"]),
        ({"callbacks": [{"class_path": "no_such.Callback"}]}, ["trainer.callbacks: ", "no_such"]),
        ({"callbacks": [{**EARLY, "init_args": {"monitr": 1}}]}, ["trainer.callbacks: ", "monitr"]),
    ],
)
def test_what_the_trainer_does_not_take_is_one_error(settings: Any, facts: list[str]) -> None:
    with refused(ConfigError, *facts) as error:
        trainer_arguments(settings)
    assert len(error.value.lines) == 1


# What each callback of Lightning's is made with; those that work, and the keys of some others.
GIVEN: dict[str, dict[str, Any]] = {
    "EarlyStopping": {"monitor": "loss"},
    "EMAWeightAveraging": {"decay": 0.5},
    "GradientAccumulationScheduler": {"scheduling": {0: 2}},
    "OnExceptionCheckpoint": {"dirpath": "."},
    "ModelPruning": {"pruning_fn": "l1_unstructured"},
    "StochasticWeightAveraging": {"swa_lrs": 0.1},
    "ThroughputMonitor": {"batch_size_fn": "builtins.len"},
    "Timer": {"duration": {"seconds": 1000}},
}
WORKING = (
    "DeviceStatsMonitor EarlyStopping LambdaCallback LearningRateMonitor ModelSummary "
    "RichModelSummary Timer"
).split()


KEYS = {
    "BatchSizeFinder": "optimisation.batch_size",
    "EMAWeightAveraging": "merge",
    "GradientAccumulationScheduler": "optimisation.accumulation",
    "LearningRateFinder": "optimisation.learning_rate",
    "ModelCheckpoint": "keep",
    "OnExceptionCheckpoint": "optimisation.save_every",
    "SpikeDetection": "optimisation.max_grad_norm",
}


def made_by_path(name: str) -> dict[str, Any]:
    return entry(f"callbacks.{name}", **GIVEN.get(name, {}))


class Doubled(pl.callbacks.GradientAccumulationScheduler):
    """One of a user's own."""

    def __init__(self) -> None:
        super().__init__({0: 2})


@pytest.mark.parametrize("name", sorted({*pl.callbacks.__all__} - {"Callback", *WORKING}))
def test_callbacks_that_contradict_the_run_are_refused(name: str) -> None:
    """All of Lightning's callbacks except those that work, including new ones."""
    with refused(ConfigError, f"trainer.callbacks: '{name}' ") as error:
        trainer_arguments({"callbacks": [made_by_path("Timer"), made_by_path(name)]})
    assert len(error.value.lines) == 1 and KEYS.get(name, "") in str(error.value)


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"callbacks": [{"class_path": f"{__name__}.Doubled"}]}, r"callbacks: .*accumulation"),
        ({"plugins": [DOUBLE]}, r"plugins: 'DoublePrecision' .*optimisation\.precision"),
        ({"plugins": entry("plugins.io.TorchCheckpointIO")}, r"plugins: 'Torch.* .*save_every"),
        ({"plugins": [entry("plugins.environments.LightningEnvironment")]}, r"plugins: .*launcher"),
        (
            {"strategy": entry("strategies.DDPStrategy", model_averaging_period=4)},
            r"strategy: 'model_averaging_period' .*merge",
        ),
        (
            {"strategy": entry("strategies.DDPStrategy", precision_plugin=DOUBLE)},
            r"strategy: 'DoublePrecision' .*optimisation\.precision",
        ),
    ],
)
def test_other_back_doors_are_refused(settings: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=rf"trainer\.{error}"):
        trainer_arguments(settings)


@pytest.mark.slow
def test_the_other_callbacks_change_nothing_in_a_run(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    extra: dict[str, Any] = {"optimisation__epochs": 1, "optimisation__save_every": 0}
    trained(setup, tmp_path / "plain", {}, **extra)
    callbacks = [made_by_path(name) for name in WORKING]
    trained(setup, tmp_path / "all", {"callbacks": callbacks}, **extra)
    files = [tmp_path / n / "checkpoints/epoch-1/model.safetensors" for n in ("plain", "all")]
    assert files[0].read_bytes() == files[1].read_bytes()
    with pytest.raises(ConfigError, match="GradientAccumulationScheduler"):
        accumulated = {"callbacks": [made_by_path("GradientAccumulationScheduler")]}
        trained(setup, tmp_path / "refused", accumulated, **extra)
    assert not (tmp_path / "refused").exists()


def test_a_command_line_sets_them_and_leaves_nothing_where_they_are_wrong(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    config = small_config(*setup, tmp_path / "run", trainer="{max_steps: 3, strategy: tpu}")
    assert config.trainer == {"max_steps": 3, "strategy": "tpu"}
    with refused(ConfigError, "trainer.strategy: 'tpu' ", "auto, ddp"):
        finetune(config)
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_early_stopping_ends_a_run_that_does_not_improve(
    setup: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No score is better by 2: two epochs of nine, then the report; resumed, nothing is trained."""
    Seen.found.clear()
    mine = {"class_path": f"{__name__}.Seen", "init_args": {"mark": 7}}
    out, settings = tmp_path / "run", {"callbacks": [EARLY, mine]}
    extra: dict[str, Any] = {"optimisation__epochs": 9, "optimisation__save_every": 0}
    report = trained(setup, out, settings, **extra)
    assert report.training is not None
    assert [entry.epoch for entry in report.training.history] == [0, 1, 2]
    assert "epoch 2 was the last, of 9 planned" in caplog.text
    for values, entry in zip(Seen.found, report.training.history[1:], strict=True):
        assert values["mark"] == 7 and values["loss"] > 0
        for lang in ("en", "de", "macro"):
            for metric, score in entry.val[lang].items():
                assert values[f"val/{lang}/{metric}"] == pytest.approx(score)
    # So it does if a process ends between its last state and its report.
    Seen.found.clear()
    with power_cut(lambda state: state.ended and not state.epoch_open):
        trained(setup, tmp_path / "cut", settings, **extra)
    for folder in (tmp_path / "cut", out):
        rerun = trained(setup, folder, settings, resume=True, **extra)
        assert rerun.training == report.training and losses_of(folder) == losses_of(out)
    assert len(Seen.found) == 2


@pytest.mark.slow
def test_patience_goes_on_where_a_run_resumes(setup: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed within the second epoch: the callback's count is Lightning's checkpoint's."""
    extra: dict[str, Any] = {"optimisation__epochs": 9}
    trained(setup, tmp_path / "whole", {"callbacks": [EARLY]}, **extra)
    with power_cut(lambda state: state.steps_done == 7):
        trained(setup, tmp_path / "cut", {"callbacks": [EARLY]}, **extra)
    trained(setup, tmp_path / "cut", {"callbacks": [EARLY]}, resume=True, **extra)
    assert losses_of(tmp_path / "whole") == losses_of(tmp_path / "cut")
    assert len(losses_of(tmp_path / "cut")) == 10


@pytest.mark.slow
def test_max_steps_ends_a_run_at_rate_zero_and_resumes_exactly(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Eight steps are an epoch and three fifths; killed within epochs, and at an epoch's end."""
    settings = {"max_steps": 8}
    report = trained(setup, tmp_path / "whole", settings)
    assert report.training is not None
    assert [entry.epoch for entry in report.training.history] == [0, 1, 2]
    rates = [float(row["learning_rate"]) for row in logged_steps(tmp_path / "whole")]
    assert len(rates) == 8 and rates[-1] < 0.1 * max(rates)
    history = (tmp_path / "whole" / "run.json").read_text()
    for stop in (3, 5, 7):
        cut = tmp_path / f"cut-{stop}"
        with power_cut(lambda state, stop=stop: state.steps_done == stop and not state.epoch_open):
            trained(setup, cut, settings)
        torch.manual_seed(999)
        trained(setup, cut, settings, resume=True)
        assert losses_of(tmp_path / "whole") == losses_of(cut)
        same_weights(tmp_path / "whole", cut)
        assert (cut / "run.json").read_text() == history


@pytest.mark.slow
def test_fewer_batches_and_the_same_ones(setup: tuple[Path, Path], tmp_path: Path) -> None:
    extra: dict[str, Any] = {"optimisation__dropout": 0.0, "optimisation__epochs": 2}
    trained(setup, tmp_path / "whole", {}, **extra)
    trained(setup, tmp_path / "part", {"limit_train_batches": 0.5}, **extra)
    part, full = losses_of(tmp_path / "part"), losses_of(tmp_path / "whole")
    # The first batch is the same, and its step does not depend on the rate's plan.
    assert len(part) == 4 and len(full) == 10 and part[0] == pytest.approx(full[0], rel=1e-6)
    extra |= {"optimisation__epochs": 12, "optimisation__save_every": 0}
    extra |= {"optimisation__warmup_from_zero": True}
    trained(setup, tmp_path / "same", {"overfit_batches": 1}, **extra)
    losses = losses_of(tmp_path / "same")
    # One batch again and again; so the rate of the first step is 0.
    assert len(losses) == 12 and losses[0] == losses[1] and losses[-1] < 0.6 * losses[0]
    report = trained(setup, tmp_path / "quick", {"fast_dev_run": 2, "profiler": "simple"})
    assert report.training is not None
    assert [entry.epoch for entry in report.training.history] == [0, 1]
    assert len(losses_of(tmp_path / "quick")) == 2


def test_no_batch_at_all_is_refused(setup: tuple[Path, Path], tmp_path: Path) -> None:
    with refused(ConfigError, "trainer.limit_train_batches: 0.1 ", " 5 batches"):
        trained(setup, tmp_path / "run", {"limit_train_batches": 0.1})
