"""Steps that are not finite are skipped and counted; what is not finite is never saved."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor

from claim2source.core.errors import InputError, UserError
from claim2source.core.report import Report
from claim2source.training.finetune import finetune
from claim2source.training.module import MOST_SKIPPED
from claim2source.training.resume import TrainingState, previous_state
from tests.refusals import refused
from tests.training.points import config as model_config
from tests.training.points import write_point
from tests.training.small import a_state, logged_steps, power_cut, small_config

FINITE = "has weights that are not finite"
SPOILT = {0, 2, 3}


class Spoil(pl.Callback):
    """Named by a config: makes one number of some steps' gradients infinite, as an overflow does."""

    def on_after_backward(self, trainer: Any, module: Any) -> None:
        if module.batches_done - 1 in SPOILT:
            gradient = next(p.grad for p in module.model.parameters() if p.grad is not None)
            gradient.view(-1)[0] = math.inf


def at_its_end() -> AbstractContextManager[None]:
    """End the run inside once its epoch is scored and saved, before it is reported."""
    return power_cut(lambda state: state.steps_done == 5 and not state.epoch_open)


def damage(path: Path) -> None:
    """Cut a file, as a full disk or a power cut may."""
    path.write_bytes(path.read_bytes()[:1000])


def test_a_spoilt_step_is_skipped_and_a_damaged_state_is_not_the_end(
    setup: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    save = TrainingState.save
    saved: list[dict[str, Tensor]] = []

    def remember(self: TrainingState, path: Path) -> None:
        saved.append({name: weight.clone() for name, weight in self.weights.items()})
        save(self, path)
        if self.steps_done == 4:
            shutil.copy(path, tmp_path / "fourth.pt")

    monkeypatch.setattr(TrainingState, "save", remember)
    extra: dict[str, Any] = {"optimisation__epochs": 1, "tuning": "lora", "lora__r": 4}
    spoil = {"callbacks": [{"class_path": f"{__name__}.Spoil"}]}
    out = tmp_path / "run"
    config = replace(small_config(*setup, out, **extra), trainer=spoil)
    state = out / "state.pt"
    with at_its_end():
        finetune(config)
    training_state = TrainingState.load(state)
    assert [math.isnan(loss) for loss in training_state.losses] == [i in SPOILT for i in range(5)]
    assert all(bool(weight.isfinite().all()) for weight in training_state.weights.values())

    def has_moved(step: int) -> bool:
        return any(not torch.equal(saved[step][n], saved[step - 1][n]) for n in saved[step])

    # The first save is of the first step; the rate of a warm-up's first step is 0.
    assert [has_moved(step) for step in (1, 2, 3, 4)] == [True, False, False, True]
    note = f"; {len(SPOILT)} of 5 steps skipped (not finite)"
    assert note in capsys.readouterr().out
    assert [float(row["skipped_steps"]) for row in logged_steps(out)] == [1, 1, 2, 3, 3]

    # The last state is damaged: the run goes on from the one before, saved at the last step, when
    # its epoch was not scored.
    before = TrainingState.load(previous_state(state))
    assert before.steps_done == 5 and before.epoch_open and not training_state.epoch_open
    damage(state)
    finetune(replace(config, resume=True))
    assert "step 5" in caplog.text
    training = Report.read(out).training
    assert training is not None and training.skipped_steps == len(SPOILT)
    loss = training.history[1].loss
    assert loss == pytest.approx((training_state.losses[1] + training_state.losses[4]) / 2)
    # So it does from one whose step was skipped.
    shutil.copy(tmp_path / "fourth.pt", previous_state(state))
    state.write_bytes(b"cut")
    with at_its_end():
        finetune(replace(config, resume=True))
    assert f"{state}: " in caplog.text
    assert "step 4" in caplog.text
    resumed = TrainingState.load(state)
    assert resumed.losses == pytest.approx(training_state.losses, abs=0, rel=0, nan_ok=True)
    for name, weight in training_state.weights.items():
        assert torch.equal(weight, resumed.weights[name]), name
    # Not the damaged one, so that a second damage is survived too.
    assert TrainingState.load(previous_state(state)).steps_done == 5

    damage(state)
    damage(previous_state(state))
    with refused(InputError, f"{state}: "):
        finetune(replace(config, resume=True))


def test_a_lost_training_stops_and_what_was_good_stays(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """Weights of 1e9 after the first step: no gradient is finite from there on."""
    extra: dict[str, Any] = {
        "optimisation__learning_rate": 1e9,
        "optimisation__warmup_ratio": 0,
        "optimisation__batch_size": 4,
    }
    with refused(UserError, "5 steps", "step 6", "optimisation.learning_rate") as raised:
        finetune(small_config(*setup, tmp_path / "run", **extra))
    assert len(raised.value.lines) == 1 and MOST_SKIPPED == 5
    state = TrainingState.load(tmp_path / "run" / "state.pt")
    assert state.steps_done == 5 and all(map(math.isnan, state.losses[1:]))
    assert not (tmp_path / "run" / "report.json").exists()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["epoch-0"]


@pytest.mark.parametrize("kind", ["full", "lora"])
def test_no_checkpoint_of_weights_that_are_not_finite(
    kind: str, save_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    model = model_config(save_tiny(tmp_path / "model"))
    with refused(UserError, tmp_path / "epoch-1", FINITE, "optimisation.learning_rate"):
        write_point(model, tmp_path / "epoch-1", kind, move=math.nan)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_no_state_of_weights_that_are_not_finite(value: float, tmp_path: Path) -> None:
    good = a_state(1, first=torch.ones(2), second=torch.ones(2))
    path = tmp_path / "state.pt"
    good.save(path)
    before = path.read_bytes()
    bad = a_state(1, first=torch.ones(2), second=torch.tensor([1.0, value]))
    with refused(UserError, path, f"second {FINITE}"):
        bad.save(path)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"state.pt": before}
    # A version without this check may have written one.
    torch.save({"format": 4, **bad.checkpoint}, path)
    with refused(InputError, f"{path}: second: {FINITE}"):
        TrainingState.load(path)


def test_the_state_before_the_last_is_kept_without_links_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr("os.link", no_links)
    test_no_state_of_weights_that_are_not_finite(math.nan, tmp_path)
    content = (tmp_path / "state.pt").read_bytes()
    a_state(2).save(tmp_path / "state.pt")
    assert previous_state(tmp_path / "state.pt").read_bytes() == content
    assert TrainingState.load(tmp_path / "state.pt").steps_done == 2
    assert len(list(tmp_path.iterdir())) == 2
