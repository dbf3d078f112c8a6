"""Records get the ids that their papers have in an index; only these papers are read."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from claim2source.search.engine import Engine
from claim2source.search.identities import IndexedPapers
from tests.search.engines import Corpus, read_any_manifest

OLD, NEW = "old", "new"
# A paper of another title and DOI under an id that is there; one paper by its DOI alone, by its
# number at PubMed, and by its title; an editorial of another year; and a new paper.
RECORDS = (
    Paper(Source("p3", "Another study of something else altogether"), "10.2000/other"),
    Paper(Source("q4", "As the library writes it"), "10.1000/4"),
    Paper(Source("q5", "As PubMed writes it"), url="https://pubmed.ncbi.nlm.nih.gov/555"),
    Paper(Source("q6", "Six Long Words of the Title", authors=("A. Lovelace",), date="2020")),
    Paper(Source("q7", "Editorial", authors=("Ada Lovelace",), date="2018")),
    Paper(Source("q8", "Nothing of this was there before"), "10.1000/8888"),
)
IDS = ("p4", "p5", "p6", "q7", "q8")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Index 300 papers; a test has a copy of its own."""
    corpus = Corpus.drawn(300)
    papers = list(corpus.papers)
    papers[5] = replace(papers[5], url="https://www.ncbi.nlm.nih.gov/pubmed/555/", doi="")
    titled = replace(papers[6].source, title="Six long words of the title", date="2020-05")
    papers[6] = replace(papers[6], source=titled, doi="")
    editorial = replace(papers[7].source, title="Editorial", date="2019")
    papers[7] = replace(papers[7], source=editorial, doi="")
    location = tmp_path_factory.mktemp("identities") / "index"
    engine = Engine.create(location, read_any_manifest())
    engine.upsert(replace(corpus, papers=tuple(papers)).rows())
    engine.build()
    engine.close()
    return location


@pytest.fixture
def engine(made: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """Open a copy of the index, with the keys of its papers' identities or, if old, without."""
    location = shutil.copytree(made, tmp_path / "index")
    engine = Engine.open(location)
    if getattr(request, "param", NEW) == OLD:
        engine.lock()
        engine._table.drop_columns(["keys"])
        engine._write_seal()
        engine.close()
        engine = Engine.open(location)
    yield engine
    engine.close()


@pytest.mark.parametrize("engine", [NEW, OLD], indirect=True)
def test_records_get_the_ids_of_their_papers(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch, most in ((256, 1000), (2, 3), (1, 1000)):
        monkeypatch.setattr("claim2source.search.identities._BATCH", batch)
        monkeypatch.setattr("claim2source.search.identities._MOST", most)
        indexed = IndexedPapers(engine)
        ids = [paper.source.id for paper in indexed.placed((paper, False) for paper in RECORDS)]
        assert ids[0].startswith("p3-")
        assert tuple(ids[1:]) == IDS
        assert indexed.merged == 3


@pytest.mark.slow
@pytest.mark.parametrize("engine", [NEW, OLD], indirect=True)
def test_an_index_of_either_layout_grows_and_is_built(engine: Engine) -> None:
    corpus = Corpus.drawn(310, seed=3)
    engine.upsert(corpus.rows(range(290, 310)))
    assert engine.retract(lambda key, doi, state: "corrected" if key == "p305" else None) == 1
    engine.build()
    engine.close()
    again = Engine.open(engine.location)
    assert again.stats().papers == 310
    stored = again.fetch(["p295", "p305"])
    assert stored["p295"] == corpus.papers[295]
    [placed] = IndexedPapers(again).placed([(Paper(Source("x"), "10.1000/305"), False)])
    assert placed.source.id == "p305"


def test_an_update_reads_no_papers_but_those_that_its_records_may_be(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    headings = Engine.headings

    def counted(self: Engine, version: int, keys: Collection[int] | None = None) -> Iterator[Paper]:
        for paper in headings(self, version, keys):
            read.append(paper.source.id)
            yield paper

    monkeypatch.setattr(Engine, "headings", counted)
    list(IndexedPapers(engine).placed((paper, False) for paper in RECORDS))
    assert sorted(read) == ["p3", "p4", "p5", "p6"]


def test_papers_that_are_written_meanwhile_do_not_count(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claim2source.search.identities._BATCH", 1)
    corpus = Corpus.drawn(302)
    twin = replace(corpus.papers[301], source=replace(corpus.papers[301].source, id="twin"))
    placed = IndexedPapers(engine).placed([(corpus.papers[301], False), (twin, False)])
    assert next(placed).source.id == "p301"
    engine.upsert(corpus.rows([301]))
    assert next(placed).source.id == "twin"
