"""Make a loaded model trainable, and write its checkpoints with their manifests."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch

from claim2source.core.errors import ConfigError
from claim2source.core.files import atomic_folder, file_hash, write_json
from claim2source.models import Encoder, Manifest, Weights, tokenizer_files
from claim2source.models.hub import copy_modules, dense_hash
from claim2source.models.layers import find_layers, set_dropout
from claim2source.models.manifest import RerankerManifest, base_record
from claim2source.models.projection import save_projection
from claim2source.models.resolve import ADAPTER_CONFIG_FILE, ADAPTER_FILE
from claim2source.training.config import RetrieverRecipe, TrainingRecipe
from claim2source.training.export.weighted_sum import ONE_SHARD
from claim2source.training.resume import require_finite_weights

# Name of a projection that is trained as a part of its model.
PART = "projection"

Kind = Literal["base", "lora", "full"]
Saved = TypeVar("Saved", Manifest, RerankerManifest)


def save_checkpoint(
    folder: Path, encoder: Encoder, base_folder: Path, manifest: Manifest, kind: Kind
) -> Manifest:
    """Write a retriever's checkpoint, with the tokenizer of its base if it is `full`."""

    def write_full(temporary: Path) -> None:
        state = encoder.model.state_dict().items()
        own = {name: weight for name, weight in state if name.split(".")[0] != PART}
        encoder.model.save_pretrained(str(temporary), max_shard_size=ONE_SHARD, state_dict=own)
        for file in tokenizer_files(base_folder):
            shutil.copyfile(file, temporary / file.name)
        if dense is not None:
            copy_modules(base_folder, temporary)

    dense = None if encoder.projects else dense_hash(base_folder)
    projection = encoder.dense if encoder.projects else None
    manifest = replace(manifest, weights=replace(manifest.weights, dense=dense))
    return write_checkpoint(folder, encoder.model, manifest, kind, write_full, projection)


def write_checkpoint(
    folder: Path,
    model: Any,
    manifest: Saved,
    kind: Kind,
    write_full: Callable[[Path], None],
    projection: torch.nn.Module | None = None,
) -> Saved:
    """Write a checkpoint atomically; returns its manifest with the hashes of the weights.

    `kind` is `base` (only the manifest), `lora` (the adapter) or `full` (files of `write_full`);
    a projection has its own file. The files of the base are not touched. Raises `UserError`
    for weights that are not finite.
    """
    trained, dense = manifest.weights.trained, manifest.weights.dense
    with atomic_folder(folder) as temporary:
        weights = Weights(trained=trained) if projection is not None else Weights()
        if kind != "base":
            names = ADAPTER_FILE, ADAPTER_CONFIG_FILE
            parameters = model.named_parameters()
            saved = {n: p.detach() for n, p in parameters if kind == "full" or p.requires_grad}
            require_finite_weights(saved, folder)
            if kind == "lora":
                save_adapter(model, temporary, manifest.base.name)
            else:
                names = "model.safetensors", "config.json"
                write_full(temporary)
            content, settings = (file_hash(temporary / name) for name in names)
            weights = Weights(kind, content, config_sha256=settings, trained=trained, dense=dense)
        if projection is not None:
            weights = replace(weights, projection=save_projection(projection, temporary))
        manifest = replace(manifest, weights=weights)
        manifest.write(temporary)
    return manifest


def save_adapter(model: Any, folder: Path, base: str) -> None:
    """Write an adapter; `base` replaces the folder that peft loaded its base from."""
    model.save_pretrained(str(folder), max_shard_size=ONE_SHARD)
    (folder / "README.md").unlink(missing_ok=True)
    file = folder / ADAPTER_CONFIG_FILE
    settings = json.loads(file.read_text(encoding="utf-8"))
    write_json(file, settings | {"base_model_name_or_path": base_record(base)})


def check_layers(model: Any, recipe: TrainingRecipe, *, own_code: bool) -> None:
    """Raise `ConfigError` for unsupported tuning or LoRA dropout; see `targets` for layers."""
    if recipe.tuning == "full":
        if own_code:
            allowed = "lora: a full checkpoint would lack the code that this model ships"
            raise ConfigError("tuning", recipe.tuning, allowed)
        count, limit = recipe.optimisation.train_layers, len(find_layers(model))
        if count is not None and count > limit:
            allowed = f"at most {limit}, the layers of this model"
            raise ConfigError("optimisation.train_layers", count, allowed)
        return
    if recipe.lora.dropout and any(p.ndim == 3 for p in model.parameters()):
        with torch.device("meta"):
            empty = type(model)(copy.deepcopy(model.config))
        try:
            _with_adapter(empty, recipe, None)
        except ValueError as error:
            allowed = f"0 for a mixture of experts: {' '.join(str(error).split())}"
            raise ConfigError("lora.dropout", recipe.lora.dropout, allowed) from None


def adapt(encoder: Encoder, recipe: RetrieverRecipe) -> None:
    """Prepare `encoder.model` for training; the weights of the base do not change.

    Adapters are float32 whatever the base's dtype (`model.dtype`, or 4 bits with qlora). The
    recipe must fit the model: see `check_layers`.
    """
    encoder.model = make_trainable(encoder.model, recipe)
    if recipe.optimisation.gradient_checkpointing:
        from claim2source.models.packed import enable_checkpointing

        enable_checkpointing(encoder.model)


def make_trainable(model: Any, recipe: TrainingRecipe, task: str | None = None) -> Any:
    """Set dropout and which weights are trained; return the model, with any adapters.

    `task` is peft's task type: with `SEQ_CLS` a head is trained in full.
    """
    if recipe.optimisation.dropout is not None:
        set_dropout(model, recipe.optimisation.dropout)
    if recipe.tuning != "full":
        return _with_adapter(model, recipe, task)
    model.requires_grad_(True)
    if recipe.optimisation.train_layers is not None:
        first = next(find_layers(model)[-recipe.optimisation.train_layers].parameters())
        for parameter in model.parameters():
            if parameter is first:
                break
            parameter.requires_grad_(False)
    return model


@contextmanager
def without_copies(model: torch.nn.Module) -> Iterator[None]:
    """Keep LoRA layers from copying their inputs to fp32 while the body runs under autocast.

    Autocast would cast the copies back at once, so results are the same and memory is saved.
    Without autocast, an fp32 adapter needs its input in fp32. The body must include the backward
    pass, in which checkpointing runs the layers again.
    """
    kind = next(model.parameters()).device.type
    if not (hasattr(model, "peft_config") and torch.is_autocast_enabled(kind)):
        yield
        return
    from peft.helpers import disable_input_dtype_casting

    with disable_input_dtype_casting(model):
        yield


def _with_adapter(model: Any, recipe: TrainingRecipe, task: str | None) -> Any:
    from peft import LoraConfig, get_peft_model

    from claim2source.models.fused import fuse_adapters

    lora = LoraConfig(
        r=recipe.lora.r,
        lora_alpha=recipe.lora.alpha,
        lora_dropout=recipe.lora.dropout,
        target_modules=list(recipe.lora.targets) or "all-linear",
        # DistilBERT's head has two layers: peft trains both in full, and adapts the first one too.
        exclude_modules=["pre_classifier"] if hasattr(model, "pre_classifier") else None,
        task_type=task,
    )
    # In 16 bits adapters would lose small optimizer steps.
    adapted = get_peft_model(model, lora, autocast_adapter_dtype=True)
    fuse_adapters(adapted)
    return adapted
