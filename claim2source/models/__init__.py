"""Load models and encode texts as vectors; torch is imported with the first encoder."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from claim2source.models.config import (
    ENGLISH,
    Dtype,
    EncoderSettings,
    Identity,
    ModelConfig,
    Side,
    Template,
)
from claim2source.models.hub import tokenizer_files, tokenizer_hash
from claim2source.models.manifest import (
    Base,
    DataRecord,
    Manifest,
    Weights,
    checkpoint_folder,
)
from claim2source.models.resolve import Resolved, resolve

if TYPE_CHECKING:
    from claim2source.models.encoder import Encoder
    from claim2source.models.tokens import Tokens

__all__ = [
    "ENGLISH",
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
    "Tokens",
    "Weights",
    "checkpoint_folder",
    "resolve",
    "tokenizer_files",
    "tokenizer_hash",
]

_HEAVY = {"Encoder": "encoder", "Tokens": "tokens"}


def __getattr__(name: str) -> Any:
    """Import a class that needs torch when it is first used."""
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HEAVY[name]}"), name)
