"""Encode with the user's `SentenceTransformer` object in its current state."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import WeakSet

import numpy as np

from claim2source.core.config import require_one_of
from claim2source.core.progress import Progress
from claim2source.core.run import Cost
from claim2source.models.config import EncoderSettings, Side
from claim2source.models.sentence_transformers import (
    choose_prompts,
    declared_prompts,
    library_prompts,
    prompt_differences,
)

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from claim2source.data.store import Store


log = logging.getLogger(__name__)

# Models that a warning was logged for: a training run evaluates one many times.
_warned: WeakSet[SentenceTransformer] = WeakSet()


def is_sentence_transformer(value: object) -> TypeGuard[SentenceTransformer]:
    """Whether a value is a `SentenceTransformer`, without importing the library."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(value, library.SentenceTransformer)


def _differences(model: SentenceTransformer) -> list[str]:
    """Describe the prompts that differ from those that `Dense` reads from the model's folder."""
    own = {name: text or "" for name, text in model.prompts.items()}
    prompts: Mapping[str, str] = own
    default = model.default_prompt_name
    folder = Path(str(getattr(model.transformers_model, "name_or_path", "")))
    if (folder / "config_sentence_transformers.json").is_file():
        prompts, default = declared_prompts(folder)
    return prompt_differences(choose_prompts(prompts, default), library_prompts(own))


class InMemoryEncoder:
    """Encode texts by a model's `encode_query` and `encode_document`, prompts included.

    Nothing is stored, because the weights may change between calls. Raises `ConfigError` for
    a model that compares vectors by distance: here the inner product ranks sources.
    """

    source_encoder = None

    def __init__(self, model: SentenceTransformer) -> None:
        kind = model.similarity_fn_name
        require_one_of("similarity_fn_name", kind, ("cosine", "dot"))
        self._model = model
        if model not in _warned:
            _warned.add(model)
            for difference in _differences(model):
                log.warning("this SentenceTransformer is used as it is: %s", difference)
        self.settings = EncoderSettings(normalize=kind == "cosine")

    def encode(
        self,
        texts: Sequence[str],
        side: Side,
        *,
        store: Store | None,
        progress: str | Progress | None,
    ) -> tuple[np.ndarray, Cost]:
        """Encode texts to vectors, [texts, dimensions] float32."""
        if side == "claim":
            encode = self._model.encode_query
        else:
            encode = self._model.encode_document
        vectors: Any = encode(
            list(texts),
            show_progress_bar=isinstance(progress, str),
            normalize_embeddings=self.settings.normalize,
        )
        return np.asarray(vectors, np.float32), Cost()

    def key(self) -> dict[str, Any] | None:
        return None
