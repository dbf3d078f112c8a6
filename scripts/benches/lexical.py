"""Compare an index without vectors with a full one over the same papers: time, size and MRR@5.

The papers are those of a data set and `--sources` made-up ones (those of the case `find`). Both
indexes search for the claims of the split. `ratio` is the 95th percentile of the full index's
seconds per claim divided by that of the other, which encodes papers when they are first found;
`again` is the same once all of them are encoded. The full index has real vectors of the data set's
papers and made-up ones of the others.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from claim2source.core.config import Number
from claim2source.core.machine import peak_memory
from claim2source.core.progress import Progress
from claim2source.core.records import Claim, Dataset
from claim2source.data.loading import load
from claim2source.data.papers import Paper
from claim2source.data.store import Store
from claim2source.metrics.metrics import MAIN_METRIC, evaluate
from claim2source.models import ModelConfig
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.engine import Engine, open_index
from claim2source.search.growing import batches, open_for_writing
from claim2source.search.rows import Rows, half, no_vectors, paper_stamp
from scripts.benches.common import SEED, Bench, Measured, Watch, measured_ratio
from scripts.benches.find import BATCH, made_up
from scripts.benches.find import Config as FindConfig

FULL = "full"
LEXICAL = "lexical first"
AGAIN = "again"


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py lexical`.

    Args:
        sources: made-up papers besides those of the data set.
        requests: number of claims to search for.
        dataset: name or folder of a data set.
        split: split of the claims.
        first: papers to encode per claim; 0: the default of a new index.
    """

    sources: Number = 10_000
    requests: Number = 100
    dataset: str = "demo"
    split: str = "test"
    first: int = 0


def run(config: Config) -> Measured:
    data = load(config.dataset, config.split)
    draw = np.random.default_rng(SEED)
    drawn = draw.permutation(len(data.claims))[: config.requests]
    claims = [data.claims[place] for place in sorted(drawn)]
    dense = Dense(ModelConfig())

    built: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        engines: dict[str, Engine] = {}
        for name in (FULL, LEXICAL):
            first_word = name.split()[0]
            place = Path(folder) / first_word
            has_vectors = name == FULL
            built[name] = build(place, config, data, dense, has_vectors)
            engine = open_index(place)
            engines[name] = engine
            engine.use(dense.encoder)

        watch = Watch()
        quality = {FULL: asked(engines[FULL], claims, data, watch, FULL)}
        bare = engines[LEXICAL]
        if config.first:
            bare.manifest = replace(bare.manifest, encoded_first=config.first)
        quality[LEXICAL] = asked(bare, claims, data, watch, LEXICAL)
        asked(bare, claims, data, watch, AGAIN)

    p95 = {}
    for name, took in watch.seconds.items():
        p95[name] = 1000 * np.percentile(took, 95)
    ratio = p95[FULL] / p95[LEXICAL]
    p95_rounded: dict[str, float] = {}
    for name in (FULL, LEXICAL, AGAIN):
        p95_rounded[name] = round(float(p95[name]), 1)
    return {
        **measured_ratio(np.array([ratio])),
        MAIN_METRIC: quality,
        "p95_ms": p95_rounded,
        "encoded_first": bare.manifest.encoded_first,
        "built": built,
        "memory_mb": round(peak_memory() / 2**20),
    }


def build(
    folder: Path,
    config: Config,
    data: Dataset,
    dense: Dense,
    vectors: bool,
) -> dict[str, float]:
    """Index the data set's papers and the made-up ones; return seconds and MiB."""
    engine = open_for_writing(folder, dense, sentences=False, vectors=vectors)
    watch = Watch()
    _write_data(engine, data, dense, vectors)

    drawn = FindConfig(sources=config.sources, sentences=False)
    with Progress("papers", config.sources) as bar:
        for rows in made_up(drawn, dense):
            count = len(rows)
            part = rows if vectors else replace(rows, vectors=no_vectors(count))
            with watch("write"):
                engine.upsert(part, False)
            bar.update(count)
    with watch("build"):
        engine.build()
    engine.close()

    figures: dict[str, float] = {}
    for name, took in watch.seconds.items():
        figures[name] = round(sum(took), 1)
    size = engine.stats().size
    figures["disk_mb"] = round(size / 2**20)
    return figures


def _write_data(
    engine: Engine,
    data: Dataset,
    dense: Dense,
    vectors: bool,
) -> None:
    """Index the data set's papers."""
    analyser = Analyser(BM25())
    for sources in batches(data.sources, BATCH):
        papers = [Paper(source) for source in sources]
        encoded = no_vectors(len(papers))
        if vectors:
            texts = dense.rendered_as.source_texts(sources)
            encoded = half(
                dense.encoder.encode(
                    texts,
                    "source",
                    store=Store(),
                    progress=None,
                )[0]
            )
        terms = [" ".join(words) for words in analyser.sources(sources)]
        stamps = [*map(paper_stamp, papers)]
        rows = Rows(papers, terms, encoded, stamps)
        engine.upsert(rows)


def asked(
    engine: Engine,
    claims: Sequence[Claim],
    data: Dataset,
    watch: Watch,
    name: str,
) -> float:
    """Search an index for claims one by one; return their MRR@5."""
    values = []
    for claim in claims:
        with watch(name):
            found = engine.find([claim])
        ranked = found.fused.run
        scores = evaluate(ranked, data.qrels, [MAIN_METRIC], [claim.id])
        values.append(scores[MAIN_METRIC][0])
    mean = float(np.mean(values))
    return round(mean, 4)
