"""Papers for an index, and what its scores must agree with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import bm25s
import faiss
import numpy as np

from claim2source.core.records import Source
from claim2source.data.papers import Paper, first_day
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.lance import Hits
from claim2source.search.manifest import IndexManifest
from claim2source.search.rows import SPLIT, Rows, Where, half, paper_stamp, venue_key
from claim2source.text import Rendering

WIDTH = 24
NEAR = 1e-3
_WORDS = {
    "en": "masks masking outbreaks studies studied vaccinated running infections trials of the",
    "de": "Masken Maskenpflicht Ausbrüche Studien geimpfte Häuser Infektionen über der die",
    "fr": "masques éclosions études étudiées vaccinées courantes infections l'été de la",
}


def read_any_manifest(
    bm25: BM25 | None = None, width: int = WIDTH, sentences: int = SPLIT
) -> IndexManifest:
    bm25 = bm25 or BM25()
    keys = {
        "encoders": {
            "claim": {"weights": "w"},
            "source": {"weights": "w"},
        },
    }
    versions = Analyser(bm25).versions
    index_manifest = IndexManifest(
        keys,
        None,
        Rendering(),
        bm25,
        versions,
        width,
    )
    return replace(index_manifest, sentences=sentences)


def stamped(stamp: str) -> np.ndarray:
    """Vectors of the none to three sentences of a paper, [sentences, WIDTH] float16."""
    seed = int(stamp, 16)
    rng = np.random.default_rng(seed)
    count = rng.integers(4)
    values = rng.normal(size=(count, WIDTH))
    return half(values)


def drawn_paper(i: int, text: np.ndarray) -> Paper:
    """A paper of these words; its date, language and venue go round."""
    title = " ".join(text[:3])
    abstract = " ".join(text[3:])
    venues = ("Nature", 'The O\'Reilly "Journal"', "")
    dates = ("", "2019", "2020-05", f"2021-03-{1 + i % 28:02d}")
    source = Source(
        f"p{i}",
        title,
        abstract,
        ("Ada Lovelace", "É. Zola"),
        venues[i % 3],
        dates[i % 4],
    )
    language = ("en", "de")[i % 7 == 0]
    return Paper(source, f"10.1000/{i}", f"https://x.org/{i}", language)


@dataclass(frozen=True)
class Corpus:
    """Papers in their order, with vectors [papers, WIDTH] float16."""

    papers: tuple[Paper, ...]
    vectors: np.ndarray
    bm25: BM25

    @classmethod
    def drawn(cls, n: int, language: str = "en", seed: int = 0) -> Corpus:
        """Draw papers of few common and many rare words, with dates, languages and venues."""
        rng = np.random.default_rng(seed)
        common = _WORDS[language].split()
        rare = [f"w{i}" for i in range(400)]
        words = common + rare
        ranks = np.arange(1, len(words) + 1)
        share = 1 / ranks
        papers = []
        for i in range(n):
            length = rng.integers(3, 70)
            text = rng.choice(words, length, p=share / share.sum())
            papers.append(drawn_paper(i, text))
        values = rng.normal(size=(n, WIDTH))
        vectors = half(values / 5)
        bm25 = BM25(language=language)  # type: ignore[arg-type]
        return cls(tuple(papers), vectors, bm25)

    def rows(self, rows: Sequence[int] | range | None = None) -> Rows:
        """The rows of an index for the papers at these positions."""
        positions = range(len(self.papers)) if rows is None else rows
        papers = [self.papers[i] for i in positions]
        sources = [paper.source for paper in papers]
        terms = Analyser(self.bm25).sources(sources)
        texts = [" ".join(of_source) for of_source in terms]
        vectors = self.vectors if rows is None else self.vectors[list(rows)]
        stamps = [*map(paper_stamp, papers)]
        sentences = [*map(stamped, stamps)]
        return Rows(papers, texts, vectors, stamps, sentences)

    def only(self, rows: Sequence[int]) -> Corpus:
        papers = tuple(self.papers[i] for i in rows)
        vectors = self.vectors[list(rows)]
        return replace(self, papers=papers, vectors=vectors)

    def places(self, where: Where) -> list[int]:
        """The papers that a filter leaves, found one by one."""
        return [i for i, paper in enumerate(self.papers) if leaves(where, paper)]

    @cached_property
    def _plain(self) -> bm25s.BM25:
        sources = [paper.source for paper in self.papers]
        listed = Analyser(self.bm25).sources(sources)
        index = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
        index.index(listed, show_progress=False)
        return index

    def lexical(self, terms: Sequence[str]) -> np.ndarray:
        """The scores of all papers by plain bm25s, [papers]."""
        index = self._plain
        scores = np.zeros(len(self.papers))
        for term, count in Counter(terms).items():
            if term in index.vocab_dict:
                of_term = index.get_scores([term])
                scores += count * of_term.astype(np.float64)
        return scores

    def dense(self, vector: np.ndarray) -> np.ndarray:
        """The scores of all papers by FAISS's exact index, [papers]."""
        size = len(self.papers)
        index = faiss.IndexFlatIP(WIDTH)
        index.add(self.vectors.astype(np.float32))
        query = vector[None].astype(np.float32)
        scores, positions = index.search(query, size)
        all_scores = np.empty(size)
        all_scores[positions[0]] = scores[0]
        return all_scores


def leaves(where: Where, paper: Paper) -> bool:
    """Whether a filter leaves a paper."""
    source = paper.source
    if where.last_day is not None and not first_day(source.date) <= where.last_day:
        return False
    if where.language not in (None, paper.lang):
        return False
    if where.venue is not None and venue_key(source.venue) != venue_key(where.venue):
        return False
    return where.ids is None or source.id in where.ids


def agrees(
    hits: Hits, corpus: Corpus, scores: np.ndarray, k: int, where: Where, floor: float = -np.inf
) -> None:
    """Check hits against all scores: each one's own, the best `k`, other orders only among equals."""
    allowed = corpus.places(where)
    number = {paper.source.id: i for i, paper in enumerate(corpus.papers)}
    above = [scores[i] for i in allowed if scores[i] > floor]
    best = sorted(above, reverse=True)[:k]
    keys = [key for key, _ in hits]
    found = [number[key] for key in keys]
    assert len(hits) == len(best)
    assert len(set(keys)) == len(hits)
    assert set(found) <= set(allowed)

    of_hits = [score for _, score in hits]
    own = [scores[i] for i in found]
    np.testing.assert_allclose(of_hits, best, rtol=1e-6, atol=NEAR)
    np.testing.assert_allclose(own, best, rtol=1e-6, atol=NEAR)
