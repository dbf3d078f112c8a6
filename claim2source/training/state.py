"""Save and restore what a training run resumes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import atomic_path, same_file
from claim2source.core.folders import PREVIOUS_STATE_FILE

STATE_FORMAT = 2
NOT_FINITE = "holds weights that are not finite"
CALMER = (
    "lower optimisation.learning_rate, raise optimisation.temperature, or take precision fp32, "
    "and begin again"
)
# By device: the bytes that torch.get_rng_state gives.
RandomState = dict[str, Tensor]
StateDict = dict[str, object]  # of torch's optimizers and schedulers


class MinedFile(TypedDict):
    """Hold the name and the bytes of a file of mined negatives."""

    file: str
    content: Tensor


@dataclass(frozen=True)
class TrainingState:
    """Hold all that a run needs to go on exactly where it stopped.

    `losses` has one entry per optimizer step, `begun_with` the hashes of the inputs outside
    the run's folder, `mined` the current negatives, `random` the RNG state of every process by
    rank. The loss of a step that was skipped is NaN. `epoch_open` says that the epoch's last step
    is done and its checkpoint is not scored.
    """

    batches_done: int
    steps_done: int
    losses: list[float]
    world_size: int
    begun_with: dict[str, str | None]
    mined: MinedFile
    weights: dict[str, Tensor]
    optimizer: StateDict
    scheduler: StateDict
    random: list[RandomState]
    epoch_open: bool = False

    def save(self, path: Path) -> None:
        """Write the state; the one before is kept as `previous_state`.

        Raises `UserError` for weights that are not finite, before anything is touched.
        """
        require_finite_weights(self.weights, path)
        with atomic_path(path) as temporary:
            torch.save({"format": STATE_FORMAT, **vars(self)}, temporary)
            if path.is_file():
                # A copy of the name: the state is never missing, whenever the process is killed.
                same_file(path, previous_state(path))

    @classmethod
    def load(cls, path: Path) -> TrainingState:
        """Read a saved state, tensors and plain values only. Raises `InputError`."""
        try:
            raw = torch.load(path, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise InputError.at(path, why="no saved state here: nothing to resume") from None
        except Exception as error:  # torch raises many types for a file that is no state
            said = str(error).splitlines() or ["it is empty or cut"]
            why = f"not a saved state: {said[0]}"
            raise InputError.at(path, why=why) from None
        if not isinstance(raw, dict) or raw.pop("format", None) != STATE_FORMAT:
            why = f"this version reads format {STATE_FORMAT}"
            raise InputError.at(path, field="format", why=why)
        for spec in fields(cls):
            if spec.name not in raw and spec.default is MISSING:
                raise InputError.at(path, field=spec.name, why="is missing")
        state = cls(**raw)
        if (name := not_finite(state.weights)) is not None:
            raise InputError.at(path, field=name, why=NOT_FINITE)
        return state

    @classmethod
    def newest(cls, path: Path) -> tuple[TrainingState, InputError | None]:
        """Read a saved state, or where it is damaged the one before, with what is wrong.

        Raises `InputError` for the newest where neither can be read.
        """
        try:
            return cls.load(path), None
        except InputError as damage:
            try:
                return cls.load(previous_state(path)), damage
            except InputError:
                raise damage from None


def previous_state(path: Path) -> Path:
    """Locate the state that was saved before the one at `path`."""
    return path.with_name(PREVIOUS_STATE_FILE)


def skipped_steps(losses: Sequence[float]) -> int:
    """Count the steps that were not taken: their loss is NaN."""
    return sum(map(math.isnan, losses))


def not_finite(weights: Mapping[str, Tensor]) -> str | None:
    """Find the first tensor with a weight that is no finite number; None where all are finite."""
    return next((name for name, weight in weights.items() if not weight.isfinite().all()), None)


def require_finite_weights(weights: Mapping[str, Tensor], path: Path) -> None:
    """Raise `UserError` where weights that would be written to `path` are not finite."""
    if (name := not_finite(weights)) is not None:
        raise UserError(f"{path}: not written: {name} {NOT_FINITE}; {CALMER}")


def random_state() -> RandomState:
    """Read this process's RNG state."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, Tensor]) -> None:
    """Restore the RNG state."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def trainable_weights(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Select the weights that training moves, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def restore_weights(model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copy saved trainable weights into the model. Raises `UserError` when names differ."""
    trainable = trainable_weights(model)
    if trainable.keys() != weights.keys():
        odd = sorted(trainable.keys() ^ weights.keys())[0]
        raise UserError(f"the saved state trains other weights than this config ({odd})")
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(weights[name])
