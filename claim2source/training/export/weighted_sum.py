"""Sum checkpoints and their base by weights: points between the two, means of epochs or seeds."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import atomic_folder, file_hash, write_json
from claim2source.models import (
    Dtype,
    Identity,
    Manifest,
    ModelConfig,
    Resolved,
    checkpoint_folder,
    resolve,
    tokenizer_files,
    tokenizer_hash,
)
from claim2source.models.hub import MODULES, copy_modules
from claim2source.models.manifest import FILE
from claim2source.models.resolve import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    check_hash,
    load_base,
    set_adapter_scale,
)
from claim2source.models.trained_on import TrainedOn
from claim2source.systems.seen import claims_models_saw

if TYPE_CHECKING:
    from torch import Tensor

    from claim2source.models import Encoder

_MODEL = "model.safetensors"
_CONFIG = "config.json"
# One file, so that one hash names the weights.
ONE_SHARD = "1000GB"
# What checkpoints must share: otherwise they are different models, or a part was trained on val.
_SHARED_FIELDS: dict[str, Callable[[Manifest], object]] = {
    "base": lambda m: m.base.sha256,
    "kind of weights": lambda m: (m.weights.kind, m.weights.trained, m.weights.dense),
    "encoder's settings": lambda m: m.encoder,
    "rendering": lambda m: m.rendering,
    "train split": lambda m: (m.data.train_split, m.data.languages),
    "val": lambda m: m.data.val_sha256,
}


class ScaledCheckpoint:
    """Load a checkpoint and use it at any scale: 0 is its base, 1 the trained weights.

    LoRA: W + scale * delta. Every weight trained: W + scale * (tuned - W), as WiSE-FT
    (Wortsman et al. 2022, section 3). Every scale is computed in float32 from the weights as they
    were loaded. `model` sets the permissions of its base and the attention, which are not in a
    manifest.

    Raises `UserError` for a folder that is not a checkpoint of ours.
    """

    def __init__(
        self,
        checkpoint: str | Path,
        device: str | None = None,
        dtype: Dtype | None = None,
        model: ModelConfig | None = None,
    ) -> None:
        self.folder = checkpoint_folder(checkpoint)
        self.manifest = Manifest.read(self.folder)
        permissions = model or ModelConfig()
        self.model = replace(permissions, name=str(self.folder))
        self.device = device
        self.dtype = dtype
        self.kind = self.manifest.weights.kind

    @cached_property
    def resolved(self) -> Resolved:
        return resolve(self.model, self.device, self.dtype)

    @property
    def encoder(self) -> Encoder:
        return self.resolved.encoder

    @property
    def base_folder(self) -> Path | None:
        """Locate the base's files; None if they were not read."""
        if self.kind != "full":
            return self.resolved.folder
        has_read_base = "_base" in self.__dict__
        if not has_read_base:
            return None
        _, folder = self._base
        return folder

    def set(self, scale: float) -> None:
        """Scale the encoder in place, and set the name of its weights in the store."""
        if self.kind == "lora":
            set_adapter_scale(self.encoder.model, scale)
        elif self.kind == "full":
            self._set_full(scale)
        self.encoder.weights = self.identity(scale)

    def _set_full(self, scale: float) -> None:
        """Scale an encoder of which every weight was trained."""
        import torch

        # At 1 the base is not needed, and may be missing.
        base = {} if scale == 1 else self.base_weights
        if base:
            shapes = weight_shapes(self._trained_weights)
            base_shapes = weight_shapes(base)
            _require_alike(self.folder, shapes, base_shapes)
        with torch.no_grad():
            state = self.encoder.model.state_dict(keep_vars=True)
            for name, live in state.items():
                tuned = self._trained_weights[name]
                if base and tuned.is_floating_point():
                    tuned = base[name].float().lerp(tuned.float(), scale)
                live.copy_(tuned)

    def identity(self, scale: float) -> Identity:
        """Identify the weights at a scale in the store.

        At 0 it is the base's identity and at 1 the checkpoint's, so that they share vectors.
        """
        scale = float(scale)
        weights = self.manifest.weights
        if self.kind == "full" and scale == 0:
            _, folder = self._base
        else:
            folder = self.resolved.folder
        base = {
            "base": self.manifest.base.sha256,
            "tokenizer": tokenizer_hash(folder),
        }
        if weights.dense is not None:
            base["dense"] = weights.dense
        if self.kind == "base" or scale == 0:
            return base
        if self.kind == "full" and scale != 1:
            tuned = {
                "tuned": weights.sha256,
                "tuned_config": weights.config_sha256,
            }
            return {**base, **tuned, "scale": scale}
        scaled = replace(weights, scale=scale)
        return scaled.identity(base)

    def save_model(self, folder: Path, scale: float, dtype: Dtype) -> str:
        """Write the plain model at a scale, cast after the sum; return the weights' sha256.

        A later use loads the checkpoint again.
        """
        import torch

        self.set(scale)
        model: Any = self.encoder.model
        del self.resolved
        if self.kind == "lora":
            model = model.merge_and_unload()
        torch_dtype = getattr(torch, dtype)
        model.to(torch_dtype).save_pretrained(str(folder), max_shard_size=ONE_SHARD)
        return file_hash(folder / _MODEL)

    @property
    def base_weights(self) -> dict[str, Tensor]:
        encoder, _ = self._base
        return encoder.model.state_dict()

    @property
    def saved_base_weights(self) -> dict[str, Tensor]:
        """Return the base's weights by their names in a checkpoint's file."""
        from safetensors.torch import load_file

        encoder, _ = self._base
        model: Any = encoder.model
        with tempfile.TemporaryDirectory() as folder:
            # transformers writes some weights under names that differ from those in memory.
            model.save_pretrained(folder, max_shard_size=ONE_SHARD)
            return load_file(Path(folder) / _MODEL)

    @cached_property
    def _base(self) -> tuple[Encoder, Path]:
        """Load the base in float32, and find its folder. Raises `InputError` for other weights."""
        settings = replace(self.manifest.encoder, dtype="float32", quantization=None)
        base = self.manifest.base
        file = self.folder / FILE
        return load_base(base, file, settings, self.model, "cpu")

    @cached_property
    def _trained_weights(self) -> dict[str, Tensor]:
        state = self.encoder.model.state_dict()
        return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


Shapes = Mapping[str, tuple[int, ...]]


def weight_shapes(state: Mapping[str, Tensor]) -> Shapes:
    return {name: tuple(weight.shape) for name, weight in state.items()}


def _require_alike(
    file: Path,
    shapes: Shapes,
    others: Shapes,
) -> None:
    """Raise `InputError` if weights differ in name or shape from a base or another part."""
    own_items = set(shapes.items())
    other_items = set(others.items())
    odd = own_items ^ other_items
    if odd:
        name, _ = min(odd)
        raise InputError(file, field=name, reason="does not fit the other weights")


def read_parts(checkpoints: Sequence[str | Path]) -> dict[Path, Manifest]:
    """Read the manifests of checkpoints, or of the checkpoints that runs chose, by their folders.

    Raises `UserError` if they cannot be summed: if base, kind, rendering or val differ, or if
    weights are not the manifest's.
    """
    folders = map(checkpoint_folder, checkpoints)
    parts = {folder: Manifest.read(folder) for folder in folders}
    first = next(iter(parts))
    different = {folder.resolve() for folder in parts}
    if len(different) < max(2, len(checkpoints)):
        raise UserError("checkpoints: a sum needs two or more different ones")
    for folder, manifest in parts.items():
        weights = manifest.weights
        if weights.kind == "base":
            raise UserError(f"{folder}: is the untrained base")
        if weights.projection is not None:
            raise UserError(f"{folder}: has a projection and cannot be summed")
        for field, read in _SHARED_FIELDS.items():
            if read(manifest) != read(parts[first]):
                raise UserError(f"{folder}: its {field} differs from that of {first}")
        name = _MODEL if weights.kind == "full" else ADAPTER_FILE
        check_hash(folder / name, weights.sha256)
    return parts


def write_sum(
    parts: Mapping[Path, Manifest],
    folder: Path,
    weights: Sequence[float] | None = None,
    model: ModelConfig | None = None,
) -> Manifest:
    """Write base + sum of weight * (checkpoint - base) as a checkpoint, atomically.

    Without weights it is the mean. Full weights are summed one tensor at a time; the base, loaded
    with `model`, is read only if the weights do not sum to 1. LoRA: the sum of the deltas B A is
    one adapter whose rank is the sum of the ranks. The manifest, which is returned, names the
    weights that were summed.
    """
    manifests = list(parts.values())
    first = next(iter(manifests))
    with atomic_folder(folder) as temporary:
        if first.weights.kind == "full":
            file = _MODEL
            config_file = _CONFIG
            _sum_full(list(parts), weights, temporary, model)
        else:
            file = ADAPTER_FILE
            config_file = ADAPTER_CONFIG_FILE
            _sum_adapters(parts, weights, temporary)
        summed = replace(
            first.weights,
            sha256=file_hash(temporary / file),
            scale=1.0,
            config_sha256=file_hash(temporary / config_file),
        )
        manifest = replace(
            first,
            weights=summed,
            epoch=max(manifest.epoch for manifest in manifests),
            soup=tuple(str(manifest.weights.sha256) for manifest in manifests),
            scores={},
            trained_on=_trained_on(parts),
        )
        manifest.write(temporary)
    return manifest


def _trained_on(parts: Mapping[Path, Manifest]) -> TrainedOn | None:
    """Join the claims that the parts were trained on; None if no part has a record."""
    if all(manifest.trained_on is None for manifest in parts.values()):
        return None
    trained_on = TrainedOn()
    for folder, manifest in parts.items():
        trained_on |= claims_models_saw([str(folder)], manifest.data.dataset or "")
    return trained_on


def _sum_full(
    parts: Sequence[Path],
    weights: Sequence[float] | None,
    folder: Path,
    model: ModelConfig | None,
) -> None:
    """Sum tensors by name in float64, one at a time."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    first = parts[0]
    files_to_copy = (first / _CONFIG, *tokenizer_files(first))
    for file_to_copy in files_to_copy:
        shutil.copyfile(file_to_copy, folder / file_to_copy.name)
    if (first / MODULES).is_file():
        copy_modules(first, folder)
    share_of_base = 0.0 if weights is None else 1 - sum(weights)
    base: Mapping[str, Tensor] = {}
    if abs(share_of_base) > 1e-9:
        base = ScaledCheckpoint(first, model=model).saved_base_weights
    files = [safe_open(str(part / _MODEL), "pt") for part in parts]
    _require_summable(parts, files, base)
    state: dict[str, Tensor] = {}
    for name in sorted(files[0].keys()):
        values = [file.get_tensor(name) for file in files]
        state[name] = values[0]
        if values[0].is_floating_point():
            total = _weighted_total(values, weights)
            if base:
                total += share_of_base * base[name].to(torch.float64)
            state[name] = total.to(values[0].dtype)
    save_file(state, folder / _MODEL, {"format": "pt"})


def _require_summable(
    parts: Sequence[Path], files: Sequence[Any], base: Mapping[str, Tensor]
) -> None:
    """Raise `InputError` if a part has other tensors than the base, or than the first part."""
    shapes: list[Shapes] = []
    for file in files:
        own: dict[str, tuple[int, ...]] = {}
        for name in file.keys():
            tensor = file.get_slice(name)
            own[name] = tuple(tensor.get_shape())
        shapes.append(own)
    expected = shapes[0]
    if base:
        # A base may have more tensors: tied weights are in the file once.
        in_base = weight_shapes(base)
        expected = {name: shape for name, shape in in_base.items() if name in shapes[0]}
    for part, part_shapes in zip(parts, shapes, strict=True):
        _require_alike(part / _MODEL, part_shapes, expected)


def _weighted_total(
    values: Sequence[Tensor],
    weights: Sequence[float] | None,
) -> Tensor:
    """Sum tensors with weights, or average them without, in float64."""
    import torch

    terms = torch.stack([value.to(torch.float64) for value in values])
    if weights is None:
        return terms.mean(dim=0)
    factors = torch.tensor(weights, dtype=torch.float64)
    return torch.tensordot(factors, terms, 1)


def _sum_adapters(
    parts: Mapping[Path, Manifest],
    weights: Sequence[float] | None,
    folder: Path,
) -> None:
    """Sum deltas: A stacks all A's vertically, B all weighted B's horizontally."""
    import torch
    from safetensors.torch import load_file, save_file

    states: list[dict[str, Tensor]] = []
    scales: list[float] = []
    rank = 0
    config: dict[str, Any] = {}
    first = next(iter(parts))
    weights = weights or [1 / len(parts)] * len(parts)
    for (part, manifest), weight in zip(parts.items(), weights, strict=True):
        file = part / ADAPTER_CONFIG_FILE
        config = json.loads(file.read_text(encoding="utf-8"))
        if config.get("target_parameters"):
            # The factors of all experts are one tensor and cannot be stacked.
            reason = "adapters with target_parameters cannot be summed"
            raise InputError(file, reason=reason)
        state = load_file(part / ADAPTER_FILE)
        states.append(state)
        unshared = states[0].keys() ^ state.keys()
        if unshared:
            raise UserError(f"{part}: {min(unshared)} is adapted only in it or {first}")
        alpha = config["lora_alpha"]
        own_rank = config["r"]
        scales.append(manifest.weights.scale * alpha / own_rank * weight)
        rank += own_rank

    stacked: dict[str, Tensor] = {}
    for name in states[0]:
        is_b = ".lora_B." in name
        factors = [part_state[name].float() for part_state in states]
        if is_b:
            factors = [factor * scale for factor, scale in zip(factors, scales, strict=True)]
        elif ".lora_A." not in name:
            raise UserError(f"{first}: {name} is not a factor of a delta")
        joined = torch.cat(factors, dim=1 if is_b else 0)
        stacked[name] = joined.contiguous()
    save_file(stacked, folder / ADAPTER_FILE)
    # alpha / r is 1: the scales are in B.
    settings = config | {"r": rank, "lora_alpha": rank}
    write_json(folder / ADAPTER_CONFIG_FILE, settings)
