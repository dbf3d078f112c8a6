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

    def index(
        corpus: Corpus,
        rows: Sequence[int] | range,
        **noted: object,
    ) -> str:
        manifest = replace(read_any_manifest(), **noted)  # type: ignore[arg-type]
        count = len(list(root.iterdir()))
        location = root / f"index{count}"
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
    location = make(corpus, range(240))
    return Engine.open(location)


@pytest.fixture(scope="module")
def locations(make: Make, corpus: Corpus) -> list[str]:
    """Shards of very different sizes."""
    parts = (
        range(10),
        range(10, 170),
        range(170, 240),
    )
    return [make(corpus, rows) for rows in parts]


def keys_in(hits: Hits) -> list[str]:
    """Give the papers' keys, in their order."""
    return [key for key, _ in hits]


def same(hits: Hits, expected: Hits) -> None:
    """Check that scores are equal, and papers but for the order of equal scores."""
    scores = [score for _, score in hits]
    expected_scores = [score for _, score in expected]
    np.testing.assert_allclose(scores, expected_scores, atol=NEAR / 100)
    last = expected_scores[-1] if expected else 0.0
    above = {key for key, score in expected if score > last + NEAR}
    assert above <= {split_key(key)[1] for key in keys_in(hits)}


@pytest.mark.parametrize("k", [7, 300])
@pytest.mark.parametrize(
    "where",
    [
        Where(),
        Where("2020"),
        Where(venue="nature"),
    ],
)
def test_shards_rank_as_the_whole(
    whole: Engine,
    locations: list[str],
    k: int,
    where: Where,
) -> None:
    shards = open_indexes(locations)
    queries: tuple[tuple[list[str], list[str]], ...] = (
        (QUERY, NAMES),
        (QUERY, []),
        ([], NAMES),
        (["w300"], []),
    )
    for terms, names in queries:
        expected = whole.lexical(terms, k, where, names)
        assert expected or where.venue
        hits = shards.lexical(terms, k, where, names)
        same(hits, expected)
    vector = np.random.default_rng(k).normal(size=WIDTH)
    nearest = shards.dense(vector, k, where)
    same(nearest, whole.dense(vector, k, where))
    without_words = shards.lexical([], k)
    assert without_words == shards.lexical(QUERY, 0) == []


def test_papers_are_found_by_key_among_those_that_are_chosen(
    whole: Engine, locations: list[str]
) -> None:
    shards = open_indexes(locations)
    keys = keys_in(shards.lexical(QUERY, 5))
    papers, sentences = shards.fetch_with_sentences(keys)
    paper_ids = [split_key(key)[1] for key in keys]
    own, own_sentences = whole.fetch_with_sentences(paper_ids)
    for key in keys:
        name, table, paper_id = shards.home(key)
        folder = Path(table.location)
        assert name == f"{folder.name}"
        assert table.location in locations
        source = papers[key].source
        assert source.id == key
        assert replace(source, id=paper_id) == own[paper_id].source
        np.testing.assert_array_equal(sentences[key], own_sentences[paper_id])

    two = set(keys[:2])
    chosen = Where(ids=tuple(keys[:2]))
    by_words = shards.lexical(QUERY, 5, chosen)
    assert set(keys_in(by_words)) == two
    by_vector = shards.dense(np.ones(WIDTH), 5, chosen)
    assert set(keys_in(by_vector)) == two

    assert shards.stats().papers == shards.manifest.papers == 240
    assert sum(len(rows) for rows in shards.rows()) == 240
    with pytest.raises(UserError):
        shards.delete(keys)


def test_a_paper_of_two_indexes_is_ranked_once_and_knows_what_both_do(
    make: Make, corpus: Corpus
) -> None:
    # The copy has another id, no abstract and a notice; an equal id is another paper's.
    first, second, third = corpus.papers[:3]
    copied = replace(first.source, id="x", abstract="")
    copy = replace(first, source=copied, retracted="retracted")
    renamed = replace(second.source, id="p0")
    other = replace(second, source=renamed)
    copies = replace(
        corpus,
        papers=(copy, other),
        vectors=corpus.vectors[:2],
    )
    untitled = replace(third.source, title="")
    plain = replace(third, doi="", source=untitled)
    twice = replace(
        corpus,
        papers=(first, plain),
        vectors=corpus.vectors[[0, 2]],
    )
    again = replace(
        copies,
        papers=(*copies.papers, plain),
        vectors=corpus.vectors[:3],
    )
    twice_location = make(twice, range(2))
    again_location = make(again, range(3))
    shards = open_indexes([twice_location, again_location])
    assert isinstance(shards, Shards)

    first_words = first.source.title.lower().split()
    second_words = second.source.title.lower().split()
    terms = first_words + second_words
    hits = shards.dense(np.ones(WIDTH), 10)
    assert len(hits) == 3
    lexical = shards.lexical(terms, 10)
    assert len(set(keys_in(lexical))) <= 3

    fetched = shards.fetch(keys_in(hits))
    papers = {home(shards, key): paper for key, paper in fetched.items()}
    joined = next(paper for (_, own), paper in papers.items() if own in ("p0", "x") and paper.doi)
    dois = {paper.doi for paper in papers.values()}
    assert dois == {first.doi, second.doi, ""}
    joined = next(paper for paper in papers.values() if paper.doi == first.doi)
    assert joined.retracted
    assert joined.source.abstract == first.source.abstract


def home(shards: Shards, key: str) -> tuple[str, str]:
    name, _, paper_id = shards.home(key)
    return name, paper_id


@pytest.mark.slow
def test_an_index_that_is_gone_is_named_and_tried_again(
    make: Make,
    corpus: Corpus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Path(make(corpus, range(20)))
    second = Path(make(corpus, range(20, 50)))
    places = [first, second]
    missing = first.with_name("missing")
    damaged = shutil.copytree(first, first.with_name("damaged"))
    (damaged / "manifest.json").write_text("{")
    addresses = [str(first), str(second), str(missing)]
    shards = open_indexes([*addresses, str(damaged)])
    assert shards.lost == ("missing", "damaged")
    assert shards.manifest.papers == 50

    shards = open_indexes(addresses)
    away = second.rename(second.with_name("away"))
    shards.refresh()
    assert shards.lost == (second.name, "missing")
    assert shards.manifest.papers == 20
    for key in keys_in(shards.lexical(QUERY, 50)):
        name, _ = home(shards, key)  # type: ignore[arg-type]
        assert name == first.name

    away.rename(second)
    monkeypatch.setattr(module, "RETRY", 0.0)
    shards.refresh()
    assert shards.lost == ("missing",)
    assert shards.manifest.papers == 50

    for place in places:
        gone = place.with_name(f"{place.name}-away")
        place.rename(gone)
    monkeypatch.undo()
    with pytest.raises(UserError) as error:
        shards.refresh()
    message = str(error.value)
    for place in (*places, missing):
        assert str(place) in message
    with pytest.raises(UserError):
        open_indexes([str(missing), f"{missing}2"])


def test_indexes_of_other_kinds_are_kept_apart(make: Make, corpus: Corpus) -> None:
    other_model = {
        "claim": {"weights": "v"},
        "source": {"weights": "v"},
    }
    first = make(corpus, range(5))
    second = make(corpus, range(5, 9), encoders=other_model)
    third = make(corpus, range(9, 12))
    both = open_indexes([first, second, third])
    (other,) = both.others
    assert len(both.names) == 2
    assert other.names == (Path(second).name,)
    assert both.manifest.papers == 8
    assert other.manifest.papers == 4


@pytest.mark.slow
def test_abstention_and_names_are_those_that_indexes_have_in_common(
    make: Make, corpus: Corpus
) -> None:
    first = make(corpus, range(30))
    second = make(corpus, range(30, 40))
    Engine.open(first).note(abstain={"a": 1}, names=1.0)
    Engine.open(second).note(abstain={"a": 2}, names=0.0)
    shards = open_indexes([first, second])
    assert shards.manifest.abstain is None
    assert shards.manifest.names == 0.75
    Engine.open(second).note(abstain={"a": 1})
    shards.refresh()
    assert shards.manifest.abstain == {"a": 1}


def test_names_are_the_ends_of_addresses_if_these_differ() -> None:
    differing = index_names(["a/2019", "s3://bucket/2020/"])
    assert differing == ["2019", "2020"]
    equal_ends = index_names(["a/idx", "b/idx", "c"])
    assert equal_ends == ["a/idx", "b/idx", "c"]


THREE_COUNTS = st.lists(
    st.integers(0, 3),
    min_size=3,
    max_size=3,
)
COUNTS = st.lists(THREE_COUNTS, min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(COUNTS, COUNTS)
def test_no_paper_scores_above_what_its_own_index_allows(
    own: list[list[int]], others: list[list[int]]
) -> None:
    """Each paper has so many of three words, and one more word."""
    words = ["a", "b", "c"]
    parts = [
        WeighedWords("terms", words, 1.0),
        WeighedWords("terms", words[:1], 2.0),
    ]

    def counted(papers: list[list[int]]) -> ColumnCounts:
        having = {}
        for i, word in enumerate(words):
            having[word] = sum(paper[i] > 0 for paper in papers)
        length = sum(map(sum, papers)) + len(papers)
        return ColumnCounts(len(papers), length, having)

    own_counts = counted(own)
    local = WordWeights(parts, {"terms": own_counts})
    all_counts = add_counts([counted(own), counted(others)])
    both = WordWeights(parts, {"terms": all_counts})
    for paper in own:
        written = ["z"]
        for word, count in zip(words, paper, strict=True):
            written += [word] * count
        texts = {"terms": " ".join(written)}
        local_score = local.score(texts)
        assert both.score(texts) <= both.highest(local, local_score) + 1e-9
