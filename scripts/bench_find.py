"""Time answers of `claim2source serve` over HTTP, beside the same calls within a process.

The papers' sentences are drawn from the demo's, their vectors around made-up centres; posts are the
demo's, and the packaged MiniLM encodes them. One client asks after the other, then several at once.
`ratio` is the 95th percentile in process divided by that over HTTP, with one client. With
--no_sentences the nearest sentences are not looked for. On a machine that others use the times say
what the load was, no more.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import flag, read_config
from claim2source.core.errors import UserError, run_program
from claim2source.core.records import Source
from claim2source.core.tables import plain_table
from claim2source.datasets import load
from claim2source.datasets.papers import Paper
from claim2source.datasets.pool_pairs import sentences_of
from claim2source.engines import Engine, open_engine
from claim2source.engines.growing import batches, opened
from claim2source.engines.rows import Rows, half, stamp_of
from claim2source.io.posts import Post
from claim2source.models import ModelConfig
from claim2source.pipeline.asking import Finder
from claim2source.retrieve import Dense
from claim2source.retrieve.analyser import Analyser
from scripts.measure import circumstances, median, ratio_and_spread, require_positive, timed

REPOSITORY = Path(__file__).resolve().parents[1]
CENTRES, BATCH = 200, 4096
# Asked before anything is timed.
WARM = 5


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_find.py`.

    Args:
        sources: papers in the index.
        requests: posts of each measurement.
        clients: how many ask at once in the last measurement.
        repeats: repeats of everything, in turn.
        seed: of the papers.
    """

    sources: int = 10_000
    requests: int = 100
    clients: int = 8
    repeats: int = 3
    seed: int = 13
    sentences: bool = flag("look for the nearest sentences", default=True)

    def __post_init__(self) -> None:
        require_positive(self, "sources", "requests", "clients", "repeats")


def made_up(count: int, seed: int) -> list[Paper]:
    """Make papers of six to ten sentences of the demo's."""
    draw, demo = np.random.default_rng(seed), load("demo", "test").sources
    known = [one for source in demo for one in sentences_of(source.abstract)]
    titles = [source.title for source in demo]
    return [
        Paper(
            Source(
                f"s{i:07d}",
                titles[draw.integers(len(titles))],
                " ".join(known[j] for j in draw.integers(len(known), size=draw.integers(6, 11))),
            )
        )
        for i in range(count)
    ]


def build(folder: Path, config: BenchConfig) -> Engine:
    """Make the index, with vectors that lie around centres."""
    draw, dense = np.random.default_rng(config.seed), Dense(ModelConfig())
    engine = opened(folder, dense)
    analyser, size = Analyser(engine.manifest.bm25), engine.manifest.dimensions
    centres = draw.standard_normal((CENTRES, size))
    for papers in batches(made_up(config.sources, config.seed), BATCH):
        near = centres[draw.integers(CENTRES, size=len(papers))]
        vectors = near + draw.standard_normal(near.shape)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        terms = [" ".join(one) for one in analyser.sources([paper.source for paper in papers])]
        engine.upsert(Rows(papers, terms, half(vectors), [stamp_of(paper) for paper in papers]))
    engine.build()
    engine.close()
    return open_engine(folder)


def over_http(host: str, posts: Sequence[str]) -> list[float]:
    """Ask about posts, one after the other over one connection; the seconds of each."""
    connection = HTTPConnection(host, timeout=120)
    seconds = []
    for post in posts:
        body, headers = json.dumps({"post": post}), {"content-type": "application/json"}
        started = time.perf_counter()
        connection.request("POST", "/api/v1/find", body, headers)
        answer = connection.getresponse()
        text = answer.read()
        seconds.append(time.perf_counter() - started)
        if answer.status != 200:
            raise UserError(f"the server answered {answer.status}: {text[:200]!r}")
    connection.close()
    return seconds


def in_process(finder: Finder, posts: Sequence[str]) -> list[float]:
    """Ask a finder of this process about posts; the seconds of each."""
    return [timed(partial(finder.find, [Post("0", post)]))[0] for post in posts]


def at_once(host: str, posts: Sequence[str], clients: int) -> list[float]:
    """Ask with several clients, each about its share of the posts."""
    with ThreadPoolExecutor(clients) as pool:
        parts = pool.map(partial(over_http, host), [posts[i::clients] for i in range(clients)])
        return [seconds for part in parts for seconds in part]


def report(config: BenchConfig, measured: dict[str, list[list[float]]]) -> dict[str, Any]:
    """Compute what the last line of the output holds, of seconds by way and repeat."""

    def percentiles(way: str, share: float) -> list[float]:
        return [float(np.percentile(seconds, share)) * 1000 for seconds in measured[way]]

    inside, http = percentiles("in process", 95), percentiles("one client", 95)
    found = ratio_and_spread([a / b for a, b in zip(inside, http, strict=True)])
    ways = {
        way: {f"p{share}_ms": median(percentiles(way, share), 1) for share in (50, 95)}
        for way in measured
    }
    return found | {
        "sources": config.sources,
        "requests": config.requests,
        "repeats": config.repeats,
        "sentences": config.sentences,
        "milliseconds": ways,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Build an index, serve it, ask, and print times and ratio."""
    config = read_config(BenchConfig, argv, program="scripts/bench_find.py", description=__doc__)
    posts = [claim.text for claim in load("demo", "test").claims]
    posts = [posts[i % len(posts)] for i in range(config.requests)]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "idx"
        building, engine = timed(lambda: build(place, config))
        finder = Finder(engine, sentences=config.sentences)
        command = [sys.executable, str(REPOSITORY / "eval" / "serve.py"), "--index", str(place)]
        command += ["--port", "0", "--rate", "0"] + ["--no_sentences"] * (not config.sentences)
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            line = server.stdout.readline().split()
            if len(line) < 4:
                raise UserError("the server did not start")
            host = line[3].removeprefix("http://").rstrip("/")
            ways: dict[str, Callable[[], list[float]]] = {
                "in process": lambda: in_process(finder, posts),
                "one client": lambda: over_http(host, posts),
                f"{config.clients} clients": lambda: at_once(host, posts, config.clients),
            }
            in_process(finder, posts[:WARM])
            over_http(host, posts[:WARM])
            measured: dict[str, list[list[float]]] = {way: [] for way in ways}
            for _ in range(config.repeats):
                for way, ask in ways.items():
                    measured[way].append(ask())
        finally:
            server.terminate()
            server.wait()
    found = report(config, measured)
    found |= {"build_seconds": round(building, 1), **circumstances("lancedb", "fastapi", "uvicorn")}
    rows = [[way, *times.values()] for way, times in found["milliseconds"].items()]
    print(plain_table(["", "p50 ms", "p95 ms"], rows, 1))
    print(json.dumps(found))


if __name__ == "__main__":
    run_program(main)
