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


def first_claim(**changes: Any) -> dict[str, Any]:
    """The claims with a change of the first."""
    changed = replace(CLAIMS[0], **changes)
    return {"claims": [changed, *CLAIMS[1:]]}


def first_source(**changes: Any) -> dict[str, Any]:
    """The sources with a change of the first."""
    changed = replace(POOL[0], **changes)
    return {"sources": [changed, POOL[1]]}


DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "depth": lambda: {"k": 1},
    "claim's text": lambda: first_claim(text="coffee"),
    "claim's id": lambda: first_claim(id="w"),
    "candidates": lambda: first_claim(candidates=("q",)),
    "no candidates": lambda: first_claim(candidates=()),
    "more claims": lambda: {"claims": [*CLAIMS, Claim("v", "b")]},
    "title": lambda: first_source(title="Gloves"),
    "abstract": lambda: first_source(abstract="New"),
    "source's id": lambda: first_source(id="r"),
    "one source less": lambda: {"sources": POOL[:1]},
}
VENUE = first_source(venue="Elsewhere")


class Counted:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.built = 0
        real = Analysis.counted_sources

        def sources(*arguments: Any) -> Any:
            self.built += 1
            return real(*arguments)

        monkeypatch.setattr(Analysis, "counted_sources", sources)


SEARCHED: dict[str, Any] = {
    "claims": CLAIMS,
    "sources": POOL,
    "k": 2,
}


def sparse(root: Path, config: BM25 | None = None, **changes: Any) -> Result:
    args = SEARCHED | changes
    stored = replace(config or BM25(), store=Store(root))
    index = stored.index(args["sources"])
    return index.search(args["claims"], args["k"])


def test_the_same_text_cut_elsewhere_is_another_claim(tmp_path: Path) -> None:
    """Both are rendered as "Kaffee\\ndie\\nmasks"; `die` is a stop word in German only."""
    config = BM25(claims="bilingual")
    die = Source("d", "Dice", "A die.")
    posted = Claim("x", "Kaffee\ndie", "de", "masks")
    translated = Claim("x", "Kaffee", "de", "die\nmasks")

    def searched(claim: Claim) -> Result:
        return sparse(
            tmp_path,
            config,
            claims=[claim],
            sources=[*POOL, die],
            k=3,
        )

    first = searched(posted)
    second = searched(translated)
    assert not second.stored
    assert set(first.run.sources("x")) == {"p", "q"}
    assert set(second.run.sources("x")) == {"p", "q", "d"}


def test_bm25s_run_is_read_with_its_cost_and_failures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = Counted(monkeypatch)
    first = sparse(tmp_path)
    rerun = sparse(tmp_path)
    rows = list(rerun.run)
    failed = [failure.claim_id for failure in rerun.failures]
    assert counter.built == 1
    assert rows == list(first.run)
    assert rerun.run.claim_ids == ("x", "y", "z")
    assert rerun.cost == first.cost
    assert first.cost.items == 3
    assert failed == ["z"]
    assert rerun.failures == first.failures
    assert first.stored is False
    assert rerun.stored is True

    built = counter.built
    result = BM25().index(POOL).search(CLAIMS, 2)
    assert list(result.run) == rows
    assert not result.stored
    # A corrected gold, or a venue that is not indexed, does not change a ranking.
    corrected = first_claim(golds=("q",))
    sparse(tmp_path, **corrected, **VENUE)
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
    "claim's language": (first_claim(lang="fr"), BM25()),
    "venue": (VENUE, BM25(metadata=True)),
}
for name, value in SETTINGS.items():
    changed = BM25(**{name: value})
    BM25_CHANGES[f"setting {name}"] = ({}, changed)


@pytest.mark.parametrize("key", [*BM25_CHANGES, "bm25s", "PyStemmer"])
def test_one_changed_input_of_bm25_is_another_run(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {field.name for field in fields(BM25)}
    assert set(SETTINGS) == names - {"posts"}  # tests/search/test_bm25_posts.py
    counter = Counted(monkeypatch)
    real = bm25.version

    def other_version(name: str) -> str:
        return "9" if name == key else real(name)

    unchanged: tuple[dict[str, Any], BM25] = ({}, BM25())
    data, config = BM25_CHANGES.get(key, unchanged)
    is_setting = key.startswith("setting")
    sparse(tmp_path, None if is_setting else config)
    if key not in BM25_CHANGES:  # another version of a library
        monkeypatch.setattr(bm25, "version", other_version)
    result = sparse(tmp_path, config, **data)
    runs = list((tmp_path / "runs").iterdir())
    assert counter.built == 2
    assert len(runs) == 2

    args = SEARCHED | data
    index = config.index(args["sources"])
    uncached = index.search(args["claims"], args["k"])
    assert list(result.run) == list(uncached.run)


class Hashed:
    """An encoder whose vectors are made from a text's hash; it counts the texts it encoded."""

    def __init__(self, weights: str = "w", source: Hashed | None = None, prefix: str = "") -> None:
        template = Template(claim=prefix)
        self.weights = weights
        self.source_encoder = source
        self.settings = EncoderSettings(template=template)
        self.read: list[str] = []

    def key(self) -> dict[str, Any] | None:
        return {"weights": self.weights} if self.weights else None

    def encode(self, texts: list[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        self.read += texts
        digests = []
        for text in texts:
            hashed = hashlib.sha256(f"{side} {text}".encode())
            digests.append(hashed.digest()[:4])
        numbers = np.frombuffer(b"".join(digests), dtype=np.uint8)
        vectors = numbers.reshape(-1, 4) + 1.0
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        vectors = (vectors / lengths).astype(np.float32)
        cost = Cost(0.1, len(texts), 0, len(texts))
        return vectors, cost


def dense(root: Path, store: Store | None = None, **changes: Any) -> tuple[Result, int]:
    args = SEARCHED | {"encoder": Hashed()}
    for name in args.keys() & changes.keys():
        args[name] = changes.pop(name)
    encoder = args["encoder"]
    made = Dense(encoder, store=store or Store(root), **changes)
    index = made.index(args["sources"])
    result = index.search(args["claims"], args["k"])
    return result, len(encoder.read)


def test_a_models_run_is_read_with_its_cost(tmp_path: Path) -> None:
    first, read = dense(tmp_path)
    rerun, none = dense(tmp_path)
    assert read == 5
    assert none == 0
    assert list(rerun.run) == list(first.run)
    # The cost is that of computing, not of reading: nobody searches millions of claims a second.
    assert rerun.cost == first.cost
    assert first.cost.items == 3
    assert first.stored is False
    assert rerun.stored is True
    # Which gold a claim has, and its language, changes no text and no ranking.
    corrected = first_claim(golds=("q",), lang="de")
    _, read = dense(tmp_path, **corrected)
    assert read == 0


CHANGES = DATA | {
    "rendering": lambda: {"rendering": Rendering("bilingual")},
    "weights": lambda: {"encoder": Hashed("W")},
    "source side": lambda: {"encoder": Hashed(source=Hashed("base"))},
    "prefix": lambda: {"encoder": Hashed(prefix="query: ")},
}
VERSIONS = {
    "faiss": "faiss.__version__",
    "torch": "",
    "transformers": "",
}


@pytest.mark.parametrize("key", [*CHANGES, *VERSIONS])
def test_one_changed_input_of_a_model_is_another_run(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_version(name: str) -> str:
        return "0" if name == key else version(name)

    dense(tmp_path)
    if key in VERSIONS:  # another version of a library
        place = VERSIONS[key] or "claim2source.search.dense.version"
        version_of = "0" if key == "faiss" else other_version
        monkeypatch.setattr(place, version_of)
    changes = CHANGES[key]() if key in CHANGES else {}
    result, _ = dense(tmp_path, **changes)
    runs = list((tmp_path / "runs").iterdir())
    assert not result.stored
    assert len(runs) == 2


@pytest.mark.parametrize("encoder", [Hashed(""), Hashed(source=Hashed(""))])
def test_weights_in_training_keep_no_run(tmp_path: Path, encoder: Hashed) -> None:
    encoder.read.clear()
    _, first = dense(tmp_path, encoder=encoder)
    _, second = dense(tmp_path, encoder=encoder)
    assert first == 5
    assert second == 10
    runs = tmp_path / "runs"
    assert not runs.exists()


def test_candidates_come_back_with_the_run(tmp_path: Path) -> None:
    bound = Claim("bound", "b", candidates=("p", "gone"))
    claims = [CLAIMS[0], bound]
    first, _ = dense(tmp_path, claims=claims)
    rerun, read = dense(tmp_path, claims=claims)
    pool = {"bound": frozenset({"p", "gone"})}
    assert read == 0
    assert rerun.run.pool == pool
    assert first.run.pool == pool
