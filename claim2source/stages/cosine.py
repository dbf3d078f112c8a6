"""Re-rank by the cosine of two texts' vectors, by any encoder (Axolotl, 2024, section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from claim2source.stages.encoder import EncoderReranker
from claim2source.stages.pairs import Pair, Scored


@dataclass(frozen=True, kw_only=True)
class Cosine(EncoderReranker):
    """Re-rank by the cosine of claim and source."""

    @property
    def label(self) -> str:
        """Name the model and what is done with it."""
        return f"cosine of {self.model}"

    @cached_property
    def identity(self) -> Mapping[str, object]:
        """Describe the encoder and its prefixes."""
        return self.described("cosine")

    def score(self, pairs: Sequence[Pair]) -> Iterator[Scored]:
        """Score all pairs at once; each text is encoded once, and kept in the store."""
        store = self.runtime.store
        claims, read = self.encoder.encode([pair.claim for pair in pairs], "claim", store=store)
        sources, also = self.encoder.encode([pair.source for pair in pairs], "source", store=store)
        lengths = np.linalg.norm(claims, axis=1) * np.linalg.norm(sources, axis=1)
        cosines = (claims * sources).sum(axis=1) / np.maximum(lengths, np.finfo(np.float32).tiny)
        yield Scored(range(len(pairs)), cosines, tokens=read.tokens + also.tokens)
