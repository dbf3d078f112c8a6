"""Text to vectors: the one Encoder, and names resolved to it."""

from claim2source.encode.encoder import Encoder, TokenBatch, Tokens
from claim2source.encode.manifest import Base, Manifest, Weights
from claim2source.encode.model_config import ModelConfig
from claim2source.encode.resolve import Resolved, resolve
from claim2source.encode.templates import EncoderSettings, Pooling, Side, Template

__all__ = [
    "Base",
    "Encoder",
    "EncoderSettings",
    "Manifest",
    "ModelConfig",
    "Pooling",
    "Resolved",
    "Side",
    "Template",
    "TokenBatch",
    "Tokens",
    "Weights",
    "resolve",
]
