"""The base model's vectors of training texts, for losses and for query-only training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from claim2source.core.records import Claim, Source
from claim2source.io.store import Store
from claim2source.models import Encoder
from claim2source.text import Rendering


class BaseVectors:
    """Vectors made once, before training, by the one Encoder in evaluation mode."""

    def __init__(
        self,
        encoder: Encoder,
        rendering: Rendering,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        store: Store,
        progress: bool = False,
    ) -> None:
        self._claims, _ = encoder.encode(
            rendering.claim_texts(claims),
            "claim",
            store=store,
            progress="claims, base model" if progress else None,
        )
        self._sources, _ = encoder.encode(
            rendering.source_texts(sources),
            "source",
            store=store,
            progress="sources, base model" if progress else None,
        )
        self._claim_rows = {claim.id: row for row, claim in enumerate(claims)}
        self._source_rows = {source.id: row for row, source in enumerate(sources)}

    def claims(self, ids: Sequence[str]) -> Tensor:
        """Vectors [n, dimensions] of claims, float32, without gradient."""
        return _rows(self._claims, [self._claim_rows[name] for name in ids])

    def sources(self, ids: Sequence[str]) -> Tensor:
        """Vectors [n, dimensions] of sources, float32, without gradient."""
        return _rows(self._sources, [self._source_rows[name] for name in ids])


def _rows(vectors: np.ndarray, rows: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(vectors[rows]))
