"""Define how a model turns text into vectors: the `model` part of every config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from claim2source.core.config import Between, Settings, require

Pooling = Literal["mean", "cls", "last"]
Side = Literal["claim", "source"]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["nf4"]
Attention = Literal["sdpa", "eager"]
# Devices that run BERT-like models without transformers: NumPy for one post, without PyTorch, and
# the CPU for many. Other models run on the device that each is mapped to.
NUMPY = "numpy"
PREPACKED = "prepacked"
PLAIN_BERT: Mapping[str | None, str | None] = {NUMPY: None, PREPACKED: "cpu"}
# Models for English only.
ENGLISH = ("sentence-transformers/all-MiniLM-L6-v2",)
# Name -> hash or number: everything that vectors depend on except the settings.
Identity = Mapping[str, str | float | None]


@dataclass(frozen=True)
class Template:
    """Set the prefixes of claims and sources, and the token at the end.

    Args:
        claim: prefix of claims, such as "query: " for E5.
        source: prefix of sources, such as "passage: " for E5.
        pool_prefix: whether the prefix's tokens are pooled with the text's tokens: true, false, or
            only on the side named here, `claim` or `source`. GritLM masks its instruction: false
            there.
        append_token: token that ends every text, also a truncated one: "</s>" for E5-Mistral.
            It appears once, whether or not the tokenizer adds it; if empty, the tokenizer
            decides.
    """

    claim: str = ""
    source: str = ""
    pool_prefix: bool | Side = True
    append_token: str = ""

    def prefix(self, side: Side) -> str:
        if side == "claim":
            return self.claim
        return self.source

    def pools_prefix(self, side: Side) -> bool:
        """Whether the prefix of a side is pooled with its texts."""
        return self.pool_prefix is True or self.pool_prefix == side

    def stored_text(self, text: str, side: Side) -> str:
        """Return a text with every part of the template that its vector depends on."""
        prefix = self.prefix(side)
        # If the prefix is not pooled, "a" + "b" and "" + "ab" have different vectors.
        return prefix + text if self.pools_prefix(side) else f"{prefix}\0{text}"


@dataclass(frozen=True)
class EncoderSettings(Settings):
    """Everything except the weights that turns text into a vector; stored in every manifest.

    The fields are those of `ModelConfig` with all defaults resolved; one `max_length` serves
    claims and sources, in mining, training and evaluation. With `own_code` the model runs with the
    code that its repository ships. `lower_case` comes from the model's folder and lower-cases
    texts before the tokenizer. `truncate_dim` is the number of dimensions that are kept; they are
    normalised again if vectors are normalised.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    max_length: Annotated[int, Between(8, 10**6)] = 256
    template: Template = field(default_factory=Template)
    dtype: Dtype = "float32"
    bidirectional: bool = False
    quantization: Quantization | None = None
    own_code: bool = False
    lower_case: bool = False
    truncate_dim: Annotated[int, Between(1, 10**6)] | None = None


@dataclass(frozen=True)
class ModelConfig(Settings):
    """Choose the model to load, and how it turns text into vectors.

    Args:
        name: a folder (a checkpoint of ours, or a transformers or sentence-transformers
            model), a packaged model's name, or a name on the Hugging Face hub.
        revision: commit of the hub repository; none takes the newest.
        pooling: mean over the text's tokens, the first token (cls) or the last; none: as the
            model's sentence-transformers files say.
        normalize: scale vectors to length 1; none: as the model's sentence-transformers files
            say, else true.
        max_length: tokens per text, special tokens included; none: as the model's
            sentence-transformers files say.
        template: prefixes of claims and sources, and the token at the end; if none is given, the
            prompts in the model's sentence-transformers files are the prefixes.
        prompts: without a `template`, use the prompts in the model's sentence-transformers files.
        truncate_dim: dimensions that are kept of each vector, for a model that was trained for
            truncation (Matryoshka); none: as the model's sentence-transformers files say, else
            all.
        dtype: type of the weights: float32, bfloat16 or float16.
        bidirectional: true lets a decoder's tokens attend to later ones (GritLM); none: as
            the model's config says.
        attention: sdpa or eager; none: sdpa if the model has it. It does not change the
            vectors beyond rounding.
        quantization: nf4 loads linear layers in 4 bits (bitsandbytes, on a GPU).
        allow_remote_code: names of models whose own code may run on this machine; on the hub such a
            model needs `revision`, the full commit.
        allow_bin: names of models whose weights may be read from .bin files, tensors only;
            on the hub such a model needs `revision`, the full commit.
    """

    name: str = ENGLISH[0]
    revision: str | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    max_length: Annotated[int, Between(8, 10**6)] | None = None
    template: Template = field(default_factory=Template)
    prompts: bool = True
    truncate_dim: Annotated[int, Between(1, 10**6)] | None = None
    dtype: Dtype = "float32"
    bidirectional: bool | None = None
    attention: Attention | None = None
    quantization: Quantization | None = None
    allow_remote_code: tuple[str, ...] = ()
    allow_bin: tuple[str, ...] = ()

    def check(self) -> None:
        require(bool(self.name.strip()), "model.name", self.name, "a folder or a model's name")

    def for_checkpoint(self, folder: Path) -> ModelConfig:
        """Return the config of a checkpoint trained from this model, without its fixed settings."""
        default = ModelConfig(name=str(folder))
        fixed = {key: getattr(default, key) for key in TRAINED}
        return replace(self, name=default.name, **fixed)


@dataclass(frozen=True)
class ModelChanges(ModelConfig):
    """Change settings of a model that is chosen elsewhere.

    Args:
        name: a packaged model, a checkpoint's folder or a name on the hub; empty: the model that is
            used without this option.
    """

    name: str = ""

    def check(self) -> None:
        """Allow an empty name: only keys are changed then."""

    def over(self, model: ModelConfig) -> ModelConfig:
        """Apply those of these settings that differ from their defaults to a model."""
        values = {key.name: getattr(model, key.name) for key in fields(ModelConfig)}
        changes = _changed(self, ModelChanges())
        if "template" in changes:
            template_changes = _changed(self.template, Template())
            changes["template"] = replace(model.template, **template_changes)
        if changes.get("name", model.name) != model.name:
            values["revision"] = None  # it is a commit of the other repository
        return ModelConfig(**values | changes)


def _changed(settings: ModelConfig | Template, default: ModelConfig | Template) -> dict[str, Any]:
    """Return the settings that differ from their defaults, by key."""
    changes: dict[str, Any] = {}
    for key in fields(default):
        value = getattr(settings, key.name)
        if value != getattr(default, key.name):
            changes[key.name] = value
    return changes


# Settings that a checkpoint's manifest fixes.
_OWN_FIELDS = ("name", "attention", "allow_remote_code", "allow_bin")
TRAINED = tuple(field.name for field in fields(ModelConfig) if field.name not in _OWN_FIELDS)
