"""Re-rank by an encoder's vectors: the cosine of two texts, or MaxSim of their tokens.

MaxSim is late interaction with any encoder: every token of the claim takes its most similar token
of the source (ColBERT; Khattab and Zaharia, 2020); a pair's score is the mean of these cosines over
the claim's tokens. The cosine is that of Axolotl (2024, section 3.4).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np

from claim2source.core.config import Between, require
from claim2source.models import ModelConfig, checkpoint_folder, resolve
from claim2source.models.config import Pooling
from claim2source.models.manifest import FILE
from claim2source.stages.pairs import Pair, RawScores, Reranker

if TYPE_CHECKING:
    from torch import Tensor

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
    kind: ClassVar[str]
    score_name: ClassVar[str]

    def check(self) -> None:
        super().check()
        require(bool(self.model.strip()), "model", self.model, "a folder or a model's name")

    @property
    def pooling(self) -> Pooling | None:
        """Return the pooling of token vectors; None: that of the model's files."""
        return None

    @property
    def config(self) -> ModelConfig:
        return ModelConfig(self.model, self.revision, self.pooling, max_length=self.max_length)

    @cached_property
    def encoder(self) -> Encoder:
        return resolve(self.config, self.runtime.device).encoder

    @property
    def label(self) -> str:
        return f"{self.score_name} of {self.model}"

    @cached_property
    def identity(self) -> Mapping[str, object]:
        encoder = self.encoder
        sides = [encoder] if encoder.source_encoder is None else [encoder, encoder.source_encoder]
        template = encoder.settings.template
        return {
            "reranker": self.kind,
            "format": _FORMAT,
            "encoders": [side.key() for side in sides],
            "prefixes": [template.claim, template.source],
        }


@dataclass(frozen=True, kw_only=True)
class Cosine(EncoderReranker):
    """Re-rank by the cosine of claim and source."""

    kind, score_name = "cosine", "cosine"

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score all pairs at once; each text is encoded once, and kept in the store."""
        store = self.runtime.store
        claims, read = self.encoder.encode([pair.claim for pair in pairs], "claim", store=store)
        sources, also = self.encoder.encode([pair.source for pair in pairs], "source", store=store)
        lengths = np.linalg.norm(claims, axis=1) * np.linalg.norm(sources, axis=1)
        cosines = (claims * sources).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
        yield RawScores(range(len(pairs)), cosines, tokens=read.tokens + also.tokens)


@dataclass(frozen=True, kw_only=True)
class MaxSim(EncoderReranker):
    """Re-rank by MaxSim of an encoder's token vectors, masked and of length 1."""

    kind, score_name = "max_sim", "MaxSim"

    @property
    def pooling(self) -> Pooling | None:
        """Return a placeholder: tokens are not pooled. A checkpoint has its own pooling."""
        trained = (checkpoint_folder(self.model) / FILE).is_file()
        return None if trained else "mean"

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs source by source: each text is encoded once, and sources are not kept."""
        import torch

        claims = list(dict.fromkeys(pair.claim for pair in pairs))
        number = {text: number_of for number_of, text in enumerate(claims)}
        vectors: list[Tensor] = [torch.empty(0)] * len(claims)
        read = 0
        for rows, vectors_of, tokens in self.encoder.token_vectors(claims, "claim"):
            read += tokens
            for row, vector in zip(rows, vectors_of, strict=True):
                vectors[row] = vector
        asking: dict[str, list[int]] = {}
        for number_of, pair in enumerate(pairs):
            asking.setdefault(pair.source, []).append(number_of)
        sources = list(asking)
        for rows, vectors_of, tokens in self.encoder.token_vectors(sources, "source"):
            numbers = [asking[sources[row]] for row in rows]
            scores = [
                _max_sim([vectors[number[pairs[number_of].claim]] for number_of in members], source)
                for members, source in zip(numbers, vectors_of, strict=True)
            ]
            flat = [number_of for members in numbers for number_of in members]
            yield RawScores(flat, np.concatenate(scores), tokens=tokens + read)
            read = 0


def _max_sim(claims: Sequence[Tensor], source: Tensor) -> np.ndarray:
    """Score claims [tokens, width] with one source [tokens, width]; returns [claims] float32."""
    import torch

    best = (torch.cat(list(claims)) @ source.T).amax(dim=1)
    scores = [part.mean() for part in best.split([len(claim) for claim in claims])]
    return torch.stack(scores).float().cpu().numpy()
