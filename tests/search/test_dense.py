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


def brute(
    ids: list[str],
    vectors: np.ndarray,
    claim: np.ndarray,
    k: int,
) -> list[str]:
    scores = vectors.astype(np.float32) @ claim.astype(np.float32)
    rows = range(len(ids))
    by_id = sorted(rows, key=lambda i: ids[i], reverse=True)
    by_score = sorted(by_id, key=lambda i: -scores[i])
    ranked = [ids[i] for i in by_score]
    return ranked[:k]


def claims_dataset(n: int) -> list[Claim]:
    return [Claim(f"c{i}", "text") for i in range(n)]


@pytest.mark.parametrize("k", [1, 7, 50, 120, 5000])
@pytest.mark.parametrize("n", [1, 60])  # FAISS takes another path from 20 queries on
def test_the_search_is_exact(k: int, n: int) -> None:
    rng = np.random.default_rng(0)
    ids = [f"s{i}" for i in rng.permutation(200)]
    sources = rng.integers(-9, 9, (200, 40))
    claims = rng.integers(-9, 9, (n, 40))
    index = VectorIndex(ids, sources)
    batch = claims_dataset(n)
    run = index.rank(batch, claims, k)
    for i in range(n):
        claim_id = f"c{i}"
        ranked = run.sources(claim_id)
        assert ranked == brute(ids, sources, claims[i], k)
        scores = run.scored(claim_id)
        expected = {}
        for j in range(200):
            product = sources[j] @ claims[i]
            expected[ids[j]] = float(product)
        assert scores == {source: expected[source] for source in scores}


@pytest.mark.parametrize("k", [1, 2, 5, 11, 149, 150])
@pytest.mark.parametrize("n", [1, 40])
def test_of_equal_scores_the_ids_decide_even_at_the_cut(k: int, n: int) -> None:
    rng = np.random.default_rng(1)
    ids = [f"{i:03d}" for i in rng.permutation(150)]
    three = np.eye(3, 8)
    vectors = np.repeat(three, 50, axis=0)  # three texts, each 50 times
    claim = [3.0, 2.0, 1.0, *[0] * 5]
    claims = np.tile(claim, (n, 1))
    candidates = tuple(ids)
    with_candidates = [Claim(f"c{i}", "t", candidates=candidates) for i in range(n)]
    index = VectorIndex(ids, vectors)
    expected = brute(ids, vectors, claims[0], k)
    without_candidates = claims_dataset(n)
    for batch in (without_candidates, with_candidates):
        run = index.rank(batch, claims, k)
        for ranked_claim in batch:
            ranked = run.sources(ranked_claim.id)
            assert ranked == expected


def test_candidates_bound_the_choice() -> None:
    vectors = np.array(
        [
            [3.0],
            [2.0],
            [1.0],
            [0.0],
            [-1.0],
        ]
    )
    index = VectorIndex(list("abcde"), vectors)
    candidates = ("e", "d", "b", "gone", "b")
    claims = [
        Claim("free", "t"),
        Claim("bound", "t", candidates=candidates),
        Claim("nobody", "t", candidates=()),
        Claim("other", "t"),
    ]
    claim_vectors = np.array(
        [
            [1.0],
            [2.0],
            [1.0],
            [-1.0],
        ]
    )
    run = index.rank(claims, claim_vectors, 3)
    assert run.sources("free") == ["a", "b", "c"]
    assert run.scored("bound") == {
        "b": 4.0,
        "d": 0.0,
        "e": -2.0,
    }
    assert run.sources("nobody") == []
    assert run.sources("other") == ["e", "d", "c"]
    assert run.pool == {
        "bound": frozenset(candidates),
        "nobody": frozenset(),
    }


def test_k_beyond_the_pool_and_k_of_nothing() -> None:
    vectors = np.array([[1.0], [2.0]])
    index = VectorIndex(["a", "b"], vectors)
    claim = claims_dataset(1)
    one = np.ones((1, 1))

    whole = index.rank(claim, one, 10**9)
    assert whole.sources("c0") == ["b", "a"]
    nothing = index.rank(claim, one, 0)
    assert len(nothing) == 0
    no_vectors = np.ones((0, 1))
    no_claims = index.rank([], no_vectors, 5)
    assert no_claims.claim_ids == ()

    no_sources = VectorIndex([], np.ones((0, 3)))
    claims = claims_dataset(2)
    empty = no_sources.rank(claims, np.ones((2, 3)), 5)
    assert empty.claim_ids == ("c0", "c1")
    assert len(empty) == 0

    one_vector = np.ones((1, 3))
    with refused(ValueError, "2 sources", "1 vectors"):
        VectorIndex(["a", "b"], one_vector)
    # One vector for several claims would be spread over all of them.
    three_claims = claims_dataset(3)
    with refused(ValueError, "3 claims", "1 vectors"):
        index.rank(three_claims, one, 1)


def test_more_claims_than_a_chunk_are_ranked_as_few() -> None:
    n = faiss_index.CHUNK + 30
    rng = np.random.default_rng(3)
    ids = [f"s{i}" for i in range(30)]
    sources = rng.integers(-5, 5, (30, 8))
    claims = rng.integers(-5, 5, (n, 8))
    batch = []
    for i, claim in enumerate(claims_dataset(n)):
        is_bound = i in (4, n - 3)
        candidates = ("s1", "s2") if is_bound else None
        batch.append(replace(claim, candidates=candidates))
    index = VectorIndex(ids, sources)
    run = index.rank(batch, claims, 6)
    for i in (0, faiss_index.CHUNK + 4):
        ranked = run.sources(f"c{i}")
        assert ranked == brute(ids, sources, claims[i], 6)
    bound = run.sources(f"c{n - 3}")
    assert set(bound) == {"s1", "s2"}


def test_the_stage_renders_both_sides_and_sums_the_cost() -> None:
    encoder = Hashed()
    rendering = Rendering(claims="bilingual", sources="title_abstract")
    claims = [
        Claim("x", "hallo", "de", "hello"),
        Claim("y", "hi", candidates=("u",)),
    ]
    sources = [
        Source("t", "T", "A"),
        Source("u", "U"),
    ]
    dense = Dense(encoder, rendering=rendering)  # type: ignore[arg-type]
    index = dense.index(sources)
    result = index.search(claims, 5)
    assert sorted(encoder.read) == [
        "T. A",
        "U",
        "hallo\nhello",
        "hi",
    ]

    claim_vectors, _ = encoder.encode(["hallo\nhello"], "claim")
    vectors, _ = encoder.encode(["T. A", "U"], "source")
    (claim,) = claim_vectors
    assert result.run.sources("x") == brute(["t", "u"], vectors, claim, 5)
    assert result.run.sources("y") == ["u"]

    assert result.cost.tokens == 4
    assert result.cost.items == 2
    assert result.failures == ()


@pytest.fixture(scope="module")
def model() -> Iterator[Resolved]:
    config = ModelConfig(max_length=256)
    yield resolve(config, "cpu")


def test_a_checkpoint_is_rendered_as_it_was_trained(model: Resolved) -> None:
    trained = Rendering("bilingual", "title_abstract")
    manifest = SimpleNamespace(rendering=trained)
    checkpoint = replace(model, manifest=manifest)  # type: ignore[arg-type]
    by_default = Dense(checkpoint)
    assert by_default.rendered_as == trained
    the_same = Dense(checkpoint, rendering=trained)
    assert the_same.rendered_as == trained
    with refused(UserError, "rendering: "):
        Dense(checkpoint, rendering=Rendering()).index([])

    # Any other model has the given rendering, an exported one by default that of its training.
    exported = replace(model, exported=trained)
    assert Dense(exported).rendered_as == trained
    assert Dense(model).rendered_as == Rendering()
    translated = Rendering("translated")
    for source in (exported, model, model.encoder):
        dense = Dense(source, rendering=translated)
        assert dense.rendered_as.claims == "translated"
