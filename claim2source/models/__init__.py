"""Load models and encode texts as vectors; torch is imported with the first encoder."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from claim2source.models.config import ENGLISH as ENGLISH
from claim2source.models.config import Dtype as Dtype
from claim2source.models.config import EncoderSettings as EncoderSettings
from claim2source.models.config import Identity as Identity
from claim2source.models.config import ModelConfig as ModelConfig
from claim2source.models.config import Side as Side
from claim2source.models.config import Template as Template
from claim2source.models.hub import tokenizer_files as tokenizer_files
from claim2source.models.hub import tokenizer_hash as tokenizer_hash
from claim2source.models.manifest import Base as Base
from claim2source.models.manifest import DataRecord as DataRecord
from claim2source.models.manifest import Manifest as Manifest
from claim2source.models.manifest import Weights as Weights
from claim2source.models.manifest import checkpoint_folder as checkpoint_folder
from claim2source.models.resolve import Resolved as Resolved
from claim2source.models.resolve import resolve as resolve

if TYPE_CHECKING:
    from claim2source.models.encoder import Encoder as Encoder
    from claim2source.models.tokens import Tokens as Tokens

_HEAVY = {"Encoder": "encoder", "Tokens": "tokens"}


def __getattr__(name: str) -> Any:
    """Import a class that needs torch when it is first used."""
    if name not in _HEAVY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HEAVY[name]}"), name)
