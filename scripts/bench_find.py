"""Time answers of `claim2source serve` over HTTP, beside the same calls within a process.

A paper is some sentences of the demo's and a last one of made-up words, which grow with the index
as rare words do; its vector lies around a real one: MiniLM's of one of its sentences, with parts of
two others and noise. Posts are the demo's, and the packaged MiniLM encodes them. One client asks
after the other, then several at once. `ratio` is the 95th percentile in process divided by that
over HTTP, with one client, of the first size. With --no_sentences the index keeps no vectors of
sentences, and the nearest ones are not looked for. Of each size there are also the seconds of
writing and building, the disk and memory that they take, and the recall of the posts' vectors
against all vectors; `growth` is from each size to the next. On a machine that others use the times
say what the load was, no more; `cpu_ms` are the server's processor milliseconds for an answer.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from claim2source.core.config import flag, list_field, read_config, require
from claim2source.core.errors import UserError, run_program
from claim2source.core.memory import peak_memory, reset_peak_memory
from claim2source.core.progress import Progress
from claim2source.core.records import Source
from claim2source.core.tables import plain_table
from claim2source.datasets import load
from claim2source.datasets.papers import Paper
from claim2source.datasets.pool_pairs import sentences_of
from claim2source.engines import Engine, open_engine
from claim2source.engines.growing import opened
from claim2source.engines.rows import Rows, half, stamp_of
from claim2source.io.posts import Post
from claim2source.models import ModelConfig
from claim2source.pipeline.asking import Finder
from claim2source.retrieve import BM25Config, Dense
from claim2source.retrieve.analyser import Analyser
from scripts.measure import (
    circumstances,
    median,
    ratio_and_spread,
    require_positive,
    timed,
    vocabulary,
    zipf_texts,
)

REPOSITORY = Path(__file__).resolve().parents[1]
BATCH = 4096
# Made-up words of a paper, and how many there are for each paper of the index.
OWN, WORDS = (8, 8), 0.5
# Parts of a vector: its sentence, two others, noise.
PARTS, NOISE = (1.0, 0.5, 0.25), 0.4
# How deep recall is measured.
DEPTHS = (10, 100)
# Asked before anything is timed.
WARM = 5


@dataclass(frozen=True)
class BenchConfig:
    """Settings of `scripts/bench_find.py`.

    Args:
        requests: posts of each measurement.
        clients: how many ask at once in the last measurement.
        repeats: repeats of everything, in turn.
        seed: of the papers.
    """

    sources: list[int] = list_field([10_000], help="papers in the index, one after another")
    requests: int = 100
    clients: int = 8
    repeats: int = 3
    seed: int = 13
    sentences: bool = flag("keep vectors of sentences, and look for the nearest", default=True)

    def __post_init__(self) -> None:
        require_positive(self, "requests", "clients", "repeats")
        good = bool(self.sources) and min(self.sources) >= 1
        require(good, "sources", self.sources, "numbers of 1 or more")


class Drawn:
    """Draw papers for an index of `count`; the same for the same seed."""

    def __init__(self, count: int, seed: int, dense: Dense | None = None) -> None:
        self.count, self.dense = count, dense
        self._draw = np.random.default_rng([seed, count])
        demo = load("demo", "test").sources
        self.titles = [source.title for source in demo]
        self.sentences = sorted({one for source in demo for one in sentences_of(source.abstract)})
        self._words = vocabulary(max(100, int(WORDS * count)))

    @cached_property
    def terms(self) -> dict[str, str]:
        """Map a title or a sentence to its terms: a paper's are those of its parts."""
        texts = [*self.titles, *self.sentences]
        analysed = Analyser(BM25Config()).texts(texts)
        return {text: " ".join(one) for text, one in zip(texts, analysed, strict=True)}

    @cached_property
    def vectors(self) -> np.ndarray:
        """Return MiniLM's vectors of the sentences, [sentences, d] float32."""
        assert self.dense is not None
        return self.dense.encoder.encode(self.sentences, "source", store=None, progress=None)[0]

    def parts(self) -> Iterator[tuple[list[Paper], list[str], np.ndarray]]:
        """Yield papers, their last sentences, and the numbers of their others [papers, most].

        -1 stands where a paper has fewer.
        """
        for start in range(0, self.count, BATCH):
            size = min(BATCH, self.count - start)
            chosen = self._draw.integers(len(self.sentences), size=(size, 9))
            chosen[np.arange(9) >= self._draw.integers(5, 10, size=size)[:, None]] = -1
            titles = self._draw.integers(len(self.titles), size=size)
            own = [
                f"{text.capitalize()}." for text in zipf_texts(self._draw, self._words, size, OWN)
            ]
            papers = [
                Paper(
                    Source(
                        f"s{start + i:08d}",
                        self.titles[titles[i]],
                        " ".join([*(self.sentences[j] for j in chosen[i] if j >= 0), own[i]]),
                    )
                )
                for i in range(size)
            ]
            yield papers, own, chosen

    def rows(self, sentences: bool) -> Iterator[Rows]:
        """Yield what an engine is given, with vectors of the sentences or without."""
        made, width = half(self.vectors), self.vectors.shape[1]
        for papers, own, chosen in self.parts():
            others = self._draw.integers(len(self.sentences), size=(len(papers), 3))
            others[:, 0] = chosen[:, 0]
            near = np.einsum("s,psd->pd", PARTS, self.vectors[others])
            noise = self._draw.standard_normal(near.shape) / np.sqrt(width)
            vectors = near / np.linalg.norm(near, axis=1, keepdims=True) + NOISE * noise
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            terms = [
                " ".join(
                    [
                        self.terms[paper.source.title],
                        *(self.terms[self.sentences[j]] for j in row if j >= 0),
                        text.lower().rstrip("."),
                    ]
                )
                for paper, row, text in zip(papers, chosen, own, strict=True)
            ]
            # The last sentence, which nobody encodes, has another's vector.
            kept = [
                made[[*row[row >= 0], last]] for row, last in zip(chosen, others[:, 1], strict=True)
            ]
            stamps = [stamp_of(paper) for paper in papers]
            yield Rows(papers, terms, half(vectors), stamps, kept if sentences else None)


class Exact:
    """Keep the best scores of queries [n, d] over all vectors that it is shown."""

    def __init__(self, queries: np.ndarray, k: int = DEPTHS[-1]) -> None:
        # LanceDB rounds a query as it does what is stored.
        self.queries, self.k = half(queries).astype(np.float32), k
        self.best = np.empty((len(queries), 0), np.float32)

    def see(self, vectors: np.ndarray) -> None:
        """Look at more vectors, [papers, d]."""
        scores = np.hstack([self.best, self.queries @ vectors.astype(np.float32).T])
        k = min(self.k, scores.shape[1])
        self.best = -np.partition(-scores, k - 1, axis=1)[:, :k]

    def recall(self, engine: Engine, k: int) -> float:
        """Compute the share of the best `k` that an engine finds; ties count."""
        shares = []
        for query, scores in zip(self.queries, self.best, strict=True):
            best = np.sort(scores)[::-1][:k]
            found = sum(score >= best[-1] - 1e-4 for _, score in engine.dense(query, k))
            shares.append(min(found, len(best)) / len(best))
        return float(np.mean(shares))


def build(
    folder: Path, count: int, config: BenchConfig, exact: Exact, dense: Dense
) -> dict[str, float]:
    """Make the index; measure it."""
    drawn = Drawn(count, config.seed, dense)
    drawn.terms, drawn.vectors  # noqa: B018  before the clocks start
    engine = opened(folder, dense, sentences=config.sentences)
    reset_peak_memory()
    before, cpu, writing = peak_memory(), time.process_time(), 0.0
    with Progress("papers", count) as bar:
        for rows in drawn.rows(config.sentences):
            exact.see(rows.vectors)
            writing += timed(partial(engine.upsert, rows))[0]
            bar.update(len(rows))
    written = peak_memory()
    building = timed(engine.build)[0]
    engine.close()
    return {
        "write_seconds": round(writing, 1),
        "build_seconds": round(building, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),  # drawing the papers included
        "disk_mb": round(engine.stats().size / 2**20),
        "memory_before_mb": round(before / 2**20),
        "memory_written_mb": round(written / 2**20),
        "memory_built_mb": round(peak_memory() / 2**20),
        "partitions": engine.manifest.partitions,
        "probes": engine.manifest.probes,
        "sampled_recall": round(engine.manifest.recall, 4),
    }


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
    """Compute ratio and times of an index, of seconds by way and repeat."""

    def percentiles(way: str, share: float) -> list[float]:
        return [float(np.percentile(seconds, share)) * 1000 for seconds in measured[way]]

    inside, http = percentiles("in process", 95), percentiles("one client", 95)
    found = ratio_and_spread([a / b for a, b in zip(inside, http, strict=True)])
    ways = {
        way: {f"p{share}_ms": median(percentiles(way, share), 1) for share in (50, 95)}
        for way in measured
    }
    return found | {"milliseconds": ways}


def growth(sizes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Divide what each size takes by what the size before it takes."""

    def figures(one: dict[str, Any]) -> dict[str, float]:
        seconds = one["write_seconds"] + one["build_seconds"]
        p95 = one["milliseconds"]["one client"]["p95_ms"]
        disk, memory = one["disk_mb"], one["memory_built_mb"] - one["memory_before_mb"]
        return {"papers": one["sources"], "p95": p95, "seconds": seconds, "disk": disk} | {
            "memory_of_building": memory,
            "memory_of_the_server": one["server_mb"],
        }

    pairs = zip(map(figures, sizes), map(figures, sizes[1:]), strict=False)
    return [
        {name: round(after[name] / before[name], 2) for name in after if before[name] > 0}
        for before, after in pairs
    ]


def seconds_of(process: int) -> float:
    """Read the processor seconds of another process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def peak_of(process: int) -> int:
    """Read the most memory that another process held, in bytes."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])


def measure(count: int, posts: Sequence[str], config: BenchConfig, dense: Dense) -> dict[str, Any]:
    """Build an index of `count` papers, serve it, ask, and measure all of it."""
    queries = dense.encoder.encode(sorted(set(posts)), "claim", store=None, progress=None)[0]
    with tempfile.TemporaryDirectory() as folder:
        place, exact = Path(folder) / "idx", Exact(queries)
        found: dict[str, Any] = {"sources": count} | build(place, count, config, exact, dense)
        engine = open_engine(place)
        found |= {f"recall@{k}": round(exact.recall(engine, k), 4) for k in DEPTHS}
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
            spent = dict.fromkeys(ways, 0.0)
            for _ in range(config.repeats):
                for way, ask in ways.items():
                    before = seconds_of(server.pid)
                    measured[way].append(ask())
                    spent[way] += seconds_of(server.pid) - before
            found["server_mb"] = round(peak_of(server.pid) / 2**20)
        finally:
            server.terminate()
            server.wait()
    answers = config.repeats * len(posts)
    found |= report(config, measured)
    found["cpu_ms"] = round(1000 * spent["one client"] / answers, 1)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Measure an index of each size, and print times, ratio and growth."""
    config = read_config(BenchConfig, argv, program="scripts/bench_find.py", description=__doc__)
    known = [claim.text for claim in load("demo", "test").claims]
    posts = [known[i % len(known)] for i in range(config.requests)]
    dense = Dense(ModelConfig())
    sizes = []
    for count in config.sources:
        sizes.append(measure(count, posts, config, dense))
        found = sizes[-1]
        rows = [[way, *times.values()] for way, times in found["milliseconds"].items()]
        print(f"{count} papers", flush=True)
        print(plain_table(["", "p50 ms", "p95 ms"], rows, 1), flush=True)
    first = {name: sizes[0].pop(name) for name in ("ratio", "spread")}
    first |= {name: getattr(config, name) for name in ("requests", "repeats", "sentences")}
    first |= {"sizes": sizes, "growth": growth(sizes)}
    print(json.dumps(first | circumstances("lancedb", "fastapi", "uvicorn")))


if __name__ == "__main__":
    run_program(main)
