"""Split papers into the sentences whose vectors an index keeps, for the one nearest to a post."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from claim2source.datasets.papers import Paper
from claim2source.datasets.pool_pairs import sentences_of
from claim2source.engines.rows import half
from claim2source.io.store import Store
from claim2source.retrieve.dense import TextEncoder

# Version of the split: vectors that were stored under another one belong to other sentences.
SPLIT = 1
# Sentences of an abstract that are compared with a post.
MOST = 40


def split(paper: Paper) -> list[str]:
    """List the sentences of a paper's abstract, the first `MOST` of them."""
    return sentences_of(paper.source.abstract)[:MOST]


def sentence_vectors(
    papers: Sequence[Paper], encoder: TextEncoder, store: Store | None
) -> list[np.ndarray]:
    """Encode the sentences of each paper, [sentences, d] float16."""
    parts = [split(paper) for paper in papers]
    texts = [text for part in parts for text in part]
    vectors, _ = encoder.encode(texts, "source", store=store, progress=None)
    ends = np.cumsum([len(part) for part in parts])
    return np.split(half(vectors), ends[:-1]) if parts else []
