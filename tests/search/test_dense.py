"""Dense retrieval against a brute-force ranking, and the stage with a real model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Source
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.search import faiss_index
from claim2source.search.dense import Dense
from claim2source.search.faiss_index import VectorIndex
from claim2source.text import Rendering
from tests.refusals import refused
from tests.search.test_cache import Hashed


def brute(ids: list[str], vectors: np.ndarray, claim: np.ndarray, k: int) -> list[str]:
    scores = vectors.astype(np.float32) @ claim.astype(np.float32)
    order = sorted(range(len(ids)), key=lambda i: ids[i], reverse=True)
    return [ids[i] for i in sorted(order, key=lambda i: -scores[i])][:k]


def claims_dataset(n: int) -> list[Claim]:
    return [Claim(f"c{i}", "text") for i in range(n)]


@pytest.mark.parametrize("k", [1, 7, 50, 120, 5000])
@pytest.mark.parametrize("n", [1, 60])  # FAISS takes another path from 20 queries on
def test_the_search_is_exact(k: int, n: int) -> None:
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in rng.permutation(200)]
    sources, claims = rng.integers(-9, 9, (200, 40)), rng.integers(-9, 9, (n, 40))
    run = VectorIndex(ids, sources).rank(claims_dataset(n), claims, k)
    for i in range(n):
        assert run.sources(f"c{i}") == brute(ids, sources, claims[i], k)
        scores = run.scored(f"c{i}")
        expected = {ids[j]: float(sources[j] @ claims[i]) for j in range(200)}
        assert scores == {source: expected[source] for source in scores}


@pytest.mark.parametrize("k", [1, 2, 5, 11, 149, 150])
@pytest.mark.parametrize("n", [1, 40])
def test_of_equal_scores_the_ids_decide_even_at_the_cut(k: int, n: int) -> None:
    rng = np.random.default_rng(1)
    ids = [f"{i:03d}" for i in rng.permutation(150)]
    vectors = np.repeat(np.eye(3, 8), 50, axis=0)  # three texts, each 50 times
    claims = np.tile([3.0, 2.0, 1.0, 0, 0, 0, 0, 0], (n, 1))
    with_candidates = [Claim(f"c{i}", "t", candidates=tuple(ids)) for i in range(n)]
    index = VectorIndex(ids, vectors)
    expected = brute(ids, vectors, claims[0], k)
    for batch in (claims_dataset(n), with_candidates):
        run = index.rank(batch, claims, k)
        assert all(run.sources(claim.id) == expected for claim in batch)


def test_candidates_bound_the_choice() -> None:
    vectors = np.array([[3.0], [2.0], [1.0], [0.0], [-1.0]])
    index = VectorIndex(list("abcde"), vectors)
    claims = [
        Claim("free", "t"),
        Claim("bound", "t", candidates=("e", "d", "b", "gone", "b")),
        Claim("nobody", "t", candidates=()),
        Claim("other", "t"),
    ]
    run = index.rank(claims, np.array([[1.0], [2.0], [1.0], [-1.0]]), 3)
    assert run.sources("free") == ["a", "b", "c"]
    assert run.scored("bound") == {"b": 4.0, "d": 0.0, "e": -2.0}
    assert run.sources("nobody") == []
    assert run.sources("other") == ["e", "d", "c"]
    assert run.pool == {"bound": frozenset(claims[1].candidates or ()), "nobody": frozenset()}


def test_k_beyond_the_pool_and_k_of_nothing() -> None:
    index = VectorIndex(["a", "b"], np.array([[1.0], [2.0]]))
    assert index.rank(claims_dataset(1), np.ones((1, 1)), 10**9).sources("c0") == ["b", "a"]
    assert len(index.rank(claims_dataset(1), np.ones((1, 1)), 0)) == 0
    assert index.rank([], np.ones((0, 1)), 5).claim_ids == ()
    empty = VectorIndex([], np.ones((0, 3))).rank(claims_dataset(2), np.ones((2, 3)), 5)
    assert empty.claim_ids == ("c0", "c1")
    assert len(empty) == 0
    with refused(ValueError, "2 sources", "1 vectors"):
        VectorIndex(["a", "b"], np.ones((1, 3)))
    # One vector for several claims would be spread over all of them.
    with refused(ValueError, "3 claims", "1 vectors"):
        index.rank(claims_dataset(3), np.ones((1, 1)), 1)


def test_more_claims_than_a_chunk_are_ranked_as_few() -> None:
    n, rng = faiss_index.CHUNK + 30, np.random.default_rng(3)
    ids = [f"s{i}" for i in range(30)]
    sources, claims = rng.integers(-5, 5, (30, 8)), rng.integers(-5, 5, (n, 8))
    batch = [
        replace(claim, candidates=("s1", "s2") if i in (4, n - 3) else None)
        for i, claim in enumerate(claims_dataset(n))
    ]
    run = VectorIndex(ids, sources).rank(batch, claims, 6)
    for i in (0, faiss_index.CHUNK + 4):
        assert run.sources(f"c{i}") == brute(ids, sources, claims[i], 6)
    assert set(run.sources(f"c{n - 3}")) == {"s1", "s2"}


def test_the_stage_renders_both_sides_and_sums_the_cost() -> None:
    encoder, rendering = Hashed(), Rendering(claims="bilingual", sources="title_abstract")
    claims = [Claim("x", "hallo", "de", "hello"), Claim("y", "hi", candidates=("u",))]
    sources = [Source("t", "T", "A"), Source("u", "U")]
    result = Dense(encoder, rendering=rendering).index(sources).search(claims, 5)  # type: ignore[arg-type]
    assert sorted(encoder.read) == ["T. A", "U", "hallo\nhello", "hi"]
    (claim,), vectors = (
        encoder.encode(["hallo\nhello"], "claim")[0],
        encoder.encode(["T. A", "U"], "source")[0],
    )
    assert result.run.sources("x") == brute(["t", "u"], vectors, claim, 5)
    assert result.run.sources("y") == ["u"]
    assert (result.cost.tokens, result.cost.items, result.failures) == (4, 2, ())


@pytest.fixture(scope="module")
def model() -> Iterator[Resolved]:
    yield resolve(ModelConfig(max_length=256), "cpu")


def test_a_checkpoint_is_rendered_as_it_was_trained(model: Resolved) -> None:
    trained = Rendering("bilingual", "title_abstract")
    checkpoint = replace(model, manifest=SimpleNamespace(rendering=trained))  # type: ignore[arg-type]
    assert Dense(checkpoint).rendered_as == trained
    assert Dense(checkpoint, rendering=trained).rendered_as == trained
    with refused(UserError, "rendering: "):
        Dense(checkpoint, rendering=Rendering()).index([])
    # Any other model has the given rendering, an exported one by default that of its training.
    exported = replace(model, exported=trained)
    assert Dense(exported).rendered_as == trained and Dense(model).rendered_as == Rendering()
    for source in (exported, model, model.encoder):
        dense = Dense(source, rendering=Rendering("translated"))
        assert dense.rendered_as.claims == "translated"
