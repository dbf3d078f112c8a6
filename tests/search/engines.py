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
from claim2source.search.bm25 import BM25, Analyser
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
    keys = {"encoders": {"claim": {"weights": "w"}, "source": {"weights": "w"}}}
    versions = Analyser(bm25).versions
    index_manifest = IndexManifest(keys, None, Rendering(), bm25, versions, width)
    return replace(index_manifest, sentences=sentences)


def stamped(stamp: str) -> np.ndarray:
    """Vectors of the none to three sentences of a paper, [sentences, WIDTH] float16."""
    rng = np.random.default_rng(int(stamp, 16))
    return half(rng.normal(size=(rng.integers(4), WIDTH)))


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
        words = _WORDS[language].split() + [f"w{i}" for i in range(400)]
        share = 1 / np.arange(1, len(words) + 1)
        papers = []
        for i in range(n):
            text = rng.choice(words, rng.integers(3, 70), p=share / share.sum())
            source = Source(
                f"p{i}",
                " ".join(text[:3]),
                " ".join(text[3:]),
                ("Ada Lovelace", "É. Zola"),
                ("Nature", 'The O\'Reilly "Journal"', "")[i % 3],
                ("", "2019", "2020-05", f"2021-03-{1 + i % 28:02d}")[i % 4],
            )
            paper = Paper(source, f"10.1000/{i}", f"https://x.org/{i}", ("en", "de")[i % 7 == 0])
            papers.append(paper)
        vectors = half(rng.normal(size=(n, WIDTH)) / 5)
        return cls(tuple(papers), vectors, BM25(language=language))  # type: ignore[arg-type]

    def rows(self, rows: Sequence[int] | range | None = None) -> Rows:
        """The rows of an index for the papers at these positions."""
        papers = [self.papers[i] for i in (range(len(self.papers)) if rows is None else rows)]
        terms = Analyser(self.bm25).sources([paper.source for paper in papers])
        vectors = self.vectors if rows is None else self.vectors[list(rows)]
        stamps = [*map(paper_stamp, papers)]
        return Rows(papers, [" ".join(t) for t in terms], vectors, stamps, [*map(stamped, stamps)])

    def only(self, rows: Sequence[int]) -> Corpus:
        papers = tuple(self.papers[i] for i in rows)
        return replace(self, papers=papers, vectors=self.vectors[list(rows)])

    def places(self, where: Where) -> list[int]:
        """The papers that a filter leaves, found one by one."""
        return [
            i
            for i, paper in enumerate(self.papers)
            if (where.last_day is None or first_day(paper.source.date) <= where.last_day)
            and where.language in (None, paper.lang)
            and (where.venue is None or venue_key(paper.source.venue) == venue_key(where.venue))
            and (where.ids is None or paper.source.id in where.ids)
        ]

    @cached_property
    def _plain(self) -> bm25s.BM25:
        listed = Analyser(self.bm25).sources([paper.source for paper in self.papers])
        index = bm25s.BM25(k1=1.2, b=0.75, method="lucene")
        index.index(listed, show_progress=False)
        return index

    def lexical(self, terms: Sequence[str]) -> np.ndarray:
        """The scores of all papers by plain bm25s, [papers]."""
        index, scores = self._plain, np.zeros(len(self.papers))
        for term, count in Counter(terms).items():
            if term in index.vocab_dict:
                scores += count * index.get_scores([term]).astype(np.float64)
        return scores

    def dense(self, vector: np.ndarray) -> np.ndarray:
        """The scores of all papers by FAISS's exact index, [papers]."""
        index = faiss.IndexFlatIP(WIDTH)
        index.add(self.vectors.astype(np.float32))
        scores, positions = index.search(vector[None].astype(np.float32), len(self.papers))
        all_scores = np.empty(len(self.papers))
        all_scores[positions[0]] = scores[0]
        return all_scores


def agrees(
    hits: Hits, corpus: Corpus, scores: np.ndarray, k: int, where: Where, floor: float = -np.inf
) -> None:
    """Check hits against all scores: each one's own, the best `k`, other orders only among equals."""
    allowed = corpus.places(where)
    number = {paper.source.id: i for i, paper in enumerate(corpus.papers)}
    best = sorted((scores[i] for i in allowed if scores[i] > floor), reverse=True)[:k]
    assert len(hits) == len(best) and len({key for key, _ in hits}) == len(hits)
    assert {number[key] for key, _ in hits} <= set(allowed)
    np.testing.assert_allclose([score for _, score in hits], best, rtol=1e-6, atol=NEAR)
    np.testing.assert_allclose([scores[number[key]] for key, _ in hits], best, rtol=1e-6, atol=NEAR)
