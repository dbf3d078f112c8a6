"""Re-rank by an encoder's vectors: the cosine of two texts, or MaxSim of their tokens.

MaxSim is late interaction with any encoder: every token of the claim is matched with its most
similar token of the source (ColBERT; Khattab and Zaharia, 2020). A pair's score is the mean of
these cosines over the claim's tokens. The cosine is that of Axolotl (2024, section 3.4).
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

# Increased if the same settings give other scores.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class EncoderReranker(Reranker):
    """Re-rank by an encoder's vectors.

    Args:
        model: a checkpoint, a folder, a packaged model or a name on the hub.
        revision: commit of the hub repository.
        max_length: maximal tokens per text; none: the length in the model's files.
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
        """Return the pooling of token vectors; None: the pooling in the model's files."""
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
        sides = [encoder]
        if encoder.source_encoder is not None:
            sides.append(encoder.source_encoder)
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

    kind = "cosine"
    score_name = "cosine"

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score all pairs at once; each text is encoded once and stored."""
        store = self.runtime.store
        claim_texts = [pair.claim for pair in pairs]
        source_texts = [pair.source for pair in pairs]
        claims, read = self.encoder.encode(claim_texts, "claim", store=store)
        sources, also = self.encoder.encode(source_texts, "source", store=store)
        products = (claims * sources).sum(axis=1)
        claim_lengths = np.linalg.norm(claims, axis=1)
        source_lengths = np.linalg.norm(sources, axis=1)
        smallest = np.finfo(np.float32).tiny
        cosines = products / np.maximum(claim_lengths * source_lengths, smallest)
        tokens = read.tokens + also.tokens
        yield RawScores(range(len(pairs)), cosines, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class MaxSim(EncoderReranker):
    """Re-rank by MaxSim of an encoder's token vectors, masked and of length 1."""

    kind = "max_sim"
    score_name = "MaxSim"

    @property
    def pooling(self) -> Pooling | None:
        """Return a placeholder: tokens are not pooled. A checkpoint has its own pooling."""
        trained = (checkpoint_folder(self.model) / FILE).is_file()
        return None if trained else "mean"

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs source by source; each text is encoded once, and sources are not stored."""
        claims = list(dict.fromkeys(pair.claim for pair in pairs))
        vectors: dict[str, Tensor] = {}
        read = 0
        for rows, batch, tokens in self.encoder.token_vectors(claims, "claim"):
            read += tokens
            for row, vector in zip(rows, batch, strict=True):
                vectors[claims[row]] = vector

        # Source text -> positions of its pairs.
        positions: dict[str, list[int]] = {}
        for position, pair in enumerate(pairs):
            positions.setdefault(pair.source, []).append(position)
        sources = list(positions)
        for rows, batch, tokens in self.encoder.token_vectors(sources, "source"):
            scored: list[int] = []
            scores: list[np.ndarray] = []
            for row, source in zip(rows, batch, strict=True):
                members = positions[sources[row]]
                own_claims = [vectors[pairs[position].claim] for position in members]
                scores.append(_max_sim(own_claims, source))
                scored += members
            yield RawScores(scored, np.concatenate(scores), tokens=tokens + read)
            read = 0


def _max_sim(claims: Sequence[Tensor], source: Tensor) -> np.ndarray:
    """Score claims [tokens, width] with one source [tokens, width]; returns [claims] float32."""
    import torch

    cosines = torch.cat(list(claims)) @ source.T
    best = cosines.amax(dim=1)
    lengths = [len(claim) for claim in claims]
    scores = [part.mean() for part in best.split(lengths)]
    return torch.stack(scores).float().cpu().numpy()
