"""Compare mining with sentence-transformers' mine_hard_negatives, with the same embeddings.

Ours is hybrid (BM25 indexed and searched, dense, fused) and writes its file; the peer uses only
dense scores, with its default settings (torch, no FAISS), and builds its data set in memory. Ours
with only dense scores is timed too; the case first checks that it chooses the peer's negatives.
`ratio` is the peer's time divided by that of our hybrid, `dense_ratio` by that of our dense mining.
"""

from __future__ import annotations

import contextlib
import io
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from bm25s.stopwords import STOPWORDS_EN

from claim2source.core.config import LARGEST, Between, Number
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Cost
from claim2source.mining import Miner, MiningConfig, write_mined
from claim2source.text import Rendering
from scripts.benches.common import SEED, Bench, Measured, Watch, abstracts_and_posts

DEPTH = 100
SHARE = 0.95
CHECKED = 50
DIMENSIONS = 384
# The peer's limit is a share of the full score.
DENSE = MiningConfig(
    8,
    0,
    last_rank=DEPTH,
    alpha=0.0,
    max_share=SHARE,
    share_of="score",
)
HYBRID = replace(DENSE, alpha=0.5)


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py mining`.

    Args:
        documents: sources of the pool.
        claims: claims to mine, each with one gold.
    """

    documents: Annotated[int, Between(DEPTH + 1, LARGEST)] = 10_000
    claims: Number = 10_000


class Inputs:
    """Data set and vectors; stands in for an encoder and for a sentence-transformers model.

    The most frequent words are stop words. A claim's vector is its gold's plus noise, so that
    most golds rank first, but not all.
    """

    def __init__(self, config: Config) -> None:
        from sentence_transformers.util import dot_score, pairwise_dot_score

        draw = np.random.default_rng(SEED)
        count = config.documents
        abstracts, posts = abstracts_and_posts(
            draw,
            count,
            config.claims,
            STOPWORDS_EN,
        )
        sources = draw.normal(size=(count, DIMENSIONS))
        golds = draw.integers(0, count, config.claims)
        noise = draw.normal(size=(config.claims, DIMENSIONS))
        self.sources = normalized(sources)
        gold_vectors = self.sources[golds]
        self.claims = normalized(gold_vectors + 2 * noise / DIMENSIONS**0.5)

        # The number makes every text distinct, because the peer merges equal ones.
        claims: list[Claim] = []
        for i, (text, gold) in enumerate(zip(posts, golds, strict=True)):
            claims.append(Claim(f"c{i}", f"{text} c{i}", golds=(f"s{gold}",)))
        pool: list[Source] = []
        for i, text in enumerate(abstracts):
            pool.append(Source(f"s{i}", abstract=f"{text} d{i}"))
        self.dataset = Dataset(tuple(claims), tuple(pool), Qrels(), "train")
        self.row = {claim.text: row for row, claim in enumerate(self.dataset.claims)}
        self.device = "cpu"
        # Dot products: vectors have length 1, and the peer's cosine costs more.
        self.similarity = dot_score
        self.similarity_pairwise = pairwise_dot_score
        self.encode_document = lambda texts, **_: self.sources
        self.encode_query = lambda texts, **_: self.claims

    def encode(
        self,
        texts: Sequence[str],
        side: str,
        **_: Any,
    ) -> tuple[np.ndarray, Cost]:
        """Look up the vectors of all sources, or of these claims, for our side."""
        if side == "source":
            return self.sources, Cost()
        rows = [self.row[text] for text in texts]
        return self.claims[rows], Cost()


def normalized(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / lengths).astype(np.float32)


def run(config: Config) -> Measured:
    """Check that negatives agree on a few claims, and time both sides."""
    count = min(config.claims, CHECKED)
    check_same(replace(config, claims=count))  # warms up, too
    inputs = Inputs(config)
    watch = Watch(config.clock)
    sides = {
        "hybrid": partial(mine_ours, inputs, HYBRID),
        "dense": partial(mine_ours, inputs, DENSE),
        "peer": partial(mine_peer, inputs),
    }
    watch.take_turns(sides, config.repeats)
    return {
        **watch.ratio("peer", "hybrid"),
        **watch.ratio("peer", "dense", "dense_"),
        "seconds": watch.medians,
    }


def mine_ours(inputs: Any, config: MiningConfig) -> None:
    """Mine from texts and vectors into a file for training, as train/mine.py does."""
    with tempfile.TemporaryDirectory() as folder:
        miner = Miner(inputs.dataset, inputs, Rendering(), config)
        rows = miner.mine()
        path = Path(folder) / "mined.jsonl"
        write_mined(rows, path)


def mine_peer(inputs: Any) -> Any:
    """Mine with sentence-transformers: a data set of claim, source and negatives."""
    from datasets import Dataset as Columns
    from sentence_transformers.util import mine_hard_negatives

    data = inputs.dataset
    abstract = {source.id: source.abstract for source in data.sources}
    pairs: dict[str, list[str]] = {"claim": [], "source": []}
    for claim in data.claims:
        gold = claim.golds[0]
        pairs["claim"].append(claim.text)
        pairs["source"].append(abstract[gold])
    with contextlib.redirect_stderr(io.StringIO()):
        return mine_hard_negatives(
            Columns.from_dict(pairs),
            inputs,
            corpus=list(abstract.values()),
            range_max=DEPTH - 1,
            relative_margin=1 - SHARE,
            num_negatives=HYBRID.hard,
            output_format="n-tuple",
            verbose=False,
        )


def check_same(config: Config) -> None:
    """Raise `UserError` unless both sides choose the same negatives by dense scores."""
    inputs: Any = Inputs(config)
    data = inputs.dataset
    texts: dict[str, str] = {}
    for record in (*data.sources, *data.claims):
        is_source = isinstance(record, Source)
        texts[record.id] = record.abstract if is_source else record.text

    ours: dict[str, list[str]] = {}
    miner = Miner(data, inputs, Rendering(), DENSE)
    for mined in miner.mine():
        claim = texts[mined.claim]
        ours[claim] = [texts[negative.source] for negative in mined.negatives]

    theirs = mine_peer(inputs)
    if not len(theirs):
        raise UserError("the peer found too few negatives for every checked claim")
    columns = [f"negative_{i}" for i in range(1, HYBRID.hard + 1)]
    for row in theirs:
        claim = row["claim"]
        negatives = [row[column] for column in columns]
        if ours[claim] != negatives:
            raise UserError(f"the negatives of {claim!r} differ from the peer's")
