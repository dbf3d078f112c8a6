"""Text to vectors: the one Encoder, and names resolved to it."""

from claim2source.models.config import ModelConfig
from claim2source.models.encoder import Encoder, TokenBatch, Tokens
from claim2source.models.manifest import Base, Manifest, Weights
from claim2source.models.resolve import Resolved, resolve
from claim2source.models.templates import EncoderSettings, Pooling, Side, Template

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
