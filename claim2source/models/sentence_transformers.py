"""What a model's own files say of its settings: the sentence-transformers layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from claim2source.core.config import require_one_of
from claim2source.core.errors import ConfigError, InputError
from claim2source.models.config import ModelConfig
from claim2source.models.dense_layer import declared_dense
from claim2source.models.hub import check_code, module_folders, read_json, read_object
from claim2source.models.templates import EncoderSettings, Pooling


def settings_of(config: ModelConfig, folder: Path) -> EncoderSettings:
    """The config's settings, with the model's own files behind them. Raises `UserError`."""
    own_code = check_code(config, folder)
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
    bidirectional = config.bidirectional
    if bidirectional is None:
        bidirectional = read_object(folder / "config.json").get("is_causal") is False
    return EncoderSettings(
        pooling,
        normalize,
        length,
        config.template,
        config.dtype,
        bidirectional,
        config.quantization,
        own_code,
    )


def _declared(folder: Path) -> dict[str, Any]:
    """Pooling, length and normalisation as a sentence-transformers folder declares them."""
    modules = folder / "modules.json"
    if not modules.is_file():
        return {}
    found: dict[str, Any] = {"normalize": False}
    for kind, place in module_folders(folder):
        if kind == "Pooling":
            found["pooling"] = _declared_pooling(read_json(place / "config.json"))
        elif kind == "Normalize":
            found["normalize"] = True
        elif kind == "Transformer":
            found["max_length"] = _declared_length(place)
        elif kind == "Dense":
            declared_dense(folder)  # says what is wrong with it before gigabytes are read
        else:
            # A layer left out would give other vectors without a word.
            raise InputError.at(modules, field="type", why=f"module {kind} is not supported")
    return found


def _declared_pooling(said: dict[str, Any]) -> str | None:
    """Pooling by our name where we have it, by theirs where not; both of their spellings."""
    named = {
        "pooling_mode_mean_tokens": "mean",
        "pooling_mode_cls_token": "cls",
        "pooling_mode_lasttoken": "last",
        "lasttoken": "last",
    }
    modes = said.get("pooling_mode")
    if modes is None:
        modes = [key for key, on in said.items() if key.startswith("pooling_mode_") and on]
    modes = [modes] if isinstance(modes, str) else modes
    return "+".join(named.get(mode, mode) for mode in modes) or None


def _declared_length(place: Path) -> int | None:
    """Tokens per text; since version 6 sentence-transformers leaves them to the tokenizer."""
    older, newer = place / "sentence_bert_config.json", place / "tokenizer_config.json"
    said = read_json(older).get("max_seq_length") if older.is_file() else None
    if said is None and newer.is_file():
        said = read_json(newer).get("model_max_length")
    # transformers writes 10**30 where no length was given.
    return int(said) if said is not None and said < 10**9 else None
