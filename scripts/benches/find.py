"""Time answers of `claim2source serve` over HTTP, compared with the same calls within a process.

Papers are made up: six sentences of the demo and a last one of invented words, whose number grows
with the index as that of rare words does. A paper's vector is MiniLM's of one of its sentences,
with parts of two others and noise. Posts are the demo's, and the packaged MiniLM encodes them.

A new server, whose index is not in the page cache, answers the first posts (`cold`). Then one
client sends requests, and then several at once. `ratio` is the 95th percentile in process divided
by that over HTTP, with one client. With --no_sentences the index has no vectors of sentences, and
does not search for the nearest ones.

The result also has the seconds of writing and building by both clocks, their disk and memory, the
recall that the index measured, and recall@100 of the posts against all vectors: without a filter,
and with filters that keep a tenth and a hundredth of the papers. `cpu_ms` are the server's
processor milliseconds for an answer. Each part prints a line to stderr as it ends, and writing and
building print one every half minute, so a run of hours that is stopped leaves some figures.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

import httpx2
import numpy as np
import psutil  # type: ignore[import-untyped]

from claim2source.core.config import Number, flag
from claim2source.core.errors import UserError
from claim2source.core.machine import peak_memory, reset_peak_memory
from claim2source.core.progress import Progress
from claim2source.core.records import Source
from claim2source.data.loading import load
from claim2source.data.papers import Paper
from claim2source.data.posts import Post
from claim2source.data.store import Store
from claim2source.find.finder import Finder
from claim2source.models import ModelConfig
from claim2source.search.bm25 import BM25, Analyser
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine, open_index
from claim2source.search.growing import open_for_writing
from claim2source.search.probes import DEPTH, best_scores
from claim2source.search.rows import Rows, Where, half, paper_stamp
from claim2source.text.clean import split_sentences
from scripts.benches.common import SEED, Bench, Measured, Watch, measured_ratio, median, zipf_texts

BATCH = 4096
SENTENCES = 6
SERVE = Path(__file__).resolve().parents[2] / "eval" / "serve.py"
# Parts of a vector: its sentence, two others, noise.
PARTS = (1.0, 0.5, 0.25)
NOISE = 0.4
CLIENTS = 8
WARM = 5  # posts that are asked about before anything is timed
COLD = 20  # first posts of a server whose files are not in memory
# Seconds between two looks at the disk, and looks for a line.
SECONDS, ROUNDS = 3, 10
IN_PROCESS = "in process"
ONE_CLIENT = "one client"
VENUE = "Journal of One in a Hundred"
LANGUAGE = "de"
FILTERS = {"all": Where(), "1 in 10": Where(language=LANGUAGE), "1 in 100": Where(venue=VENUE)}


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py find`; times are the wall's.

    Args:
        sources: papers in the index.
        requests: posts of each measurement.
    """

    sources: Number = 10_000
    requests: Number = 100
    sentences: bool = flag("keep vectors of sentences, and look for the nearest", default=True)


def made_up(config: Config, dense: Dense) -> Iterator[Rows]:
    """Yield papers with their terms and vectors, those of sentences too; the seed fixes them."""
    count = config.sources
    draw = np.random.default_rng([SEED, count])
    demo = load("demo", "test").sources
    distinct: set[str] = set()
    for source in demo:
        distinct.update(split_sentences(source.abstract))
    sentences = sorted(distinct)
    encoded = dense.encoder.encode(sentences, "source", store=Store(), progress=None)[0]
    words, analyser = [f"w{i:x}" for i in range(max(100, count // 2))], Analyser(BM25())
    # Texts are analysed word by word: each of them once.
    sentence_terms = analyser.texts(sentences)
    title_terms = analyser.texts([source.title for source in demo])
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        own = [f"{text.capitalize()}." for text in zipf_texts(draw, words, np.full(size, 8))]
        picks = draw.integers(len(sentences), size=(size, SENTENCES + 2))
        title_picks = draw.integers(len(demo), size=size)
        own_terms = analyser.texts(own)
        papers = []
        terms = []
        for i, (row, text) in enumerate(zip(picks, own, strict=True)):
            number = start + i
            abstract = " ".join([*(sentences[j] for j in row[:SENTENCES]), text])
            venue = "" if number % 100 else VENUE
            source = Source(f"s{number:08d}", demo[title_picks[i]].title, abstract, venue=venue)
            words_of = [*title_terms[title_picks[i]]]
            for j in row[:SENTENCES]:
                words_of += sentence_terms[j]
            terms.append(" ".join([*words_of, *own_terms[i]]))
            papers.append(Paper(source, lang="en" if number % 10 else LANGUAGE))
        near = np.einsum("s,psd->pd", PARTS, encoded[picks[:, [0, -1, -2]]])
        noise = draw.standard_normal(near.shape) / np.sqrt(near.shape[1])
        vectors = near / np.linalg.norm(near, axis=1, keepdims=True) + NOISE * noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        # The last sentence, which nobody encodes, has another's vector.
        vectors_of = None
        if config.sentences:
            vectors_of = [*half(encoded)[picks[:, : SENTENCES + 1]]]
        yield Rows(
            papers,
            terms,
            half(vectors),
            [paper_stamp(paper) for paper in papers],
            vectors_of,
        )


class DiskWatch:
    """Note the most bytes that a folder takes, and write a line for each half a minute."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.most = folder, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        rounds = 0
        while not self._ended.wait(SECONDS):
            size = folder_bytes(self.folder)
            self.most = max(self.most, size)
            rounds += 1
            if rounds % ROUNDS == 0:
                note("running", disk_mb=round(size / 2**20))


def folder_bytes(folder: Path) -> int:
    """Sum the bytes of a folder's files, some of which may go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size
    return size


def note(stage: str, **values: object) -> None:
    """Write a line of what is measured so far to stderr."""
    memory = {"peak_mb": round(peak_memory() / 2**20)}
    line = {"at": time.strftime("%H:%M:%S"), "stage": stage, **values, **memory}
    print(json.dumps(line), file=sys.stderr, flush=True)


def build(folder: Path, config: Config, dense: Dense) -> Measured:
    engine = open_for_writing(folder, dense, sentences=config.sentences)
    reset_peak_memory()
    memory = {"before": peak_memory()}
    watch = Watch()
    cpu = Watch("cpu")
    with DiskWatch(folder) as disk:
        with Progress("papers", config.sources) as bar:
            for rows in made_up(config, dense):
                with watch("write"), cpu("write"):
                    engine.upsert(rows)
                bar.update(len(rows))
        memory["written"] = peak_memory()
        note("written", seconds=round(sum(watch.seconds["write"])))
        with watch("build"), cpu("build"):
            engine.build()
    memory["most"] = peak_memory()
    note("built", seconds=round(sum(watch.seconds["build"])))
    engine.close()
    size = folder_bytes(folder)
    return {
        "seconds": {part: round(sum(took), 1) for part, took in watch.seconds.items()},
        "cpu_seconds": {part: round(sum(took), 1) for part, took in cpu.seconds.items()},
        "disk_mb": round(size / 2**20),
        "most_disk_mb": round(max(size, disk.most) / 2**20),
        "memory_mb": {moment: round(peak / 2**20) for moment, peak in memory.items()},
        "partitions": engine.manifest.partitions,
        "probes": engine.manifest.probes,
        "refined": engine.manifest.refined,
        "recall": round(engine.manifest.recall, 4),
    }


def run(config: Config) -> Measured:
    # The engine says when it begins with a search index.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("claim2source.search.engine").setLevel(logging.INFO)
    texts = [claim.text for claim in load("demo", "test").claims]
    dense = Dense(ModelConfig())
    posts = [texts[i % len(texts)] for i in range(config.requests)]
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "idx"
        built = build(index, config, dense)
        note("index", **built)
        forget(index)
        with served(index, config) as (host, _):
            cold = over_http(host, posts[:COLD])
        note("cold", p95_ms=round(1000 * float(np.percentile(cold, 95))))
        finder = Finder(open_index(index), sentences=config.sentences)
        with served(index, config) as (host, server):
            calls = {
                IN_PROCESS: partial(in_process, finder, posts),
                ONE_CLIENT: partial(over_http, host, posts),
                f"{CLIENTS} clients": partial(at_once, host, posts),
            }
            in_process(finder, posts[:WARM])
            over_http(host, posts[:WARM])
            seconds = Watch().take_turns(calls, config.repeats)
            before = sum(server.cpu_times()[:2])
            over_http(host, posts)
            spent = sum(server.cpu_times()[:2]) - before
            memory = round(server.memory_info().rss / 2**20)
        p95 = {name: round(1000 * float(np.percentile(took, 95))) for name, took in seconds.items()}
        note("asked", p95_ms=p95, server_mb=memory)
        shares = recall(finder.engine, posts, dense)
    percentiles: dict[str, dict[str, np.ndarray]] = {}
    for name, took in {**seconds, "cold": [cold]}.items():
        own = {}
        for percent in (50, 95):
            own[f"p{percent}"] = 1000 * np.percentile(took, percent, axis=1)
        percentiles[name] = own
    milliseconds: dict[str, dict[str, float]] = {}
    for name, own in percentiles.items():
        milliseconds[name] = {key: median(values, 1) for key, values in own.items()}
    return {
        **measured_ratio(percentiles[IN_PROCESS]["p95"] / percentiles[ONE_CLIENT]["p95"]),
        "recall_of_posts": shares,
        "milliseconds": milliseconds,
        **built,
        "server_mb": memory,
        "cpu_ms": round(1000 * spent / len(posts), 1),
    }


def recall(
    engine: Engine,
    posts: Sequence[str],
    dense: Dense,
) -> dict[str, float]:
    """Compute recall@100 of posts against the comparison of all vectors, by filter."""
    vectors = dense.encoder.encode(posts, "claim", store=None, progress=None)[0]
    shares = {}
    for name, conditions in FILTERS.items():
        best = best_scores(vectors, engine.vectors(conditions))
        parts = []
        for vector, truth in zip(vectors, best, strict=True):
            threshold = truth.min() - 1e-5  # ties have no order
            hits = sum(score >= threshold for _, score in engine.dense(vector, DEPTH, conditions))
            parts.append(min(hits, len(truth)) / len(truth))
        shares[name] = round(float(np.mean(parts)), 4)
        note("recall", among=name, recall=shares[name])
    return shares


def forget(folder: Path) -> None:
    """Have the system drop a folder's files from its page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def served(index: Path, config: Config) -> Iterator[tuple[str, psutil.Process]]:
    """Serve an index; give its address and the process."""
    command = [sys.executable, str(SERVE), "--index", str(index)]
    command += ["--port", "0", "--rate", "0"] + ["--no_sentences"] * (not config.sentences)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline().split()
            if len(line) < 4:
                raise UserError("the server did not start")
            yield line[3], psutil.Process(server.pid)
        finally:
            server.terminate()
            server.communicate()


def over_http(host: str, posts: Sequence[str]) -> list[float]:
    """Ask about posts, one after the other over one connection; the seconds of each."""
    watch = Watch()
    with httpx2.Client(timeout=120, trust_env=False) as client:  # not by a proxy
        for post in posts:
            with watch(ONE_CLIENT):
                client.post(f"{host}api/v1/find", json={"post": post}).raise_for_status()
    return watch.seconds.get(ONE_CLIENT, [])


def in_process(finder: Finder, posts: Sequence[str]) -> list[float]:
    """Ask a finder of this process about posts; the seconds of each."""
    watch = Watch()
    for post in posts:
        with watch(IN_PROCESS):
            finder.find([Post("0", post)])
    return watch.seconds[IN_PROCESS]


def at_once(host: str, posts: Sequence[str]) -> list[float]:
    """Ask with several clients, each about its share of the posts."""
    with ThreadPoolExecutor(CLIENTS) as pool:
        shares = [posts[client::CLIENTS] for client in range(CLIENTS)]
        found: list[float] = []
        for seconds in pool.map(partial(over_http, host), shares):
            found += seconds
        return found
