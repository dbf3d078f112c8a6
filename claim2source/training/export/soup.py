"""Average the weights of checkpoints of one base: of epochs, or of runs with other seeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import atomic_folder, file_hash, write_json
from claim2source.models import Manifest, Weights, checkpoint_folder, tokenizer_files
from claim2source.models.resolve import ADAPTER_CONFIG_FILE, ADAPTER_FILE

if TYPE_CHECKING:
    from torch import Tensor

_MODEL, _CONFIG = "model.safetensors", "config.json"
# What checkpoints must have in common: else their mean is of different models, or knows val.
_SAME: dict[str, Callable[[Manifest], object]] = {
    "base": lambda m: m.base.sha256,
    "kind of weights": lambda m: (m.weights.kind, m.weights.trained),
    "encoder's settings": lambda m: m.encoder,
    "rendering": lambda m: m.rendering,
    "train split": lambda m: (m.data.train_split, m.data.languages),
    "val": lambda m: m.data.val_sha256,
}
# Settings of adapters that are more than W + scale * B A.
_VARIANTS = (
    "modules_to_save",
    "use_dora",
    "lora_bias",
    "trainable_token_indices",
    "target_parameters",
    "rank_pattern",
    "alpha_pattern",
)


@dataclass(frozen=True)
class Ingredient:
    """Name a checkpoint to average, with its manifest."""

    folder: Path
    manifest: Manifest


def read_ingredients(checkpoints: Sequence[str | Path]) -> list[Ingredient]:
    """Read the manifests of checkpoints, or of the ones that runs chose.

    Raises `UserError` where they have no mean: another base, kind, rendering or val, or weights
    that are not the manifest's.
    """
    found = []
    for name in checkpoints:
        folder = checkpoint_folder(name)
        found.append(Ingredient(folder, Manifest.read(folder)))
    first = found[0]
    if len({one.folder.resolve() for one in found}) < max(2, len(found)):
        raise UserError("checkpoints: two or more different ones have a mean")
    for one in found:
        if one.manifest.weights.kind == "base":
            raise UserError(f"{one.folder}: holds the base itself: nothing was trained")
        if one.manifest.weights.projection is not None:
            raise UserError(f"{one.folder}: has a projection, of which no mean is made")
        for what, of in _SAME.items():
            if of(one.manifest) != of(first.manifest):
                raise UserError(f"{one.folder}: its {what} is not that of {first.folder}")
        file = one.folder / (_MODEL if one.manifest.weights.kind == "full" else ADAPTER_FILE)
        if not file.is_file() or file_hash(file) != one.manifest.weights.sha256:
            raise InputError.at(file, why="its sha256 is not the manifest's, or it is missing")
    return found


def save_soup(ingredients: Sequence[Ingredient], folder: Path) -> Manifest:
    """Write the mean of checkpoints as a checkpoint, atomically; return its manifest.

    Full weights: their mean, a tensor at a time. LoRA: the mean of the deltas B A, as one adapter
    whose rank is the sum of theirs. The manifest names the weights that were averaged.
    """
    first = ingredients[0].manifest
    with atomic_folder(folder) as temporary:
        if first.weights.kind == "full":
            names = (_MODEL, _CONFIG)
            _write_mean(ingredients, temporary)
        else:
            names = (ADAPTER_FILE, ADAPTER_CONFIG_FILE)
            _write_adapter(ingredients, temporary)
        sha256, config_sha256 = (file_hash(temporary / name) for name in names)
        kind = first.weights.kind
        written = replace(
            first,
            weights=Weights(kind, sha256, 1.0, config_sha256, first.weights.trained),
            epoch=max(one.manifest.epoch for one in ingredients),
            soup=tuple(str(one.manifest.weights.sha256) for one in ingredients),
            scores={},
        )
        written.write(temporary)
    return written


def _write_mean(ingredients: Sequence[Ingredient], folder: Path) -> None:
    from safetensors.torch import save_file

    one = ingredients[0].folder
    for file in (one / _CONFIG, *tokenizer_files(one)):
        shutil.copyfile(file, folder / file.name)
    files = [ingredient.folder / _MODEL for ingredient in ingredients]
    save_file(_averaged(files), folder / _MODEL, {"format": "pt"})


def _averaged(files: Sequence[Path]) -> dict[str, Tensor]:
    """Average the tensors of files by name, in float64, one name at a time."""
    import torch
    from safetensors import safe_open

    opened = [safe_open(str(file), "pt") for file in files]
    names = set(opened[0].keys())
    for file, other in zip(files, opened, strict=True):
        if odd := names ^ set(other.keys()):
            raise InputError.at(file, field=min(odd), why=f"is in one of them, not in {files[0]}")
    state = {}
    for name in sorted(names):
        values = [other.get_tensor(name) for other in opened]
        if len({value.shape for value in values}) > 1:
            raise InputError.at(files[-1], field=name, why=f"has another shape in {files[0]}")
        state[name] = values[0]
        if values[0].is_floating_point():
            total = torch.stack([value.to(torch.float64) for value in values]).mean(dim=0)
            state[name] = total.to(values[0].dtype)
    return state


def _write_adapter(ingredients: Sequence[Ingredient], folder: Path) -> None:
    """Write the mean of deltas: A is all A's below each other, B all B's side by side, weighed."""
    import torch
    from safetensors.torch import load_file, save_file

    states, weights, ranks = [], [], []
    config: dict[str, Any] = {}
    for one in ingredients:
        config = json.loads((one.folder / ADAPTER_CONFIG_FILE).read_text(encoding="utf-8"))
        odd = [name for name in _VARIANTS if config.get(name)]
        if odd or config.get("bias", "none") != "none":
            why = f"adapters with {(*odd, 'bias')[0]} are no sum of deltas, and have no mean"
            raise InputError.at(one.folder / ADAPTER_CONFIG_FILE, why=why)
        states.append(load_file(one.folder / ADAPTER_FILE))
        rank = int(config["r"])
        root = rank**0.5 if config.get("use_rslora") else rank
        weights.append(one.manifest.weights.scale * config["lora_alpha"] / root / len(ingredients))
        ranks.append(rank)
    state = {}
    for name in states[0]:
        if any(name not in other for other in states):
            raise UserError(f"{ingredients[0].folder}: adapts {name}, which the others do not")
        parts = [other[name].float() for other in states]
        if ".lora_A." in name:
            state[name] = torch.cat(parts, dim=0)
        elif ".lora_B." in name:
            weighed = [part * weight for part, weight in zip(parts, weights, strict=True)]
            state[name] = torch.cat(weighed, dim=1)
        else:
            raise UserError(f"{ingredients[0].folder}: {name} is no factor of a delta")
    save_file({name: value.contiguous() for name, value in state.items()}, folder / ADAPTER_FILE)
    # alpha / r is 1: the scales are in B.
    whole = {"r": sum(ranks), "lora_alpha": sum(ranks), "use_rslora": False}
    write_json(folder / ADAPTER_CONFIG_FILE, config | whole)
