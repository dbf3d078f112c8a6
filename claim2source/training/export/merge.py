"""What `train/merge.py` does: a checkpoint -> a plain sentence-transformers folder."""

from __future__ import annotations

import math
import shutil
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from claim2source.core.config import flag, require
from claim2source.core.errors import UserError
from claim2source.core.files import atomic_folder, write_json
from claim2source.models import Dtype, Encoder, EncoderSettings, ModelConfig, Side
from claim2source.models.hub import tokenizer_files, weights_hash
from claim2source.models.manifest import EXPORT_FILE
from claim2source.training.export.scaling import ScaledCheckpoint, refuse_existing, require_scalable

_SIDES: tuple[tuple[Side, str], ...] = (("claim", "query"), ("source", "document"))
# What posts begin with: a prefix must end at a token's border before each of them.
_PROBES = ("new study: masks work", "A", "42 % fewer", "@who says", "#covid", "ärztlich", "😷 ok")
_MODULE = "sentence_transformers.models"


@dataclass(frozen=True)
class MergeConfig:
    """Settings of `train/merge.py`.

    Args:
        checkpoint: a checkpoint, or the folder of a training run (its chosen epoch).
        out: folder to write.
        scale: how far to go from the base (0) to what was trained (1); none: as the
            checkpoint says.
        dtype: type of the written weights; none: the checkpoint's. Sums are made in float32.
        model: `allow_bin`, `allow_remote_code` and `attention`, where its base needs them; all
            else is the manifest's.
    """

    checkpoint: str
    out: Path
    scale: float | None = None
    dtype: Dtype | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    overwrite: bool = flag("replace an earlier export in the output folder")

    def __post_init__(self) -> None:
        good = self.scale is None or (math.isfinite(self.scale) and self.scale >= 0)
        require(good, "scale", self.scale, "0 or more")


def merge(config: MergeConfig) -> list[str]:
    """Export, whole or not at all; returns what was done as lines.

    The base is read and never written; the folder loads in sentence-transformers, with
    `encode_query` for claims and `encode_document` for sources, and by its name here.
    Raises `UserError` when the folder could not give the same vectors there.
    """
    refuse_existing(config.out, EXPORT_FILE, config.overwrite, "an export")
    scaled = ScaledCheckpoint(config.checkpoint, "cpu", "float32", model=config.model)
    require_scalable(scaled, config.scale)
    said = scaled.manifest.weights
    # What a full checkpoint holds is what it holds, wherever between base and tuned it lies.
    scale = config.scale if config.scale is not None else said.scale if said.kind == "lora" else 1.0
    recorded = scale if config.scale is not None else said.scale
    trained = scaled.manifest.encoder
    # An adapter trained over 4 bits is added to the base's own weights, and written in whole ones.
    settings = replace(trained, dtype=config.dtype or trained.dtype, quantization=None)
    with atomic_folder(config.out) as folder:
        sha256 = scaled.save_model(folder, scale, settings.dtype)
        _write_tokenizer(folder, scaled)
        _check_tokens(folder, scaled.encoder)
        _write_modules(folder, settings, scaled.encoder.dimensions)
        manifest = replace(
            scaled.manifest, encoder=settings, weights=replace(said, scale=float(recorded))
        )
        manifest.write_export(
            folder, checkpoint=scaled.folder.name, scale=float(recorded), sha256=sha256
        )
        base = _rehashed(scaled)
    prefixes = " (prefixes: its prompts `query` and `document`)" if _has_prefix(settings) else ""
    four = f"trained over a base in {trained.quantization}, merged into the base's own weights: "
    half = [
        f"claims only: sources are encoded by the base, {manifest.base.name}; this package does "
        "so by itself, in sentence-transformers load it for them"
    ]
    return [
        *(half if said.trained == "query_only" else []),
        *([four + "vectors differ by the rounding to 4 bits"] if trained.quantization else []),
        f"{config.out}: {scaled.folder} at scale {recorded:g}, {settings.dtype}, sha256 {sha256}",
        f"base {manifest.base.name}: sha256 {manifest.base.sha256}, {base}",
        "sentence-transformers: encode_query for claims, encode_document for sources" + prefixes,
    ]


def _rehashed(scaled: ScaledCheckpoint) -> str:
    """What became of the base's files, for a person. Raises `UserError` where they changed."""
    folder, said = scaled.base_folder, scaled.manifest.base
    if folder is None:
        return "not read: the checkpoint holds every weight"
    if weights_hash(folder) != said.sha256:
        raise UserError(f"{folder}: the base's weights changed while they were exported")
    return "unchanged: hashed again after the export was written"


def _has_prefix(settings: EncoderSettings) -> bool:
    return bool(settings.template.claim or settings.template.source)


def _write_tokenizer(folder: Path, scaled: ScaledCheckpoint) -> None:
    """The base's files as they are; rewritten only where they name no padding token."""
    source = scaled.resolved.folder
    for file in tokenizer_files(source):
        shutil.copyfile(file, folder / file.name)
    if AutoTokenizer.from_pretrained(folder, trust_remote_code=False).pad_token_id is None:
        scaled.encoder.tokenizer.save_pretrained(str(folder))


def _check_tokens(folder: Path, encoder: Encoder) -> None:
    """Refuse what the folder's own tokenizer would read or pool otherwise than the encoder."""
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    template, length = encoder.settings.template, encoder.settings.max_length
    for side, _ in _SIDES:
        prefix = template.prefix(side)
        texts = [prefix + probe for probe in _PROBES]
        found = tokenizer(texts, truncation=True, max_length=length)["input_ids"]
        ours = encoder.tokenize(_PROBES, side)
        if [tuple(ids) for ids in found] != [tokens.ids for tokens in ours]:
            raise UserError(
                f"the {side}s' token ids are not those that this model's tokenizer gives alone; "
                "sentence-transformers would make other vectors"
            )
        if prefix and _masks_prefix(encoder.settings):
            alone = tokenizer(prefix, truncation=True, max_length=length)["input_ids"]
            # As sentence-transformers counts: all of the prompt's tokens but a closing special one.
            counted = len(alone) - (alone[-1] in tokenizer.all_special_ids)
            if any(tokens.skip != counted for tokens in ours):
                raise UserError(
                    f"template.{side}: {prefix!r} does not end where a token ends; "
                    "sentence-transformers would leave other tokens out of the pooling"
                )


def _masks_prefix(settings: EncoderSettings) -> bool:
    """Whether a prefix is left out of the pooling; only a mean has more than one token to pool."""
    return settings.pooling == "mean" and not settings.template.pool_prefix


def _write_modules(folder: Path, settings: EncoderSettings, dimensions: int) -> None:
    """The files that make it a sentence-transformers model, in the spelling all versions read."""
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    kinds = kinds if settings.normalize else kinds[:2]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"{_MODULE}.{kind}"}
        for i, (kind, path) in enumerate(kinds)
    ]
    for _, path in kinds:
        (folder / path).mkdir(exist_ok=True)
    modes = {"cls": "cls_token", "mean": "mean_tokens", "last": "lasttoken"}
    pooling = {f"pooling_mode_{theirs}": settings.pooling == ours for ours, theirs in modes.items()}
    write_json(folder / "modules.json", modules)
    write_json(
        folder / "1_Pooling" / "config.json",
        {
            "word_embedding_dimension": dimensions,
            **pooling,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
            "pooling_mode_weightedmean_tokens": False,
            "include_prompt": not _masks_prefix(settings),
        },
    )
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": settings.max_length, "do_lower_case": False},
    )
    write_json(folder / "config_sentence_transformers.json", _prompts(settings))


def _prompts(settings: EncoderSettings) -> dict[str, Any]:
    return {
        "__version__": {name: metadata.version(name) for name in ("transformers", "torch")},
        "prompts": {theirs: settings.template.prefix(ours) for ours, theirs in _SIDES},
        "default_prompt_name": None,
        "similarity_fn_name": "cosine" if settings.normalize else "dot",
    }
