"""How text becomes a vector, apart from the weights: template, pooling, length."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from claim2source.core.config import require, require_one_of

Pooling = Literal["mean", "cls", "last"]
Side = Literal["claim", "source"]
Dtype = Literal["float32", "bfloat16", "float16"]
Quantization = Literal["nf4"]


@dataclass(frozen=True)
class Template:
    """What stands before a text, by side, and after it.

    Args:
        claim: prefix of claims, such as "query: " for E5.
        source: prefix of sources, such as "passage: " for E5.
        pool_prefix: whether the prefix's tokens are pooled with the text's. GritLM masks
            its instruction: false there.
        append_token: token that ends every text, also one that is cut: "</s>" for E5-Mistral.
            It stands there once, whether or not the tokenizer adds it by itself; empty leaves
            the end to the tokenizer.
    """

    claim: str = ""
    source: str = ""
    pool_prefix: bool = True
    append_token: str = ""

    def prefix(self, side: Side) -> str:
        """The prefix of this side."""
        return self.claim if side == "claim" else self.source


@dataclass(frozen=True)
class EncoderSettings:
    """All that turns text into a vector besides the weights; stored in every manifest.

    Args:
        pooling: mean over the text's tokens, the first token (cls), or the last token.
        normalize: scale vectors to length 1, so that a dot product is a cosine.
        max_length: tokens per text, special tokens included; one length for claims and
            sources, in mining, training and evaluation.
        template: prefixes of the two sides, and the token at the end.
        dtype: type of the weights when encoding.
        bidirectional: a decoder's tokens attend to those after them too (GritLM); encoders
            always do.
        quantization: nf4: linear layers in 4 bits, as QLoRA trains over them.
        own_code: the model runs with the code that its repository ships.
    """

    pooling: Pooling = "mean"
    normalize: bool = True
    max_length: int = 256
    template: Template = field(default_factory=Template)
    dtype: Dtype = "float32"
    bidirectional: bool = False
    quantization: Quantization | None = None
    own_code: bool = False

    def __post_init__(self) -> None:
        require_one_of("pooling", self.pooling, get_args(Pooling))
        require_one_of("dtype", self.dtype, get_args(Dtype))
        for key in ("normalize", "bidirectional", "own_code"):
            require(isinstance(getattr(self, key), bool), key, getattr(self, key), "true or false")
        if self.quantization is not None:
            require_one_of("quantization", self.quantization, get_args(Quantization))
        require(self.max_length >= 8, "max_length", self.max_length, "8 tokens or more")
