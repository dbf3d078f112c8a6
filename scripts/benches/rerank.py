"""Compare re-ranking by a cross-encoder with sentence-transformers' CrossEncoder.predict.

Both sides score the same pairs of ct25's claims and sources with the same weights, length and
threads, in turn; the case first checks that their scores agree (1e-4). `ratio` is the peer's time
at its default batch size divided by ours, `best_ratio` that at its best batch size. The weights are
MiniLM's with a random head.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from claim2source.core.config import Number
from claim2source.models import ModelConfig, resolve
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.pairs import Pair, Reranker
from scripts.benches import common
from scripts.benches.common import SEED, DataBench, Measured, Watch

DEFAULT_BATCH = 32
BATCHES = (1, 8, 32)


@dataclass(frozen=True)
class Config(DataBench):
    """Settings of `scripts/bench.py rerank`.

    Args:
        claims: number of claims drawn.
        sources: number of sources drawn for each claim.
    """

    claims: Number = 8
    sources: Number = 32


def run(config: Config) -> Measured:
    from sentence_transformers import CrossEncoder as Peer

    count = config.claims * config.sources
    sources, claims = config.texts(count, config.claims)
    pairs = []
    for i, text in enumerate(sources):
        claim = claims[i // config.sources]
        pairs.append(Pair(claim, text))

    with tempfile.TemporaryDirectory() as folder:
        base = str(resolve(ModelConfig(common.MINILM), "cpu").folder)
        torch.manual_seed(SEED)
        raw: Any = {
            "device": "cpu",
            "activation_fn": torch.nn.Identity(),
        }
        peer = Peer(base, num_labels=1, **raw)
        peer.model.classifier.weight.data *= 20  # so that scores differ enough
        peer.save_pretrained(folder)
        reranker = CrossEncoder(model=folder)
        stage = reranker.with_runtime(None, "cpu")

        tuples = [tuple(pair) for pair in pairs]
        predict = partial(peer.predict, tuples, show_progress_bar=False)
        sides: dict[str, Callable[[], Any]] = {}
        sides["ours"] = partial(score_ours, stage, pairs)
        for size in BATCHES:
            sides[f"batch {size}"] = partial(predict, batch_size=size)

        scores: dict[str, np.ndarray] = {}
        for name, score in sides.items():
            scores[name] = np.asarray(score())  # warms up, too
        ours = scores.pop("ours")
        theirs = np.stack(list(scores.values()))
        ours = np.broadcast_to(ours, theirs.shape)
        worst = common.largest_difference(ours, theirs, 1e-4, "scores")
        watch = Watch(config.clock)
        watch.take_turns(sides, config.repeats)

    medians = watch.medians
    # The best size has the lowest median; it is not the fastest of each repeat.
    peers = [name for name in medians if name != "ours"]
    best = min(peers, key=medians.__getitem__)
    pairs_per_second: dict[str, float] = {}
    for name, seconds in medians.items():
        rate = len(pairs) / seconds
        pairs_per_second[name] = round(rate, 1)
    return {
        **watch.ratio(f"batch {DEFAULT_BATCH}"),
        **watch.ratio(best, prefix="best_"),
        "best": best,
        "pairs": len(pairs),
        "pairs_per_second": pairs_per_second,
        "largest_difference": worst,
    }


def score_ours(
    reranker: Reranker,
    pairs: Sequence[Pair],
) -> np.ndarray:
    count = len(pairs)
    scores = np.full(count, np.nan, dtype=np.float32)
    for batch in reranker.score(pairs):
        positions = list(batch.positions)
        scores[positions] = batch.scores
    return scores
