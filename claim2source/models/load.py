"""Load a folder of model files as an `Encoder`."""

from __future__ import annotations

import inspect
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding, AutoTokenizer

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.models.config import Attention, EncoderSettings
from claim2source.models.encoder import Encoder
from claim2source.models.hub import (
    ADAPTER_CONFIG_FILE,
    is_own_class,
    module_types,
    one_line,
    read_object,
    tokenizer_files,
    uses_bin,
)
from claim2source.models.nomic import KIND as NOMIC
from claim2source.models.nomic import native_values
from claim2source.models.own_modules import (
    OwnModules,
    require_pooled_prompts,
    require_same_transformer,
)
from claim2source.models.sentence_transformers import load_dense
from claim2source.models.weights import require_weights

# Encoder-decoder models whose encoder alone is the retriever (GTR, sentence-T5).
_ENCODER_HALF = ("t5", "mt5")


def load(
    folder: Path,
    settings: EncoderSettings,
    device: str | None,
    attention: Attention | None = None,
    shorten: bool = False,
) -> Encoder:
    """Load a model and its tokenizer.

    With `shorten`, texts are cut to the model's number of positions if the settings allow more.

    The caller has checked that the model's own code may run (`settings.own_code`). Raises
    `UserError` for files that are not a model, and for settings that this model or machine does
    not support.
    """
    target = _device(device)
    _check_machine(settings, target)
    if (folder / ADAPTER_CONFIG_FILE).is_file():
        # transformers would load it with any base that it names.
        raise InputError(folder / ADAPTER_CONFIG_FILE, reason="an adapter, but not a checkpoint")
    if not tokenizer_files(folder):
        raise InputError(folder, reason="no tokenizer here")
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=settings.own_code)
        tokenizer("a")  # values of the wrong type are noticed only here
        config = _model_config(folder, settings)
        kind = AutoModelForTextEncoding if config.model_type in _ENCODER_HALF else AutoModel
        model, loading = kind.from_pretrained(
            folder,
            config=config,
            trust_remote_code=settings.own_code,
            use_safetensors=not uses_bin(folder),
            weights_only=True,
            dtype=getattr(torch, settings.dtype),
            attn_implementation=attention,
            output_loading_info=True,
            **_quantized(settings, target),
        )
    except UserError:
        raise
    except Exception as error:  # libraries raise anything for files that are damaged
        raise UserError(f"model {folder}: {one_line(error)}") from None
    # transformers invents a pooler if the weights have none; it is not used here.
    read = [key for key in loading["missing_keys"] if not key.startswith("pooler.")]
    require_weights(folder, read)
    rows = model.get_input_embeddings().num_embeddings
    if max(tokenizer.all_special_ids, default=0) >= rows:
        reason = f"its special tokens exceed the model's {rows} tokens"
        raise InputError(folder / "tokenizer_config.json", reason=reason)
    reads_types = _reads_types(folder, tokenizer, model)
    _prepare_tokenizer(tokenizer, settings, folder)
    positions = count_positions(model)
    if positions is not None and settings.max_length > positions:
        if not shorten:
            raise ConfigError("model.max_length", settings.max_length, f"at most {positions}")
        settings = replace(settings, max_length=positions)
    if settings.quantization is None:
        model = model.to(target)
    encoder = Encoder(model.eval(), tokenizer, settings, weights=None)
    encoder.reads_types = reads_types
    dense = load_dense(folder, encoder.width)
    encoder.dense = None if dense is None else dense.to(target)
    _add_own_modules(encoder, folder)
    if settings.bidirectional and not _sees_ahead(encoder):
        kind = model.config.model_type
        raise ConfigError("model.bidirectional", True, f"false: {kind} models are causal here")
    return encoder


def _prepare_tokenizer(
    tokenizer: Any,
    settings: EncoderSettings,
    folder: Path,
) -> None:
    """Have a tokenizer pad and cut texts at their end, and lower-case them if settings say so."""
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Cut texts at their end, whatever the tokenizer's files say.
    tokenizer.truncation_side = "right"
    if settings.lower_case:
        _lower_case(tokenizer, folder)


def _add_own_modules(encoder: Encoder, folder: Path) -> None:
    """Have an encoder run a folder's modules if the author's own classes are among them.

    Raises `UserError` if they cannot be loaded or are not supported.
    """
    types = module_types(folder)
    if not any(is_own_class(kind) for kind, _ in types):
        return
    (first, _), *_ = types
    try:
        parts = []
        for kind, path in types:
            if path != folder or is_own_class(kind):
                parts.append(_load_module(kind, path, folder, encoder.settings))
        if is_own_class(first):
            require_same_transformer(encoder, parts.pop(0), first, folder)
        modules = OwnModules(parts).eval().requires_grad_(False).to(encoder.device)
        modules.measure(encoder)
    except UserError:
        raise
    except Exception as error:  # the author's code may raise anything
        raise UserError(f"model {folder}: {one_line(error)}") from None
    require_pooled_prompts(encoder.settings, parts, folder)
    encoder.own_modules = modules


def _load_module(
    kind: str,
    path: Path,
    folder: Path,
    settings: EncoderSettings,
) -> Any:
    """Load a module as sentence-transformers does."""
    from sentence_transformers.util import import_module_class

    code: Any = import_module_class(
        kind,
        model_name_or_path=str(folder),
        trust_remote_code=settings.own_code,
        local_files_only=True,
    )
    if len(inspect.signature(code.load).parameters) == 1:
        return code.load(str(path))
    return code.load(
        str(folder),
        subfolder=str(path.relative_to(folder)) if path != folder else "",
        token=None,
        cache_folder=None,
        revision=None,
        local_files_only=True,
        trust_remote_code=settings.own_code,
        model_kwargs={"use_safetensors": True},
        processor_kwargs=None,
        config_kwargs=None,
        backend="torch",
    )


def _reads_types(folder: Path, tokenizer: Any, model: Any) -> bool:
    """Whether a single text has token types other than 0 that the model uses.

    Raises `InputError` for types that the model has no embeddings for.
    """
    given = max(tokenizer("a").get("token_type_ids") or (0,))
    if not given or "token_type_ids" not in inspect.signature(model.forward).parameters:
        return False
    known = getattr(model.config, "type_vocab_size", None)
    if known is not None and given >= known:
        reason = f"gives a token the type {given}, but the model has {known} types"
        raise InputError(folder / "tokenizer.json", reason=reason)
    return True


def _lower_case(tokenizer: Any, folder: Path) -> None:
    from tokenizers.normalizers import Lowercase, Sequence

    if not tokenizer.is_fast:
        reason = "do_lower_case: this model's tokenizer cannot lower-case texts"
        raise InputError(folder, reason=reason)
    core = tokenizer.backend_tokenizer
    core.normalizer = Sequence([Lowercase(), *([core.normalizer] if core.normalizer else [])])


def _device(device: str | None) -> str:
    if device is not None and device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError("device", device, "cpu: there is no GPU here")
    return device or ("cuda" if torch.cuda.is_available() else "cpu")


def _check_machine(settings: EncoderSettings, target: str) -> None:
    if settings.quantization is None:
        return
    if find_spec("bitsandbytes") is None:
        raise UserError(
            f"model.quantization: {settings.quantization} (tuning: qlora) needs the package "
            "bitsandbytes: pip install 'claim2source[gpu]'"
        )
    if not target.startswith("cuda"):
        allowed = "none: 4-bit layers (tuning: qlora) need a GPU"
        raise ConfigError("model.quantization", settings.quantization, allowed)


def _model_config(folder: Path, settings: EncoderSettings) -> Any:
    written = read_object(folder / "config.json")
    values: dict[str, object] = {}
    if written.get("model_type") == NOMIC and not settings.own_code:
        values = native_values(written, folder / "config.json")
    config = AutoConfig.from_pretrained(folder, trust_remote_code=settings.own_code, **values)
    if not settings.own_code and hasattr(config, "auto_map"):
        # A checkpoint trained from it must not point to that code either.
        del config.auto_map
    if settings.bidirectional:
        config.is_causal = False
    elif written.get("is_causal") is False:
        config.is_causal = True
    # Nothing is generated: cached keys and values would waste memory.
    config.use_cache = False
    return config


def _quantized(settings: EncoderSettings, target: str) -> dict[str, object]:
    if settings.quantization is None:
        return {}
    from transformers import BitsAndBytesConfig

    four_bit = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=settings.quantization,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, settings.dtype),
    )
    return {"quantization_config": four_bit, "device_map": {"": target}}


@torch.inference_mode()
def _sees_ahead(encoder: Encoder) -> bool:
    """Test whether tokens attend to later ones: some models ignore the config."""
    ids = torch.tensor([[0, 1], [0, 2]], device=encoder.device)
    hidden = encoder.model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
    return not torch.equal(hidden[0, 0], hidden[1, 0])


def count_positions(model: Any) -> int | None:
    """Count the tokens that a model has positions for; None if there is no limit.

    RoBERTa reserves some for padding.
    """
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is None or positions < 1:  # XLNet, whose positions are relative, has -1
        return None
    # A classifier's embeddings are in the model under its head.
    embeddings = getattr(model, "embeddings", None)
    embeddings = embeddings or getattr(getattr(model, "base_model", None), "embeddings", None)
    table = getattr(embeddings, "position_embeddings", None)
    padding = getattr(table, "padding_idx", None)
    if padding is None:
        return positions
    return positions - padding - 1
