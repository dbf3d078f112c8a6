"""Load models and encode texts as vectors."""

from claim2source.models.config import (
    Dtype,
    EncoderSettings,
    Identity,
    ModelConfig,
    Side,
    Template,
)
from claim2source.models.encoder import Encoder
from claim2source.models.hub import tokenizer_files, tokenizer_hash
from claim2source.models.manifest import Base, DataRecord, Manifest, Weights
from claim2source.models.resolve import Resolved, checkpoint_folder, resolve
from claim2source.models.tokens import TokenBatch, Tokens

__all__ = [
    "Base",
    "DataRecord",
    "Dtype",
    "Encoder",
    "EncoderSettings",
    "Identity",
    "Manifest",
    "ModelConfig",
    "Resolved",
    "Side",
    "Template",
    "TokenBatch",
    "Tokens",
    "Weights",
    "checkpoint_folder",
    "resolve",
    "tokenizer_files",
    "tokenizer_hash",
]
