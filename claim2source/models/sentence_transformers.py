"""Read the settings, prompts and Dense layer that a sentence-transformers folder declares."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from claim2source.core.config import require_one_of
from claim2source.core.errors import ConfigError, InputError
from claim2source.models.config import EncoderSettings, ModelConfig, Pooling, Template
from claim2source.models.hub import check_code, module_folders, one_line, read_object

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

_TANH = "torch.nn.modules.activation.Tanh"
_MODULES = "modules.json"
_SETTINGS = "config_sentence_transformers.json"
# Keys of a Transformer's config that would change vectors, and harmless subkeys of other keys.
_UNSUPPORTED = ("processing_kwargs", "query_length", "document_length", "query_expansion")
_ATTENTION = ("attn_implementation", "torch_dtype", "dtype", "low_cpu_mem_usage")
_SIDES = ("padding_side", "truncation_side", "use_fast", "model_max_length", "fix_mistral_regex")
_HARMLESS = {
    **dict.fromkeys(("model_args", "model_kwargs"), (*_ATTENTION, "add_pooling_layer")),
    **dict.fromkeys(("tokenizer_args", "processor_kwargs"), _SIDES),
    **dict.fromkeys(("config_args", "config_kwargs"), (*_ATTENTION, "use_cache")),
}
_ACTIVATIONS = ("torch.nn.modules.linear.Identity", _TANH)
_TEXT = {"method": "forward", "method_output_name": "last_hidden_state"}
# Older names of poolings, and the rest of a config that has one of them.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_PLAIN_POOLING = ("word_embedding_dimension", "include_prompt")
# Names of prompts by side, as `encode_query` and `encode_document` look them up.
_CLAIM_PROMPTS = ("query",)
_SOURCE_PROMPTS = ("document", "passage", "corpus")


def complete_settings(config: ModelConfig, folder: Path) -> EncoderSettings:
    """Complete the config's settings with those that the model's folder declares.

    A template in the config replaces the declared prompts. Raises `UserError`, also for damaged
    files and unsupported modules.
    """
    own_code = check_code(config, folder)
    kinds = [kind for kind, _ in module_folders(folder)]
    declared, include_prompt, declared_tokens, lower_case = _read_modules(folder)
    prompts = Template()
    truncate_dim = config.truncate_dim
    if kinds:
        prompts = _read_prompts(folder, include_prompt)
        truncate_dim = truncate_dim or _truncate_dim(folder)
    pooling: Any = config.pooling or declared
    if pooling is None:
        raise ConfigError("model.pooling", None, "mean, cls or last: the model does not declare it")
    require_one_of("model.pooling", pooling, get_args(Pooling))
    length = config.max_length
    if length is None:
        length = declared_tokens
    if length is None:
        raise ConfigError("model.max_length", None, "a number: the model does not declare it")
    template = _complete_template(config, prompts, pooling, folder)
    normalize = config.normalize
    if normalize is None:
        normalize = not kinds or "Normalize" in kinds
        if not normalize:
            _warn_about_similarity(folder)
    bidirectional = config.bidirectional
    if bidirectional is None:
        bidirectional = read_object(folder / "config.json").get("is_causal") is False
    return EncoderSettings(
        pooling,
        normalize,
        length,
        template,
        config.dtype,
        bidirectional,
        config.quantization,
        own_code,
        lower_case,
        truncate_dim,
    )


def _complete_template(
    config: ModelConfig,
    prompts: Template,
    pooling: Pooling,
    folder: Path,
) -> Template:
    """Return the config's template, or the declared prompts, with the missing end token."""
    template = config.template
    if template == Template() and config.prompts:
        template = prompts
        _warn_about_prompts(folder)
        if pooling == "cls" and not template.pool_prefix:
            allowed = "prefixes, or model.prompts: false; these files exclude the prompt from cls "
            raise ConfigError("model.template", None, allowed + "pooling, which is not supported")
    if not template.append_token:
        template = replace(template, append_token=_absent_end(folder))
    return template


def declared_length(folder: Path) -> int | None:
    """Read a model's number of tokens per text from its files; None if they do not declare it."""
    return _read_modules(folder)[2]


def _read_modules(folder: Path) -> tuple[str | None, bool, int | None, bool]:
    """Read the pooling, whether it includes a prompt, the length, and whether case is lowered."""
    pooling = None
    include_prompt = True
    length = None
    lower_case = False
    for kind, path in module_folders(folder):
        if kind == "Pooling":
            config = _pooling_config(path)
            pooling = _pooling_name(config.get("pooling_mode", "mean"))
            include_prompt = config.get("include_prompt", True) is not False
        elif kind == "Transformer":
            config = _transformer_config(path)
            _check_transformer(config, folder, path)
            length = _max_length(config, path)
            lower_case = config.get("do_lower_case") is True
        elif kind == "Dense":
            _read_dense(folder)  # before gigabytes of weights are loaded
        elif kind.startswith("(") and path == folder:
            # The author's own Transformer: `own_modules` compares its results.
            config = _transformer_config(path)
            length = _max_length(config, path)
            lower_case = config.get("do_lower_case") is True
        elif kind.startswith("("):
            pooling = pooling or "mean"  # not used: the author's own code pools
        elif kind != "Normalize":
            # Vectors without this module would be wrong.
            file = folder / _MODULES
            raise InputError(file, field="type", reason=f"module {kind} is not supported")
    return pooling, include_prompt, length, lower_case


def _pooling_name(modes: object) -> str:
    """Return our name of a pooling, several joined by +."""
    names: list[str] = []
    for mode in modes if isinstance(modes, list | tuple) else (modes,):
        names.append("last" if mode == "lasttoken" else str(mode))
    return "+".join(names)


def _pooling_config(folder: Path) -> dict[str, object]:
    """Read a Pooling module's config; its class reads all but the plain form."""
    file = folder / "config.json"
    config = read_object(file) if file.is_file() else {}
    modes = []
    for key, mode in _MODES.items():
        if config.get(key) is True:
            modes.append(mode)
    flags = {*_MODES, "include_prompt"}.intersection(config)
    are_plain = all(isinstance(config[key], bool) for key in flags)
    is_known = {*_MODES, *_PLAIN_POOLING}.issuperset(config)
    if are_plain and is_known and len(modes) == 1:
        return {**config, "pooling_mode": modes[0]}
    # Importing the class takes seconds, more than `find` takes to answer.
    from sentence_transformers.sentence_transformer.modules import Pooling

    return _read_config(Pooling, folder)


def _transformer_config(folder: Path) -> dict[str, object]:
    """Read a Transformer module's config; its class reads all but the plain form."""
    file = folder / "sentence_bert_config.json"
    config = read_object(file) if file.is_file() else {}
    if config and {*config} <= {"max_seq_length", "do_lower_case"}:
        return {**config, "modality_config": {"text": _TEXT}}
    from sentence_transformers.sentence_transformer.modules import Transformer

    return _read_config(Transformer, folder)


def _check_transformer(
    config: dict[str, object],
    folder: Path,
    part: Path,
) -> None:
    if part.resolve() != folder.resolve():
        reason = f"the Transformer's files are in {part.name}; put them into the model's folder"
        raise InputError(folder / _MODULES, field="path", reason=reason)
    file = part / "sentence_bert_config.json"
    for key in _UNSUPPORTED:
        if config.get(key):
            raise InputError(file, field=key, reason=f"{config[key]!r} is not supported")
    for key, harmless in _HARMLESS.items():
        value = config.get(key)
        for name in value if isinstance(value, dict) else ():
            if name not in harmless:
                raise InputError(file, field=f"{key}.{name}", reason="is not supported")
    modalities = config.get("modality_config")
    text = None
    if isinstance(modalities, dict):
        text = modalities.get("text")
    if text != _TEXT:
        reason = f"vectors of texts come from {text!r}, not from the last hidden state"
        raise InputError(file, field="modality_config", reason=reason)


def _truncate_dim(folder: Path) -> int | None:
    file = folder / _SETTINGS
    size = None
    if file.is_file():
        size = read_object(file).get("truncate_dim")
    if size is None:
        return None
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InputError(file, field="truncate_dim", reason=f"{size!r}: not a number of dimensions")
    return size


def _warn_about_similarity(folder: Path) -> None:
    file = folder / _SETTINGS
    if not file.is_file():
        return
    kind = read_object(file).get("similarity_fn_name", "dot")
    if kind not in ("dot", None):
        log.warning(
            "%s: compares by %s, but there is no Normalize module, so sources are ranked by dot "
            "product; set model.normalize: true to rank by cosine",
            file,
            kind,
        )


def _absent_end(folder: Path) -> str:
    """Return the end token that tokenizer_config.json requires, if tokenizer.json adds none.

    transformers 5 reads only tokenizer.json, so the last word would be pooled (e5-mistral).
    Raises `InputError` if a first token is required and not added.
    """
    file = folder / "tokenizer_config.json"
    declared = read_object(file) if file.is_file() else {}
    ends = set()
    for edge in ("bos", "eos"):
        if declared.get(f"add_{edge}_token") is True:
            ends.add(edge)
    if not ends or not (folder / "tokenizer.json").is_file():
        return ""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        ids = tokenizer("a")["input_ids"]
    except Exception:  # own code, or files that loading the model will report
        return ""
    if "bos" in ends and ids[0] != tokenizer.bos_token_id:
        reason = "true, but tokenizer.json adds no first token"
        raise InputError(file, field="add_bos_token", reason=reason)
    if "eos" not in ends or ids[-1] == tokenizer.eos_token_id:
        return ""
    if tokenizer.eos_token is None:
        raise InputError(file, field="add_eos_token", reason="true, but there is no eos_token")
    return str(tokenizer.eos_token)


def _read_config(module: Any, folder: Path) -> dict[str, object]:
    """Read a module's config by its class, which translates older forms."""
    file = folder / module.config_file_name
    if file.is_file():
        read_object(file)  # our message for any wrong shape or depth
    try:
        config: dict[str, object] = module.load_config(str(folder), local_files_only=True)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(file, reason=f"cannot be read as JSON: {one_line(error)}") from None
    if not isinstance(config, dict) or not config:
        raise InputError(file, reason="missing, empty or not a JSON object")
    return config


def _max_length(config: dict[str, object], folder: Path) -> int | None:
    """Return the tokens per text; sentence-transformers 6 writes it to the tokenizer's config."""
    length = config.get("max_seq_length")
    for key in ("tokenizer_args", "processor_kwargs"):
        declared = config.get(key)
        if isinstance(declared, dict):
            length = declared.get("model_max_length", length)
    file = folder / "tokenizer_config.json"
    if length is None and file.is_file():
        length = read_object(file).get("model_max_length")
    if not isinstance(length, int | float | None):
        raise InputError(folder, field="max_seq_length", reason=f"{length!r} is not a number")
    # transformers writes 10**30 if no length was given.
    if length is None or length >= 10**9:
        return None
    return int(length)


def _read_prompts(folder: Path, include_prompt: bool) -> Template:
    """Read the prompts of claims and sources as a template.

    Claims get `query`, sources the first of `document`, `passage` and `corpus` that is not empty.
    A side without its own prompt gets that of `default_prompt_name`, as in `encode`, unless that
    is the other side's.
    """
    file = folder / _SETTINGS
    if not file.is_file():
        return Template()
    config = read_object(file)
    prompts = config.get("prompts") or {}
    default = config.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(p, str) for p in prompts.values()):
        raise InputError(file, field="prompts", reason="not an object of names and texts")
    if default is not None and not (isinstance(default, str) and default in prompts):
        reason = f"{default!r} is not allowed; allowed: {', '.join(prompts) or 'null'}"
        raise InputError(file, field="default_prompt_name", reason=reason)

    claim, source = choose_prompts(prompts, default)
    return Template(claim, source, include_prompt or not (claim or source))


def choose_prompts(prompts: Mapping[str, str], default: str | None) -> tuple[str, str]:
    """Choose the prompts of claims and of sources among those that a model declares."""

    def prompt(names: tuple[str, ...], other_names: tuple[str, ...]) -> str:
        own = [prompts[name] for name in names if name in prompts]
        if own or default is None or default in other_names:
            # Folders have an empty "document" as well as the "passage" that their author declared.
            return next(filter(None, own), "")
        return str(prompts[default])

    return prompt(_CLAIM_PROMPTS, _SOURCE_PROMPTS), prompt(_SOURCE_PROMPTS, _CLAIM_PROMPTS)


def library_prompts(prompts: Mapping[str, str]) -> tuple[str, str]:
    """Return the prompts of `encode_query` and `encode_document` in sentence-transformers 6.2.

    There a model whose files declare none has an empty `query` and an empty `document`: no other
    prompt replaces them.
    """
    return prompts.get("query", ""), prompts.get("document", "")


def prompt_differences(ours: tuple[str, str], theirs: tuple[str, str]) -> list[str]:
    """Describe each side whose prompt here differs from that in sentence-transformers."""
    differences: list[str] = []
    for side, own, other in zip(("claims", "sources"), ours, theirs, strict=True):
        if own != other:
            differences.append(
                f"{side} get the prompt {own!r} from the model's folder, "
                f"but {other!r} in sentence-transformers"
            )
    return differences


def declared_prompts(folder: Path) -> tuple[Mapping[str, str], str | None]:
    """Read the prompts that a folder declares, and the name of the default one."""
    file = folder / _SETTINGS
    config: dict[str, Any] = read_object(file) if file.is_file() else {}
    return config.get("prompts") or {}, config.get("default_prompt_name")


def _warn_about_prompts(folder: Path) -> None:
    """Warn of prompts that sentence-transformers would choose differently."""
    prompts, default = declared_prompts(folder)
    ours = choose_prompts(prompts, default)
    for difference in prompt_differences(ours, library_prompts(prompts)):
        log.warning("%s: %s; model.template overrides them", folder / _SETTINGS, difference)


def _read_dense(folder: Path) -> dict[Path, tuple[int, int]]:
    """Read the Dense layers after the pooling: dimensions in and out by folder, in order."""
    modules = module_folders(folder)
    kinds = [kind for kind, _ in modules]
    if "Dense" not in kinds or any(kind.startswith("(") for kind in kinds):
        return {}
    count = kinds.count("Dense")
    if kinds[: 2 + count] != ["Transformer", "Pooling", *["Dense"] * count]:
        reason = "Dense modules are supported only right after the pooling"
        raise InputError(folder / _MODULES, field="type", reason=reason)
    sizes: dict[Path, tuple[int, int]] = {}
    for _, path in modules[2 : 2 + count]:
        sizes[path] = _dense_sizes(path)
    return sizes


def _dense_sizes(path: Path) -> tuple[int, int]:
    from sentence_transformers.sentence_transformer.modules import Dense

    file = path / "config.json"
    config = _read_config(Dense, path)
    name = config.get("activation_function", _TANH)
    if name not in _ACTIVATIONS:
        reason = f"{name} is not supported; supported: {', '.join(_ACTIVATIONS)}"
        raise InputError(file, field="activation_function", reason=reason)
    sizes: list[int] = []
    for key in ("in_features", "out_features"):
        value = config.get(key)
        if not isinstance(value, int) or value < 1:
            raise InputError(file, field=key, reason="not a number of dimensions")
        sizes.append(value)
    for key in ("module_input_name", "module_output_name"):
        if config.get(key) not in (None, "sentence_embedding"):
            raise InputError(file, field=key, reason=f"{config[key]!r}, not the pooled vector")
    inputs, outputs = sizes
    return inputs, outputs


def load_dense(folder: Path, width: int) -> torch.nn.Module | None:
    """Load the Dense layers, in float32 as pooled vectors of length `width` are; None without any.

    .bin weights are read as tensors only; `model.allow_bin` has been checked. Raises `InputError`.
    """
    layers: list[torch.nn.Module] = []
    for path, (inputs, outputs) in _read_dense(folder).items():
        if inputs != width:
            reason = f"{inputs}, but the vectors before it have {width} dimensions"
            raise InputError(path / "config.json", field="in_features", reason=reason)
        layers.append(_load_layer(path))
        width = outputs
    if not layers:
        return None
    from claim2source.models.projection import DenseLayers

    layer = layers[0] if len(layers) == 1 else DenseLayers(*layers)
    return layer.float().eval().requires_grad_(False)


def _load_layer(path: Path) -> torch.nn.Module:
    from sentence_transformers.sentence_transformer.modules import Dense

    try:
        return Dense.load(str(path), local_files_only=True)
    except Exception as error:  # libraries raise anything for files that are damaged
        has_safetensors = (path / "model.safetensors").is_file()
        file = path / ("model.safetensors" if has_safetensors else "pytorch_model.bin")
        raise InputError(file, reason=f"not the weights of this layer: {one_line(error)}") from None
