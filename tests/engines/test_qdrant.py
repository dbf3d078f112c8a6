"""Qdrant: addresses, keys, requests over REST, one writer, what does not fit."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from qdrant_client import QdrantClient

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim
from claim2source.engines import Where, is_engine, migrate, open_engine
from claim2source.engines.address import Address
from claim2source.engines.lance import LanceEngine
from claim2source.engines.lease import Lease
from claim2source.engines.manifest import IndexManifest
from claim2source.engines.qdrant import WRITER, QdrantEngine
from claim2source.retrieve import BM25, BM25Config
from claim2source.retrieve.analyser import Analyser
from eval.migrate import main as migrate_main
from tests.engines.engines import WIDTH, Corpus, agrees, manifest_of
from tests.engines.qdrant_server import qdrant_server

SECRET = "s3cret-key"


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus.drawn(120)


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QDRANT_API_KEY", raising=False)


def manifest(bm25: BM25Config | None = None) -> IndexManifest:
    return replace(manifest_of(bm25), index="qdrant")


def at(folder: Path) -> str:
    """The address of papers in a folder."""
    return f"qdrant://{folder}/papers"


@pytest.mark.parametrize(
    ("place", "host", "port", "tls", "shards", "replicas"),
    [
        ("qdrant://a.example.org/papers", "a.example.org", 6333, False, None, None),
        ("qdrants://[::1]:443/my.papers-2?shards=6&replicas=2", "::1", 443, True, 6, 2),
    ],
)
def test_an_address_is_read(
    place: str, host: str, port: int, tls: bool, shards: int | None, replicas: int | None
) -> None:
    found = Address.parsed(place)
    assert (found.host, found.port, found.tls) == (host, port, tls)
    assert (found.shards, found.replicas, found.folder) == (shards, replicas, None)
    assert Address.parsed(str(found)) == replace(found, shards=None, replicas=None)


@pytest.mark.parametrize(
    "place",
    [
        f"qdrant://user:{SECRET}@host:6333/papers",
        f"qdrant://{SECRET}@host/papers",
        f"qdrant://host/papers?api_key={SECRET}",
        f"qdrant://host/papers?{SECRET}",
        f"qdrant://host/papers#{SECRET}",
        f"qdrant://host/papers?shards={SECRET}",
        "qdrant://host/papers?replicas=0",
        "qdrant://host:6333",
        "qdrant://host:99999/papers",
        "qdrant://host/a/b",
        "qdrant://host/..",
        "qdrant:///papers",
        "qdrant://:memory:/a/b",
        "qdrants:///folder/papers",
        "qdrant:///folder/papers?shards=2",
    ],
)
def test_another_address_is_refused_and_a_key_in_it_not_repeated(place: str) -> None:
    for use in (open_engine, is_engine):
        with pytest.raises(UserError) as caught:
            use(place)
        assert SECRET not in str(caught.value) and "address" in str(caught.value)


def test_requests_over_rest_carry_the_key_and_are_acknowledged(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", f" {SECRET}\n")
    with qdrant_server(SECRET) as server:
        place = f"qdrant://127.0.0.1:{server.port}/papers"
        assert not is_engine(place)
        with pytest.raises(InputError, match="there is no such collection"):
            open_engine(place)
        engine = QdrantEngine.create(f"{place}?shards=3&replicas=3", manifest())
        engine.upsert(corpus.rows())
        engine.build()
        assert engine.delete(["p0", "p1", "none"]) == 2
        engine.upsert(corpus.rows(range(2)))
        engine.build()
        engine.close()
        bodies = {(m, p.removeprefix("/collections/papers")): b for m, p, _, _, b in server.asked}
        made = bodies["PUT", ""]
        assert (made["shard_number"], made["replication_factor"]) == (3, 3)
        assert made["write_consistency_factor"] == 2
        assert made["vectors"]["dense"]["datatype"] == "float16"
        assert made["vectors"]["dense"]["distance"] == "Dot"
        assert made["sparse_vectors"]["terms"]["modifier"] == "idf"
        indexed = {b["field_name"] for m, p, _, _, b in server.asked if p.endswith("/index")}
        assert indexed == {"day", "lang", "venue_key", "average", "fresh"}
        changes = ("/points", "/points/delete", "/points/payload", "/points/vectors", "/index")
        written = [
            query
            for method, path, query, _, _ in server.asked
            if path.endswith(changes) and (method == "PUT" or path.endswith(("delete", "payload")))
        ]
        assert len(written) > 5 and all("wait=true" in query for query in written)
        assert {key for _, _, _, key, _ in server.asked} == {SECRET}

        assert is_engine(place)
        reader = open_engine(place)
        vector, where = np.ones(WIDTH), Where(until="2021-03-05", ids=("p3", "p5", "p8"))
        for chosen in (Where(), where):
            agrees(reader.dense(vector, 9, chosen), corpus, corpus.dense(vector), 9, chosen)
            scores = corpus.lexical(["w1", "w3", "w1"])
            hits = reader.lexical(["w1", "w3", "w1"], 9, chosen)
            agrees(hits, corpus, scores, 9, chosen, 0.0)
        assert server.asked[-2][-1]["params"] == {"exact": True}  # the vectors of `where`
        assert reader.fetch(["p7"]) == {"p7": corpus.papers[7]}
        copy = migrate(reader, tmp_path / "copy")
        agrees(copy.dense(vector, 9), corpus, corpus.dense(vector), 9, Where())
        copy.close()

        monkeypatch.setenv("QDRANT_API_KEY", "another")
        with pytest.raises(UserError, match="refuses the key in QDRANT_API_KEY") as caught:
            open_engine(place)
        assert "another" not in str(caught.value)
        monkeypatch.delenv("QDRANT_API_KEY")
        with pytest.raises(UserError, match="asks for a key: set QDRANT_API_KEY"):
            open_engine(place)
    with pytest.raises(UserError, match="the server cannot be reached") as caught:
        open_engine(place)
    assert len(caught.value.lines) == 1 and "\n" not in str(caught.value)


def test_a_key_crosses_a_network_with_tls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QDRANT_API_KEY", SECRET)
    with pytest.raises(UserError, match="is sent with TLS only") as caught:
        open_engine("qdrant://192.0.2.1/papers")
    assert SECRET not in str(caught.value)
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def listen() -> None:
            connection, _ = listening.accept()
            with connection:
                heard.append(connection.recv(65_536))

        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        with pytest.raises(UserError, match="the server cannot be reached"):
            open_engine(f"qdrants://127.0.0.1:{listening.getsockname()[1]}/papers")
        thread.join(10)
    assert heard[0][:1] == b"\x16" and SECRET.encode() not in heard[0]  # a TLS handshake


def test_one_writer_at_a_time(tmp_path: Path, corpus: Corpus) -> None:
    place = at(tmp_path / "index")
    writer = QdrantEngine.create(place, manifest())
    writer.upsert(corpus.rows(range(5)))
    other = open_engine(place)
    with pytest.raises(UserError, match="in use by process"):
        other.upsert(corpus.rows(range(5, 9)))
    assert other.stats().papers == 5
    writer.close()
    assert other.delete(["p1"]) == 1
    with pytest.raises(UserError, match="in use by process"):
        writer.lock()
    other.close()

    def leave(lease: Lease) -> None:
        writer._ask("update_collection", metadata={WRITER: lease.written()})

    # A process that is gone from this machine, or whose time is up, keeps nobody out.
    elsewhere = Lease(host="elsewhere")
    for gone in (Lease(pid=2**22 + 5), replace(elsewhere, until=0.0)):
        leave(gone)
        writer.lock()
        writer.close()
    leave(elsewhere)
    with pytest.raises(UserError, match="process .* on elsewhere, whose lease ends in"):
        writer.lock()
    # One that was taken for gone stops at its next write, and leaves the other's lease.
    leave(Lease(pid=2**22 + 5))
    writer.lock()
    leave(elsewhere)
    with pytest.raises(UserError, match="took over as its writer"):
        writer.upsert(corpus.rows(range(5, 9)))
    writer.close()
    assert writer.stats().papers == 4
    assert Lease.read((writer._metadata() or {})[WRITER]) == elsewhere


def test_an_index_is_migrated_to_an_address_by_the_program_and_a_weight_made_once(
    tmp_path: Path, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = corpus.only(range(30))
    engine = LanceEngine.create(tmp_path / "idx", manifest_of())
    engine.upsert(corpus.rows())
    engine.build()
    engine.close()
    # A copy begins with the average length of what it is made of.
    weighed: list[str] = []
    weights = QdrantEngine._weights

    def counted(engine: QdrantEngine, text: str, average: float) -> object:
        weighed.append(text)
        return weights(engine, text, average)

    monkeypatch.setattr(QdrantEngine, "_weights", counted)
    place = at(tmp_path / "qdrant")
    migrate_main([str(tmp_path / "idx"), place])
    assert len(weighed) == len(corpus.papers)
    copy = open_engine(place)
    scores = corpus.lexical(["w1", "w9"])
    agrees(copy.lexical(["w1", "w9"], 50), corpus, scores, 50, Where(), 0.0)
    assert copy.manifest == replace(engine.manifest, index="qdrant")
    with pytest.raises(InputError, match="holds an index already"):
        migrate_main([str(tmp_path / "idx"), place])


def test_the_size_of_a_search_of_the_graph_is_chosen_once_the_server_has_built_it(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    with qdrant_server() as server:
        place = f"qdrant://127.0.0.1:{server.port}/papers"
        engine = QdrantEngine.create(place, manifest(), exact_below=100)
        engine.upsert(corpus.rows())
        server.status, waited = "yellow", []

        def wait(seconds: float) -> None:
            waited.append(seconds)
            server.status = "green" if len(waited) == 3 else "yellow"

        monkeypatch.setattr("claim2source.engines.qdrant.time.sleep", wait)
        monkeypatch.setattr("claim2source.engines.qdrant.QUERIES", 10)
        said: list[str] = []
        engine.build(said.append)
        assert len(waited) == 3 and said[0].startswith("hnsw_ef 1: recall@100 1.0000")
        assert open_engine(place).manifest.probes == 1
        engine.dense(np.ones(WIDTH), 5)
        assert server.asked[-1][-1]["params"] == {"hnsw_ef": 1}
        # Where a filter leaves few papers all of them are compared.
        engine.dense(np.ones(WIDTH), 5, Where(language="de"))
        assert server.asked[-1][-1]["params"] == {"exact": True}
        engine.close()


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, corpus: Corpus) -> None:
    place = at(tmp_path / "index")
    with pytest.raises(InputError, match="there is no such collection"):
        open_engine(place)
    assert not (tmp_path / "index").exists()
    with pytest.raises(ConfigError, match=r"bm25\.analysis"):
        QdrantEngine.create(place, manifest(BM25Config("whitespace")))
    bm25 = BM25Config(k1=1.5, b=0.5)
    engine = QdrantEngine.create(place, manifest(bm25))
    # Qdrant has any k1 and b.
    few = corpus.only(range(20))
    engine.upsert(few.rows())
    engine.build()
    ours = BM25(bm25).index([paper.source for paper in few.papers])
    expected = ours.search("masks studied w1 w2", 9).scored("0")
    hits = open_engine(place).lexical(Analyser(bm25).claim(Claim("0", "masks studied w1 w2")), 9)
    np.testing.assert_allclose([score for _, score in hits], list(expected.values()), rtol=1e-5)
    assert len(hits) == 9
    with pytest.raises(InputError, match="is not replaced"):
        QdrantEngine.create(place, manifest())
    engine.close()
    engine._client.create_collection("others", vectors_config={})
    others = place.replace("/papers", "/others")
    assert not is_engine(others)
    with pytest.raises(InputError, match="a collection, but not an index"):
        open_engine(others)
    with pytest.raises(InputError, match="is not replaced"):
        QdrantEngine.create(others, manifest())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    outside = QdrantClient(path=str(tmp_path / "theirs"))
    with pytest.raises(InputError, match="in use by another process"):
        open_engine(at(tmp_path / "theirs"))
    outside.close()
    with pytest.raises(InputError, match="holds something else"):
        QdrantEngine.create(at(tmp_path / "mine"), manifest())
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]
