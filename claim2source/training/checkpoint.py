"""Writing what was trained: checkpoints that are used, and the state a run resumes from."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from claim2source.core.errors import InputError, UserError
from claim2source.core.files import atomic_folder, atomic_path, file_hash
from claim2source.models import Base, Encoder, Manifest, Weights, tokenizer_files
from claim2source.models.resolve import ADAPTER_CONFIG_FILE, ADAPTER_FILE, adapter_identity

STATE_FILE = "state.pt"
STATE_FORMAT = 2
# One file, so that one hash names the weights.
_ONE_SHARD = "1000GB"


def epoch_folder(run: Path, epoch: int) -> Path:
    """Where the checkpoint of an epoch lies; epoch 0 is the model before training."""
    return run / "checkpoints" / f"epoch-{epoch}"


def save_checkpoint(
    folder: Path, encoder: Encoder, base_folder: Path, manifest: Manifest, kind: str
) -> Manifest:
    """Write a checkpoint, whole or not at all, and return its manifest with the weights' hash.

    `kind` is `base` (nothing but the manifest), `lora` (the adapter; the base's weights are
    neither read nor touched) or `full` (weights, config and tokenizer).
    """
    with atomic_folder(folder) as temporary:
        weights = Weights()
        trained = manifest.weights.trained
        if kind == "lora":
            encoder.model.save_pretrained(str(temporary), safe_serialization=True)
            (temporary / "README.md").unlink(missing_ok=True)
            weights = Weights(
                "lora",
                file_hash(temporary / ADAPTER_FILE),
                config_sha256=file_hash(temporary / ADAPTER_CONFIG_FILE),
                trained=trained,
            )
        elif kind == "full":
            encoder.model.save_pretrained(str(temporary), max_shard_size=_ONE_SHARD)
            for file in tokenizer_files(base_folder):
                shutil.copyfile(file, temporary / file.name)
            weights = Weights(
                "full",
                file_hash(temporary / "model.safetensors"),
                config_sha256=file_hash(temporary / "config.json"),
                trained=trained,
            )
        written = Manifest(**{**manifest.__dict__, "weights": weights})
        written.write(temporary)
    return written


def weights_identity(base: Base, tokenizer: str, weights: Weights) -> dict[str, Any]:
    """What names these weights in the store: the same as when the checkpoint is loaded."""
    if weights.kind == "full":
        return {"base": weights.sha256, "tokenizer": tokenizer}
    identity: dict[str, Any] = {"base": base.sha256, "tokenizer": tokenizer}
    if weights.kind == "lora":
        identity |= adapter_identity(weights)
    return identity


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write the resumable state; until the rename the one before stays in place."""
    with atomic_path(path) as temporary:
        torch.save({"format": STATE_FORMAT, **state}, temporary)


def load_state(path: Path) -> dict[str, Any]:
    """Read a resumable state, tensors and plain values only. Raises `InputError`."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise InputError.at(path, why="no saved state here: nothing to resume") from None
    except Exception as error:  # torch raises many kinds for one cause: not a state of ours
        raise InputError.at(path, why=f"not a saved state: {str(error).splitlines()[0]}") from None
    if not isinstance(state, dict) or state.get("format") != STATE_FORMAT:
        raise InputError.at(path, field="format", why=f"this version reads format {STATE_FORMAT}")
    return state


def random_state() -> dict[str, torch.Tensor]:
    """This process's random state, as tensors."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def restore_random_state(state: Mapping[str, torch.Tensor]) -> None:
    """Put a random state back."""
    torch.set_rng_state(state["cpu"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def restore_weights(model: torch.nn.Module, weights: Mapping[str, torch.Tensor]) -> None:
    """Copy saved trainable weights into the model. Raises `UserError` when names differ."""
    trainable = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if trainable.keys() != weights.keys():
        odd = sorted(trainable.keys() ^ weights.keys())[0]
        raise UserError(f"the saved state trains other weights than this config ({odd})")
    with torch.no_grad():
        for name, parameter in trainable.items():
            parameter.copy_(weights[name])
