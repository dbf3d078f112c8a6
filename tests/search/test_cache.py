"""Runs of BM25 and of dense models in the store: one changed input, another run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result
from claim2source.data.store import Store
from claim2source.models import EncoderSettings, Template
from claim2source.search import bm25
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.terms import Analysis
from claim2source.text import Rendering

CLAIMS = [
    Claim("x", "masks cut colds", golds=("p",)),
    Claim("y", "masks und Kaffee", "de", "masks and coffee"),
    Claim("z", "nothing"),
]
POOL = [
    Source("p", "Masks", "Masks against colds.", ("Ann Author",), "A Journal"),
    Source("q", "Coffee", "Coffee and masks.", ("Ben Writer",), "B Letters"),
]

DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "depth": lambda: {"k": 1},
    "claim's text": lambda: {"claims": [replace(CLAIMS[0], text="coffee"), *CLAIMS[1:]]},
    "claim's id": lambda: {"claims": [replace(CLAIMS[0], id="w"), *CLAIMS[1:]]},
    "candidates": lambda: {"claims": [replace(CLAIMS[0], candidates=("q",)), *CLAIMS[1:]]},
    "no candidates": lambda: {"claims": [replace(CLAIMS[0], candidates=()), *CLAIMS[1:]]},
    "more claims": lambda: {"claims": [*CLAIMS, Claim("v", "b")]},
    "title": lambda: {"sources": [replace(POOL[0], title="Gloves"), POOL[1]]},
    "abstract": lambda: {"sources": [replace(POOL[0], abstract="New"), POOL[1]]},
    "source's id": lambda: {"sources": [replace(POOL[0], id="r"), POOL[1]]},
    "one source less": lambda: {"sources": POOL[:1]},
}
VENUE = {"sources": [replace(POOL[0], venue="Elsewhere"), POOL[1]]}


class Counted:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built, real = 0, Analysis.counted_sources

        def sources(*arguments: Any) -> Any:
            self.built += 1
            return real(*arguments)

        monkeypatch.setattr(Analysis, "counted_sources", sources)


def sparse(root: Path, config: BM25 | None = None, **changes: Any) -> Result:
    args: dict[str, Any] = {"claims": CLAIMS, "sources": POOL, "k": 2} | changes
    index = replace(config or BM25(), store=Store(root)).index(args["sources"])
    return index.search(args["claims"], args["k"])


def test_the_same_text_cut_elsewhere_is_another_claim(tmp_path: Path) -> None:
    """Both are rendered as "Kaffee\\ndie\\nmasks"; `die` is a stop word in German only."""
    config, sources = BM25(claims="bilingual"), [*POOL, Source("d", "Dice", "A die.")]
    posted = Claim("x", "Kaffee\ndie", "de", "masks")
    translated = Claim("x", "Kaffee", "de", "die\nmasks")
    first, second = (
        sparse(tmp_path, config, claims=[claim], sources=sources, k=3)
        for claim in (posted, translated)
    )
    assert not second.stored
    assert set(first.run.sources("x")) == {"p", "q"}
    assert set(second.run.sources("x")) == {"p", "q", "d"}


def test_bm25s_run_is_read_with_its_cost_and_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counted(monkeypatch)
    first, rerun = sparse(tmp_path), sparse(tmp_path)
    assert counter.built == 1
    assert list(rerun.run) == list(first.run) and rerun.run.claim_ids == ("x", "y", "z")
    assert rerun.cost == first.cost and first.cost.items == 3
    assert [f.claim_id for f in rerun.failures] == ["z"] and rerun.failures == first.failures
    assert (first.stored, rerun.stored) == (False, True)
    built = counter.built
    result = BM25().index(POOL).search(CLAIMS, 2)
    assert list(result.run) == list(rerun.run) and not result.stored
    # A corrected gold, or a venue that is not indexed, does not change a ranking.
    sparse(tmp_path, claims=[replace(CLAIMS[0], golds=("q",)), *CLAIMS[1:]], **VENUE)
    assert counter.built == built + 1


SETTINGS: dict[str, Any] = {
    "analysis": "whitespace",
    "k1": 1.3,
    "b": 0.7,
    "title_weight": 2,
    "metadata": True,
    "language": "de",
    "claims": "translated",
    "stop_words": False,
    "stemmer": False,
    "abstracts": False,
    "clean": True,
    "pipeline": "another",
}
# What is changed, in a run with which settings.
BM25_CHANGES: dict[str, tuple[dict[str, Any], BM25]] = {
    **{name: (made(), BM25()) for name, made in DATA.items()},
    "claim's language": ({"claims": [replace(CLAIMS[0], lang="fr"), *CLAIMS[1:]]}, BM25()),
    "venue": (VENUE, BM25(metadata=True)),
    **{f"setting {name}": ({}, BM25(**{name: value})) for name, value in SETTINGS.items()},
}


@pytest.mark.parametrize("key", [*BM25_CHANGES, "bm25s", "PyStemmer"])
def test_one_changed_input_of_bm25_is_another_run(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(SETTINGS) == {field.name for field in fields(BM25)}
    counter, real = Counted(monkeypatch), bm25.version
    data, config = BM25_CHANGES.get(key, ({}, BM25()))
    sparse(tmp_path, None if key.startswith("setting") else config)
    if key not in BM25_CHANGES:  # another version of a library
        monkeypatch.setattr(bm25, "version", lambda name: "9" if name == key else real(name))
    result = sparse(tmp_path, config, **data)
    assert counter.built == 2 == len(list((tmp_path / "runs").iterdir()))
    args = {"claims": CLAIMS, "sources": POOL, "k": 2} | data
    uncached = (config or BM25()).index(args["sources"]).search(args["claims"], args["k"])
    assert list(result.run) == list(uncached.run)


class Hashed:
    """An encoder whose vectors are made from a text's hash; it counts the texts it encoded."""

    def __init__(self, weights: str = "w", source: Hashed | None = None, prefix: str = "") -> None:
        self.weights, self.source_encoder = weights, source
        self.settings = EncoderSettings(template=Template(claim=prefix))
        self.read: list[str] = []

    def key(self) -> dict[str, Any] | None:
        return {"weights": self.weights} if self.weights else None

    def encode(self, texts: list[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        self.read += texts
        digests = [hashlib.sha256(f"{side} {text}".encode()).digest()[:4] for text in texts]
        vectors = np.frombuffer(b"".join(digests), dtype=np.uint8).reshape(-1, 4) + 1.0
        vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
        return vectors, Cost(0.1, len(texts), 0, len(texts))


def dense(root: Path, store: Store | None = None, **changes: Any) -> tuple[Result, int]:
    args: dict[str, Any] = {"claims": CLAIMS, "sources": POOL, "k": 2, "encoder": Hashed()}
    args |= {name: changes.pop(name) for name in args.keys() & changes.keys()}
    encoder = args["encoder"]
    made = Dense(encoder, store=store or Store(root), **changes)
    return made.index(args["sources"]).search(args["claims"], args["k"]), len(encoder.read)


def test_a_models_run_is_read_with_its_cost(tmp_path: Path) -> None:
    first, read = dense(tmp_path)
    rerun, none = dense(tmp_path)
    assert (read, none) == (5, 0)
    assert list(rerun.run) == list(first.run)
    # The cost is that of computing, not of reading: nobody searches millions of claims a second.
    assert rerun.cost == first.cost and first.cost.items == 3
    assert (first.stored, rerun.stored) == (False, True)
    # Which gold a claim has, and its language, changes no text and no ranking.
    claims = [replace(CLAIMS[0], golds=("q",), lang="de"), *CLAIMS[1:]]
    assert dense(tmp_path, claims=claims)[1] == 0


CHANGES = DATA | {
    "rendering": lambda: {"rendering": Rendering("bilingual")},
    "weights": lambda: {"encoder": Hashed("W")},
    "source side": lambda: {"encoder": Hashed(source=Hashed("base"))},
    "prefix": lambda: {"encoder": Hashed(prefix="query: ")},
}
VERSIONS = {"faiss": "faiss.__version__", "torch": "", "transformers": ""}


@pytest.mark.parametrize("key", [*CHANGES, *VERSIONS])
def test_one_changed_input_of_a_model_is_another_run(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dense(tmp_path)
    if key in VERSIONS:  # another version of a library
        version_of = "0" if key == "faiss" else lambda name: "0" if name == key else version(name)
        monkeypatch.setattr(VERSIONS[key] or "claim2source.search.dense.version", version_of)
    result, _ = dense(tmp_path, **CHANGES[key]() if key in CHANGES else {})
    assert not result.stored
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.parametrize("encoder", [Hashed(""), Hashed(source=Hashed(""))])
def test_weights_in_training_keep_no_run(tmp_path: Path, encoder: Hashed) -> None:
    encoder.read.clear()
    assert [dense(tmp_path, encoder=encoder)[1] for _ in range(2)] == [5, 10]
    assert not (tmp_path / "runs").exists()


def test_candidates_come_back_with_the_run(tmp_path: Path) -> None:
    claims = [CLAIMS[0], Claim("bound", "b", candidates=("p", "gone"))]
    first, _ = dense(tmp_path, claims=claims)
    rerun, read = dense(tmp_path, claims=claims)
    assert read == 0 and rerun.run.pool == first.run.pool == {"bound": frozenset({"p", "gone"})}
