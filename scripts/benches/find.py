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
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
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
SECONDS = 3
ROUNDS = 10
IN_PROCESS = "in process"
ONE_CLIENT = "one client"
VENUE = "Journal of One in a Hundred"
LANGUAGE = "de"
FILTERS = {
    "all": Where(),
    "1 in 10": Where(language=LANGUAGE),
    "1 in 100": Where(venue=VENUE),
}


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
    encoded, _ = dense.encoder.encode(
        sentences,
        "source",
        store=Store(),
        progress=None,
    )
    word_count = max(100, count // 2)
    words = [f"w{i:x}" for i in range(word_count)]

    analyser = Analyser(BM25())
    # Texts are analysed word by word: each of them once.
    sentence_terms = analyser.texts(sentences)
    title_terms = analyser.texts([source.title for source in demo])
    for start in range(0, count, BATCH):
        size = min(BATCH, count - start)
        lengths = np.full(size, 8)
        own = [f"{text.capitalize()}." for text in zipf_texts(draw, words, lengths)]
        picks = draw.integers(len(sentences), size=(size, SENTENCES + 2))
        title_picks = draw.integers(len(demo), size=size)
        own_terms = analyser.texts(own)
        papers = []
        terms = []
        for i, (row, text) in enumerate(zip(picks, own, strict=True)):
            number = start + i
            title_pick = title_picks[i]
            abstract = " ".join([*(sentences[j] for j in row[:SENTENCES]), text])
            venue = "" if number % 100 else VENUE
            title = demo[title_pick].title
            source = Source(f"s{number:08d}", title, abstract, venue=venue)
            language = "en" if number % 10 else LANGUAGE
            papers.append(Paper(source, lang=language))

            paper_terms = [*title_terms[title_pick]]
            for j in row[:SENTENCES]:
                paper_terms += sentence_terms[j]
            paper_terms += own_terms[i]
            terms.append(" ".join(paper_terms))

        vectors = _mixed_vectors(encoded, picks, draw)
        # The last sentence, which nobody encodes, has another's vector.
        sentence_vectors = None
        if config.sentences:
            sentence_picks = picks[:, : SENTENCES + 1]
            sentence_vectors = [*half(encoded)[sentence_picks]]
        yield Rows(
            papers,
            terms,
            half(vectors),
            [paper_stamp(paper) for paper in papers],
            sentence_vectors,
        )


def _mixed_vectors(
    encoded: np.ndarray,
    picks: np.ndarray,
    draw: np.random.Generator,
) -> np.ndarray:
    """Mix each paper's vector from those of three of its sentences and noise."""
    mixed = picks[:, [0, -1, -2]]
    near = np.einsum("s,psd->pd", PARTS, encoded[mixed])
    dimensions = near.shape[1]
    noise = draw.standard_normal(near.shape) / np.sqrt(dimensions)
    near_lengths = np.linalg.norm(near, axis=1, keepdims=True)
    vectors: np.ndarray = near / near_lengths + NOISE * noise
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


class DiskWatch:
    """Note the most bytes that a folder takes, and write a line for each half a minute."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.most = 0
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
                note("running", disk_mb=_mebibytes(size))


def folder_bytes(folder: Path) -> int:
    """Sum the bytes of a folder's files, some of which may go meanwhile."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size
    return size


def note(stage: str, **values: object) -> None:
    """Write a line of what is measured so far to stderr."""
    peak_mb = _mebibytes(peak_memory())
    line = {
        "at": time.strftime("%H:%M:%S"),
        "stage": stage,
        **values,
        "peak_mb": peak_mb,
    }
    text = json.dumps(line)
    print(text, file=sys.stderr, flush=True)


def _mebibytes(size: float) -> int:
    """Write bytes as whole MiB."""
    return round(size / 2**20)


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
        seconds = sum(watch.seconds["write"])
        note("written", seconds=round(seconds))
        with watch("build"), cpu("build"):
            engine.build()
    memory["most"] = peak_memory()
    seconds = sum(watch.seconds["build"])
    note("built", seconds=round(seconds))
    engine.close()

    size = folder_bytes(folder)
    most = max(size, disk.most)
    manifest = engine.manifest
    return {
        "seconds": _totals(watch),
        "cpu_seconds": _totals(cpu),
        "disk_mb": _mebibytes(size),
        "most_disk_mb": _mebibytes(most),
        "memory_mb": {moment: _mebibytes(peak) for moment, peak in memory.items()},
        "partitions": manifest.partitions,
        "probes": manifest.probes,
        "refined": manifest.refined,
        "recall": round(manifest.recall, 4),
    }


def _totals(watch: Watch) -> dict[str, float]:
    """Sum the seconds of each part."""
    totals: dict[str, float] = {}
    for part, took in watch.seconds.items():
        totals[part] = round(sum(took), 1)
    return totals


def run(config: Config) -> Measured:
    # The engine says when it begins with a search index.
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s")
    logging.getLogger("claim2source.search.engine").setLevel(logging.INFO)
    claims = load("demo", "test").claims
    texts = [claim.text for claim in claims]
    dense = Dense(ModelConfig())
    posts = [texts[i % len(texts)] for i in range(config.requests)]
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "idx"
        built = build(index, config, dense)
        note("index", **built)
        forget(index)
        with served(index, config) as (host, _):
            cold = over_http(host, posts[:COLD])
        note("cold", p95_ms=_whole_p95(cold))

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
            memory = _mebibytes(server.memory_info().rss)
        p95 = {name: _whole_p95(took) for name, took in seconds.items()}
        note("asked", p95_ms=p95, server_mb=memory)
        shares = recall(finder.engine, posts, dense)

    percentiles: dict[str, dict[str, np.ndarray]] = {}
    milliseconds: dict[str, dict[str, float]] = {}
    all_seconds = {**seconds, "cold": [cold]}
    for name, took in all_seconds.items():
        own = {}
        rounded: dict[str, float] = {}
        for percent in (50, 95):
            values = 1000 * np.percentile(took, percent, axis=1)
            own[f"p{percent}"] = values
            rounded[f"p{percent}"] = median(values, 1)
        percentiles[name] = own
        milliseconds[name] = rounded

    in_process_p95 = percentiles[IN_PROCESS]["p95"]
    one_client_p95 = percentiles[ONE_CLIENT]["p95"]
    cpu_ms = 1000 * spent / len(posts)
    return {
        **measured_ratio(in_process_p95 / one_client_p95),
        "recall_of_posts": shares,
        "milliseconds": milliseconds,
        **built,
        "server_mb": memory,
        "cpu_ms": round(cpu_ms, 1),
    }


def _whole_p95(seconds: Sequence[float]) -> int:
    """Compute the 95th percentile in whole milliseconds."""
    p95 = float(np.percentile(seconds, 95))
    return round(1000 * p95)


def recall(
    engine: Engine,
    posts: Sequence[str],
    dense: Dense,
) -> dict[str, float]:
    """Compute recall@100 of posts against the comparison of all vectors, by filter."""
    vectors, _ = dense.encoder.encode(
        posts,
        "claim",
        store=None,
        progress=None,
    )
    shares = {}
    for name, conditions in FILTERS.items():
        best = best_scores(vectors, engine.vectors(conditions))
        parts = []
        for vector, truth in zip(vectors, best, strict=True):
            threshold = truth.min() - 1e-5  # ties have no order
            found = engine.dense(vector, DEPTH, conditions)
            hits = sum(score >= threshold for _, score in found)
            count = len(truth)
            parts.append(min(hits, count) / count)
        mean = float(np.mean(parts))
        shares[name] = round(mean, 4)
        note("recall", among=name, recall=shares[name])
    return shares


def forget(folder: Path) -> None:
    """Have the system drop a folder's files from its page cache."""
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        with open(path, "rb") as file:
            descriptor = file.fileno()
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


@contextmanager
def served(index: Path, config: Config) -> Iterator[tuple[str, psutil.Process]]:
    """Serve an index; give its address and the process."""
    command = [sys.executable, str(SERVE)]
    command += ["--index", str(index)]
    command += ["--port", "0"]
    command += ["--rate", "0"]
    if not config.sentences:
        command.append("--no_sentences")
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            if len(words) < 4:
                raise UserError("the server did not start")
            yield words[3], psutil.Process(server.pid)
        finally:
            server.terminate()
            server.communicate()


def over_http(host: str, posts: Sequence[str]) -> list[float]:
    """Ask about posts, one after the other over one connection; the seconds of each."""
    watch = Watch()
    with httpx2.Client(timeout=120, trust_env=False) as client:  # not by a proxy
        for post in posts:
            with watch(ONE_CLIENT):
                response = client.post(f"{host}api/v1/find", json={"post": post})
                response.raise_for_status()
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
        ask = partial(over_http, host)
        found: list[float] = []
        for seconds in pool.map(ask, shares):
            found += seconds
        return found
