"""Several indexes rank papers as the one index of all of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from claim2source.search import shards as module
from claim2source.search.copies import split_key
from claim2source.search.engine import Engine
from claim2source.search.lance import Hits
from claim2source.search.rows import Where
from claim2source.search.shards import Shards, index_names, open_indexes
from claim2source.search.summed import ColumnCounts, WordWeights, add_counts
from claim2source.search.table import WeighedWords
from tests.search.engines import NEAR, WIDTH, Corpus, read_any_manifest

QUERY = ["mask", "outbreak", "w5", "w5", "w300"]
NAMES = ["zola", "nature"]
Make = Callable[..., str]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Make an index of some papers of a corpus."""
    root = tmp_path_factory.mktemp("shards")

    def index(corpus: Corpus, rows: Sequence[int] | range, **noted: object) -> str:
        manifest = replace(read_any_manifest(), **noted)  # type: ignore[arg-type]
        location = root / f"index{len(list(root.iterdir()))}"
        engine = Engine.create(location, manifest)
        if len(rows):
            engine.upsert(corpus.rows(rows))
        engine.build()
        engine.note(names=0.5)
        engine.close()
        return str(location)

    return index


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    """Papers, some of them without names, and some without words."""
    drawn = Corpus.drawn(240)
    papers = []
    for number, paper in enumerate(drawn.papers):
        source = paper.source
        if number % 3 == 2:
            source = replace(source, authors=(), venue="")
        if number % 40 == 7:
            source = replace(source, title="", abstract="")
        papers.append(replace(paper, source=source))
    return replace(drawn, papers=tuple(papers))


@pytest.fixture(scope="module")
def whole(make: Make, corpus: Corpus) -> Engine:
    return Engine.open(make(corpus, range(240)))


@pytest.fixture(scope="module")
def locations(make: Make, corpus: Corpus) -> list[str]:
    """Shards of very different sizes."""
    return [make(corpus, rows) for rows in (range(10), range(10, 170), range(170, 240))]


def same(hits: Hits, expected: Hits) -> None:
    """Check that scores are equal, and papers but for the order of equal scores."""
    np.testing.assert_allclose([s for _, s in hits], [s for _, s in expected], atol=NEAR / 100)
    last = expected[-1][1] if expected else 0.0
    above = {key for key, score in expected if score > last + NEAR}
    assert above <= {split_key(key)[1] for key, _ in hits}


@pytest.mark.parametrize("k", [7, 300])
@pytest.mark.parametrize("where", [Where(), Where("2020"), Where(venue="nature")])
def test_shards_rank_as_the_whole(
    whole: Engine, locations: list[str], k: int, where: Where
) -> None:
    shards = open_indexes(locations)
    for terms, names in ((QUERY, NAMES), (QUERY, []), ([], NAMES), (["w300"], [])):
        expected = whole.lexical(terms, k, where, names)
        assert expected or where.venue
        same(shards.lexical(terms, k, where, names), expected)
    vector = np.random.default_rng(k).normal(size=WIDTH)
    same(shards.dense(vector, k, where), whole.dense(vector, k, where))
    assert shards.lexical([], k) == shards.lexical(QUERY, 0) == []


def test_papers_are_found_by_key_among_those_that_are_chosen(
    whole: Engine, locations: list[str]
) -> None:
    shards = open_indexes(locations)
    keys = [key for key, _ in shards.lexical(QUERY, 5)]
    papers, sentences = shards.fetch_with_sentences(keys)
    own, own_sentences = whole.fetch_with_sentences([split_key(key)[1] for key in keys])
    for key in keys:
        name, table, paper_id = shards.home(key)
        assert name == f"{Path(table.location).name}" and table.location in locations
        assert papers[key].source.id == key
        assert replace(papers[key].source, id=paper_id) == own[paper_id].source
        np.testing.assert_array_equal(sentences[key], own_sentences[paper_id])
    chosen = Where(ids=tuple(keys[:2]))
    assert {key for key, _ in shards.lexical(QUERY, 5, chosen)} == set(keys[:2])
    assert {key for key, _ in shards.dense(np.ones(WIDTH), 5, chosen)} == set(keys[:2])
    assert shards.stats().papers == shards.manifest.papers == 240
    assert sum(len(rows) for rows in shards.rows()) == 240
    with pytest.raises(UserError):
        shards.delete(keys)


def test_a_paper_of_two_indexes_is_ranked_once_and_knows_what_both_do(
    make: Make, corpus: Corpus
) -> None:
    # The copy has another id, no abstract and a notice; an equal id is another paper's.
    first, second = corpus.papers[0], corpus.papers[1]
    copy = replace(first, source=replace(first.source, id="x", abstract=""), retracted="retracted")
    other = replace(second, source=replace(second.source, id="p0"))
    copies = replace(corpus, papers=(copy, other), vectors=corpus.vectors[:2])
    plain = replace(corpus.papers[2], doi="", source=replace(corpus.papers[2].source, title=""))
    twice = replace(corpus, papers=(first, plain), vectors=corpus.vectors[[0, 2]])
    again = replace(copies, papers=(*copies.papers, plain), vectors=corpus.vectors[:3])
    shards = open_indexes([make(twice, range(2)), make(again, range(3))])
    assert isinstance(shards, Shards)
    terms = first.source.title.lower().split() + second.source.title.lower().split()
    hits = shards.dense(np.ones(WIDTH), 10)
    assert len(hits) == 3
    assert len({key for key, _ in shards.lexical(terms, 10)}) <= 3
    papers = {home(shards, key): paper for key, paper in shards.fetch([k for k, _ in hits]).items()}
    joined = next(paper for (_, own), paper in papers.items() if own in ("p0", "x") and paper.doi)
    assert {paper.doi for paper in papers.values()} == {first.doi, second.doi, ""}
    joined = next(paper for paper in papers.values() if paper.doi == first.doi)
    assert joined.retracted and joined.source.abstract == first.source.abstract


def home(shards: Shards, key: str) -> tuple[str, str]:
    name, _, paper_id = shards.home(key)
    return name, paper_id


def test_an_index_that_is_gone_is_named_and_tried_again(
    make: Make, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [Path(make(corpus, range(20))), Path(make(corpus, range(20, 50)))]
    missing = places[0].with_name("missing")
    damaged = shutil.copytree(places[0], places[0].with_name("damaged"))
    (damaged / "manifest.json").write_text("{")
    shards = open_indexes([*map(str, places), str(missing), str(damaged)])
    assert (shards.lost, shards.manifest.papers) == (("missing", "damaged"), 50)
    shards = open_indexes([*map(str, places), str(missing)])
    away = places[1].rename(places[1].with_name("away"))
    shards.refresh()
    assert shards.lost == (places[1].name, "missing") and shards.manifest.papers == 20
    assert all(home(shards, key)[0] == places[0].name for key, _ in shards.lexical(QUERY, 50))  # type: ignore[arg-type]
    away.rename(places[1])
    monkeypatch.setattr(module, "RETRY", 0.0)
    shards.refresh()
    assert shards.lost == ("missing",) and shards.manifest.papers == 50
    for place in places:
        place.rename(place.with_name(f"{place.name}-away"))
    monkeypatch.undo()
    with pytest.raises(UserError) as error:
        shards.refresh()
    assert all(str(place) in str(error.value) for place in (*places, missing))
    with pytest.raises(UserError):
        open_indexes([str(missing), f"{missing}2"])


def test_indexes_of_other_kinds_are_kept_apart(make: Make, corpus: Corpus) -> None:
    other_model = {"claim": {"weights": "v"}, "source": {"weights": "v"}}
    first, second = make(corpus, range(5)), make(corpus, range(5, 9), encoders=other_model)
    both = open_indexes([first, second, make(corpus, range(9, 12))])
    (other,) = both.others
    assert len(both.names) == 2 and other.names == (Path(second).name,)
    assert both.manifest.papers == 8 and other.manifest.papers == 4


def test_abstention_and_names_are_those_that_indexes_have_in_common(
    make: Make, corpus: Corpus
) -> None:
    locations = [make(corpus, range(30)), make(corpus, range(30, 40))]
    for location, abstain, names in zip(locations, ({"a": 1}, {"a": 2}), (1.0, 0.0), strict=True):
        Engine.open(location).note(abstain=abstain, names=names)
    shards = open_indexes(locations)
    assert shards.manifest.abstain is None and shards.manifest.names == 0.75
    Engine.open(locations[1]).note(abstain={"a": 1})
    shards.refresh()
    assert shards.manifest.abstain == {"a": 1}


def test_names_are_the_ends_of_addresses_if_these_differ() -> None:
    assert index_names(["a/2019", "s3://bucket/2020/"]) == ["2019", "2020"]
    assert index_names(["a/idx", "b/idx", "c"]) == ["a/idx", "b/idx", "c"]


COUNTS = st.lists(st.lists(st.integers(0, 3), min_size=3, max_size=3), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(COUNTS, COUNTS)
def test_no_paper_scores_above_what_its_own_index_allows(
    own: list[list[int]], others: list[list[int]]
) -> None:
    """Each paper has so many of three words, and one more word."""
    words = ["a", "b", "c"]
    parts = [WeighedWords("terms", words, 1.0), WeighedWords("terms", words[:1], 2.0)]

    def counted(papers: list[list[int]]) -> ColumnCounts:
        having = {word: sum(p[i] > 0 for p in papers) for i, word in enumerate(words)}
        return ColumnCounts(len(papers), sum(map(sum, papers)) + len(papers), having)

    local = WordWeights(parts, {"terms": counted(own)})
    both = WordWeights(parts, {"terms": add_counts([counted(own), counted(others)])})
    for paper in own:
        texts = {
            "terms": " ".join(
                ["z", *(w for w, n in zip(words, paper, strict=True) for _ in range(n))]
            )
        }
        assert both.score(texts) <= both.highest(local, local.score(texts)) + 1e-9
