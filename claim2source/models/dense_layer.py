"""A trained layer behind the pooling, as sentence-transformers folders have it (GTR, LaBSE)."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from claim2source.core.errors import InputError
from claim2source.models.hub import module_folders, read_object, short

_ACTIVATIONS = {
    "torch.nn.modules.linear.Identity": torch.nn.Identity,
    "torch.nn.modules.activation.Tanh": torch.nn.Tanh,
}


@dataclass(frozen=True)
class DenseLayer:
    """What a folder's `Dense` module says: [inputs] to [outputs], and the function behind it."""

    folder: Path
    inputs: int
    outputs: int
    bias: bool
    activation: type[torch.nn.Module]


def declared_dense(folder: Path) -> DenseLayer | None:
    """The layer between pooling and normalisation; None where a model has none.

    Raises `InputError` where it stands elsewhere, there are several, or it is of a kind that
    would be computed otherwise than its authors do.
    """
    kinds = [kind for kind, _ in module_folders(folder)]
    if "Dense" not in kinds:
        return None
    if kinds[:3] != ["Transformer", "Pooling", "Dense"] or kinds.count("Dense") > 1:
        why = "a Dense module is supported once, right behind the pooling"
        raise InputError.at(folder / "modules.json", field="type", why=why)
    place = next(path for kind, path in module_folders(folder) if kind == "Dense")
    file = place / "config.json"
    said = read_object(file)
    name = str(said.get("activation_function"))
    if name not in _ACTIVATIONS:
        why = f"{name} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        raise InputError.at(file, field="activation_function", why=why)
    for key in ("in_features", "out_features"):
        if not isinstance(said.get(key), int) or said[key] < 1:
            raise InputError.at(file, field=key, why="not a number of dimensions")
    for key in ("module_input_name", "module_output_name"):
        if said.get(key) not in (None, "sentence_embedding"):
            raise InputError.at(file, field=key, why=f"{said[key]!r}, not the pooled vector")
    return DenseLayer(
        place,
        said["in_features"],
        said["out_features"],
        bool(said.get("bias", True)),
        _ACTIVATIONS[name],
    )


def load_dense(folder: Path, width: int) -> torch.nn.Sequential | None:
    """The layer with its weights, in float32 as pooled vectors are; None where there is none.

    `width` is the pooled vector's length. .bin weights are read as tensors alone; that they may
    be read has been asked (`model.allow_bin`). Raises `InputError`.
    """
    layer = declared_dense(folder)
    if layer is None:
        return None
    if layer.inputs != width:
        why = f"{layer.inputs}, but pooled vectors have {width} dimensions"
        raise InputError.at(layer.folder / "config.json", field="in_features", why=why)
    file = layer.folder / "model.safetensors"
    if not file.is_file():
        file = layer.folder / "pytorch_model.bin"
    linear = torch.nn.Linear(layer.inputs, layer.outputs, bias=layer.bias)
    try:
        found: dict[str, Any] = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
        linear.load_state_dict(
            {key.removeprefix("linear."): value.float() for key, value in found.items()}
        )
    except (
        OSError,
        RuntimeError,
        AttributeError,
        SafetensorError,
        pickle.UnpicklingError,
    ) as error:
        raise InputError.at(file, why=f"not the weights of this layer: {short(error)}") from None
    return torch.nn.Sequential(linear, layer.activation()).eval().requires_grad_(False)
