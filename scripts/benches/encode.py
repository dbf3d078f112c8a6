"""Compare encoding of ct25's documents and claims with sentence-transformers.

Both sides encode the same texts with the same weights, length and threads, in turn; the case first
checks that their vectors agree (1e-5). `ratio` is the peer's time divided by ours, for documents
and claims together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from claim2source.core.config import Number
from claim2source.models import ModelConfig, Side, resolve
from scripts.benches import common
from scripts.benches.common import DataBench, Measured, Watch


@dataclass(frozen=True)
class Config(DataBench):
    """Settings of `scripts/bench.py encode`.

    Args:
        documents: number of sources to draw, besides the `claims`.
    """

    documents: Number = 240
    claims: Number = 480


def run(config: Config) -> Measured:
    from sentence_transformers import SentenceTransformer

    documents, claims = config.texts(config.documents, config.claims)
    texts: dict[Side, list[str]] = {"source": documents, "claim": claims}
    model_options: dict[str, Any] = {"pooling": "mean", "normalize": True, "prompts": False}
    resolved = resolve(ModelConfig(common.MINILM, **model_options), "cpu")
    encoder = resolved.encoder
    peer = SentenceTransformer(str(resolved.folder), device="cpu")
    peer.max_seq_length = encoder.settings.max_length
    peer.default_prompt_name = None
    options: dict[str, Any] = {"normalize_embeddings": True, "show_progress_bar": False}
    sides: dict[str, Callable[[], object]] = {}
    worst = 0.0
    for side, of_side in texts.items():
        ours = partial(encoder.encode, of_side, side)
        theirs = partial(peer.encode, of_side, **options)
        vectors = ours()[0], np.asarray(theirs())
        worst = max(worst, common.largest_difference(*vectors, 1e-5, f"vectors of {side}s"))
        sides |= {f"ours {side}": ours, f"peer {side}": theirs}
    watch = Watch(config.clock)
    watch.take_turns(sides, config.repeats)
    return {
        **watch.ratio("peer"),
        **watch.ratio("peer source", "ours source", "documents_"),
        **watch.ratio("peer claim", "ours claim", "claims_"),
        "seconds": watch.medians,
        "largest_difference": worst,
    }
