"""Export a checkpoint: `python train/merge.py --checkpoint DIR [--scale 0.5] --out DIR`.

Reads a checkpoint and its base; writes one plain model that loads in sentence-transformers, with
`encode_query` for claims and `encode_document` for sources, and by its folder's name here. The
base is never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from claim2source.core.config import Between, Settings, flag, read_config
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import atomic_folder
from claim2source.core.terminal import say
from claim2source.models import Dtype, ModelConfig
from claim2source.models.hub import weights_hash
from claim2source.models.manifest import EXPORT_FILE
from claim2source.training.export.scaling import ScaledCheckpoint, refuse_existing, require_scalable
from claim2source.training.export.sentence_transformers import (
    check_export,
    write_modules,
    write_tokenizer,
)


@dataclass(frozen=True)
class MergeConfig(Settings):
    """Settings of `train/merge.py`.

    Args:
        checkpoint: a checkpoint, or the folder of a training run (its chosen epoch).
        out: folder to write.
        scale: how far to go from the base (0) to the trained weights (1); none: as the
            checkpoint says.
        dtype: type of the written weights; none: the checkpoint's. Sums are computed in float32.
        model: `allow_bin`, `allow_remote_code` and `attention`, where its base needs them; all
            else is the manifest's.
    """

    checkpoint: str
    out: Path
    scale: Annotated[float, Between(0, 100)] | None = None
    dtype: Dtype | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    overwrite: bool = flag("replace an earlier export in the output folder")


def main(argv: Sequence[str] | None = None) -> None:
    """Merge, write the folder, print what it holds."""
    config = read_config(MergeConfig, argv, program="train/merge.py", description=__doc__ or "")
    for line in merge(config):
        say(line)


def merge(config: MergeConfig) -> list[str]:
    """Write the export atomically; returns a description of it as lines.

    Raises `UserError` where sentence-transformers would not give the same vectors.
    """
    refuse_existing(config.out, EXPORT_FILE, config.overwrite, "an export")
    scaled = ScaledCheckpoint(config.checkpoint, "cpu", "float32", model=config.model)
    require_scalable(scaled, config.scale)
    trained, weights = scaled.manifest.encoder, scaled.manifest.weights
    # Full weights are written as they are, whatever scale the checkpoint says they lie at.
    own_scale = weights.scale if weights.kind == "lora" else 1.0
    scale = own_scale if config.scale is None else config.scale
    recorded = float(weights.scale if config.scale is None else config.scale)
    # An adapter trained over 4 bits is added to the base's own weights.
    settings = replace(trained, dtype=config.dtype or trained.dtype, quantization=None)
    with atomic_folder(config.out) as folder:
        sha256 = scaled.save_model(folder, scale, settings.dtype)
        write_tokenizer(folder, scaled.resolved.folder, scaled.encoder)
        width = scaled.encoder.model.config.hidden_size
        write_modules(folder, settings, width, scaled.encoder.dense)
        weights = replace(weights, scale=recorded)
        manifest = replace(scaled.manifest, encoder=settings, weights=weights)
        manifest.write_export(folder, checkpoint=scaled.folder.name, scale=recorded, sha256=sha256)
        scaled.set(scale)
        only = weights.trained == "query_only"
        lines = check_export(folder, scaled.encoder, settings.dtype, claims_only=only)
        base = check_base(scaled)
    if weights.trained == "query_only":
        other, name = manifest.source_model, f"the base, {manifest.base.name}"
        lines.append(
            f"claims only: sources are encoded by {name if other is None else other.name}; this "
            "package does so by itself, in sentence-transformers load it for them"
        )
    if trained.quantization:
        lines.append(
            f"trained over a base in {trained.quantization}, merged into the base's own weights: "
            "vectors differ by the rounding to 4 bits"
        )
    prefixed = settings.template.claim or settings.template.source
    prompts = " (prefixes: its prompts `query` and `document`)" if prefixed else ""
    return [
        *lines,
        f"{config.out}: {scaled.folder} at scale {recorded:g}, {settings.dtype}, sha256 {sha256}",
        f"base {manifest.base.name}: sha256 {manifest.base.sha256}, {base}",
        "sentence-transformers: encode_query for claims, encode_document for sources" + prompts,
    ]


def check_base(scaled: ScaledCheckpoint) -> str:
    """Hash the base's weights again. Raises `UserError` where they changed."""
    folder = scaled.base_folder
    if folder is None:
        return "not read: the checkpoint holds every weight"
    if weights_hash(folder) != scaled.manifest.base.sha256:
        raise UserError(f"{folder}: the base's weights changed while they were exported")
    return "unchanged: hashed again after the export was written"


if __name__ == "__main__":
    run_program(main)
