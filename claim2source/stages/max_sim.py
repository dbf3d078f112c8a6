"""Re-rank by MaxSim of token vectors: late interaction with any encoder.

Every token of the claim takes its most similar token of the source (ColBERT; Khattab and Zaharia,
2020); a pair's score is the mean of these cosines over the claim's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from claim2source.models import checkpoint_folder
from claim2source.models.config import Pooling
from claim2source.models.manifest import FILE
from claim2source.stages.encoder import EncoderReranker
from claim2source.stages.pairs import Pair, Scored

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class MaxSim(EncoderReranker):
    """Re-rank by MaxSim of an encoder's token vectors, masked and of length 1."""

    @property
    def label(self) -> str:
        """Name the model and what is done with it."""
        return f"MaxSim of {self.model}"

    @property
    def pooling(self) -> Pooling | None:
        """Nothing is pooled: a model need not say how. A checkpoint of ours says it all."""
        trained = (checkpoint_folder(self.model) / FILE).is_file()
        return None if trained else "mean"

    @cached_property
    def identity(self) -> Mapping[str, object]:
        """Describe the encoder and its prefixes."""
        return self.described("max_sim")

    def score(self, pairs: Sequence[Pair]) -> Iterator[Scored]:
        """Score pairs source by source: each text is encoded once, and sources are not kept."""
        import torch

        claims = list(dict.fromkeys(pair.claim for pair in pairs))
        number = {text: place for place, text in enumerate(claims)}
        vectors: list[Tensor] = [torch.empty(0)] * len(claims)
        read = 0
        for rows, found, tokens in self.encoder.token_vectors(claims, "claim"):
            read += tokens
            for row, one in zip(rows, found, strict=True):
                vectors[row] = one
        asking: dict[str, list[int]] = {}
        for place, pair in enumerate(pairs):
            asking.setdefault(pair.source, []).append(place)
        sources = list(asking)
        for rows, found, tokens in self.encoder.token_vectors(sources, "source"):
            places = [asking[sources[row]] for row in rows]
            scores = [
                _max_sim([vectors[number[pairs[place].claim]] for place in asked], source)
                for asked, source in zip(places, found, strict=True)
            ]
            flat = [place for asked in places for place in asked]
            yield Scored(flat, np.concatenate(scores), tokens=tokens + read)
            read = 0


def _max_sim(claims: Sequence[Tensor], source: Tensor) -> np.ndarray:
    """Score claims [tokens, width] with one source [tokens, width]; returns [claims] float32."""
    import torch

    best = (torch.cat(list(claims)) @ source.T).amax(dim=1)
    scores = [part.mean() for part in best.split([len(claim) for claim in claims])]
    return torch.stack(scores).float().cpu().numpy()
