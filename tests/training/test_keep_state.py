"""States are written while training continues: a snapshot, one at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from claim2source.core.errors import UserError
from claim2source.training.keep_state import StateFile
from claim2source.training.resume import TrainingState, previous_state
from tests.training.small import a_state


def checkpoint(steps: int, weight: torch.Tensor) -> dict[str, Any]:
    """What Lightning hands over: `weight` itself, which training moves on."""
    return dict(a_state(steps, weight=weight).checkpoint)


def test_a_snapshot_is_written_while_the_weights_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second save waits for the first: no more than one copy is held."""
    real, go, steps_begun = TrainingState.save, threading.Event(), []

    def slowly(self: TrainingState, path: Path) -> None:
        steps_begun.append(self.steps_done)
        assert go.wait(30)
        real(self, path)

    monkeypatch.setattr(TrainingState, "save", slowly)
    file, path, weight = StateFile(), tmp_path / "state.pt", torch.ones(3)
    file.save_checkpoint(checkpoint(1, weight), path)
    assert not path.exists()  # and the call has returned
    weight.add_(1)
    second = threading.Thread(target=file.save_checkpoint, args=(checkpoint(2, weight), path))
    second.start()
    second.join(0.2)
    assert second.is_alive() and steps_begun in ([], [1])
    go.set()
    second.join(30)
    file.teardown()
    assert steps_begun == [1, 2]
    for saved, steps in ((previous_state(path), 1), (path, 2)):
        state = TrainingState.load(saved)
        assert state.steps_done == steps and state.weights["weight"].tolist() == [float(steps)] * 3


def test_what_goes_wrong_is_raised_at_the_next_save(tmp_path: Path) -> None:
    file, path = StateFile(), tmp_path / "state.pt"
    file.save_checkpoint(checkpoint(1, torch.tensor([float("nan")])), path)
    with pytest.raises(UserError, match="not finite"):
        file.save_checkpoint(checkpoint(2, torch.ones(1)), path)
    file.save_checkpoint(checkpoint(3, torch.tensor([float("inf")])), path)
    with pytest.raises(UserError, match="not finite"):
        file.teardown()
    assert not list(tmp_path.iterdir())
    file.teardown()  # nothing is left to raise
