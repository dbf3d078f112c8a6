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
from claim2source.search.bm25 import BM25, Analyser
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
    own = Engine.create(tmp_path_factory.mktemp("engine") / "index", read_any_manifest())
    own.upsert(corpus.rows())
    own.build()
    yield own
    own.close()


def check(engine: Engine, corpus: Corpus, where: Where = EVERYWHERE, k: int = 30) -> None:
    """Compare an engine with bm25s and FAISS for a post of each kind, and two vectors."""
    analyser = Analyser(corpus.bm25)
    for post in POSTS:
        terms = analyser.claim(Claim("c", post, corpus.bm25.language))
        agrees(engine.lexical(terms, k, where), corpus, corpus.lexical(terms), k, where, 0.0)
    for vector in np.random.default_rng(1).normal(size=(2, WIDTH)):
        agrees(engine.dense(vector, k, where), corpus, corpus.dense(vector), k, where)
    stamps = {paper.source.id: paper_stamp(paper) for paper in corpus.papers[::9]}
    papers, sentences = engine.fetch_with_sentences([*stamps, "none"])
    assert papers == {paper.source.id: paper for paper in corpus.papers[::9]}
    assert sentences.keys() == stamps.keys()
    for key, vectors in sentences.items():
        np.testing.assert_array_equal(vectors, stamped(stamps[key]))
        assert vectors.dtype == np.float16


@pytest.mark.parametrize("where", FILTERS, ids=str)
def test_scores_are_those_of_bm25s_and_faiss_under_every_filter(
    engine: Engine, corpus: Corpus, where: Where
) -> None:
    check(engine, corpus, where)


def test_a_list_may_be_deeper_than_the_index_and_both_empty(
    engine: Engine, corpus: Corpus, tmp_path: Path
) -> None:
    vector = np.ones(WIDTH)
    agrees(engine.dense(vector, 5000), corpus, corpus.dense(vector), 5000, Where())
    agrees(engine.lexical(["w1"], 5000), corpus, corpus.lexical(["w1"]), 5000, Where(), 0.0)
    assert engine.dense(vector, 0) == engine.lexical(["w1"], 0) == engine.lexical([], 5) == []
    empty = Engine.create(tmp_path / "index", read_any_manifest())
    for filled in (False, True):
        if filled:
            empty.upsert(corpus.rows(range(5)))
            empty.build()
            assert empty.delete([f"p{i}" for i in range(5)]) == 5
        empty.build()
        assert empty.dense(vector, 5) == empty.lexical(["w1", "mask"], 5) == []
        assert empty.stats().papers == 0 and list(empty.rows()) == []
    empty.close()


@pytest.mark.slow
def test_an_index_that_grew_shrank_and_changed_scores_as_one_made_at_once(tmp_path: Path) -> None:
    old, new = Corpus.drawn(300), Corpus.drawn(300, seed=5)
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    for start in (0, 100, 200):
        engine.upsert(old.rows(range(start, start + 100)))
        engine.build()
    check(engine, old)
    engine.upsert(new.rows(range(40)))
    engine.upsert(old.rows(range(30, 40)))
    changed = replace(
        old,
        papers=new.papers[:30] + old.papers[30:],
        vectors=np.concatenate([new.vectors[:30], old.vectors[30:]]),
    )
    # Before it is built everything is found already.
    vector = np.ones(WIDTH)
    agrees(engine.dense(vector, 9), changed, changed.dense(vector), 9, Where())
    deleted = ["p0", "p29", "p50", "p299", "p77", "none", 'it\'s "none"']
    assert engine.delete(deleted) == 5 and engine.delete(deleted) == 0
    left = changed.only([i for i in range(300) if f"p{i}" not in deleted])
    assert not {key for key, _ in engine.dense(vector, 400)} & set(deleted)
    engine.build()
    check(engine, left)
    check(engine, left, Where(until="2020"))
    assert engine.stats().papers == engine.manifest.papers == 295 and not engine.stats().unbuilt
    # Removed papers can be added again.
    engine.upsert(old.rows([50]))
    assert engine.fetch(["p50", "p51"]) == {f"p{i}": old.papers[i] for i in (50, 51)}
    engine.close()
    engine.close()


def test_papers_come_back_as_they_were_given(tmp_path: Path) -> None:
    odd = Paper(
        Source('it\'s "x"\\; --', "\x1b[31mT\x00", "a\nb\t'", ("O'Neil", ""), "V\u202e", "März"),
        "10.1/x",
        "https://x.org/?q='\"",
        "de",
    )
    papers = [odd, Paper(Source("漢字"))]
    vectors = half(np.eye(2, WIDTH))
    rows = Rows(papers, ["a b a", ""], vectors, [*map(paper_stamp, papers)])
    engine = Engine.create(tmp_path / "index", read_any_manifest(sentences=0))
    engine.upsert(rows)
    engine.build()
    ids = [paper.source.id for paper in papers]
    assert engine.fetch([*ids, "none"]) == dict(zip(ids, papers, strict=True))
    assert engine.fetch([]) == {} and engine.stamps(ids) == dict(zip(ids, rows.stamps, strict=True))
    assert paper_stamp(odd) != paper_stamp(replace(odd, doi="10.1/y"))
    (found,) = engine.rows()
    assert found.sentences is None and engine.fetch_with_sentences(ids)[1] == {}
    order = [found.papers.index(paper) for paper in papers]
    assert found.only(order).terms == rows.terms and found.only(order).stamps == rows.stamps
    np.testing.assert_array_equal(found.vectors[order], vectors)
    assert found.vectors.dtype == np.float16
    assert [key for key, _ in engine.dense(np.eye(2, WIDTH)[1], 1)] == ["漢字"]
    with refused(ValueError, "float16"):
        half(np.full((1, 3), 1e6))
    with refused(ValueError, "float16", "[papers, "):
        engine.upsert(replace(rows, vectors=vectors[:, :5]))
    engine.close()
    keeping = Engine.create(tmp_path / "keeping", read_any_manifest())
    with refused(ValueError, "float16 [sentences, d]"):
        keeping.upsert(replace(rows, sentences=[np.zeros((1, 5), np.float16)] * 2))
    keeping.close()


@pytest.mark.slow
def test_a_copy_of_the_folder_is_a_copy_of_the_index(
    engine: Engine, corpus: Corpus, tmp_path: Path
) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(engine.location).rglob("*")}
    engine.lock()  # a writer's lock is copied too
    shutil.copytree(Path(engine.location), tmp_path / "copy")
    engine.close()
    shutil.move(tmp_path / "copy", tmp_path / "moved")
    copy = open_index(tmp_path / "moved")
    check(copy, corpus, k=10)
    assert copy.manifest == engine.manifest and copy.stats().papers == len(corpus.papers)
    copy.delete(["p3"])
    copy.build()
    copy.close()
    check(copy, corpus.only([i for i in range(len(corpus.papers)) if i != 3]), k=10)
    check(engine, corpus, k=10)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items() if path.is_file())


def test_an_address_of_another_program_is_refused_without_its_password() -> None:
    for use in (open_index, is_engine):
        with refused(UserError, "allowed: s3://") as error:
            use("qdrants://me:secret@host/papers")
        assert "secret" not in str(error.value) and "\n" not in str(error.value)


def test_one_process_writes_while_others_read(tmp_path: Path, corpus: Corpus) -> None:
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    engine.upsert(corpus.rows(range(10)))
    reader = open_index(tmp_path / "index")
    code = "import sys; from claim2source.search.engine import open_index; open_index(sys.argv[1]).lock()"
    words = [sys.executable, "-c", code, str(tmp_path / "index")]
    process = subprocess.run(words, capture_output=True, text=True, cwd=REPOSITORY)
    assert "in use by process" in process.stderr
    assert len(reader.dense(np.ones(WIDTH), 50)) == 10
    engine.upsert(corpus.rows(range(10, 20)))
    assert len(reader.dense(np.ones(WIDTH), 50)) == 10  # one answer is of one state
    reader.refresh()
    assert len(reader.dense(np.ones(WIDTH), 50)) == 20
    engine.close()
    assert reader.delete(["p1"]) == 1
    reader.close()


@pytest.mark.slow
def test_a_listed_paper_is_read_as_it_was_in_its_state(tmp_path: Path) -> None:
    old, new = Corpus.drawn(30), Corpus.drawn(30, seed=5)
    writer = Engine.create(tmp_path / "index", read_any_manifest())
    writer.upsert(old.rows())
    writer.build()
    reader, ids = open_index(tmp_path / "index"), [f"p{i}" for i in range(30)]
    before = dict(zip(ids, old.papers, strict=True))
    for engine in (writer, reader):
        assert len(engine.dense(np.ones(WIDTH), 30)) == 30 and engine.fetch(ids) == before
    # Rows are rewritten, merged and moved.
    writer.upsert(new.rows(range(10)))
    assert writer.delete(["p20"]) == 1
    after = {key: paper for key, paper in before.items() if key != "p20"}
    after |= {paper.source.id: paper for paper in new.papers[:10]}
    assert writer.fetch(ids) == after and reader.fetch(ids) == before
    assert writer.dense(np.ones(WIDTH), 30) != reader.dense(np.ones(WIDTH), 30)
    assert writer.fetch([*after]) == after
    writer.build()
    assert writer.fetch(ids) == after and reader.fetch(ids) == before
    reader.refresh()
    assert reader.fetch(ids) == after
    # An index of before had one partition.
    hits = reader.dense(np.ones(WIDTH), 30)
    reader.manifest = replace(reader.manifest, partitions=1, probes=1)
    assert reader.dense(np.ones(WIDTH), 30) == hits
    writer.close()


@pytest.mark.slow
def test_all_vectors_are_compared_however_an_index_grew(tmp_path: Path) -> None:
    count, first = 19_000, 17_000
    vectors = half(np.random.default_rng(4).normal(size=(count, WIDTH)))
    papers = [Paper(Source(f"p{i}", f"w{i % 40}")) for i in range(count)]

    def rows(start: int, end: int) -> Rows:
        chunk = papers[start:end]
        titles = [paper.source.title for paper in chunk]
        return Rows(chunk, titles, vectors[start:end], [*map(paper_stamp, chunk)])

    def scores(engine: Engine, vector: np.ndarray) -> list[float]:
        return [score for _, score in engine.dense(vector, 200)]

    engine = Engine.create(tmp_path / "index", read_any_manifest(sentences=0))
    for start, end in ((0, first), (first, count), (0, 0)):
        engine.upsert(rows(start, end))
        engine.build()
        assert not engine.manifest.partitions
        written = vectors[: end or count].astype(np.float32)
        for vector in np.eye(WIDTH, dtype=np.float32)[:5]:
            best = np.sort(written @ vector)[::-1][:200]
            np.testing.assert_allclose(scores(engine, vector), best, rtol=1e-6)
    # A writer that ends during a build leaves an index that compares all vectors.
    reader, seen = open_index(tmp_path / "index"), list[float]()
    before = scores(engine, np.ones(WIDTH))
    engine.exact_below = 1000

    def stop(line: str) -> None:
        reader.refresh()
        seen.extend(scores(reader, np.ones(WIDTH)))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.build(stop)
    assert seen == before and len(seen) == 200 and not engine.manifest.partitions
    engine.build()
    assert engine.manifest.partitions == round(count**0.5)
    # And of an older state, which was divided.
    version, engine.exact_below = engine.version, count + 1
    engine.build()
    assert not engine.manifest.partitions and scores(engine, np.ones(WIDTH)) == before
    assert scores(open_index(tmp_path / "index", version), np.ones(WIDTH)) == before
    engine.close()


@pytest.mark.parametrize("exact_below", [EXACT, 100])
@pytest.mark.slow
def test_an_index_of_before_with_vectors_of_16_bits_is_searched_and_grows(
    tmp_path: Path, corpus: Corpus, exact_below: int
) -> None:
    folder = tmp_path / "index"
    with closing(Engine.create(folder, read_any_manifest())) as engine:
        engine.upsert(corpus.rows(range(300)))
        assert engine._table.schema.field("vector").type.value_type == pa.float32()
    table = connection(open_files(folder)).open_table("papers").to_arrow()
    column, half_precision = table.schema.get_field_index("vector"), pa.list_(pa.float16(), WIDTH)
    field = pa.field("vector", half_precision, nullable=False)
    table = table.set_column(column, field, table["vector"].cast(half_precision))
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
        assert all(rows.vectors.dtype == np.float16 for rows in parts)
        papers = [paper for rows in parts for paper in rows.papers]
        assert tuple(papers) == corpus.papers
        vectors = np.concatenate([rows.vectors for rows in parts])
        np.testing.assert_array_equal(vectors, corpus.vectors)


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, corpus: Corpus) -> None:
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    with refused(UserError, "idx: bm25.stemmer: "):
        engine.manifest.check_analyser(BM25(stemmer=False), "idx")
    engine.manifest.check_analyser(BM25(claims="bilingual"), "idx")
    manifest = replace(engine.manifest, analyser={**engine.manifest.analyser, "analysis": "2"})
    with refused(UserError, "idx: ", "version"):
        manifest.check_analyser(manifest.bm25, "idx")
    engine.close()
    for bm25 in (BM25(k1=1.5), BM25("whitespace")):
        with refused(ConfigError, "bm25"):
            Engine.create(tmp_path / "other", read_any_manifest(bm25))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with refused(UserError, tmp_path / "mine", "manifest.json"):
        open_index(tmp_path / "mine")
    with refused(InputError, tmp_path / "mine", "--out"):
        Engine.create(tmp_path / "mine", read_any_manifest())
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


@pytest.mark.slow
def test_above_a_size_partitions_are_searched_with_the_recall_that_was_asked_for(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(3)
    corpus = Corpus.drawn(3000)
    centres = rng.normal(size=(40, WIDTH))
    vectors = centres[rng.integers(0, 40, 3000)] + rng.normal(size=(3000, WIDTH)) / 3
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    corpus = replace(corpus, vectors=half(vectors))
    log: list[str] = []
    engine = Engine.create(tmp_path / "index", read_any_manifest(), exact_below=1000)
    engine.upsert(corpus.rows())
    engine.build(log.append)
    own = engine.manifest
    assert 0 < own.probes < own.partitions == 55 and own.recall >= 0.97
    assert f"{own.probes} of 55 partitions" in log[0] and f"{own.recall:.4f}" in log[0]
    queries = vectors[rng.integers(0, 3000, 40)] + vectors[rng.integers(0, 3000, 40)] / 2

    def recall() -> float:
        shares = []
        for vector in queries:
            truth = np.sort(corpus.dense(vector))[-100:]
            hits = engine.dense(vector, 100)
            assert len(hits) == 100  # also where a partition holds fewer
            shares.append(np.mean([score >= truth[0] - 1e-4 for _, score in hits]))
        return float(np.mean(shares))

    tuned = recall()
    assert tuned >= 0.97
    # Not after one more build, in which LanceDB joins so small partitions.
    engine.manifest = replace(own, probes=1)
    assert recall() < tuned  # it is really not exact
    engine.manifest = own
    # If few papers are left the search is exact, however far away they are.
    for where in FILTERS[4:6]:
        agrees(engine.dense(centres[0], 50, where), corpus, corpus.dense(centres[0]), 50, where)
    # While vectors are partitioned again, readers compare all, even if the writer ends then.
    grown = replace(Corpus.drawn(6500), vectors=half(rng.normal(size=(6500, WIDTH))))
    engine.upsert(grown.rows(range(3000, 6500)))
    reader = Engine.open(tmp_path / "index", exact_below=1000)

    def stop(line: str) -> None:
        reader.refresh()
        for vector in queries:
            assert reader.dense(vector, 100) == reader.dense(vector, 100, exact=True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.build(stop)
    engine.build()
    assert engine.manifest.partitions == round(6500**0.5)
    engine.close()
