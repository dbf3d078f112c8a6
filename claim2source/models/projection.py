"""Map a small encoder's vectors into the space of another model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from claim2source.core.errors import InputError
from claim2source.core.files import file_hash
from claim2source.models.hub import one_line

if TYPE_CHECKING:
    from sentence_transformers.sentence_transformer.modules import Dense

FILE = "projection.safetensors"
# Share of the mean variance that regularises each dimension: few texts span few dimensions.
_RIDGE = 0.01


class DenseLayers(torch.nn.Sequential):
    """Several Dense layers in sequence (EmbeddingGemma)."""

    @property
    def out_features(self) -> int:
        return int(self[-1].out_features)  # type: ignore[arg-type]


def new_projection(width: int, dimensions: int) -> Dense:
    """Make a linear map, with a bias, from vectors of `width` to vectors of `dimensions`."""
    from sentence_transformers.sentence_transformer.modules import Dense

    return Dense(width, dimensions, bias=True, activation_function=torch.nn.Identity())


@torch.no_grad()
def fit_projection(projection: Dense, inputs: Tensor, targets: Tensor) -> None:
    """Set the map to the ridge regression of `targets` [n, dimensions] on `inputs` [n, width]."""
    x = inputs.double()
    y = targets.double()
    middle = x.mean(dim=0)
    aim = y.mean(dim=0)
    x = x - middle
    y = y - aim
    gram = x.T @ x
    gram += (_RIDGE * gram.trace() / len(gram)).clamp(min=1e-9) * torch.eye(len(gram))
    weight = torch.linalg.solve(gram, x.T @ y).T
    layer = projection.linear
    layer.weight.copy_(weight)
    assert layer.bias is not None
    layer.bias.copy_(aim - weight @ middle)


def _tensors(projection: torch.nn.Module) -> dict[str, Tensor]:
    tensors = projection.state_dict().items()
    return {name: value.detach().cpu().contiguous() for name, value in tensors}


def projection_hash(projection: torch.nn.Module) -> str:
    """Return the sha256 of the file that `save_projection` would write."""
    return hashlib.sha256(save(_tensors(projection))).hexdigest()


def save_projection(projection: torch.nn.Module, folder: Path) -> str:
    """Write the map into a checkpoint; returns the file's sha256."""
    save_file(_tensors(projection), folder / FILE)
    return file_hash(folder / FILE)


def load_projection(folder: Path, width: int) -> Dense:
    """Read a checkpoint's map of vectors of this width. Raises `InputError`."""
    path = folder / FILE
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(
            path,
            reason=f"not the weights of a projection: {one_line(error)}",
        ) from None
    weight = tensors.get("linear.weight")
    if weight is None or weight.ndim != 2 or weight.shape[1] != width:
        raise InputError(path, reason=f"not a projection of vectors of {width} dimensions")
    projection = new_projection(width, len(weight))
    try:
        projection.load_state_dict(tensors)
    except RuntimeError as error:
        raise InputError(path, reason=one_line(error)) from None
    return projection.float().eval().requires_grad_(False)
