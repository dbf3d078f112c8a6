"""What an index does: the scores of bm25s and FAISS, after any history, under any filter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim, Source
from claim2source.data.papers import Paper
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25
from claim2source.search.engine import EXACT, Engine, open_index
from claim2source.search.files import open_files
from claim2source.search.lance import connection
from claim2source.search.manifest import is_engine
from claim2source.search.rows import EVERYWHERE, Rows, Where, half, paper_stamp
from tests.refusals import refused
from tests.search.engines import WIDTH, Corpus, agrees, read_any_manifest, stamped
from tests.shared_data import REPOSITORY

FILTERS = [
    Where(),
    Where(until="2020"),
    Where(language="de"),
    Where(venue='the o\'reilly  "journal"'),
    Where(until="2021-03-05", language="de", venue="nature"),
    Where(ids=("p3", "p5", "p700", "no'ne")),
    Where(venue="' OR 1=1 --"),
]
POSTS = [
    "new study: masks cut outbreaks 3.7x",
    'he said "masks" AND (outbreaks OR NOT infections)~2 w3^9 +w5 -w7 title:w9 * ? \\',
    "w1 w1 w1 w2\x00\x01\x1b[31m\u202e w3\u2028w4 '; DROP TABLE papers; --",
    "the of",
    "",
    "w7 " * 350_000,
    "x" * 1_000_000 + " w11",
]


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.drawn(800)


@pytest.fixture(scope="module")
def engine(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with the corpus, built; do not change it."""
    folder = tmp_path_factory.mktemp("engine")
    own = Engine.create(folder / "index", read_any_manifest())
    own.upsert(corpus.rows())
    own.build()
    yield own
    own.close()


def agrees_by_words(
    engine: Engine,
    corpus: Corpus,
    terms: list[str],
    k: int,
    where: Where = EVERYWHERE,
) -> None:
    """Compare an engine with bm25s for the terms of one post."""
    hits = engine.lexical(terms, k, where)
    scores = corpus.lexical(terms)
    agrees(hits, corpus, scores, k, where, 0.0)


def agrees_by_vector(
    engine: Engine,
    corpus: Corpus,
    vector: np.ndarray,
    k: int,
    where: Where = EVERYWHERE,
) -> None:
    """Compare an engine with FAISS for one vector."""
    hits = engine.dense(vector, k, where)
    scores = corpus.dense(vector)
    agrees(hits, corpus, scores, k, where)


def check(
    engine: Engine,
    corpus: Corpus,
    where: Where = EVERYWHERE,
    k: int = 30,
) -> None:
    """Compare an engine with bm25s and FAISS for a post of each kind, and two vectors."""
    analyser = Analyser(corpus.bm25)
    language = corpus.bm25.language
    for post in POSTS:
        terms = analyser.claim(Claim("c", post, language))
        agrees_by_words(engine, corpus, terms, k, where)
    random_vectors = np.random.default_rng(1).normal(size=(2, WIDTH))
    for vector in random_vectors:
        agrees_by_vector(engine, corpus, vector, k, where)

    some = corpus.papers[::9]
    stamps = {paper.source.id: paper_stamp(paper) for paper in some}
    papers, sentences = engine.fetch_with_sentences([*stamps, "none"])
    assert papers == {paper.source.id: paper for paper in some}
    assert sentences.keys() == stamps.keys()
    for key, vectors in sentences.items():
        np.testing.assert_array_equal(vectors, stamped(stamps[key]))
        assert vectors.dtype == np.float16


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_scores_are_those_of_bm25s_and_faiss_under_every_filter(
    engine: Engine,
    corpus: Corpus,
    where: Where,
) -> None:
    check(engine, corpus, where)


def test_lists_for_several_weights_of_names_are_those_of_one_by_one(engine: Engine) -> None:
    """Also where a list ends before its papers do, and scores of single papers are read."""
    for terms in (["mask", "w2"] + ["w1"] * 6, ["mask"], ["w300"], []):
        for names in (["nature", "zola"], ["reilly"], ["nobody"]):
            weights = (2.0, 0.0, 0.25, 1.0)
            lists = engine.ids_by_weight(terms, names, weights)
            for ids, weight in zip(lists, weights, strict=True):
                hits = engine.lexical(terms, 50, names=names, weight=weight)
                assert ids == [key for key, _ in hits], (terms, names, weight)


def test_a_list_may_be_deeper_than_the_index_and_both_empty(
    engine: Engine,
    corpus: Corpus,
    tmp_path: Path,
) -> None:
    vector = np.ones(WIDTH)
    agrees_by_vector(engine, corpus, vector, 5000)
    agrees_by_words(engine, corpus, ["w1"], 5000)
    assert engine.dense(vector, 0) == []
    assert engine.lexical(["w1"], 0) == []
    assert engine.lexical([], 5) == []

    empty = Engine.create(tmp_path / "index", read_any_manifest())
    ids = [f"p{i}" for i in range(5)]
    for filled in (False, True):
        if filled:
            rows = corpus.rows(range(5))
            empty.upsert(rows)
            empty.build()
            assert empty.delete(ids) == 5
        empty.build()
        assert empty.dense(vector, 5) == []
        assert empty.lexical(["w1", "mask"], 5) == []
        assert empty.stats().papers == 0
        assert list(empty.rows()) == []
    empty.close()


@pytest.mark.slow
def test_an_index_that_grew_shrank_and_changed_scores_as_one_made_at_once(tmp_path: Path) -> None:
    old = Corpus.drawn(300)
    new = Corpus.drawn(300, seed=5)
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    for start in (0, 100, 200):
        rows = old.rows(range(start, start + 100))
        engine.upsert(rows)
        engine.build()
    check(engine, old)

    engine.upsert(new.rows(range(40)))
    engine.upsert(old.rows(range(30, 40)))
    vectors = np.concatenate([new.vectors[:30], old.vectors[30:]])
    changed = replace(
        old,
        papers=new.papers[:30] + old.papers[30:],
        vectors=vectors,
    )
    # Before it is built everything is found already.
    vector = np.ones(WIDTH)
    agrees_by_vector(engine, changed, vector, 9)

    deleted = [
        "p0",
        "p29",
        "p50",
        "p299",
        "p77",
        "none",
        'it\'s "none"',
    ]
    assert engine.delete(deleted) == 5
    assert engine.delete(deleted) == 0
    positions = [i for i in range(300) if f"p{i}" not in deleted]
    left = changed.only(positions)
    found = {key for key, _ in engine.dense(vector, 400)}
    assert not found & set(deleted)
    engine.build()
    check(engine, left)
    check(engine, left, Where(until="2020"))
    assert engine.stats().papers == engine.manifest.papers == 295
    assert not engine.stats().unbuilt

    # Removed papers can be added again.
    engine.upsert(old.rows([50]))
    fetched = engine.fetch(["p50", "p51"])
    assert fetched == {
        "p50": old.papers[50],
        "p51": old.papers[51],
    }
    engine.close()
    engine.close()


def test_papers_come_back_as_they_were_given(tmp_path: Path) -> None:
    odd_source = Source(
        'it\'s "x"\\; --',
        "\x1b[31mT\x00",
        "a\nb\t'",
        ("O'Neil", ""),
        "V\u202e",
        "März",
    )
    odd = Paper(
        odd_source,
        "10.1/x",
        "https://x.org/?q='\"",
        "de",
    )
    papers = [odd, Paper(Source("漢字"))]
    axes = np.eye(2, WIDTH)
    vectors = half(axes)
    stamps = [*map(paper_stamp, papers)]
    rows = Rows(papers, ["a b a", ""], vectors, stamps)
    manifest = read_any_manifest(sentences=0)
    engine = Engine.create(tmp_path / "index", manifest)
    engine.upsert(rows)
    engine.build()

    ids = [paper.source.id for paper in papers]
    fetched = engine.fetch([*ids, "none"])
    assert fetched == dict(zip(ids, papers, strict=True))
    assert engine.fetch([]) == {}
    assert engine.stamps(ids) == dict(zip(ids, rows.stamps, strict=True))
    other_doi = replace(odd, doi="10.1/y")
    assert paper_stamp(odd) != paper_stamp(other_doi)

    (found,) = engine.rows()
    assert found.sentences is None
    _, sentences = engine.fetch_with_sentences(ids)
    assert sentences == {}
    order = [found.papers.index(paper) for paper in papers]
    in_order = found.only(order)
    assert in_order.terms == rows.terms
    assert in_order.stamps == rows.stamps
    np.testing.assert_array_equal(found.vectors[order], vectors)
    assert found.vectors.dtype == np.float16
    nearest = engine.dense(axes[1], 1)
    assert [key for key, _ in nearest] == ["漢字"]

    too_large = np.full((1, 3), 1e6)
    with refused(ValueError, "float16"):
        half(too_large)
    too_short = replace(rows, vectors=vectors[:, :5])
    with refused(ValueError, "float16", "[papers, "):
        engine.upsert(too_short)
    engine.close()

    keeping = Engine.create(tmp_path / "keeping", read_any_manifest())
    sentence = np.zeros((1, 5), np.float16)
    short_sentences = replace(rows, sentences=[sentence] * 2)
    with refused(ValueError, "float16 [sentences, d]"):
        keeping.upsert(short_sentences)
    keeping.close()


@pytest.mark.slow
def test_a_copy_of_the_folder_is_a_copy_of_the_index(
    engine: Engine,
    corpus: Corpus,
    tmp_path: Path,
) -> None:
    folder = Path(engine.location)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    engine.lock()  # a writer's lock is copied too
    shutil.copytree(folder, tmp_path / "copy")
    engine.close()
    shutil.move(tmp_path / "copy", tmp_path / "moved")
    copy = open_index(tmp_path / "moved")
    check(copy, corpus, k=10)
    count = len(corpus.papers)
    assert copy.manifest == engine.manifest
    assert copy.stats().papers == count
    copy.delete(["p3"])
    copy.build()
    copy.close()
    left = corpus.only([i for i in range(count) if i != 3])
    check(copy, left, k=10)
    check(engine, corpus, k=10)
    for path, time in before.items():
        if path.is_file():
            assert path.stat().st_mtime_ns == time


def test_an_address_of_another_program_is_refused_without_its_password() -> None:
    for use in (open_index, is_engine):
        with refused(UserError, "allowed: s3://") as error:
            use("qdrants://me:secret@host/papers")
        message = str(error.value)
        assert "secret" not in message
        assert "\n" not in message


@pytest.mark.slow
def test_one_process_writes_while_others_read(tmp_path: Path, corpus: Corpus) -> None:
    folder = tmp_path / "index"
    engine = Engine.create(folder, read_any_manifest())
    engine.upsert(corpus.rows(range(10)))
    reader = open_index(folder)
    code = "import sys; from claim2source.search.engine import open_index; open_index(sys.argv[1]).lock()"
    words = [sys.executable, "-c", code, str(folder)]
    process = subprocess.run(
        words,
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert "in use by process" in process.stderr
    vector = np.ones(WIDTH)
    assert len(reader.dense(vector, 50)) == 10
    engine.upsert(corpus.rows(range(10, 20)))
    assert len(reader.dense(vector, 50)) == 10  # one answer is of one state
    reader.refresh()
    assert len(reader.dense(vector, 50)) == 20
    engine.close()
    assert reader.delete(["p1"]) == 1
    reader.close()


@pytest.mark.slow
def test_a_listed_paper_is_read_as_it_was_in_its_state(tmp_path: Path) -> None:
    old = Corpus.drawn(30)
    new = Corpus.drawn(30, seed=5)
    vector = np.ones(WIDTH)
    folder = tmp_path / "index"
    writer = Engine.create(folder, read_any_manifest())
    writer.upsert(old.rows())
    writer.build()
    reader = open_index(folder)
    ids = [f"p{i}" for i in range(30)]
    before = dict(zip(ids, old.papers, strict=True))
    for engine in (writer, reader):
        assert len(engine.dense(vector, 30)) == 30
        assert engine.fetch(ids) == before

    # Rows are rewritten, merged and moved.
    writer.upsert(new.rows(range(10)))
    assert writer.delete(["p20"]) == 1
    after = {key: paper for key, paper in before.items() if key != "p20"}
    after |= {paper.source.id: paper for paper in new.papers[:10]}
    assert writer.fetch(ids) == after
    assert reader.fetch(ids) == before
    assert writer.dense(vector, 30) != reader.dense(vector, 30)
    assert writer.fetch([*after]) == after
    writer.build()
    assert writer.fetch(ids) == after
    assert reader.fetch(ids) == before
    reader.refresh()
    assert reader.fetch(ids) == after

    # An index of before had one partition.
    hits = reader.dense(vector, 30)
    reader.manifest = replace(reader.manifest, partitions=1, probes=1)
    assert reader.dense(vector, 30) == hits
    writer.close()


@pytest.mark.slow
def test_all_vectors_are_compared_however_an_index_grew(tmp_path: Path) -> None:
    count = 19_000
    first = 17_000
    rng = np.random.default_rng(4)
    vectors = half(rng.normal(size=(count, WIDTH)))
    papers = [Paper(Source(f"p{i}", f"w{i % 40}")) for i in range(count)]

    def rows(start: int, end: int) -> Rows:
        chunk = papers[start:end]
        titles = [paper.source.title for paper in chunk]
        stamps = [*map(paper_stamp, chunk)]
        return Rows(chunk, titles, vectors[start:end], stamps)

    def scores(engine: Engine, vector: np.ndarray) -> list[float]:
        return [score for _, score in engine.dense(vector, 200)]

    folder = tmp_path / "index"
    manifest = read_any_manifest(sentences=0)
    engine = Engine.create(folder, manifest)
    for start, end in ((0, first), (first, count), (0, 0)):
        engine.upsert(rows(start, end))
        engine.build()
        assert not engine.manifest.partitions
        written = vectors[: end or count].astype(np.float32)
        for vector in np.eye(WIDTH, dtype=np.float32)[:5]:
            falling = np.sort(written @ vector)[::-1]
            best = falling[:200]
            np.testing.assert_allclose(scores(engine, vector), best, rtol=1e-6)

    # A writer that ends during a build leaves an index that compares all vectors.
    reader = open_index(folder)
    seen: list[float] = []
    ones = np.ones(WIDTH)
    before = scores(engine, ones)
    engine.exact_below = 1000

    def stop(line: str) -> None:
        reader.refresh()
        seen.extend(scores(reader, ones))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.build(stop)
    assert seen == before
    assert len(seen) == 200
    assert not engine.manifest.partitions
    engine.build()
    assert engine.manifest.partitions == round(count**0.5)

    # And of an older state, which was divided.
    version = engine.version
    engine.exact_below = count + 1
    engine.build()
    assert not engine.manifest.partitions
    assert scores(engine, ones) == before
    older = open_index(folder, version)
    assert scores(older, ones) == before
    engine.close()


@pytest.mark.parametrize("exact_below", [EXACT, 100])
@pytest.mark.slow
def test_an_index_of_before_with_vectors_of_16_bits_is_searched_and_grows(
    tmp_path: Path,
    corpus: Corpus,
    exact_below: int,
) -> None:
    folder = tmp_path / "index"
    with closing(Engine.create(folder, read_any_manifest())) as engine:
        engine.upsert(corpus.rows(range(300)))
        stored = engine._table.schema.field("vector")
        assert stored.type.value_type == pa.float32()

    table = connection(open_files(folder)).open_table("papers").to_arrow()
    column = table.schema.get_field_index("vector")
    half_precision = pa.list_(pa.float16(), WIDTH)
    field = pa.field("vector", half_precision, nullable=False)
    halves = table["vector"].cast(half_precision)
    table = table.set_column(column, field, halves)
    connection(open_files(folder)).create_table("papers", table, mode="overwrite")
    (folder / "papers.files.json").unlink()

    with closing(Engine.open(folder, exact_below=exact_below)) as engine:
        check(engine, corpus.only(range(300)))
        engine.upsert(corpus.rows(range(300, 800)))
        engine.build()
        assert (engine.manifest.partitions > 0) == (exact_below == 100)
        engine.manifest = replace(engine.manifest, probes=engine.manifest.partitions)
        check(engine, corpus)
        parts = list(engine.rows(800))
        for rows in parts:
            assert rows.vectors.dtype == np.float16
        papers = [paper for rows in parts for paper in rows.papers]
        assert tuple(papers) == corpus.papers
        vectors = np.concatenate([rows.vectors for rows in parts])
        np.testing.assert_array_equal(vectors, corpus.vectors)


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, corpus: Corpus) -> None:
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    with refused(UserError, "idx: bm25.stemmer: "):
        engine.manifest.check_analyser(BM25(stemmer=False), "idx")
    engine.manifest.check_analyser(BM25(claims="bilingual"), "idx")
    analyser = {**engine.manifest.analyser, "analysis": "2"}
    manifest = replace(engine.manifest, analyser=analyser)
    with refused(UserError, "idx: ", "version"):
        manifest.check_analyser(manifest.bm25, "idx")
    engine.close()
    for bm25 in (BM25(k1=1.5), BM25("whitespace")):
        with refused(ConfigError, "bm25"):
            Engine.create(tmp_path / "other", read_any_manifest(bm25))

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    with refused(UserError, mine, "manifest.json"):
        open_index(mine)
    with refused(InputError, mine, "--out"):
        Engine.create(mine, read_any_manifest())
    assert [path.name for path in mine.iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_above_a_size_partitions_are_searched_with_the_recall_that_was_asked_for(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(3)
    corpus = Corpus.drawn(3000)
    centres = rng.normal(size=(40, WIDTH))
    near = centres[rng.integers(0, 40, 3000)]
    vectors = near + rng.normal(size=(3000, WIDTH)) / 3
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    corpus = replace(corpus, vectors=half(vectors))
    log: list[str] = []
    folder = tmp_path / "index"
    manifest = read_any_manifest()
    engine = Engine.create(folder, manifest, exact_below=1000)
    engine.upsert(corpus.rows())
    engine.build(log.append)
    own = engine.manifest
    assert 0 < own.probes < own.partitions == 55
    assert own.recall >= 0.97
    assert f"{own.probes} of 55 partitions" in log[0]
    assert f"{own.recall:.4f}" in log[0]
    first = vectors[rng.integers(0, 3000, 40)]
    second = vectors[rng.integers(0, 3000, 40)]
    queries = first + second / 2

    def recall() -> float:
        shares = []
        for vector in queries:
            rising = np.sort(corpus.dense(vector))
            truth = rising[-100:]
            lowest = truth[0] - 1e-4
            hits = engine.dense(vector, 100)
            assert len(hits) == 100  # also where a partition holds fewer
            found = [score >= lowest for _, score in hits]
            shares.append(np.mean(found))
        return float(np.mean(shares))

    tuned = recall()
    assert tuned >= 0.97
    # Not after one more build, in which LanceDB joins so small partitions.
    engine.manifest = replace(own, probes=1)
    assert recall() < tuned  # it is really not exact
    engine.manifest = own
    # If few papers are left the search is exact, however far away they are.
    for where in FILTERS[4:6]:
        agrees_by_vector(engine, corpus, centres[0], 50, where)

    # While vectors are partitioned again, readers compare all, even if the writer ends then.
    drawn = Corpus.drawn(6500)
    new_vectors = half(rng.normal(size=(6500, WIDTH)))
    grown = replace(drawn, vectors=new_vectors)
    engine.upsert(grown.rows(range(3000, 6500)))
    reader = Engine.open(folder, exact_below=1000)

    def stop(line: str) -> None:
        reader.refresh()
        for vector in queries:
            exact = reader.dense(vector, 100, exact=True)
            assert reader.dense(vector, 100) == exact
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.build(stop)
    engine.build()
    assert engine.manifest.partitions == round(6500**0.5)
    engine.close()
