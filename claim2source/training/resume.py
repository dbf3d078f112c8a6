"""Save and restore the state that training resumes from, and stop at a saved step."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import Any, TypedDict

import torch
from torch import Tensor

from claim2source.core.errors import InputError, Stopped, UserError
from claim2source.core.files import atomic_path, same_file
from claim2source.core.folders import STATE_FILE
from claim2source.training.run_folder import previous_state

STATE_FORMAT = 4
# Key in Lightning's checkpoint, whose weights are those of `RetrieverModule.model`.
OURS, _PREFIX = "claim2source", "model."
NOT_FINITE = "has weights that are not finite"
CALMER = (
    "lower optimisation.learning_rate, raise a low temperature, or use precision fp32, "
    "and start again"
)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_PARENT_DEATH = 1  # prctl's PR_SET_PDEATHSIG
# Device -> the bytes of torch.get_rng_state.
RandomState = dict[str, Tensor]


class MinedFile(TypedDict):
    """Name and the bytes of a file of mined negatives."""

    file: str
    content: Tensor


@dataclass(frozen=True)
class TrainingState:
    """Everything that a stopped run needs to continue exactly.

    `losses` has one entry per optimizer step, NaN for a skipped one; `mined` are the current
    negatives, `random` the RNG state of every process by rank. `epoch_open`: the epoch's last step
    is done, but its checkpoint is not scored. `ended`: no epoch follows, although more were
    planned. `checkpoint` is Lightning's, with all of these: trained weights, optimizer, scheduler,
    loops, callbacks.
    """

    batches_done: int
    steps_done: int
    losses: list[float]
    world_size: int
    mined: MinedFile
    random: list[RandomState]
    epoch_open: bool
    ended: bool
    checkpoint: Mapping[str, Any]

    @classmethod
    def of(cls, checkpoint: Mapping[str, Any]) -> TrainingState:
        """Read the state from Lightning's checkpoint."""
        return cls(**checkpoint[OURS], checkpoint=checkpoint)

    @property
    def weights(self) -> dict[str, Tensor]:
        weights = self.checkpoint["state_dict"]
        return {name.removeprefix(_PREFIX): weight.detach() for name, weight in weights.items()}

    def save(self, path: Path) -> None:
        """Write the state; the run's earlier state is kept as `previous_state`.

        Raises `UserError` for weights that are not finite, before anything is written.
        """
        require_finite_weights(self.weights, path)
        with atomic_path(path) as temporary:
            torch.save({"format": STATE_FORMAT, **self.checkpoint}, temporary)
            if path.name == STATE_FILE and path.is_file():
                # A hard link, so that the state is never missing if the process is killed.
                same_file(path, previous_state(path))

    @classmethod
    def load(cls, path: Path) -> TrainingState:
        """Read a saved state, only tensors and plain values. Raises `InputError`."""
        if not path.is_file():
            raise InputError(path, reason="no saved state here")
        try:
            raw = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises many types for a file that is not a state
            lines = str(error).splitlines() or ["it is empty or truncated"]
            reason = f"not a saved state: {lines[0]}"
            raise InputError(path, reason=reason) from None
        if not isinstance(raw, dict) or raw.pop("format", None) != STATE_FORMAT:
            reason = f"this version reads format {STATE_FORMAT}"
            raise InputError(path, field="format", reason=reason)
        missing = {spec.name for spec in fields(cls)} - {"checkpoint"} - raw.get(OURS, {}).keys()
        if missing:
            raise InputError(path, field=min(missing), reason="is missing")
        state = cls.of(raw)
        if (name := not_finite(state.weights)) is not None:
            raise InputError(path, field=name, reason=NOT_FINITE)
        return state

    @classmethod
    def newest(cls, path: Path) -> tuple[TrainingState, InputError | None]:
        """Read a saved state; if it is damaged, the previous one, with the error.

        Raises `InputError` for the newest state if neither can be read.
        """
        try:
            return cls.load(path), None
        except InputError as damage:
            try:
                return cls.load(previous_state(path)), damage
            except InputError:
                raise damage from None


def skipped_steps(losses: Sequence[float]) -> int:
    """Count the skipped steps: their loss is NaN."""
    return sum(map(math.isnan, losses))


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Find the first tensor with a weight that is not a finite number; None if all are finite."""
    return next((name for name, weight in weights.items() if not weight.isfinite().all()), None)


def require_finite_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise `UserError` if weights that would be written to `path` are not finite."""
    if (name := not_finite(weights)) is not None:
        raise UserError(f"{path}: not written: {name} {NOT_FINITE}; {CALMER}")


def random_state() -> RandomState:
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def trainable_weights(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


class StopSignals:
    """Record the first SIGINT or SIGTERM in `received`, and raise `Stopped` for it.

    It is raised at once, but within `after_step` only by `check`, once a step is finished and
    saved. A second SIGINT is always raised at once.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._waits = False
        self._process = os.getpid()

    @contextlib.contextmanager
    def installed(self) -> Iterator[StopSignals]:
        """Handle the signals while the body runs; does nothing outside the main thread."""
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        self.install()
        launched = any(name.startswith(("ACCELERATE_", "TORCHELASTIC_")) for name in os.environ)
        if launched and sys.platform == "linux":
            # SIGTERM when the launcher dies, because `accelerate launch` does not forward signals.
            with contextlib.suppress(OSError, AttributeError):
                ctypes.CDLL(None).prctl(_PARENT_DEATH, signal.SIGTERM)
        try:
            yield self
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in before.items():
                    signal.signal(number, handler)

    def install(self) -> None:
        """Install our handlers, also over Lightning's."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in _SIGNALS:
            # `nohup` and background jobs ignore SIGINT, and still do.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._receive)

    @contextlib.contextmanager
    def after_step(self, waits: bool = True) -> Iterator[None]:
        """Delay `Stopped` within the body until `check`; with `waits` false, do not."""
        before, self._waits = self._waits, waits
        try:
            if not waits:
                self.check()
            yield
        finally:
            self._waits = before
        if not before:
            self.check()

    def check(self) -> None:
        if self.received is not None:
            raise Stopped("", self.received)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a child process does not stop this program
            os._exit(128 + number)
        is_second = self.received == number == signal.SIGINT
        first, self.received = self.received is None, self.received or number
        if is_second or (first and not self._waits):
            raise Stopped("", self.received)
