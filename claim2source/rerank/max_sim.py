"""Re-rank by MaxSim of token vectors: late interaction with any encoder, or one trained for it.

Every token of the claim takes its most similar token of the source (ColBERT; Khattab and Zaharia,
2020); a pair's score is the mean of these cosines over the claim's tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from claim2source.models import checkpoint_folder, tokenizer_hash
from claim2source.models.config import Pooling
from claim2source.models.local import local_name
from claim2source.models.manifest import FILE
from claim2source.models.reranker_manifest import RerankerManifest, trained_reranker
from claim2source.rerank.encoder import EncoderReranker
from claim2source.rerank.frame import Pair, Scored
from claim2source.rerank.load import require_kind, said, weights_of
from claim2source.text import Rendering

if TYPE_CHECKING:
    from torch import Tensor

    from claim2source.models import Encoder


@dataclass(frozen=True, kw_only=True)
class MaxSim(EncoderReranker):
    """Re-rank by MaxSim of an encoder's token vectors, masked and of length 1."""

    @property
    def label(self) -> str:
        """Name the model and what is done with it."""
        return f"MaxSim of {self.model}"

    @cached_property
    def trained(self) -> tuple[Path, RerankerManifest] | None:
        """Find the checkpoint and its manifest, where the model was trained for this by us."""
        found = trained_reranker(self.model)
        if found is not None:
            require_kind(self.model, found[1], "late_interaction")
        return found

    @cached_property
    def rendering(self) -> Rendering:
        """Say how texts are written: as the checkpoint was trained, or as the settings say."""
        if self.trained is None:
            return super().rendering
        own = self.trained[1].rendering
        return Rendering(said(self, "claims", own.claims), said(self, "sources", own.sources))

    @cached_property
    def encoder(self) -> Encoder:
        """Load the model."""
        if self.trained is None:
            return super().encoder
        from claim2source.models.load import load

        folder, manifest = self.trained
        place = Path(local_name(weights_of(folder, manifest)[0]))
        settings = manifest.reranker.encoder
        assert settings is not None
        said(self, "max_length", settings.max_length)
        encoder = load(place, settings, self.place.device)
        encoder.weights = manifest.weights.identity({"tokenizer": tokenizer_hash(place)})
        encoder.name = manifest.base.name
        return encoder

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
