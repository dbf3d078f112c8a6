"""Keys of stored runs and finished rows do not change: stored results are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost
from claim2source.data.store import Store
from claim2source.models import EncoderSettings
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import Hybrid
from claim2source.systems.read import make_system
from claim2source.text import Rendering

CLAIMS = [
    Claim("x", "masks cut colds", golds=("p",)),
    Claim("y", "masks und Kaffee", "de", "masks and coffee", candidates=("q", "p")),
]
SOURCES = [
    Source("p", "Masks", "Masks against colds.", ("Ann Author",), "A Journal"),
    Source("q", "Coffee", "Coffee and masks.", ("Ben Writer",), "B Letters"),
]


KEYS = ["71f831aa4df2", "57139ab18288", "dfdfcff0418d", "202afc7cba41", "3e0f1527a9c8"]
ROWS = {
    "bm25": "0ebf0c17de89",
    "grid": "193e6e28f732",
    "fielded": "d064651a049b",
    "dense": "0f7723d19ae3",
    "run": "769a38ef71fa",
    "hybrid": "f09fa0abbc78",
    "fitted": "30e4b38a82ed",
    "routes": "c912fbafa3ad",
}
LABELS = [
    "S",
    "bm25-tuned",
    "fielded-bm25+boost-2.0",
    "org/m",
    "S",
    "bm25-own-hybrid:org/m",
    "bm25-own-tuned-hybrid:org/m",
    "routes(de=bm25-own-hybrid:org/m, default=bm25-own)",
]


class Letters:
    """Encode a text as counts of letters."""

    source_encoder = None
    settings = EncoderSettings()

    def encode(self, texts: Any, side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        vectors = [[1.0 + text.count(letter) for letter in "abc"] for text in texts]
        return np.array(vectors, np.float32), Cost()

    def key(self) -> dict[str, Any]:
        return {"model": "letters"}


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes of the keys that runs are looked up by, without versions of libraries."""
    hashes: list[str] = []
    real = Store.run

    def run(store: Store, made_by: Any) -> Any:
        hashes.append(content_hash({k: v for k, v in made_by.items() if k != "versions"}))
        return real(store, made_by)

    monkeypatch.setattr(Store, "run", run)
    return hashes


def test_keys_of_stored_runs(stored: list[str], tmp_path: Path) -> None:
    store = Store(tmp_path)
    words = BM25(k1=1.5, claims="bilingual", store=store)
    rendering = Rendering("translated", "metadata")
    vectors = Dense(Letters(), rendering=rendering, store=store)
    for retriever in (BM25(store=store), words, vectors, Hybrid(words, vectors)):
        assert retriever.index(SOURCES).search(CLAIMS, 2).run.claim_ids == ("x", "y")
    assert [key[:12] for key in stored] == KEYS


SETTINGS: dict[str, Any] = {
    "bm25": {"bm25": {"k1": 1.5, "metadata": True}, "claims": "bilingual"},
    "grid": {"bm25": {"k1": "fit"}},
    "fielded": {"fielded": {"boost": 2.0}},
    "dense": {"dense": {"name": "org/m", "pooling": "mean"}, "sources": "metadata"},
    "run": {"run": {"en": "a.trec", "de": "b.trec"}},
    "hybrid": {"hybrid": [{"bm25": {}}, {"dense": "org/m"}], "alpha": 0.3},
    "fitted": {"hybrid": [{"bm25": {}}, {"dense": "org/m"}], "alpha": "fit"},
}


def test_settings_of_systems_in_reports_and_keys_of_rows() -> None:
    systems = {name: make_system("S", {"retrieve": node}) for name, node in SETTINGS.items()}
    routed = {"retrieve": {"bm25": {}}, "routes": {"de": SETTINGS["hybrid"]}}
    systems["routes"] = make_system("S", routed)
    hashes = {name: content_hash(system.settings)[:12] for name, system in systems.items()}
    assert hashes == ROWS
    labels = [system.full_label() for system in systems.values()]
    assert labels == LABELS
