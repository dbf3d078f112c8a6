"""Compare mining with sentence-transformers' mine_hard_negatives, embeddings given.

Ours is hybrid (BM25 indexed and searched, dense, fused) and writes its file; the peer uses dense
scores only, with its default settings (torch, no FAISS), and builds its data set in memory. Ours
with dense scores alone is timed too; that it chooses the peer's negatives is checked first.
`ratio` is the peer's time divided by that of our hybrid. Memory is what a fresh process adds to
its inputs, for a quarter of the claims and for all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import psutil  # type: ignore[import-untyped]
from bm25s.stopwords import STOPWORDS_EN

from claim2source.core.config import read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Cost
from claim2source.core.tables import Cell, plain_table
from claim2source.mining import Miner, MiningConfig, write_mined
from claim2source.text import Rendering
from scripts.measure import (
    ABSTRACT,
    TWEET,
    Clock,
    circumstances,
    median,
    ratio_and_spread,
    require_positive,
    run_again,
    timed,
    vocabulary,
    zipf_texts,
)

DEPTH = 100
SHARE = 0.95
# The peer's limit is a share of the whole score.
HYBRID = MiningConfig(
    hard=8, random=0, last_rank=DEPTH, alpha=0.5, max_share=SHARE, share_of="score"
)
DENSE = replace(HYBRID, alpha=0.0)
CHECKED = 50


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_mining.py`.

    Args:
        documents: sources of the pool.
        claims: claims to mine, each with one gold.
        repeats: repeats of everything, ours and the peer in turn.
        dimensions: of the vectors.
        words: size of the vocabulary, drawn by Zipf's law.
        seed: of texts and vectors.
        clock: `wall`, or on a busy machine `cpu`: the seconds that all threads of this process
            computed, of both sides; memory is left out then.
        memory: only mine once and print the bytes added to the inputs (the program runs itself
            with it).
    """

    documents: int = 10_000
    claims: int = 10_000
    repeats: int = 5
    dimensions: int = 384
    words: int = 60_000
    seed: int = 13
    clock: Clock = "wall"
    memory: Literal["ours", "peer"] | None = None

    def __post_init__(self) -> None:
        require_positive(self, "claims", "repeats", "dimensions", "words")
        require(self.documents > DEPTH, "documents", self.documents, f"more than {DEPTH}")


@dataclass(frozen=True)
class Inputs:
    """A data set with vectors of its claims and sources: [n, dimensions] each."""

    dataset: Dataset
    claims: np.ndarray
    sources: np.ndarray


@dataclass(frozen=True)
class Timing:
    """Seconds of one repeat."""

    hybrid: float
    dense: float
    peer: float


class Precomputed:
    """Encoder and sentence-transformers model in one that looks up the vectors."""

    def __init__(self, inputs: Inputs) -> None:
        import torch

        self.device = torch.device("cpu")
        self._inputs = inputs
        self._row = {claim.text: row for row, claim in enumerate(inputs.dataset.claims)}

    def encode(self, texts: Sequence[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        """Look up all sources, or these claims, for ours."""
        if side == "source":
            return self._inputs.sources, Cost()
        return self._inputs.claims[[self._row[text] for text in texts]], Cost()

    def encode_document(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        """Look up all sources for the peer."""
        return self._inputs.sources

    def encode_query(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        """Look up all claims for the peer."""
        return self._inputs.claims

    def similarity(self, one: Any, other: Any) -> Any:
        """Compute dot products: vectors have length 1, and the peer's cosine costs more."""
        from sentence_transformers.util import dot_score

        return dot_score(one, other)

    def similarity_pairwise(self, one: Any, other: Any) -> Any:
        """Compute dot products pair by pair."""
        from sentence_transformers.util import pairwise_dot_score

        return pairwise_dot_score(one, other)


def made_up(config: BenchConfig) -> Inputs:
    """Make texts as long as abstracts and tweets, and vectors; the seed fixes them.

    The most frequent words are stop words. A claim's vector is its gold's plus noise, so that
    most golds rank first, not all.
    """
    draw = np.random.default_rng(config.seed)
    words = vocabulary(config.words, STOPWORDS_EN)

    def unit(vectors: np.ndarray) -> np.ndarray:
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    sources = unit(draw.normal(size=(config.documents, config.dimensions)))
    golds = draw.integers(0, config.documents, config.claims)
    noise = draw.normal(size=(config.claims, config.dimensions)) / config.dimensions**0.5
    # The number makes every text distinct: the peer merges equal ones.
    pool = [
        Source(f"s{i:06d}", abstract=f"{text} d{i}")
        for i, text in enumerate(zipf_texts(draw, words, config.documents, ABSTRACT))
    ]
    claims = [
        Claim(f"c{i:06d}", f"{text} c{i}", golds=(f"s{golds[i]:06d}",))
        for i, text in enumerate(zipf_texts(draw, words, config.claims, TWEET))
    ]
    dataset = Dataset(tuple(claims), tuple(pool), Qrels(), "train")
    return Inputs(dataset, unit(sources[golds] + 2 * noise), sources)


def mine_ours(inputs: Inputs, config: MiningConfig) -> None:
    """Mine from texts and vectors, and write the file that training reads."""
    miner = Miner(inputs.dataset, Precomputed(inputs), Rendering(), config)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        write_mined(miner.mine(), Path(folder) / "mined.jsonl")


def mine_peer(inputs: Inputs) -> Any:
    """Mine with sentence-transformers: a data set of claim, source and negatives."""
    from datasets import Dataset as Columns
    from sentence_transformers.util import mine_hard_negatives

    abstract = {source.id: source.abstract for source in inputs.dataset.sources}
    pairs = {
        "claim": [claim.text for claim in inputs.dataset.claims],
        "source": [abstract[claim.golds[0]] for claim in inputs.dataset.claims],
    }
    with contextlib.redirect_stderr(io.StringIO()):
        return mine_hard_negatives(
            Columns.from_dict(pairs),
            Precomputed(inputs),  # type: ignore[arg-type]
            corpus=list(abstract.values()),
            range_max=DEPTH - 1,
            relative_margin=1 - SHARE,
            num_negatives=HYBRID.hard,
            output_format="n-tuple",
            verbose=False,
        )


def check_same(inputs: Inputs) -> None:
    """Raise `UserError` unless both sides choose the same negatives by dense scores."""
    some = replace(
        inputs,
        dataset=inputs.dataset.with_claims(inputs.dataset.claims[:CHECKED]),
        claims=inputs.claims[:CHECKED],
    )
    text_of = {source.id: source.abstract for source in some.dataset.sources}
    miner = Miner(some.dataset, Precomputed(some), Rendering(), DENSE)  # type: ignore[arg-type]
    ours = {row.claim: [text_of[n.source] for n in row.negatives] for row in miner.mine()}
    names = {claim.text: claim.id for claim in some.dataset.claims}
    theirs = {
        names[row["claim"]]: [row[f"negative_{i}"] for i in range(1, HYBRID.hard + 1)]
        for row in mine_peer(some)
    }
    for claim, found in theirs.items():
        if ours[claim] != found:
            raise UserError(f"the negatives of claim {claim} differ from the peer's")
    if not theirs:
        raise UserError("the peer found too few negatives for every claim checked")


def growth(config: BenchConfig) -> int:
    """Measure the bytes that mining once adds at its peak to what the inputs hold."""
    inputs = made_up(config)
    gc.collect()
    # Free memory kept by the allocator after making the texts would hide what mining takes.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    reset_peak_memory()
    before = psutil.Process().memory_info().rss
    if config.memory == "peer":
        mine_peer(inputs)
    else:
        mine_ours(inputs, HYBRID)
    return max(0, peak_memory() - before)


def growth_in_process(config: BenchConfig, side: str, claims: int) -> float:
    """Measure `growth` in a fresh process, in MB."""
    keys = ("documents", "words", "dimensions", "seed")
    options = [f"--{key}={getattr(config, key)}" for key in keys]
    options += [f"--claims={claims}", f"--memory={side}"]
    return round(run_again(__file__, options, "measuring memory failed") / 2**20, 1)


def seconds(config: BenchConfig, work: Callable[[], object]) -> float:
    """Time one side by the clock that is asked for, without collecting the other's garbage."""
    gc.collect()
    return timed(work, config.clock)[0]


def report(
    config: BenchConfig, timings: Sequence[Timing], memory: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """Compute what the last line of the output holds."""
    return {
        **ratio_and_spread([timing.peer / timing.hybrid for timing in timings]),
        **ratio_and_spread([timing.peer / timing.dense for timing in timings], "dense_"),
        "median": {
            f"{name}_seconds": median([getattr(timing, name) for timing in timings])
            for name in ("hybrid", "dense", "peer")
        },
        "repeats": config.repeats,
        "clock": config.clock,
        "documents": config.documents,
        "claims": config.claims,
        "dimensions": config.dimensions,
        "depth": DEPTH,
        "memory_mb": memory,
        **circumstances("numpy", "bm25s", "torch", "sentence-transformers", "datasets"),
    }


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """Format the result for a terminal."""
    seconds, memory = result["median"], result["memory_mb"]
    shown = {key: "{:.2f} - {:.2f}".format(*result[key]) for key in ("spread", "dense_spread")}
    rows: list[list[Cell]] = [
        ["ours, hybrid", seconds["hybrid_seconds"], result["ratio"], shown["spread"]],
        ["ours, dense", seconds["dense_seconds"], result["dense_ratio"], shown["dense_spread"]],
        ["sentence-transformers, dense", seconds["peer_seconds"], None, "-"],
    ]
    of_memory = [[side, *counts.values()] for side, counts in memory.items()]
    return "\n".join(
        [
            f"{config.claims} claims, {config.documents} documents, {config.dimensions} "
            f"dimensions: median of {config.repeats} repeats by the {config.clock} clock",
            plain_table(["", "seconds", "ratio", "spread"], rows, digits=2),
            *_memory_lines(of_memory, memory),
            f"Load average: {result['load_average']}",
        ]
    )


def _memory_lines(rows: Sequence[Sequence[Cell]], memory: dict[str, dict[str, float]]) -> list[str]:
    if not memory:
        return []
    head = "Peak memory added to the inputs in MB, by the number of claims:"
    return [head, plain_table(["", *memory["ours"]], rows, digits=1)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure memory, check that negatives agree, time, print tables and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_mining.py", description=__doc__ or ""
    )
    if config.memory is not None:
        print(growth(config))
        return
    counts = (max(1, config.claims // 4), config.claims)
    memory = {
        side: {str(claims): growth_in_process(config, side, claims) for claims in counts}
        for side in (("ours", "peer") if config.clock == "wall" else ())
    }
    inputs = made_up(config)
    check_same(inputs)  # warms up, too
    timings = [
        Timing(
            seconds(config, lambda: mine_ours(inputs, HYBRID)),
            seconds(config, lambda: mine_ours(inputs, DENSE)),
            seconds(config, lambda: mine_peer(inputs)),
        )
        for _ in range(config.repeats)
    ]
    result = report(config, timings, memory)
    print(as_table(config, result))
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
