"""Filling an index: only new or changed papers are encoded, and a stopped run resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.core.progress import Progress
from claim2source.core.records import Claim, Source
from claim2source.data.papers import Paper
from claim2source.data.store import Store
from claim2source.models import Encoder, ModelConfig
from claim2source.models.query_only import LateEncoder, source_model
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.engine import open_index
from claim2source.search.fuse import FusionConfig, Hybrid, fuse
from claim2source.search.growing import (
    PaperEncoder,
    grow,
    grow_engine,
    open_for_writing,
    re_encode,
    undo_re_encoding,
)
from claim2source.search.rows import MAX_SENTENCES, SPLIT, finding_sentences, split
from tests.refusals import refused

SOURCES = [
    Source(f"s{i}", f"paper {'a b c'.split()[i % 3]} {i}", "vaccine works") for i in range(9)
]
PAPERS = [Paper(source) for source in SOURCES]


def spec(folder: Path) -> ModelConfig:
    return ModelConfig(name=str(folder), pooling="mean", max_length=32)


@pytest.fixture(scope="module")
def dense(tiny_folder: Path) -> Dense:
    return Dense(spec(tiny_folder), device="cpu")


def test_a_search_is_that_of_the_hybrid_of_bm25_and_the_model(
    tmp_path: Path, tiny_folder: Path, dense: Dense
) -> None:
    grow_engine(tmp_path / "idx", SOURCES, spec(tiny_folder))
    claims = [
        Claim("c1", "a vaccine works"),
        Claim("c2", "works 3 b", candidates=("s1", "s4", "s5")),
        Claim("c3", "zzz"),
    ]
    for fusion in (FusionConfig(), FusionConfig(missing="scored", scale="none", depth=3)):
        engine = open_index(tmp_path / "idx")
        engine.fusion = fusion
        expected = Hybrid(BM25(), dense, fusion).index(SOURCES).search(claims, 3)
        result = engine.search(claims, 3)
        assert result.run.pool == expected.run.pool
        for claim in claims:
            assert result.sources(claim.id) == expected.sources(claim.id)
            np.testing.assert_allclose(
                list(result.scored(claim.id).values()),
                list(expected.scored(claim.id).values()),
                atol=2e-3,
            )
    assert [failure.claim_id for failure in engine.find(claims).lexical.failures] == ["c3"]


def test_words_weigh_less_for_a_post_in_another_language(tmp_path: Path, tiny_folder: Path) -> None:
    grow_engine(tmp_path / "idx", SOURCES, spec(tiny_folder))
    engine = open_index(tmp_path / "idx")
    claims = [
        Claim("en", "works 3 b"),
        Claim("de", "works 3 b", "de"),
        Claim("translated", "works 3 b", "de", translation="works 3 b"),
    ]
    results = engine.find(claims, 9)
    parts = results.lexical, results.dense
    for claim, alpha in (("en", 0.5), ("de", 0.4), ("translated", 0.5)):
        expected = fuse(*parts, alpha=alpha, k=9).scored(claim)
        assert results.fused.scored(claim) == expected
    assert results.fused.scored("de") != results.fused.scored("en")
    # Weights that somebody chose are theirs.
    engine.fusion = FusionConfig(alpha=0.7)
    assert engine.find(claims, 9).fused.scored("de") == fuse(*parts, alpha=0.7, k=9).scored("de")


def test_what_is_new_or_changed_is_encoded_and_nothing_else(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense = Dense(spec(tiny_folder), device="cpu", store=Store(tmp_path / "store", keeps_open=True))
    encoded: list[str] = []
    encode = type(dense.encoder)._encode_chunk

    def watched(self: object, texts: list[str], *rest: object) -> object:
        encoded.extend(texts)
        return encode(self, texts, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(type(dense.encoder), "_encode_chunk", watched)

    def stopping() -> Iterator[Paper]:
        yield from PAPERS[:5]
        raise KeyboardInterrupt

    engine = open_for_writing(tmp_path / "idx", dense)
    with pytest.raises(KeyboardInterrupt):
        grow(engine, stopping(), dense, batch=2)
    engine.close()
    assert len(encoded) == 5 and encoded.count("vaccine works") == 1  # their one sentence
    engine = open_for_writing(tmp_path / "idx", dense)
    grown = grow(engine, PAPERS, dense, batch=2)
    assert str(grown) == "5 added, 0 changed, 4 unchanged; 9 papers in the index"
    assert len(encoded) == 10
    changed = [
        replace(PAPERS[0], doi="10.1000/new"),  # its text is as it was
        Paper(replace(SOURCES[1], title="first version")),
        Paper(replace(SOURCES[1], title="claim: second version")),
        PAPERS[2],
    ]
    grown = grow(engine, changed, dense)
    assert (grown.added, grown.changed, grown.unchanged, grown.papers) == (0, 2, 2, 9)
    assert encoded[10:] == ["Title: claim: second version\nAbstract: vaccine works"]
    assert engine.fetch(["s0", "s1"]) == {"s0": changed[0], "s1": changed[2]}
    engine.close()


def test_another_model_or_analysis_is_refused(
    tmp_path: Path, dense: Dense, save_tiny: Callable[..., Path]
) -> None:
    grow_engine(tmp_path / "idx", SOURCES, dense.encoder)
    other = Dense(spec(save_tiny(tmp_path / "other", seed=1)), device="cpu")
    engine = open_index(tmp_path / "idx")
    with refused(UserError, tmp_path / "idx", "model"):
        engine.use(other.encoder)
    with refused(UserError, tmp_path / "idx", "model"):
        grow_engine(tmp_path / "idx", SOURCES, other.encoder)
    with refused(UserError, "bm25.language: ", " en", " de"):
        open_for_writing(tmp_path / "idx", dense, BM25(language="de"))
    with refused(UserError, tmp_path / "idx", "`use`"):
        engine.search("a")
    engine.use(dense.encoder)
    assert engine.search("paper a", 2).sources("0")


def test_the_split_of_abstracts_is_that_of_its_version() -> None:
    """Vectors of sentences are stored with the paper: another split is another `SPLIT`."""
    abstract = (
        'Masks work (p < 0.5).  We asked e.g. nurses.\n[2] 3.7x fewer! Überall? no. "So." End'
    )
    assert SPLIT == 1
    assert split(Paper(Source("p", "T. Title", abstract))) == [
        "Masks work (p < 0.5).",
        "We asked e.g. nurses.",
        "[2] 3.7x fewer!",
        "Überall? no.",
        '"So." End',
    ]
    assert finding_sentences(Paper(Source("p", "T. Title", abstract))) == ["[2] 3.7x fewer!"]
    assert len(split(Paper(Source("p", "", "One. " * 60)))) == MAX_SENTENCES == 40


def never_load() -> Encoder:
    raise AssertionError("a model was loaded")


def test_vectors_that_the_store_holds_in_float32_are_not_made_in_bfloat16(
    tmp_path: Path, dense: Dense, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, encoded = Store(tmp_path / "store", keeps_open=True), list[str]()
    texts = dense.rendered_as.source_texts(SOURCES)
    dense.encoder.encode(texts[1::2], "source", store=store, progress=None)
    encode = type(dense.encoder)._encode_chunk  # type: ignore[attr-defined]

    def watched(self: object, chunk: list[str], *rest: object) -> object:
        encoded.extend(chunk)
        return encode(self, chunk, *rest)

    monkeypatch.setattr(type(dense.encoder), "_encode_chunk", watched)
    encoder = PaperEncoder(dense.encoder, dense.rendered_as, store, True)
    vectors, findings, new = encoder.encode(PAPERS, Progress(None, None))
    assert new == 5 and sorted(encoded) == sorted([*texts[::2], "vaccine works"])
    expected, _ = dense.encoder.encode(texts, "source", store=None, progress=None)
    assert np.array_equal(vectors[1::2], expected[1::2].astype(np.float16))
    np.testing.assert_allclose(vectors, expected, atol=0.02)
    assert findings is not None and [len(finding) for finding in findings] == [1] * 9
    encoded.clear()
    assert encoder.encode(PAPERS, Progress(None, None))[2] == 0 and not encoded
    # If both types are fully stored, a model that is loaded late is not loaded.
    encoder.encoder = late = LateEncoder(source_model(dense.encoder, "base", None), never_load)
    late.name = dense.encoder.name
    for name in ("_source_encoder", "_fast_encoder"):
        encoder.__dict__.pop(name, None)
    again, _, _ = encoder.encode(PAPERS, Progress(None, None))
    assert np.array_equal(again, vectors)


def test_retractions_are_noted_without_encoding_and_stay(
    tmp_path: Path, dense: Dense, monkeypatch: pytest.MonkeyPatch
) -> None:
    papers = [replace(paper, doi=f"10.1/{i}") for i, paper in enumerate(PAPERS)]
    papers[7] = replace(papers[7], retracted="corrected notice of 10.1/6")
    papers[8] = replace(papers[8], retracted="retracted notice of 10.1/7")
    engine = open_for_writing(tmp_path / "idx", dense)
    # Notices and papers come in any order, and a milder notice does not replace a stronger one.
    for part in ([papers[8]], papers, [replace(papers[7], retracted="")]):
        grow(engine, part, dense)
    found = engine.fetch(["s6", "s7"])
    assert found["s6"].retracted == "corrected, 10.1/7"
    assert found["s7"].retracted == "retracted, 10.1/8; corrected notice of 10.1/6"
    milder = Paper(Source("s9", "A correction", "of vaccines"), "10.1/9")
    grow(engine, [replace(milder, retracted="corrected notice of 10.1/7")], dense)
    assert engine.fetch(["s7"]) == {"s7": found["s7"]} and engine.delete(["s9"])
    engine.build()
    vectors = {
        rows.papers[i].source.id: rows.vectors[i]
        for rows in engine.rows()
        for i in range(len(rows))
    }

    def never(*_: object) -> None:
        raise AssertionError("a text was encoded")

    with monkeypatch.context() as patched:
        patched.setattr(type(dense.encoder), "_encode_chunk", never)
        assert (
            engine.retract(lambda id, doi, _: {"10.1/0": "retracted", "10.1/1": ""}.get(doi)) == 1
        )
        engine.build()
        # The same papers again have no notice, and one of them has changed otherwise.
        assert grow(engine, papers[:2], dense).unchanged == 2
    grow(engine, [replace(papers[0], url="https://x.org")], dense)
    found = engine.fetch(["s0", "s1"])
    assert found["s0"].is_retracted and not found["s1"].is_retracted
    for rows in engine.rows():
        for paper, vector in zip(rows.papers, rows.vectors, strict=True):
            np.testing.assert_array_equal(vector, vectors[paper.source.id])
    assert engine.stats().papers == 9 and engine.lexical(["vaccin"], 9)
    engine.close()


def test_another_model_is_built_beside_and_swapped_and_undone(
    tmp_path: Path, dense: Dense, save_tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_engine(tmp_path / "idx", SOURCES, dense.model)
    other = Dense(spec(save_tiny(tmp_path / "other", seed=1)), device="cpu")
    grow_engine(tmp_path / "new", SOURCES, other.model)
    engine, reader = open_index(tmp_path / "idx"), open_index(tmp_path / "idx")
    before = reader.search("paper a", 9).scored("0")

    class StoppingError(Exception):
        pass

    encode, calls = type(other.encoder).encode, list[int]()

    def counting(self: object, texts: Sequence[str], side: str, **options: object) -> object:
        if side == "source":
            calls.append(len(texts))
            if len(calls) == 3:  # papers and their sentences, two at a time
                raise StoppingError
        return encode(self, texts, side, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(type(other.encoder), "encode", counting)
    with refused(UserError, "--re_encode"):
        undo_re_encoding(engine)
    with pytest.raises(StoppingError):
        re_encode(engine, other, batch=2)
    engine.close()
    assert reader.search("paper a", 9).scored("0") == before
    new_engine = re_encode(engine, other, batch=2)
    engine.close()
    assert sum(calls[3::2]) == 7  # the first two were encoded before
    expected = open_index(tmp_path / "new").search("paper a", 9).scored("0")
    assert new_engine.search("paper a", 9).scored("0") == expected != before
    # Who has it open sees it, and sees it go.
    assert reader.search("paper a", 9).scored("0") == expected
    assert undo_re_encoding(engine).model == dense.model
    engine.close()
    assert reader.search("paper a", 9).scored("0") == before
    with refused(UserError, engine.location):
        re_encode(engine, dense)
    third = Dense(spec(save_tiny(tmp_path / "third", seed=2)), device="cpu")
    assert re_encode(engine, third).manifest.model == third.model
    engine.close()
    tables = [path.name for path in (tmp_path / "idx").glob("*.lance")]
    assert len(tables) == 2 and "papers.lance" in tables  # no more than `--undo` needs
    undo_re_encoding(engine)
    engine.close()
    assert reader.search("paper a", 9).scored("0") == before


def test_encoding_anew_after_undo_leaves_what_undo_needs_until_it_has_ended(
    tmp_path: Path, dense: Dense, save_tiny: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    grow_engine(tmp_path / "idx", SOURCES, dense.model)
    other = Dense(spec(save_tiny(tmp_path / "other", seed=1)), device="cpu")
    engine, reader = open_index(tmp_path / "idx"), open_index(tmp_path / "idx")
    re_encode(engine, other)
    engine.close()
    of_other = reader.search("paper a", 9).scored("0")
    undo_re_encoding(engine)
    engine.close()

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("claim2source.search.growing.Engine._build_partitions", stopped)
        re_encode(engine, other)
    engine.close()
    # It was killed before it recorded its files, one of which is incomplete.
    (note,) = (tmp_path / "idx").glob("papers-*-2.files.json")
    note.unlink()
    (ids,) = (tmp_path / "idx").glob("papers-*-2.lance/_indices/*/page_data.lance")
    ids.write_bytes(b"broken")
    undo_re_encoding(engine)
    engine.close()
    assert reader.search("paper a", 9).scored("0") == of_other
    # Papers that changed or went since the run was stopped are as they are now.
    undo_re_encoding(engine)
    engine.close()
    engine.delete(["s8"])
    grow(engine, [replace(PAPERS[0], source=replace(SOURCES[0], title="paper new"))], dense)
    new_engine = re_encode(engine, other)
    engine.close()
    assert new_engine.stats().papers == 8 and not new_engine.fetch(["s8"])
    assert new_engine.fetch(["s0"])["s0"].source.title == "paper new"
    assert new_engine.dense(other.encoder.encode(["x"], "claim")[0][0], 9, exact=True)


@pytest.mark.parametrize("files", ["data/*.lance", "_versions/*.manifest"])
def test_encoding_anew_begins_again_where_the_stopped_table_is_damaged(
    files: str,
    tmp_path: Path,
    dense: Dense,
    save_tiny: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grow_engine(tmp_path / "idx", SOURCES, dense.model)
    other = Dense(spec(save_tiny(tmp_path / "other", seed=1)), device="cpu")
    engine = open_index(tmp_path / "idx")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(
            "claim2source.search.growing.Engine.build", Mock(side_effect=KeyboardInterrupt)
        )
        re_encode(engine, other)
    engine.close()
    for path in (tmp_path / "idx").glob(f"papers-*.lance/{files}"):
        path.write_bytes(path.read_bytes()[:40])
    assert [*(tmp_path / "idx").glob("papers-*.files.json")]
    assert re_encode(engine, other).stats().papers == len(SOURCES)
    engine.close()


def test_an_older_state_is_asked_by_its_version(tmp_path: Path, dense: Dense) -> None:
    grow_engine(tmp_path / "idx", SOURCES[:4], dense.model)
    engine = open_index(tmp_path / "idx")
    version, before = engine.version, engine.search("paper a", 9).scored("0")
    grow_engine(tmp_path / "idx", SOURCES, dense.model)
    old = open_index(tmp_path / "idx", version)
    assert old.search("paper a", 9).scored("0") == before and old.version == version
    assert len(engine.search("paper a", 9).sources("0")) == 9 and engine.version > version
    with refused(UserError, tmp_path / "idx", f"version {version}"):
        old.delete(["s1"])
    with refused(UserError, "999: "):
        open_index(tmp_path / "idx", 999)
