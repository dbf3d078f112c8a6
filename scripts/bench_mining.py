"""Mining hard negatives against sentence-transformers' mine_hard_negatives, embeddings given.

Ours is hybrid (BM25 indexed and searched, dense, fused) and writes its file; the peer is dense
only, as it comes (torch, no FAISS), and builds its data set in memory. Ours with dense scores
alone is timed too, and must choose the peer's negatives, which is checked first. Memory is what
a fresh process holds beyond its inputs, for a quarter of the claims and for all of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from claim2source.core.config import read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Cost
from claim2source.core.tables import plain_table
from claim2source.mining import Miner, MiningConfig, write_mined
from claim2source.text import Rendering

DEPTH = 100
SHARE = 0.95
HYBRID = MiningConfig(hard=8, random=0, last_rank=DEPTH, alpha=0.5, max_share=SHARE)
DENSE = replace(HYBRID, alpha=0.0)
CHECKED = 50


@dataclass(frozen=True)
class BenchConfig:
    """What to time.

    Args:
        documents: sources of the pool.
        claims: claims to mine, each with one gold.
        repeats: times that everything is done, ours and the peer's in turn.
        dimensions: of the vectors.
        words: size of the vocabulary, drawn by Zipf's law.
        seed: of texts and vectors.
        memory: mine once and print the bytes held beyond the inputs, and nothing else; this is
            how the program asks itself.
    """

    documents: int = 10_000
    claims: int = 10_000
    repeats: int = 5
    dimensions: int = 384
    words: int = 60_000
    seed: int = 13
    memory: Literal["ours", "peer"] | None = None

    def __post_init__(self) -> None:
        for key in ("claims", "repeats", "dimensions", "words"):
            require(getattr(self, key) >= 1, key, getattr(self, key), "1 or more")
        require(self.documents > DEPTH, "documents", self.documents, f"more than {DEPTH}")


@dataclass(frozen=True)
class Inputs:
    """Claims and sources with their vectors: [claims, dimensions], [sources, dimensions]."""

    dataset: Dataset
    claims: np.ndarray
    sources: np.ndarray


@dataclass(frozen=True)
class Timing:
    """Seconds of one repeat."""

    hybrid: float
    dense: float
    peer: float


class Given:
    """Encoder and sentence-transformers model in one: every vector is there already."""

    def __init__(self, inputs: Inputs) -> None:
        import torch

        self.device = torch.device("cpu")
        self._inputs = inputs
        self._row = {claim.text: row for row, claim in enumerate(inputs.dataset.claims)}

    def encode(self, texts: Sequence[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        """For ours: all sources, or these claims."""
        if side == "source":
            return self._inputs.sources, Cost()
        return self._inputs.claims[[self._row[text] for text in texts]], Cost()

    def encode_document(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        """For the peer."""
        return self._inputs.sources

    def encode_query(self, texts: Sequence[str], **_: Any) -> np.ndarray:
        """For the peer."""
        return self._inputs.claims

    def similarity(self, one: Any, other: Any) -> Any:
        """The vectors have length 1: the cheaper of the peer's two usual ways."""
        from sentence_transformers.util import dot_score

        return dot_score(one, other)

    def similarity_pairwise(self, one: Any, other: Any) -> Any:
        """The same, pair by pair."""
        from sentence_transformers.util import pairwise_dot_score

        return pairwise_dot_score(one, other)


def made_up(config: BenchConfig) -> Inputs:
    """Texts as long as abstracts and tweets, the commonest words stop words; same by seed.

    A claim's vector is its gold's and noise, so that most golds rank first, not all.
    """
    draw = np.random.default_rng(config.seed)
    weights = 1 / np.arange(1, config.words + 1)
    weights /= weights.sum()
    words = np.array([f"w{i:x}" for i in range(config.words)], dtype=object)
    words[: len(STOPWORDS_EN)] = list(STOPWORDS_EN)[: len(words)]

    def texts(count: int, low: int, high: int) -> list[str]:
        lengths = draw.integers(low, high + 1, count)
        drawn = words[draw.choice(config.words, size=int(lengths.sum()), p=weights)]
        return [" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1])]

    def unit(vectors: np.ndarray) -> np.ndarray:
        return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    shape = (config.claims, config.dimensions)
    sources = unit(draw.normal(size=(config.documents, config.dimensions)))
    golds = draw.integers(0, config.documents, config.claims)
    noise = draw.normal(size=shape) / config.dimensions**0.5
    # The number makes every text one of a kind: the peer joins equal ones.
    pool = [
        Source(f"s{i:06d}", abstract=f"{text} d{i}")
        for i, text in enumerate(texts(config.documents, 120, 280))
    ]
    claims = [
        Claim(f"c{i:06d}", f"{text} c{i}", golds=(f"s{golds[i]:06d}",))
        for i, text in enumerate(texts(config.claims, 15, 35))
    ]
    dataset = Dataset(tuple(claims), tuple(pool), Qrels(), "train")
    return Inputs(dataset, unit(sources[golds] + 2 * noise), sources)


def mine_ours(inputs: Inputs, config: MiningConfig) -> None:
    """From texts and vectors to the file that training reads."""
    miner = Miner(inputs.dataset, Given(inputs), Rendering(), config)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        write_mined(miner.mine(), Path(folder) / "mined.jsonl")


def mine_peer(inputs: Inputs) -> Any:
    """The peer's data set: claim, source and negatives as columns."""
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
            Given(inputs),  # type: ignore[arg-type]
            corpus=list(abstract.values()),
            range_max=DEPTH - 1,
            relative_margin=1 - SHARE,
            num_negatives=HYBRID.hard,
            output_format="n-tuple",
            verbose=False,
        )


def check_same(inputs: Inputs) -> None:
    """Raise `UserError` unless both choose the same by dense scores: else times compare nothing."""
    some = replace(
        inputs,
        dataset=inputs.dataset.with_claims(inputs.dataset.claims[:CHECKED]),
        claims=inputs.claims[:CHECKED],
    )
    text_of = {source.id: source.abstract for source in some.dataset.sources}
    miner = Miner(some.dataset, Given(some), Rendering(), DENSE)  # type: ignore[arg-type]
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


def timed(work: Callable[[], Any]) -> float:
    """Seconds that `work` takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def growth(config: BenchConfig) -> int:
    """Bytes that mining once adds at its peak to what the inputs hold."""
    import psutil  # type: ignore[import-untyped]

    inputs = made_up(config)
    gc.collect()
    # What making the texts left behind would hide what mining takes, and the more the more texts.
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    reset_peak_memory()
    before = psutil.Process().memory_info().rss
    if config.memory == "peer":
        mine_peer(inputs)
    else:
        mine_ours(inputs, HYBRID)
    return max(0, peak_memory() - before)


def grown(config: BenchConfig, side: str, claims: int) -> float:
    """The same in MB, in a fresh process."""
    given = {
        "documents": config.documents,
        "claims": claims,
        "words": config.words,
        "dimensions": config.dimensions,
        "seed": config.seed,
        "memory": side,
    }
    command = [sys.executable, __file__, *(f"--{key}={value}" for key, value in given.items())]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise UserError(f"measuring memory failed: {ran.stderr.strip().splitlines()[-1:]}")
    return round(int(ran.stdout.split()[-1]) / 2**20, 1)


def report(
    config: BenchConfig, timings: Sequence[Timing], memory: dict[str, dict[str, float]]
) -> dict[str, Any]:
    """What the last line of the output holds."""

    def ratios(ours: str) -> list[float]:
        return [timing.peer / getattr(timing, ours) for timing in timings]

    hybrid, dense = ratios("hybrid"), ratios("dense")
    packages = ("numpy", "bm25s", "torch", "sentence-transformers", "datasets")
    return {
        "ratio": round(statistics.median(hybrid), 2),
        "spread": [round(min(hybrid), 2), round(max(hybrid), 2)],
        "dense_ratio": round(statistics.median(dense), 2),
        "dense_spread": [round(min(dense), 2), round(max(dense), 2)],
        "median": {
            f"{name}_seconds": round(statistics.median(getattr(t, name) for t in timings), 4)
            for name in ("hybrid", "dense", "peer")
        },
        "repeats": config.repeats,
        "documents": config.documents,
        "claims": config.claims,
        "dimensions": config.dimensions,
        "depth": DEPTH,
        "memory_mb": memory,
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def as_table(config: BenchConfig, result: dict[str, Any]) -> str:
    """The same for a person."""
    median, memory = result["median"], result["memory_mb"]
    shown = {key: "{:.2f} - {:.2f}".format(*result[key]) for key in ("spread", "dense_spread")}
    rows: list[list[Any]] = [
        ["ours, hybrid", median["hybrid_seconds"], result["ratio"], shown["spread"]],
        ["ours, dense", median["dense_seconds"], result["dense_ratio"], shown["dense_spread"]],
        ["sentence-transformers, dense", median["peer_seconds"], None, "-"],
    ]
    of_memory = [[side, *counts.values()] for side, counts in memory.items()]
    return "\n".join(
        [
            f"{config.claims} claims, {config.documents} documents, {config.dimensions} "
            f"dimensions: median of {config.repeats} repeats",
            plain_table(["", "seconds", "ratio", "spread"], rows, digits=2),
            "Peak memory beyond the inputs in MB, by the number of claims:",
            plain_table(["", *next(iter(memory.values()))], of_memory, digits=1),
            f"Load average: {result['load_average']}",
        ]
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Check, time, print tables and one line of JSON."""
    config = read_config(
        BenchConfig, argv, program="scripts/bench_mining.py", description=__doc__ or ""
    )
    if config.memory is not None:
        print(growth(config))
        return
    counts = (max(1, config.claims // 4), config.claims)
    memory = {
        side: {str(claims): grown(config, side, claims) for claims in counts}
        for side in ("ours", "peer")
    }
    inputs = made_up(config)
    check_same(inputs)  # warms up, too
    timings = [
        Timing(
            timed(lambda: mine_ours(inputs, HYBRID)),
            timed(lambda: mine_ours(inputs, DENSE)),
            timed(lambda: mine_peer(inputs)),
        )
        for _ in range(config.repeats)
    ]
    result = report(config, timings, memory)
    print(as_table(config, result))
    print(json.dumps(result))


if __name__ == "__main__":
    run_program(main)
