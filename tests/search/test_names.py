"""Authors and venues: what a post may name, what a paper has, and how much they count."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.data.loading import load
from claim2source.data.papers import Paper
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.engine import Engine
from claim2source.search.names import name_terms, paper_names
from claim2source.search.rows import Rows, half, paper_stamp
from tests.search.engines import WIDTH, read_any_manifest
from tests.shared_data import shared

POST = "@lundgren's Lancet study on sleep and dementia"


def rows(papers: list[Paper]) -> Rows:
    terms = Analyser(BM25()).sources([paper.source for paper in papers])
    vectors = half(np.ones((len(papers), WIDTH)))
    texts, stamps = [" ".join(term) for term in terms], [*map(paper_stamp, papers)]
    return Rows(papers, texts, vectors, stamps)


def built(folder: Path, papers: list[Paper]) -> Engine:
    engine = Engine.create(folder, read_any_manifest(sentences=0))
    engine.upsert(rows(papers))
    engine.build()
    engine.close()
    return engine


def test_what_may_be_a_name_in_a_post_and_what_is_one_of_a_paper() -> None:
    assert name_terms(POST) == ["lundgren", "lancet"]
    assert name_terms("MÜLLER et al. in Nature: see https://x.org/Smith") == ["muller", "nature"]
    assert name_terms("via @AdaLovelace, masks work") == ["ada", "lovelace"]
    assert name_terms("lundgren lancet sleep") == ["lundgren", "lancet", "sleep"]
    source = Source("p", authors=("Müller, Ada", "O'Neil"), venue="The Lancet Journal of Ada")
    assert paper_names(source) == ["muller", "ada", "neil", "lancet"]


@pytest.mark.slow
def test_a_paper_is_found_by_its_author_and_venue_where_words_do_not_tell(tmp_path: Path) -> None:
    names = "Lundgren Okafor Silva Tanaka Novak Haddad Berg Rossi Dubois Keller".split()
    topics = "sleep dementia heart masks sugar coffee stress bones lungs noise".split()
    papers = [
        Paper(
            Source(
                f"{topic} {name}",
                f"{topic} and dementia in cohorts of adults",
                f"We studied {topic}.",
                (f"Ada {name}",),
                ("Lancet", "Nature", "Cell")[i % 3],
            )
        )
        for topic in topics
        for i, name in enumerate(names)
    ]
    engine = built(tmp_path / "named", papers)
    assert engine.manifest.names > 0
    terms = Analyser(BM25()).claim(Claim("0", POST))
    hits_by_words = engine.lexical(terms, 100)
    hits = engine.lexical(terms, 100, names=name_terms(POST))
    assert hits[0][0] == "sleep Lundgren" and hits[0][1] > 2 * hits[-1][1]
    assert len({score for _, score in hits_by_words[:10]}) == 1  # words alone cannot tell
    anonymous = [Paper(replace(paper.source, authors=(), venue="")) for paper in papers]
    assert built(tmp_path / "bare", anonymous).manifest.names == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ct25", "preprints"])
def test_posts_without_names_are_found_as_well_as_before(tmp_path: Path, name: str) -> None:
    data = load(str(shared(name)), "dev")
    engine = built(tmp_path / name, [Paper(source) for source in data.sources])
    analyser, ranks = Analyser(BM25()), np.zeros((2, len(data.claims)))
    for column, claim in enumerate(data.claims):
        terms, names = analyser.claim(claim), name_terms(claim.text)
        for row, names_of_post in enumerate(((), names)):
            ids = [key for key, _ in engine.lexical(terms, 10, names=names_of_post)]
            ranks[row, column] = max(
                [0.0, *(1 / (1 + ids.index(g)) for g in claim.golds if g in ids)]
            )
    print(f"{name}: weight {engine.manifest.names}, MRR@10 {ranks.mean(axis=1).round(4)}")
    assert ranks[1].mean() >= ranks[0].mean() - 0.002
