"""Load a model by name as an `Encoder`: a checkpoint, a folder, a packaged model or the hub's."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.files import file_hash
from claim2source.models.config import (
    PLAIN_BERT,
    PREPACKED,
    TRAINED,
    Attention,
    Dtype,
    EncoderSettings,
    Identity,
    ModelConfig,
    Template,
)
from claim2source.models.hub import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_FILE,
    base_files,
    check_code,
    dense_hash,
    own_modules_hash,
    packaged_files,
    require_files,
    tokenizer_hash,
)
from claim2source.models.local import local_model
from claim2source.models.manifest import (
    EXPORT_FILE,
    FILE,
    LOCAL,
    Base,
    Manifest,
    SourceModel,
    Weights,
    checkpoint_folder,
)
from claim2source.models.sentence_transformers import complete_settings, declared_length
from claim2source.text import Rendering

if TYPE_CHECKING:
    import torch

    from claim2source.models.encoder import Encoder

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resolved:
    """Encoder and its origin; `manifest` only for checkpoints of ours.

    `exported` is the rendering of a model that `train/merge.py` exported.
    """

    encoder: Encoder
    base: Base
    folder: Path
    manifest: Manifest | None = None
    exported: Rendering | None = None

    @property
    def rendering(self) -> Rendering | None:
        """Return how records were rendered in training, if known."""
        if self.manifest:
            return self.manifest.rendering
        return self.exported

    def uncut_length(self, sources: Sequence[str]) -> int:
        """Return `max_length`, or the length in the model's files if that cuts fewer sources.

        Warns in the latter case. The files may declare more tokens than there are positions.
        """
        from claim2source.models.load import count_positions

        limit = self.encoder.settings.max_length
        declared = declared_length(self.folder) or limit
        own = min(declared, count_positions(self.encoder.model) or declared)
        if own <= limit:
            return limit
        self.encoder.tokenize(["a text"], "source")  # its error names the key
        rows = self.encoder.tokenize(sources, "source", limit + 1)
        cut = sum(len(row.ids) > limit for row in rows)
        if not cut:
            return limit
        log.warning(
            "model.max_length: %d of %d sources are cut at %d tokens; the model takes %d, which "
            "step 0 uses: a higher max_length may gain more than training",
            *(cut, len(rows), limit, own),
        )
        return own

    @property
    def record(self) -> Manifest | None:
        """Return a checkpoint's manifest, or that of the checkpoint behind an exported model."""
        return self.manifest or Manifest.read_export(self.folder)

    @property
    def is_trained(self) -> bool:
        """Whether a training run of ours may have seen the claims of train."""
        return self.manifest is not None and self.manifest.weights.kind != "base"

    def rendering_for(self, rendering: Rendering | None) -> Rendering:
        """Return a checkpoint's own rendering; for others `rendering`, else their own or default.

        Raises `UserError` if `rendering` is not the one that the checkpoint was trained with.
        """
        if self.manifest is None:
            return rendering or self.exported or Rendering()
        own = self.manifest.rendering
        if rendering is not None and rendering != own:
            reason = f"the checkpoint was trained with {own} and must be evaluated with it"
            raise UserError(f"rendering: {reason}")
        return own


def resolve(
    model: ModelConfig | str | Path,
    device: str | None = None,
    dtype: Dtype | None = None,
) -> Resolved:
    """Load a model by name. Raises `UserError` if it does not exist or cannot be used.

    A checkpoint of ours takes every setting from its manifest; `ModelConfig` settings that
    would contradict it are refused. `dtype` loads the weights in another type, and a quantized
    base unquantized, as merging does. On the devices of `PLAIN_BERT` a BERT-like model that
    encodes both sides runs without transformers.
    """
    if not isinstance(model, ModelConfig):
        model = ModelConfig(name=str(model))
    config = local_model(model)
    folder = checkpoint_folder(config.name)
    if (folder / FILE).is_file() or folder != Path(config.name):
        _refuse_overrides(config)
        return _checkpoint(folder, config, device, dtype)
    files, base = base_files(config)
    export = Manifest.read_export(files)
    if export is not None and config.template == Template():
        config = replace(config, template=export.encoder.template, prompts=False)
    settings = complete_settings(replace(config, dtype=dtype or config.dtype), files)
    shorten = config.max_length is None
    if export is not None and export.weights.trained == "query_only":
        device = PLAIN_BERT.get(device, device)  # NumPy models encode both sides
    encoder = _load(files, settings, device, config.attention, shorten)
    kept = config.truncate_dim
    if kept is not None and kept > encoder.dimensions:
        raise ConfigError("model.truncate_dim", kept, f"at most {encoder.dimensions}")
    encoder.weights = _identity(base, files, encoder)
    encoder.name = base.name
    if export is None:
        return Resolved(encoder, base, files)
    if export.weights.trained == "query_only":
        # Only claims were trained: its base encodes the sources.
        file = files / EXPORT_FILE
        if export.source_model is not None:
            encoder.source_encoder = _late_encoder(export.source_model, file, config, device)
        else:
            encoder.source_encoder = load_base(export.base, file, settings, config, device)[0]
    return Resolved(encoder, base, files, exported=export.rendering)


def _load(
    folder: Path,
    settings: EncoderSettings,
    device: str | None,
    attention: Attention | None,
    shorten: bool = False,
) -> Encoder:
    if device in PLAIN_BERT:
        from claim2source.models.numpy_encoder import NumpyEncoder, load_numpy

        kind: type[NumpyEncoder] = NumpyEncoder
        if device == PREPACKED:
            from claim2source.models.prepacked import PrepackedEncoder

            kind = PrepackedEncoder
        encoder = load_numpy(folder, settings, shorten, kind)
        if encoder is not None:
            return cast("Encoder", encoder)  # it has everything that a search calls
        device = PLAIN_BERT[device]
    from claim2source.models.load import load

    return load(folder, settings, device, attention, shorten)


def _refuse_overrides(config: ModelConfig) -> None:
    default = ModelConfig(name=config.name)
    for key in TRAINED:
        value = getattr(config, key)
        if value != getattr(default, key):
            allowed = "no value: the checkpoint's manifest sets it"
            raise ConfigError(f"model.{key}", value, allowed)


def _checkpoint(
    folder: Path,
    config: ModelConfig,
    device: str | None,
    dtype: Dtype | None,
) -> Resolved:
    require_files(folder)
    manifest = Manifest.read(folder)
    base = manifest.base
    settings = manifest.encoder
    weights = manifest.weights
    file = folder / FILE
    if dtype is not None:
        settings = replace(settings, dtype=dtype, quantization=None)
    has_two_encoders = weights.trained == "query_only" or manifest.source_model is not None
    if weights.kind == "lora" or has_two_encoders:
        device = PLAIN_BERT.get(device, device)  # adapters and projections are layers of PyTorch
    if weights.kind == "full":
        return _full_checkpoint(folder, config, manifest, settings, device)
    encoder, files = load_base(base, file, settings, config, device)
    if weights.kind == "lora":
        from claim2source.models.weights import with_adapter

        untrained = encoder.weights or {}
        require_dense(weights, dense_hash(files), file)
        check_hash(folder / ADAPTER_FILE, weights.sha256)
        check_hash(folder / ADAPTER_CONFIG_FILE, weights.config_sha256)
        encoder.model = with_adapter(encoder.model, folder)
        set_adapter_scale(encoder.model, weights.scale)
        encoder.weights = weights.identity(untrained)
        if weights.trained == "query_only" and manifest.source_model is None:
            from claim2source.models.query_only import base_encoder

            encoder.source_encoder = base_encoder(encoder, untrained)
    if manifest.source_model is not None:
        encoder.weights = weights.identity(encoder.weights or {})
        _add_projection(encoder, folder, manifest, config, device)
    return Resolved(encoder, base, files, manifest)


def _full_checkpoint(
    folder: Path,
    config: ModelConfig,
    manifest: Manifest,
    settings: EncoderSettings,
    device: str | None,
) -> Resolved:
    """Load a checkpoint that contains all weights of its model."""
    base = manifest.base
    weights = manifest.weights
    file = folder / FILE
    check_hash(folder / "model.safetensors", weights.sha256)
    check_hash(folder / "config.json", weights.config_sha256)
    if settings.own_code:
        raise InputError(file, field="encoder.own_code", reason="not in a full model")
    encoder = _load(folder, settings, device, config.attention)
    dense = dense_hash(folder)
    require_dense(weights, dense, file)
    read = {"tokenizer": tokenizer_hash(folder), "dense": dense, "types": _types(encoder)}
    encoder.weights = weights.identity(_present(read))
    encoder.name = base.name
    if manifest.source_model is not None:
        _add_projection(encoder, folder, manifest, config, device)
    elif weights.trained == "query_only":
        encoder.source_encoder, _ = load_base(base, file, settings, config, device)
    return Resolved(encoder, base, folder, manifest)


def _add_projection(
    encoder: Encoder,
    folder: Path,
    manifest: Manifest,
    config: ModelConfig,
    device: str | None,
) -> None:
    """Map the claims' vectors into the space of the sources' encoder, which loads when needed."""
    from claim2source.models.projection import FILE as PROJECTION
    from claim2source.models.projection import load_projection

    assert manifest.source_model is not None
    check_hash(folder / PROJECTION, manifest.weights.projection)
    encoder.dense = load_projection(folder, encoder.width).to(encoder.device)
    encoder.projects = True
    encoder.source_encoder = _late_encoder(manifest.source_model, folder / FILE, config, device)


def _late_encoder(
    record: SourceModel,
    file: Path,
    config: ModelConfig,
    device: str | None,
) -> Encoder:
    """Stand in for the recorded model of the sources; loading it compares its hashes."""
    from claim2source.models.query_only import LateEncoder

    def load() -> Encoder:
        if record.name.startswith(LOCAL):
            reason = f"no such model on this machine: {Path(record.name).name!r}; put it or a link"
            raise InputError(
                file,
                field="source_model.name",
                reason=f"{reason} next to {file.parent}",
            )
        encoder = resolve(_read_config(record, config), device).encoder
        encoder = encoder.source_encoder or encoder
        if encoder.key() != late.key():
            reason = f"{record.name} is not the source encoder that this was trained with"
            raise InputError(file, field="source_model.weights", reason=reason)
        return encoder

    late = LateEncoder(record, load)
    return late


def _read_config(record: SourceModel, config: ModelConfig) -> ModelConfig:
    model = ModelConfig(
        name=record.name,
        attention=config.attention,
        allow_remote_code=config.allow_remote_code,
        allow_bin=config.allow_bin,
    )
    folder = checkpoint_folder(record.name)
    if (folder / FILE).is_file():
        return model
    names = {spec.name for spec in fields(ModelConfig)}
    settings: dict[str, Any] = {}
    for spec in fields(EncoderSettings):
        if spec.name in names:
            settings[spec.name] = getattr(record.encoder, spec.name)
    if record.encoder.own_code:
        settings["bidirectional"] = None
    else:
        settings["allow_remote_code"] = ()
    return replace(model, **settings, revision=record.revision, prompts=False)


def load_base(
    recorded: Base,
    file: Path,
    settings: EncoderSettings,
    config: ModelConfig,
    device: str | None,
) -> tuple[Encoder, Path]:
    """Load the recorded base model, checked by its hash; return its folder too."""
    if recorded.name.startswith(LOCAL):
        reason = f"no such folder on this machine: {Path(recorded.name).name!r}; put it or a link"
        raise InputError(file, field="base.name", reason=f"{reason} next to {file.parent}")
    # Its code runs if it ran in training and this user allows it: a manifest cannot allow it.
    base_config = local_model(
        replace(
            config,
            name=recorded.name,
            revision=recorded.revision,
            allow_remote_code=config.allow_remote_code if settings.own_code else (),
            bidirectional=None if settings.own_code else settings.bidirectional,
        )
    )
    # A packaged copy serves any revision: its hash is compared.
    files, base = packaged_files(recorded.name) or base_files(base_config)
    if settings.own_code and not check_code(base_config, files):
        reason = f"{files} does not ship its own code"
        raise InputError(file, field="encoder.own_code", reason=reason)
    if base.sha256 != recorded.sha256:
        reason = f"{files} has other weights ({base.sha256[:12]}...) than the base in training"
        raise InputError(file, field="base.sha256", reason=reason)
    encoder = _load(files, settings, device, config.attention)
    encoder.weights = _identity(base, files, encoder)
    encoder.name = recorded.name
    return encoder, files


def _identity(base: Base, files: Path, encoder: Encoder) -> Identity:
    parts = {
        "base": base.sha256,
        "tokenizer": tokenizer_hash(files),
        "dense": dense_hash(files),
        "modules": own_modules_hash(files),
        "types": _types(encoder),
    }
    return _present(parts)


def _types(encoder: Encoder) -> str | None:
    """Return a key's part for token types, which older keys lack; None if all are 0."""
    return "read" if encoder.reads_types else None


def _present(parts: Mapping[str, str | None]) -> Identity:
    return {part: value for part, value in parts.items() if value is not None}


def set_adapter_scale(model: torch.nn.Module, scale: float) -> None:
    """Scale a LoRA adapter in place: 0 is the base model, 1 as trained."""
    from peft.tuners.lora import LoraLayer

    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name in module.scaling:
                module.set_scale(name, scale)


def require_dense(weights: Weights, present: str | None, file: Path) -> None:
    """Raise `InputError` if the layers after the pooling are not those of training."""
    if weights.dense != present:
        reason = "the Dense layers after the pooling are not those of training"
        raise InputError(file, field="weights.dense", reason=reason)


def check_hash(path: Path, expected: str | None) -> None:
    """Raise `InputError` for a file that is not the one a manifest names."""
    if not path.is_file():
        raise InputError(path, reason="is missing, but the manifest names it")
    if file_hash(path) != expected:
        raise InputError(path, reason="its sha256 is not the manifest's: damaged or replaced")
