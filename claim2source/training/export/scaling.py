"""A checkpoint loaded once, to be used anywhere between its base and what training made of it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import clean_leftovers, file_hash
from claim2source.models import (
    Dtype,
    Encoder,
    EncoderSettings,
    Manifest,
    ModelConfig,
    Resolved,
    Weights,
    checkpoint_folder,
    resolve,
    tokenizer_files,
    tokenizer_hash,
)
from claim2source.models.manifest import FILE
from claim2source.models.resolve import ADAPTER_CONFIG_FILE, ADAPTER_FILE, set_adapter_scale
from claim2source.training.checkpoint import weights_identity

# One file, so that one hash names the weights.
_ONE_SHARD = "1000GB"


class ScaledCheckpoint:
    """A checkpoint at any scale: 0 is its base, 1 is what training made of it.

    LoRA: W + scale * delta. Every weight trained: W + scale * (tuned - W), as WiSE-FT
    (Wortsman et al. 2022, section 3). Every scale is computed from the weights as they were
    loaded, in float32, never from the scale before it.

    `model` holds what no manifest may say: what its base may run or read, and the attention.

    Raises `UserError` for what is no checkpoint of ours, and for adapters that are no plain
    sum of a base and a delta.
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
        self.model = replace(model or ModelConfig(), name=str(self.folder))
        self.resolved: Resolved = resolve(self.model, device, dtype)
        if self.kind == "lora":
            _refuse_variants(self.encoder.model, self.folder)

    @property
    def kind(self) -> str:
        """`base`, `lora` or `full`."""
        return self.manifest.weights.kind

    @property
    def encoder(self) -> Encoder:
        """The one encoder; `set` changes its weights."""
        return self.resolved.encoder

    @property
    def base_folder(self) -> Path | None:
        """Where the base's files lie; none where nothing of it was read."""
        if self.kind != "full":
            return self.resolved.folder
        return self._base.folder if "_base" in self.__dict__ else None

    def set(self, scale: float) -> None:
        """Scale the encoder in place, and name its weights for the store."""
        if self.kind == "lora":
            set_adapter_scale(self.encoder.model, scale)
        elif self.kind == "full":
            with torch.no_grad():
                live = self.encoder.model.state_dict()
                for name, value in self._mixed(scale):
                    live[name].copy_(value)
        self.encoder.weights = self.identity(scale)

    def identity(self, scale: float) -> dict[str, Any]:
        """What names the weights at a scale in the store.

        At 0 it is the base's own and at 1 the checkpoint's, so that their vectors are shared.
        """
        scale, weights = float(scale), self.manifest.weights
        if self.kind == "base" or scale == 0:
            folder = self.resolved.folder if self.kind != "full" else self._base.folder
            return weights_identity(self.manifest.base, tokenizer_hash(folder), Weights())
        tokenizer = tokenizer_hash(self.resolved.folder)
        if self.kind == "lora":
            at = replace(weights, scale=scale)
            return weights_identity(self.manifest.base, tokenizer, at)
        if scale == 1:
            return weights_identity(self.manifest.base, tokenizer, weights)
        return {
            "base": self.manifest.base.sha256,
            "tokenizer": tokenizer,
            "tuned": weights.sha256,
            "tuned_config": weights.config_sha256,
            "scale": scale,
        }

    def weights(self, scale: float) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors of the plain model at a scale; the loaded weights stay as they are."""
        if self.kind == "lora":
            self.set(scale)
            yield from _merged(self.encoder.model)
        elif self.kind == "full":
            yield from self._mixed(scale)
        else:
            yield from self.encoder.model.state_dict().items()

    def save_model(self, folder: Path, scale: float, dtype: Dtype) -> str:
        """Write the plain model at a scale, cast at the very end; returns the weights' sha256."""
        model: Any = self.encoder.model
        model = model.get_base_model() if self.kind == "lora" else model
        _save(folder, model, self.weights(scale), getattr(torch, dtype))
        return file_hash(folder / "model.safetensors")

    def save_checkpoint(self, folder: Path, scale: float, scores: dict[str, Any]) -> Manifest:
        """Write a checkpoint of ours at a scale; `scores` are what it reached at that scale.

        At 0 it is the base's. A LoRA checkpoint's adapter is copied: the scale lies in the
        manifest alone. A full one at 1 is copied; between, its weights are written.
        """
        weights = Weights()
        if self.kind == "lora" and scale != 0:
            weights = replace(self.manifest.weights, scale=float(scale))
            _copy(self.folder, folder, (ADAPTER_FILE, ADAPTER_CONFIG_FILE))
        elif self.kind == "full" and scale != 0:
            _copy(self.folder, folder, [file.name for file in tokenizer_files(self.folder)])
            if scale == 1:
                weights = self.manifest.weights
                _copy(self.folder, folder, ("model.safetensors", "config.json"))
            else:
                weights = Weights(
                    "full",
                    self.save_model(folder, scale, self.encoder.settings.dtype),
                    float(scale),
                    file_hash(folder / "config.json"),
                    self.manifest.weights.trained,
                )
        written = replace(self.manifest, weights=weights, scores=scores)
        folder.mkdir(parents=True, exist_ok=True)
        written.write(folder)
        return written

    @cached_property
    def _base(self) -> Resolved:
        """The base, in float32 on the CPU, with the checkpoint's settings."""
        base, settings = self.manifest.base, self.manifest.encoder
        known = {field.name for field in fields(ModelConfig)}
        same = {
            field.name: getattr(settings, field.name)
            for field in fields(EncoderSettings)
            if field.name in known
        }
        # Its weights are read and nothing is run: its attention is the default's.
        config = replace(self.model, name=base.name, revision=base.revision, attention=None, **same)
        found = resolve(config, "cpu", "float32")
        if found.base.sha256 != base.sha256:
            why = (
                f"{base.name} has other weights ({found.base.sha256[:12]}...) than this began with"
            )
            raise InputError.at(self.folder / FILE, field="base.sha256", why=why)
        return found

    @cached_property
    def _tuned(self) -> dict[str, Tensor]:
        """A copy of what training left, taken before the encoder is scaled."""
        state = self.encoder.model.state_dict()
        return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}

    def _mixed(self, scale: float) -> Iterator[tuple[str, Tensor]]:
        tuned = self._tuned
        if scale == 1:
            # A plain copy: the base is not needed, and need not be there.
            yield from tuned.items()
            return
        base = self._base.encoder.model.state_dict()
        shapes = [{name: v.shape for name, v in state.items()} for state in (base, tuned)]
        if shapes[0] != shapes[1]:
            odd = sorted(
                n for n in base.keys() | tuned.keys() if shapes[0].get(n) != shapes[1].get(n)
            )[0]
            raise InputError.at(self.folder, why=f"its weight {odd} does not fit its base's")
        for name, value in tuned.items():
            mixed = value
            if value.is_floating_point():
                mixed = torch.lerp(base[name].float(), value.float(), scale)
            yield name, mixed


def _refuse_variants(model: Any, folder: Path) -> None:
    """Only W + scale * B A is known to be merged and scaled rightly here."""
    from peft.tuners.lora import LoraLayer

    for config in model.peft_config.values():
        others = config.modules_to_save or config.lora_bias or config.trainable_token_indices
        if config.bias != "none" or others:
            why = "adapters that also change biases, tokens or whole modules cannot be scaled"
            raise InputError.at(folder / ADAPTER_CONFIG_FILE, why=why)
    if any(module.lora_variant for module in model.modules() if isinstance(module, LoraLayer)):
        why = "a variant of LoRA that is no sum of base and delta cannot be scaled"
        raise InputError.at(folder / ADAPTER_CONFIG_FILE, why=why)


def _merged(model: Any) -> Iterator[tuple[str, Tensor]]:
    """W + delta for every adapted weight, as new tensors, under the names of the plain model."""
    from peft.tuners.lora import LoraLayer

    base = model.get_base_model()
    layers = {name: m for name, m in base.named_modules() if isinstance(m, LoraLayer)}
    for name, value in base.state_dict().items():
        owner, _, rest = name.partition(".base_layer.")
        if rest and owner in layers:
            if rest == "weight":
                layer: Any = layers[owner]
                deltas = [layer.get_delta_weight(adapter) for adapter in layer.active_adapters]
                value = value.float() + sum(delta.float() for delta in deltas)
            yield f"{owner}.{rest}", value
        elif not any(name.startswith(f"{layer}.") for layer in layers):
            yield name, value


def _save(
    folder: Path, model: Any, weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype
) -> None:
    """Write weights as a model of this kind, with its config."""
    state = {
        name: (v.detach().to("cpu", dtype) if v.is_floating_point() else v.detach().cpu())
        for name, v in weights
    }
    with torch.device("meta"):
        empty = type(model)(copy.deepcopy(model.config))
    # Strict: a weight that is lost or left over is an error here, not at the user's.
    empty.load_state_dict(state, assign=True)
    empty.save_pretrained(str(folder), max_shard_size=_ONE_SHARD)


def _copy(source: Path, target: Path, names: Iterable[str]) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(source / name, target / name)


def require_scalable(scaled: ScaledCheckpoint, scale: float | None) -> None:
    """Raise `UserError` where a scale has no clear meaning: no training, or scaled before."""
    said = scaled.manifest.weights
    if scale is None:
        return
    if said.kind == "base":
        raise UserError(f"{scaled.folder}: holds the base itself: there is nothing to scale")
    if said.kind == "full" and said.scale != 1:
        raise UserError(
            f"{scaled.folder}: its weights already are an interpolation at {said.scale:g}; "
            "name the checkpoint it was made from"
        )


def refuse_existing(out: Path, mark: str, overwrite: bool, what: str) -> None:
    """Raise `UserError` unless `out` is free, or holds `what` (known by its file `mark`).

    What a killed process left of it is cleared away, or put back.
    """
    clean_leftovers(out.parent, out.name)
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    if not (out / mark).is_file():
        raise UserError(f"{out}: not empty and not {what}; choose another --out")
    if not overwrite:
        raise UserError(f"{out}: holds {what}; add --overwrite or choose another --out")
