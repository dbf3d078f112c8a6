"""Re-rank by the vectors of an encoder: what such re-rankers share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated

from claim2source.core.config import Between, require
from claim2source.models import ModelConfig, resolve
from claim2source.models.config import Pooling
from claim2source.stages.pairs import Reranker

if TYPE_CHECKING:
    from claim2source.models import Encoder

# Counted up when the same settings would give other scores.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class EncoderReranker(Reranker):
    """Re-rank by an encoder's vectors.

    Args:
        model: a checkpoint, a folder, a packaged model or a name on the hub.
        revision: commit of the hub repository.
        max_length: tokens per text; none: as the model's files say.
    """

    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    revision: str | None = None
    max_length: Annotated[int, Between(8, 10**6)] | None = None

    def check(self) -> None:
        super().check()
        require(bool(self.model.strip()), "model", self.model, "a folder or a model's name")

    @property
    def pooling(self) -> Pooling | None:
        """Say how token vectors are pooled; none: as the model's files do."""
        return None

    @property
    def config(self) -> ModelConfig:
        """Say how the model is loaded."""
        return ModelConfig(self.model, self.revision, self.pooling, max_length=self.max_length)

    @cached_property
    def encoder(self) -> Encoder:
        """Load the model."""
        return resolve(self.config, self.runtime.device).encoder

    def described(self, kind: str) -> Mapping[str, object]:
        """Describe the encoder and its prefixes, as what a score of this kind depends on."""
        encoder = self.encoder
        sides = [encoder] if encoder.source_encoder is None else [encoder, encoder.source_encoder]
        template = encoder.settings.template
        return {
            "reranker": kind,
            "format": _FORMAT,
            "encoders": [side.key() for side in sides],
            "prefixes": [template.claim, template.source],
        }
