"""Re-rank by the cosine of two texts' vectors, by any encoder (Axolotl, 2024, section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from claim2source.core.config import require, require_between
from claim2source.models import ModelConfig, resolve
from claim2source.rerank.frame import Pair, Reranker, Scored

if TYPE_CHECKING:
    from claim2source.models import Encoder

# Counted up when the same settings would give other scores.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Cosine(Reranker):
    """Re-rank by the cosine of claim and source.

    Args:
        model: a checkpoint, a folder, a packaged model or a name on the hub.
        revision: commit of the hub repository.
        max_length: tokens per text; none: as the model's files say.
    """

    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    revision: str | None = None
    max_length: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(bool(self.model.strip()), "model", self.model, "a folder or a model's name")
        require_between("max_length", self.max_length, 8, 10**6, none=True)

    @property
    def label(self) -> str:
        """Name the model and what is done with it."""
        return f"cosine of {self.model}"

    @cached_property
    def encoder(self) -> Encoder:
        """Load the model."""
        config = ModelConfig(self.model, self.revision, max_length=self.max_length)
        return resolve(config, self.place.device).encoder

    @cached_property
    def identity(self) -> Mapping[str, object]:
        """Describe the encoder and its prefixes."""
        encoder = self.encoder
        sides = [encoder] if encoder.source_encoder is None else [encoder, encoder.source_encoder]
        template = encoder.settings.template
        return {
            "reranker": "cosine",
            "format": _FORMAT,
            "encoders": [side.key() for side in sides],
            "prefixes": [template.claim, template.source],
        }

    def score(self, pairs: Sequence[Pair]) -> Iterator[Scored]:
        """Score all pairs at once; each text is encoded once, and kept in the store."""
        store = self.place.store
        claims, read = self.encoder.encode([pair.claim for pair in pairs], "claim", store=store)
        sources, also = self.encoder.encode([pair.source for pair in pairs], "source", store=store)
        lengths = np.linalg.norm(claims, axis=1) * np.linalg.norm(sources, axis=1)
        cosines = (claims * sources).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
        yield Scored(range(len(pairs)), cosines, tokens=read.tokens + also.tokens)
