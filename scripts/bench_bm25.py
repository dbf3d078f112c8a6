"""BM25 against rank_bm25: index documents, then search claims at depth 100, from plain text.

Both sides split at white space and weigh alike (the papers' variant; their scores are compared
first), so that the work is the same. rank_bm25 indexes every document but searches only a
sample of the claims; its time for all of them is extrapolated from that.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from rank_bm25 import BM25Okapi

from claim2source.core.config import read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory
from claim2source.core.records import Claim, Source
from claim2source.core.tables import plain_table
from claim2source.retrieve import BM25Config, BM25Index

DEPTH = 100
WHITESPACE = BM25Config(analysis="whitespace", k1=1.5, b=0.75)


@dataclass(frozen=True)
class BenchConfig:
    """What to time.

    Args:
        documents: documents to index.
        claims: claims to search.
        repeats: times that everything is done, ours and the peer's in turn.
        sample: claims that the peer searches in each repeat.
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
        for key in ("documents", "claims", "repeats", "sample", "words"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        require(self.sample <= self.claims, "sample", self.sample, f"at most {self.claims} claims")


@dataclass(frozen=True)
class Timing:
    """Seconds of one repeat; the peer's search is extrapolated to all claims."""

    index: float
    search: float
    terms_index: float
    terms_search: float
    peer_index: float
    peer_search: float

    @property
    def ours(self) -> float:
        """Indexing and searching, split at white space."""
        return self.index + self.search

    @property
    def terms(self) -> float:
        """Indexing and searching with stop words and stemmer."""
        return self.terms_index + self.terms_search

    @property
    def peer(self) -> float:
        """rank_bm25's indexing and searching."""
        return self.peer_index + self.peer_search


def made_up(config: BenchConfig) -> tuple[list[Source], list[Claim]]:
    """Texts as long as abstracts (120-280 words) and tweets (15-35), the same for one seed."""
    draw = np.random.default_rng(config.seed)
    weights = 1 / np.arange(1, config.words + 1)
    weights /= weights.sum()
    words = np.array([f"w{i:x}" for i in range(config.words)], dtype=object)

    def texts(count: int, low: int, high: int) -> list[str]:
        lengths = draw.integers(low, high + 1, count)
        drawn = words[draw.choice(config.words, size=int(lengths.sum()), p=weights)]
        return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]

    sources = [
        Source(f"s{i:06d}", abstract=t) for i, t in enumerate(texts(config.documents, 120, 280))
    ]
    claims = [Claim(f"c{i:06d}", text) for i, text in enumerate(texts(config.claims, 15, 35))]
    return sources, claims


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds that `work` takes, and what it gives."""
    started = time.perf_counter()
    done = work()
    return time.perf_counter() - started, done


def time_ours(
    sources: Sequence[Source], claims: Sequence[Claim], config: BM25Config
) -> tuple[float, float]:
    """Seconds of indexing and of searching all claims."""

    def built() -> BM25Index:
        index = BM25Index(sources, config)
        index.build()
        return index

    indexing, index = timed(built)
    return indexing, timed(lambda: index.rank(claims, DEPTH))[0]


def time_peer(
    sources: Sequence[Source], claims: Sequence[Claim], sample: int
) -> tuple[float, float]:
    """Seconds of indexing, and of searching all claims as extrapolated from the first `sample`."""
    indexing, peer = timed(lambda: BM25Okapi([source.abstract.split() for source in sources]))
    searching, _ = timed(lambda: [best_of(peer, claim.text) for claim in claims[:sample]])
    return indexing, searching / sample * len(claims)


def best_of(peer: BM25Okapi, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Positions and scores of rank_bm25's best documents, as its own get_top_n finds them."""
    scores = peer.get_scores(text.split())
    best = np.argsort(scores)[::-1][:DEPTH]
    return best, scores[best]


def check_same(sources: Sequence[Source], claims: Sequence[Claim]) -> None:
    """Raise `UserError` unless both give the same scores: else times compare nothing."""
    peer = BM25Okapi([source.abstract.split() for source in sources])
    run = BM25Index(sources, WHITESPACE).rank(claims, DEPTH)
    for claim in claims:
        _, expected = best_of(peer, claim.text)
        found = list(run.scored(claim.id).values())
        if not np.allclose(found, expected[: len(found)], rtol=1e-4, atol=1e-5):
            raise UserError(f"the scores of claim {claim.text!r} differ from rank_bm25's")


def report(config: BenchConfig, timings: Sequence[Timing], ours_peak: int) -> dict[str, Any]:
    """What the last line of the output holds."""

    def ratios(ours: str, peer: str) -> list[float]:
        return [getattr(t, peer) / getattr(t, ours) for t in timings]

    def median(name: str) -> float:
        return round(statistics.median(getattr(t, name) for t in timings), 4)

    whole, terms = ratios("ours", "peer"), ratios("terms", "peer")
    names = ("index", "search", "terms_index", "terms_search", "peer_index", "peer_search")
    return {
        "ratio": round(statistics.median(whole), 2),
        "spread": [round(min(whole), 2), round(max(whole), 2)],
        "terms_ratio": round(statistics.median(terms), 2),
        "terms_spread": [round(min(terms), 2), round(max(terms), 2)],
        "index_ratio": round(statistics.median(ratios("index", "peer_index")), 2),
        "search_ratio": round(statistics.median(ratios("search", "peer_search")), 2),
        "median": {
            "ours_seconds": median("ours"),
            "terms_seconds": median("terms"),
            "peer_seconds": median("peer"),
            **{f"{name}_seconds": median(name) for name in names},
        },
        "peer_search": f"extrapolated from {config.sample} of {config.claims} claims",
        "repeats": config.repeats,
        "documents": config.documents,
        "claims": config.claims,
        "depth": DEPTH,
        "peak_memory_mb": round(ours_peak / 2**20, 1),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("numpy", "bm25s", "rank_bm25")},
        },
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def as_table(config: BenchConfig, result: dict[str, Any], before: int) -> str:
    """The same for a person."""
    median = result["median"]

    def row(name: str, key: str, ratio: float | None, spread: list[float] | None) -> list[Any]:
        prefix = {"ours": "", "terms": "terms_", "peer": "peer_"}[key]
        shown = f"{spread[0]:.0f} - {spread[1]:.0f}" if spread else "-"
        seconds = [median[f"{prefix}{part}_seconds"] for part in ("index", "search")]
        return [name, *seconds, median[f"{key}_seconds"], ratio, shown]

    rows = [
        row("whitespace", "ours", result["ratio"], result["spread"]),
        row("terms", "terms", result["terms_ratio"], result["terms_spread"]),
        row("rank_bm25", "peer", None, None),
    ]
    peak = result["peak_memory_mb"]
    return "\n".join(
        [
            f"{config.documents} documents, {config.claims} claims, depth {DEPTH}: median seconds "
            f"of {config.repeats} repeats",
            plain_table(["", "index", "search", "both", "ratio", "spread"], rows, digits=2),
            f"rank_bm25 searched {config.sample} claims a repeat; its search is extrapolated.",
            f"Peak memory of ours: {peak:.0f} MB, {before / 2**20:.0f} MB of it from before "
            "(Python, libraries, texts).",
            f"Load average: {result['load_average']}",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Check, time, print a table and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_bm25.py", description=__doc__ or ""
    )
    sources, claims = made_up(config)
    before = peak_memory()
    time_ours(sources, claims, WHITESPACE)  # warms up; alone in memory so far
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
