"""Which model, and how it turns text into vectors: the `model` part of every config."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from claim2source.core.config import require, require_one_of
from claim2source.models.templates import Dtype, Pooling, Quantization, Template

Attention = Literal["sdpa", "eager", "flash_attention_2"]
# What a checkpoint's manifest says, so that nobody says it again.
TRAINED = (
    "pooling",
    "normalize",
    "max_length",
    "template",
    "dtype",
    "revision",
    "bidirectional",
    "quantization",
)


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
        template: prefixes of claims and sources, and the token at the end.
        dtype: weights' type: float32, bfloat16 or float16.
        bidirectional: true lets a decoder's tokens see those after them (GritLM); none: as
            the model's config says.
        attention: sdpa, eager or flash_attention_2 (16 bits, on a GPU); none: sdpa where the
            model has it. It does not change the vectors beyond rounding.
        quantization: nf4 loads linear layers in 4 bits (bitsandbytes, on a GPU); none does not.
        allow_remote_code: names of models whose own code may run here; on the hub such a
            model needs `revision`, the full commit.
        allow_bin: names of models whose weights may be read from .bin files, tensors only;
            on the hub such a model needs `revision`, the full commit.
    """

    name: str = "sentence-transformers/all-MiniLM-L6-v2"
    revision: str | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    max_length: int | None = None
    template: Template = field(default_factory=Template)
    dtype: Dtype = "float32"
    bidirectional: bool | None = None
    attention: Attention | None = None
    quantization: Quantization | None = None
    allow_remote_code: tuple[str, ...] = ()
    allow_bin: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for key, allowed in (
            ("pooling", Pooling),
            ("attention", Attention),
            ("quantization", Quantization),
        ):
            if getattr(self, key) is not None:
                require_one_of(f"model.{key}", getattr(self, key), get_args(allowed))
        require_one_of("model.dtype", self.dtype, get_args(Dtype))
        if self.max_length is not None:
            require(self.max_length >= 8, "model.max_length", self.max_length, "8 tokens or more")

    def for_checkpoint(self, folder: Path) -> ModelConfig:
        """For a checkpoint trained from this model: what its manifest does not say."""
        plain = ModelConfig(name=str(folder))
        return replace(self, name=plain.name, **{key: getattr(plain, key) for key in TRAINED})
