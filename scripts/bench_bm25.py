"""Compare BM25 with rank_bm25: index documents, then search claims at depth 100, from plain text.

Both sides split texts at white space and use the same formula; that their scores agree is
checked first. rank_bm25 indexes every document but searches only a sample of the claims; its time
for all of them is extrapolated. `ratio` is rank_bm25's time divided by ours, indexing and
searching together; `terms_ratio` is that of our default analysis (stop words and stemmer).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from rank_bm25 import BM25Okapi

from claim2source.core.config import read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.records import Claim, Source
from claim2source.core.tables import Cell, plain_table
from claim2source.retrieve import BM25Config, BM25Index
from scripts.measure import (
    ABSTRACT,
    TWEET,
    circumstances,
    median,
    ratio_and_spread,
    require_positive,
    timed,
    vocabulary,
    zipf_texts,
)

DEPTH = 100
WHITESPACE = BM25Config(analysis="whitespace", k1=1.5, b=0.75)


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_bm25.py`.

    Args:
        documents: documents to index.
        claims: claims to search.
        repeats: repeats of everything, ours and rank_bm25 in turn.
        sample: claims that rank_bm25 searches in each repeat.
        words: size of the vocabulary, drawn by Zipf's law.
        seed: of the texts.
    """

    documents: int = 10_000
    claims: int = 10_000
    repeats: int = 5
    sample: int = 20
    words: int = 60_000
    seed: int = 13

    def __post_init__(self) -> None:
        require_positive(self, "documents", "claims", "repeats", "sample", "words")
        require(self.sample <= self.claims, "sample", self.sample, f"at most {self.claims} claims")


@dataclass(frozen=True)
class Timing:
    """Seconds of one repeat: ours, ours with stop words and stemmer (terms), rank_bm25 (peer)."""

    index: float
    search: float
    terms_index: float
    terms_search: float
    peer_index: float
    peer_search: float


def made_up(config: BenchConfig) -> tuple[list[Source], list[Claim]]:
    """Make sources as long as abstracts and claims as long as tweets; the seed fixes them."""
    draw, words = np.random.default_rng(config.seed), vocabulary(config.words)
    abstracts = zipf_texts(draw, words, config.documents, ABSTRACT)
    sources = [Source(f"s{i:06d}", abstract=text) for i, text in enumerate(abstracts)]
    tweets = zipf_texts(draw, words, config.claims, TWEET)
    return sources, [Claim(f"c{i:06d}", text) for i, text in enumerate(tweets)]


def time_ours(
    sources: Sequence[Source], claims: Sequence[Claim], config: BM25Config
) -> tuple[float, float]:
    """Measure seconds of indexing and of searching all claims."""

    def build() -> BM25Index:
        index = BM25Index(sources, config)
        index.build()
        return index

    indexing, index = timed(build)
    return indexing, timed(lambda: index.rank(claims, DEPTH))[0]


def time_peer(
    sources: Sequence[Source], claims: Sequence[Claim], sample: int
) -> tuple[float, float]:
    """Measure seconds of indexing and, extrapolated from the first `sample`, of all claims."""
    indexing, peer = timed(lambda: index_peer(sources))
    searching, _ = timed(lambda: [search_peer(peer, claim.text) for claim in claims[:sample]])
    return indexing, searching / sample * len(claims)


def index_peer(sources: Sequence[Source]) -> BM25Okapi:
    """Index abstracts with rank_bm25."""
    return BM25Okapi([source.abstract.split() for source in sources])


def search_peer(peer: BM25Okapi, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Find positions and scores of the best documents as rank_bm25's get_top_n does."""
    scores = peer.get_scores(text.split())
    best = np.argsort(scores)[::-1][:DEPTH]
    return best, scores[best]


def check_same(sources: Sequence[Source], claims: Sequence[Claim]) -> None:
    """Raise `UserError` unless both sides give the same scores."""
    peer = index_peer(sources)
    run = BM25Index(sources, WHITESPACE).rank(claims, DEPTH)
    for claim in claims:
        _, expected = search_peer(peer, claim.text)
        found = list(run.scored(claim.id).values())
        if not np.allclose(found, expected[: len(found)], rtol=1e-4, atol=1e-5):
            raise UserError(f"the scores of claim {claim.text!r} differ from rank_bm25's")


def report(config: BenchConfig, timings: Sequence[Timing], ours_peak: int) -> dict[str, Any]:
    """Compute what the last line of the output holds."""
    seconds = {
        field.name: np.array([getattr(timing, field.name) for timing in timings])
        for field in fields(Timing)
    }
    ours, terms, peer = (
        seconds[f"{prefix}index"] + seconds[f"{prefix}search"] for prefix in ("", "terms_", "peer_")
    )
    return {
        **ratio_and_spread(peer / ours),
        **ratio_and_spread(peer / terms, "terms_"),
        "index_ratio": median(seconds["peer_index"] / seconds["index"], 2),
        "search_ratio": median(seconds["peer_search"] / seconds["search"], 2),
        "median": {
            "ours_seconds": median(ours),
            "terms_seconds": median(terms),
            "peer_seconds": median(peer),
            **{f"{name}_seconds": median(values) for name, values in seconds.items()},
        },
        "peer_search": f"extrapolated from {config.sample} of {config.claims} claims",
        "repeats": config.repeats,
        "documents": config.documents,
        "claims": config.claims,
        "depth": DEPTH,
        "peak_memory_mb": round(ours_peak / 2**20, 1),
        **circumstances("numpy", "bm25s", "rank_bm25"),
    }


def as_table(config: BenchConfig, result: dict[str, Any], before: int) -> str:
    """Format the result for a terminal."""
    rows: list[list[Cell]] = []
    for name, prefix, total in (
        ("whitespace", "", "ours"),
        ("terms", "terms_", "terms"),
        ("rank_bm25", "peer_", "peer"),
    ):
        parts = (f"{prefix}index", f"{prefix}search", total)
        low, high = result.get(f"{prefix}spread", (None, None))
        rows.append(
            [
                name,
                *(result["median"][f"{part}_seconds"] for part in parts),
                result.get(f"{prefix}ratio"),
                "-" if low is None else f"{low:.0f} - {high:.0f}",
            ]
        )
    return "\n".join(
        [
            f"{config.documents} documents, {config.claims} claims, depth {DEPTH}: median seconds "
            f"of {config.repeats} repeats",
            plain_table(["", "index", "search", "both", "ratio", "spread"], rows, digits=2),
            f"rank_bm25 searched {config.sample} claims a repeat; its search is extrapolated.",
            f"Peak memory of ours: {result['peak_memory_mb']:.0f} MB, {before / 2**20:.0f} MB of "
            "it held before (Python, libraries, texts).",
            f"Load average: {result['load_average']}",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Check that scores agree, time both sides, print a table and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_bm25.py", description=__doc__ or ""
    )
    sources, claims = made_up(config)
    before = peak_memory()
    time_ours(sources, claims, WHITESPACE)  # warms up, and no peer is in memory yet
    ours_peak = peak_memory()
    check_same(sources, claims[: min(config.sample, 5)])
    timings = []
    for _ in range(config.repeats):
        ours = time_ours(sources, claims, WHITESPACE)
        peer = time_peer(sources, claims, config.sample)
        terms = time_ours(sources, claims, BM25Config())
        timings.append(Timing(*ours, *terms, *peer))
    result = report(config, timings, ours_peak)
    print(as_table(config, result, before))
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
