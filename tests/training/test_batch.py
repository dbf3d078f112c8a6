"""All that one batch hands to the losses, for each of two processes, against what it must be."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from claim2source.core.records import Claim, Source
from claim2source.data.store import Store
from claim2source.mining import MiningConfig
from claim2source.models import Encoder
from claim2source.text import Rendering
from claim2source.training.batches import BatchPlan
from claim2source.training.data import BaseVectors, TrainingPairs
from claim2source.training.loss_list import Losses
from claim2source.training.losses import Distillation, KeepBase
from tests.training.small import dataset_of, mined_row, recipe_of

NAN = float("nan")
# Claims 1 and 2 share a gold, claim 3 has two of them.
CLAIMS = (
    Claim("1", "masks work", "en", golds=("a",)),
    Claim("2", "Masken helfen", "de", "masks help", ("a",)),
    Claim("3", "le sel et le sucre", "fr", golds=("c", "d")),
    Claim("4", "Kaffee weckt", "de", golds=("e",)),
)
TOPICS = {
    "a": "masks",
    "b": "tea",
    "c": "salt",
    "d": "sugar",
    "e": "coffee",
    "f": "yoga",
}
SOURCES = tuple(
    Source(
        name,
        f"{topic} and health",
        f"A study of {topic}.",
    )
    for name, topic in TOPICS.items()
)
# Of each its claim, its gold, and its negatives.
ROWS = [mined_row(*names) for names in ("1ab", "2af", "3cb", "3d", "4ed")]
SHARES = ((0, 2), (1, 3, 4))
# In order of appearance the sources are a, c, d, e, b, f: every second one is rank 1's.
COLUMNS = "adbcef"


def plan_of(rank: int, shares: tuple[tuple[int, ...], ...] = SHARES) -> BatchPlan:
    share = shares[rank]
    return BatchPlan(share, 0, 0, 1, shares, rank)


def cells(listed: list[str]) -> Tensor:
    """A table of booleans, written with x and dots."""
    rows = []
    for line in listed:
        row = [cell == "x" for cell in line]
        rows.append(row)
    return torch.tensor(rows)


# Claim 3's other gold is not a candidate: its score is not used.
TEACHER = {
    "3": {
        "c": 2.0,
        "d": 5.0,
        "b": -1.0,
    },
    "4": {"f": 0.25},
}


# By process: its claims, positives, its mask, the teacher's scores, and keep_base's weights.
NOTHING = [NAN] * 6
SCORES = [
    [NAN, NAN, -1.0, 2.0, NAN, NAN],
    [NAN, 5.0, -1.0, NAN, NAN, NAN],
    [NAN, NAN, NAN, NAN, NAN, 0.25],
]
EXPECTED: Any = (
    (
        "13",
        [0, 3],
        ["......", ".x...."],
        [NOTHING, SCORES[0]],
        [0.75, 0.0],
    ),
    (
        "234",
        [0, 1, 4],
        ["......", "...x..", "......"],
        [NOTHING, *SCORES[1:]],
        [0.5, 0.0, 0.5],
    ),
)


@pytest.mark.parametrize("query_only", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_losses_get(rank: int, query_only: bool, encoder: Encoder, tmp_path: Path) -> None:
    claims, positives, masked, teacher, weights = EXPECTED[rank]
    data = dataset_of(CLAIMS, SOURCES)
    rendering = Rendering("bilingual", "title")
    base = BaseVectors.encode(encoder, rendering, data, Store(tmp_path))
    keep_base = KeepBase(1.0, {"en": 0.75, "de": 0.5})
    distillation = Distillation(1.0, Path("unused"))
    losses = Losses([distillation, keep_base])
    sides = "query_only" if query_only else "both"
    recipe = recipe_of(1, rendering, losses, train=sides)
    pairs = TrainingPairs(
        data,
        ROWS,
        encoder,
        recipe,
        base=base,
        teacher=TEACHER,
    )
    batch = pairs.batch(plan_of(rank))

    claim_of = {claim.id: claim for claim in CLAIMS}
    own_claims = [claim_of[name] for name in claims]
    texts = rendering.claim_texts(own_claims)
    assert batch.claims == encoder.tokenize(texts, "claim")

    source_of = {source.id: source for source in SOURCES}
    in_columns = [source_of[name] for name in COLUMNS]
    source_texts = rendering.source_texts(in_columns)
    tokens = encoder.tokenize(source_texts, "source")
    own = tokens[3 * rank : 3 * rank + 3]
    assert batch.sources == ([] if query_only else own)
    assert batch.counts == (3, 3)

    assert batch.positives.tolist() == positives
    assert torch.equal(batch.masked, cells(masked))
    assert batch.teacher is not None
    scores = batch.teacher.nan_to_num(-99.0)
    expected_scores = torch.tensor(teacher).nan_to_num(-99.0)
    assert torch.equal(scores, expected_scores)
    assert keep_base.claim_weights(batch.languages) == weights

    claim_vectors, *_ = encoder.encode(texts, "claim")
    require_same(batch.base_claims, claim_vectors)
    source_vectors, *_ = encoder.encode(source_texts, "source")
    require_same(batch.base_sources, source_vectors)
    equal_weights = KeepBase(1.0).claim_weights(batch.languages)
    assert equal_weights == [1.0] * len(claims)
    if query_only:
        require_same(batch.fixed_sources, encoder.encode(source_texts, "source")[0])
    else:
        assert batch.fixed_sources is None


def require_same(actual: Tensor | None, expected: object) -> None:
    assert actual is not None
    values = torch.as_tensor(expected)
    assert actual.shape == values.shape
    assert torch.allclose(actual, values, atol=1e-6)
    # No two rows are equal, so that their order is tested.
    distances = torch.pdist(values)
    assert distances.min() > 1e-3


# g is a under another id, h is d under another id.
TWINS = (
    *SOURCES,
    replace(SOURCES[0], id="g"),
    replace(SOURCES[3], id="h"),
)


@pytest.mark.parametrize("query_only", [False, True])
def test_a_gold_under_another_id_is_masked(
    query_only: bool, encoder: Encoder, tmp_path: Path
) -> None:
    """It has the gold's own vector: as a negative it would push the gold away."""
    of_a_twin = Claim("5", "masks? no", "en", golds=("g",))
    claims = (*CLAIMS, of_a_twin)
    rows = [mined_row(*names) for names in ("1ab", "3ch", "5g", "4eg")]
    data = dataset_of(claims, TWINS)
    base = BaseVectors.encode(encoder, Rendering(), data, Store(tmp_path))
    teacher = {
        "1": {
            "a": 1.0,
            "g": 1.0,
            "b": 0.0,
        }
    }
    sides = "query_only" if query_only else "both"
    recipe = recipe_of(train=sides)
    pairs = TrainingPairs(
        data,
        rows,
        encoder,
        recipe,
        base=base,
        teacher=teacher,
    )
    plan = BatchPlan((0, 1, 2, 3), 0, 0, 1)
    batch = pairs.batch(plan)
    # Columns a c g e b h; claim 3's other gold, d, is not among them, but has h's text.
    expected = cells(
        [
            "..x...",
            ".....x",
            "x.....",
            "......",
        ]
    )
    assert torch.equal(batch.masked, expected)
    assert batch.teacher is not None
    scores = batch.teacher[0].nan_to_num(-99.0)
    assert scores.tolist() == [1.0, -99.0, -99.0, -99.0, 0.0, -99.0]


LONG = "effects of daily mask use on cold in adults a study with two groups"
# b has one word of a's title more, and c nine tenths of b's abstract: c is b's paper, and so a's.
VERSIONS = (
    Source("a", LONG, "We gave masks to many."),
    Source("b", f"{LONG}: again", "one two three four five six seven eight nine ten eleven"),
    Source("c", "Masks", "one two three four five six seven eight nine ten twelve"),
    Source("d", "Tea", "We gave tea to many."),
    Source("e", "Coffee", "one two three four five six."),
)


def test_near_duplicates_of_a_gold_are_no_negatives(encoder: Encoder) -> None:
    """By title, by abstract or through a third, from any row and process."""
    claims = [
        Claim("1", "masks work", golds=("a",)),
        Claim("2", "masks do not", golds=("b",)),
        Claim("3", "tea wakes", golds=("d",)),
        Claim("4", "coffee wakes", golds=("e",)),
    ]
    rows = [mined_row(*names) for names in ("1a", "2be", "3dc", "4e")]
    mining = MiningConfig(max_title_similarity=0.9, max_text_similarity=0.8)

    def masked(mining: MiningConfig, *plans: BatchPlan) -> list[Tensor]:
        data = dataset_of(claims, VERSIONS)
        recipe = replace(recipe_of(), mining=mining)
        pairs = TrainingPairs(data, rows, encoder, recipe)
        return [pairs.batch(plan).masked for plan in plans]

    batch_plan = BatchPlan((0, 1, 2, 3), 0, 0, 1)
    (mask,) = masked(mining, batch_plan)
    # Columns a b d e c.
    expected = cells(
        [
            ".x..x",
            "x...x",
            ".....",
            ".....",
        ]
    )
    assert torch.equal(mask, expected)

    two = [plan_of(rank, ((0, 2), (1, 3))) for rank in (0, 1)]
    first, second = masked(mining, *two)
    # In order of appearance a d b e c; columns by rank: a b c, d e.
    assert torch.equal(first, cells([".xx..", "....."]))
    assert torch.equal(second, cells(["x.x..", "....."]))

    any_title = MiningConfig(max_title_similarity=None)
    (mask,) = masked(any_title, batch_plan)
    assert not mask.any()
