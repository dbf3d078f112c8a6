"""Compare BM25 with rank_bm25: index documents, then search claims at depth 100, from plain text.

Both sides split texts at white space and use the same formula; the case first checks that their
scores agree. rank_bm25 searches a sample of the claims, and its time is extrapolated to all.
`ratio` is its time divided by ours, for indexing and searching together; `terms_ratio` is that for
our default analysis (stop words and stemmer).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from rank_bm25 import BM25Okapi

from claim2source.core.config import Number
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.search.bm25 import BM25, BM25Index
from scripts.benches.common import SEED, Bench, Measured, Watch, abstracts_and_posts

DEPTH = 100
SAMPLE = 20
WHITESPACE = BM25(
    analysis="whitespace",
    k1=1.5,
    b=0.75,
)


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py bm25`.

    Args:
        documents: documents to index.
        claims: claims to search.
    """

    documents: Number = 10_000
    claims: Number = 10_000


def run(config: Config) -> Measured:
    draw = np.random.default_rng(SEED)
    texts, posts = abstracts_and_posts(
        draw,
        config.documents,
        config.claims,
    )
    sources = [Source(f"s{i:06d}", abstract=text) for i, text in enumerate(texts)]
    claims = [Claim(f"c{i:06d}", text) for i, text in enumerate(posts)]
    watch = Watch(config.clock)
    sample = claims[:SAMPLE]

    def ours(side: str, analysis: BM25) -> Run:
        with watch(f"{side} index"):
            index = BM25Index(sources, analysis)
            index.build()
        with watch(f"{side} search"):
            return index.rank(claims, DEPTH)

    def peer() -> list[np.ndarray]:
        with watch("peer index"):
            index = BM25Okapi([source.abstract.split() for source in sources])
        times = len(claims) / len(sample)
        with watch("peer search", times=times):
            scores = [index.get_scores(claim.text.split()) for claim in sample]
            return [row[np.argsort(row)[::-1][:DEPTH]] for row in scores]  # as get_top_n

    ranked = ours("ours", WHITESPACE)  # warms up
    for claim, peer_scores in zip(sample, peer(), strict=True):
        scores = [*ranked.scored(claim.id).values()]
        expected = peer_scores[: len(scores)]
        is_same = np.allclose(
            scores,
            expected,
            rtol=1e-4,
            atol=1e-5,
        )
        if not is_same:
            raise UserError(f"the scores of claim {claim.text!r} differ from rank_bm25's")
    watch.seconds.clear()
    for _ in range(config.repeats):
        ours("ours", WHITESPACE)
        peer()
        ours("terms", BM25())
    return {
        **watch.ratio("peer"),
        **watch.ratio("peer", "terms", "terms_"),
        "seconds": watch.medians,
    }
