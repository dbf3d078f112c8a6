"""Write checkpoints: adapters or whole models, each with its manifest."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from claim2source.core.files import atomic_folder, file_hash, write_json
from claim2source.models import Manifest, Weights, tokenizer_files
from claim2source.models.places import base_record
from claim2source.models.resolve import ADAPTER_CONFIG_FILE, ADAPTER_FILE

if TYPE_CHECKING:
    from claim2source.models import Encoder

# Name of a projection that is trained with its model, as a part of it.
PART = "projection"
# One file, so that one hash names the weights.
ONE_SHARD = "1000GB"


def save_checkpoint(
    folder: Path,
    encoder: Encoder,
    base_folder: Path,
    manifest: Manifest,
    kind: Literal["base", "lora", "full"],
) -> Manifest:
    """Write a checkpoint atomically; returns its manifest with the hashes of the weights.

    `kind` is `base` (only the manifest), `lora` (the adapter) or `full` (weights, config and
    tokenizer); a projection has a file of its own. The files of the base are not touched. Raises
    `UserError` for weights that are not finite.
    """
    files = {
        "lora": (ADAPTER_FILE, ADAPTER_CONFIG_FILE),
        "full": ("model.safetensors", "config.json"),
    }
    with atomic_folder(folder) as temporary:
        weights = Weights(trained=manifest.weights.trained) if encoder.dense else Weights()
        if kind != "base":
            from claim2source.training.state import require_finite_weights

            every = encoder.model.named_parameters()
            named = {name: p.detach() for name, p in every if kind == "full" or p.requires_grad}
            require_finite_weights(named, folder)
            more: dict[str, Any] = {}
            if kind == "full" and encoder.dense is not None:
                state = encoder.model.state_dict()
                more["state_dict"] = {k: v for k, v in state.items() if k.split(".")[0] != PART}
            encoder.model.save_pretrained(str(temporary), max_shard_size=ONE_SHARD, **more)
            (temporary / "README.md").unlink(missing_ok=True)
            if kind == "lora":
                # peft writes the folder that the base was loaded from.
                adapter = temporary / ADAPTER_CONFIG_FILE
                stated = json.loads(adapter.read_text(encoding="utf-8"))
                stated["base_model_name_or_path"] = base_record(manifest.base.name)
                write_json(adapter, stated)
            content, settings = (file_hash(temporary / name) for name in files[kind])
            trained = manifest.weights.trained
            weights = Weights(kind, content, config_sha256=settings, trained=trained)
        if kind == "full":
            for file in tokenizer_files(base_folder):
                shutil.copyfile(file, temporary / file.name)
        if encoder.dense is not None:
            from claim2source.models.projection import save_projection

            weights = replace(weights, projection=save_projection(encoder.dense, temporary))
        written = replace(manifest, weights=weights)
        written.write(temporary)
    return written
