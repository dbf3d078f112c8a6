"""Indexes: built once by the first search, written to a folder, opened memory-mapped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claim2source.core.errors import InputError, UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result
from claim2source.models import EncoderSettings, ModelConfig, Template
from claim2source.search.bm25 import BM25, BM25Config
from claim2source.search.dense import Dense
from claim2source.search.fielded import FieldedIndex
from claim2source.search.fuse import FusionConfig, Hybrid, HybridIndex, load_index
from claim2source.search.index_folder import MANIFEST, write_folder
from claim2source.search.terms import Analysis
from claim2source.text import Rendering

WORDS = "masks vaccine sleep tea otters bees air trial".split()


class Words:
    """An encoder that counts words: vectors of small integers, so that scores often tie."""

    def __init__(self, name: str | None = "w", prefix: str = "") -> None:
        self.name, self.source_encoder = name, None
        self.settings = EncoderSettings(max_length=8, template=Template(claim=prefix))
        self.read: list[tuple[str, int]] = []

    def key(self) -> dict[str, Any] | None:
        return None if self.name is None else {"weights": self.name, "sizes": (1, 2)}

    def encode(self, texts: list[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        self.read.append((side, len(texts)))
        rows = [[text.casefold().count(word) for word in WORDS] for text in texts]
        vectors = np.array(rows, dtype=np.float32).reshape(len(texts), len(WORDS))
        return vectors, Cost(0.1, len(texts), 0, len(texts), 1)


def pool(seed: int, n: int) -> tuple[list[Source], list[Claim]]:
    """Sources with many equal texts and ids in no order, claims with and without candidates."""
    draw = np.random.default_rng(seed)
    ids = [f"{i}\n\u00e9\u2028\ud800"[: int(draw.integers(3, 9))] + f"-{i}" for i in range(n)]
    sources = [
        Source(ids[i], " ".join(draw.choice(WORDS, 2)), venue=str(draw.choice(WORDS)))
        for i in draw.permutation(n)
    ]
    claims = []
    for i in range(9):
        pool_ids = tuple(str(s) for s in draw.choice(ids, draw.integers(0, n + 1))) if n else ()
        text = " ".join(draw.choice([*WORDS, "unknown"], draw.integers(0, 4)))
        claims.append(Claim(f"c{i}", text, candidates=(*pool_ids, "gone") if i % 3 == 2 else None))
    return sources, claims


RETRIEVERS: dict[str, Callable[[], Any]] = {
    "bm25": BM25,
    "bm25 whitespace": lambda: BM25(analysis="whitespace", metadata=True, k1=0.4),
    "exact": lambda: Dense(Words()),
    "title_abstract": lambda: Dense(Words(), rendering=Rendering(sources="title_abstract")),
    "hybrid": lambda: Hybrid(BM25(), Dense(Words()), FusionConfig("rrf", alpha=0.3, depth=4)),
    "scored": lambda: Hybrid(BM25(), BM25(k1=0.5), FusionConfig(depth=4, missing="scored")),
    "hybrid of hybrids": lambda: Hybrid(Hybrid(BM25(), Dense(Words())), BM25(b=0.1)),
}


def equal(first: Result, second: Result) -> bool:
    """Whether two results are equal bit for bit, seconds and memory apart."""
    costs = [replace(r.cost, seconds=0, peak_memory=0, tokens=0, reused=0) for r in (first, second)]
    return (
        list(first.run) == list(second.run)
        and first.run.claim_ids == second.run.claim_ids
        and first.run.pool == second.run.pool
        and (first.failures, costs[0]) == (second.failures, costs[1])
    )


@pytest.mark.parametrize("name", RETRIEVERS)
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 10**6), n=st.sampled_from([0, 1, 3, 20, 120]), k=st.integers(1, 130))
def test_an_opened_index_searches_as_the_one_that_was_built(
    name: str, seed: int, n: int, k: int, tmp_path: Path
) -> None:
    sources, claims = pool(seed, n)
    built, folder = RETRIEVERS[name]().index(sources), tmp_path / "index"
    built.save(folder)
    loaded = load_index(folder, model=Words())
    for depth in (k, 3):
        assert equal(built.search(claims, depth), loaded.search(claims, depth))
    # A third of the claims alone: no search leaves anything behind.
    assert equal(built.search(claims[::3], k), loaded.search(claims[::3], k))
    loaded.save(tmp_path / "again")
    index = load_index(tmp_path / "again", model=Words())
    assert equal(index.search(claims, k), loaded.search(claims, k))
    files = {p.relative_to(folder) for p in folder.rglob("*")}
    assert files == {p.relative_to(tmp_path / "again") for p in (tmp_path / "again").rglob("*")}


def is_mapped(array: np.ndarray) -> bool:
    base: Any = array
    while isinstance(base, np.ndarray):
        if isinstance(base, np.memmap):
            return True
        base = base.base
    return False


def test_arrays_are_mapped_and_not_copied(tmp_path: Path) -> None:
    sources, claims = pool(0, 50)
    Hybrid(BM25(), Dense(Words())).index(sources).save(tmp_path / "i")
    hybrid: Any = load_index(tmp_path / "i", model=Words())
    hybrid.search(claims)
    assert is_mapped(hybrid.second._vectors.vectors)
    postings = hybrid.first._analysed.postings
    for array in (postings.weights, postings.counts.documents, postings._postings.data):
        assert is_mapped(array)
    with pytest.raises(ValueError, match="read-only"):
        hybrid.second._vectors.vectors[0] = 1


def test_the_first_search_builds_and_later_ones_cost_only_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    analysed: list[int] = []
    real = Analysis.counted_sources

    def noted(self: Analysis, texts: list[str]) -> Any:
        analysed.append(len(texts))
        return real(self, texts)

    monkeypatch.setattr(Analysis, "counted_sources", noted)
    sources, claims = pool(1, 30)
    encoder = Words()
    index = Hybrid(BM25(), Dense(encoder)).index(sources)
    assert analysed == encoder.read == []
    first = index.search(claims, 5)
    assert (analysed, encoder.read) == ([30], [("source", 30), ("claim", 9)])
    assert (first.cost.items, first.cost.tokens, first.cost.reused) == (9, 39, 2)
    variants = [replace(claim, id=f"o{claim.id}", text=f"{claim.text} w1") for claim in claims[:2]]
    second = index.search(variants, 5)
    assert (analysed, encoder.read[2:]) == ([30], [("claim", 2)])
    assert second.cost.items == 2 and second.cost.tokens > 0
    # The vectors of the claims just searched are still known.
    result = index.search(variants, 5)
    assert (analysed, encoder.read[3:], result.cost.tokens) == ([30], [], 0)
    fresh = Hybrid(BM25(), Dense(encoder)).index(sources).search(variants, 5)
    assert list(second.run) == list(result.run) == list(fresh.run)


def test_plain_strings_are_claims() -> None:
    sources = [Source("a", "masks work"), Source("b", "otters play")]
    index = BM25().index(sources)
    assert list(index.search("otters").run) == list(index.search(["otters"]).run)
    result = index.search(["masks", "otters"], k=1)
    assert [result.sources(claim) for claim in ("0", "1")] == [["a"], ["b"]]
    assert list(result.scored("1")) == ["b"]
    assert Dense(Words()).index(sources).search("otters", 1).sources("0") == ["b"]
    assert index.search([]).run.claim_ids == ()
    assert BM25(BM25Config(b=0.2), k1=0.5).config == BM25Config(b=0.2, k1=0.5)


@pytest.fixture
def tiny(tiny_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in tiny_folder.iterdir():
        os.link(path, folder / path.name)
    return folder


def test_a_model_is_loaded_again_by_the_first_search(tiny: Path, tmp_path: Path) -> None:
    sources, claims = pool(4, 12)
    model = ModelConfig(str(tiny), pooling="mean", max_length=16, allow_bin=(str(tiny),))
    built = Dense(model, device="cpu").index(sources)
    built.save(tmp_path / "i")
    record = json.loads((tmp_path / "i" / MANIFEST).read_text())
    assert record["model"]["name"] == str(tiny) and record["model"]["allow_bin"] == []
    index = load_index(tmp_path / "i", "cpu")
    assert equal(built.search(claims, 5), index.search(claims, 5))
    # Elsewhere now; and then another model in its place.
    new = tiny.rename(tmp_path / "moved")
    with pytest.raises(UserError):
        load_index(tmp_path / "i", "cpu").search(claims)
    config = replace(model, name=str(new))
    assert equal(
        built.search(claims, 5), load_index(tmp_path / "i", model=config).search(claims, 5)
    )
    with pytest.raises(InputError, match=r"manifest.json: encoders: .*not the one"):
        load_index(tmp_path / "i", model=replace(config, pooling="cls")).search(claims)


def test_other_libraries_than_made_the_index_are_refused(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of 0.1.0 states none, and is searched."""
    sources, claims = pool(4, 12)
    model = ModelConfig(str(tiny), pooling="mean", max_length=16)
    Dense(model, device="cpu").index(sources).save(tmp_path / "i")
    stated = json.loads((tmp_path / "i" / MANIFEST).read_text())["encoders"]
    for side in stated["encoders"].values():
        del side["libraries"]
    old = changed(tmp_path / "i", tmp_path / "old", encoders=stated)
    monkeypatch.setattr("claim2source.models.identity.version", lambda name: "9")
    with pytest.raises(InputError, match="encoders: other versions .*build it again"):
        load_index(tmp_path / "i", "cpu").search(claims)
    assert load_index(old, "cpu").search(claims).run.claim_ids


def test_another_encoder_than_made_the_index_is_refused(tmp_path: Path) -> None:
    sources, claims = pool(5, 12)
    Dense(Words()).index(sources).save(tmp_path / "i")
    load_index(tmp_path / "i", model=Words()).search(claims)
    for encoder in (Words("v"), Words(prefix="query: "), Words(None)):
        with pytest.raises(InputError, match="encoders: .*not the one"):
            load_index(tmp_path / "i", model=encoder).search(claims)
    with pytest.raises(InputError, match="model: .*without a name: give load_index its model"):
        load_index(tmp_path / "i").search(claims)
    with pytest.raises(UserError, match="weights in training"):
        Dense(Words(None)).index(sources).save(tmp_path / "j")
    assert not (tmp_path / "j").exists()


@pytest.fixture(scope="module")
def saved_indexes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Indexes of three kinds; do not change them."""
    root = tmp_path_factory.mktemp("indexes")
    sources, _ = pool(7, 40)
    for name in ("bm25", "exact", "hybrid"):
        RETRIEVERS[name]().index(sources).save(root / name)
    return root


def changed(folder: Path, to: Path, **values: Any) -> Path:
    import shutil

    shutil.copytree(folder, to)
    manifest = json.loads((to / MANIFEST).read_text())
    manifest |= values
    kept = {key: value for key, value in manifest.items() if value is not ...}
    (to / MANIFEST).write_text(json.dumps(kept))
    return to


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "format": ("bm25", {"format": 2}, "format: this version reads format 1"),
    "an engine": ("bm25", {"index": "lancedb", "format": 2}, "index: .*open_index opens it"),
    "no kind": ("bm25", {"index": ...}, "index: missing: not an index"),
    "another kind": ("bm25", {"index": "dense"}, "rendering: missing or not Rendering"),
    "settings": ("bm25", {"bm25": {"k1": -1}}, "bm25: .*k1"),
    "fewer sources": ("bm25", {"sources": 39}, "ids.jsonl: not 39 strings"),
    "dimensions": ("exact", {"dimensions": 7}, r"vectors.npy: .*\[40, 8\], not .*\[40, 7\]"),
    "approximate": (
        "exact",
        {"search": {"kind": "hnsw"}},
        "search: approximate or .*no longer read",
    ),
    "shortened": ("exact", {"search": {"dimensions": 5}}, "search: .*by cut vectors: no longer"),
    "fusion": ("hybrid", {"fusion": None}, "fusion: missing or not FusionConfig"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_manifest_that_is_not_right_is_one_clear_line(
    case: str, saved_indexes: Path, tmp_path: Path
) -> None:
    name, values, reason = WRONG[case]
    with pytest.raises(InputError, match=reason) as raised:
        load_index(changed(saved_indexes / name, tmp_path / "i", **values))
    assert len(str(raised.value).splitlines()) == 1 and str(tmp_path) in str(raised.value)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("bm25", "weights.npy"),
        ("exact", "vectors.npy"),
        ("hybrid", "second/ids.jsonl"),
    ],
)
def test_a_damaged_file_is_named(name: str, file: str, saved_indexes: Path, tmp_path: Path) -> None:
    folder = changed(saved_indexes / name, tmp_path / "i")
    data = (folder / file).read_bytes()
    for wrong in (data[:-9] + bytes([data[-9] ^ 1]) + data[-8:], data[: len(data) // 2]):
        (folder / file).write_bytes(wrong)
        with pytest.raises(InputError, match=f"{file}: its sha256 is not the manifest's"):
            load_index(folder)
    # What is cut short is seen without reading all of it.
    with pytest.raises(InputError, match=file):
        load_index(folder, verify=False)
    (folder / file).unlink()
    with pytest.raises(InputError, match=f"{file}: the manifest names this file; it is missing"):
        load_index(folder, verify=False)


def test_an_exact_index_of_an_older_version_is_searched(
    saved_indexes: Path, tmp_path: Path
) -> None:
    old = {"kind": "exact", "refine": 4, "cells": None, "gpu": True, "dimensions": None}
    folder = changed(saved_indexes / "exact", tmp_path / "i", search=old)
    results = [
        load_index(path, model=Words()).search("masks")
        for path in (folder, saved_indexes / "exact")
    ]
    assert equal(*results) and results[0].sources("0")


def test_what_is_no_index_is_said(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="not an index: it has no manifest.json"):
            load_index(path)
    for text in ("{", '"index"', '{"format": 1, "base": {}}'):
        (tmp_path / MANIFEST).write_text(text)
        with pytest.raises(InputError, match=r"manifest.json(:1)?: (not JSON|index: missing)"):
            load_index(tmp_path)


def test_a_hybrid_of_what_is_not_written_leaves_nothing(tmp_path: Path) -> None:
    sources, _ = pool(8, 5)
    index = HybridIndex(BM25().index(sources), FieldedIndex(sources))
    assert index.fusion == FusionConfig()
    with pytest.raises(UserError, match="FieldedIndex is not written; BM25, dense"):
        index.save(tmp_path / "i")
    assert not list(tmp_path.iterdir())


def test_only_an_index_is_replaced(tmp_path: Path) -> None:
    sources, _ = pool(8, 5)
    index = BM25().index(sources)
    folder = tmp_path / "i"
    folder.mkdir()
    index.save(folder)  # it was empty
    index.save(folder)
    load_index(folder)
    other = tmp_path / "other"
    other.mkdir()
    (other / MANIFEST).write_text('{"format": 1, "base": {}}')  # a checkpoint's
    encoder = Words()
    for path in (other, other / MANIFEST):
        for saved_index in (index, Dense(encoder).index(sources)):
            with pytest.raises(InputError, match="exists and is not an index: it is not replaced"):
                saved_index.save(path)
    assert encoder.read == []  # refused before any work
    assert (other / MANIFEST).read_text() == '{"format": 1, "base": {}}'


def test_an_index_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    sources, claims = pool(9, 5)
    BM25().index(sources).save(tmp_path / "i")

    def stop(folder: Path) -> dict[str, object]:
        (folder / "ids.jsonl").write_text("[")
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        write_folder(tmp_path / "i", "bm25", stop)
    assert [path.name for path in tmp_path.iterdir()] == ["i"]
    expected = BM25().index(sources).search(claims)
    assert equal(load_index(tmp_path / "i").search(claims), expected)
