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
TOPICS = {"a": "masks", "b": "tea", "c": "salt", "d": "sugar", "e": "coffee", "f": "yoga"}
SOURCES = tuple(Source(name, f"{t} and health", f"A study of {t}.") for name, t in TOPICS.items())
# Of each its claim, its gold, and its negatives.
ROWS = [mined_row(*names) for names in ("1ab", "2af", "3cb", "3d", "4ed")]
SHARES = ((0, 2), (1, 3, 4))
# In order of appearance the sources are a, c, d, e, b, f: every second one is rank 1's.
COLUMNS = "adbcef"


def plan_of(rank: int, shares: tuple[tuple[int, ...], ...] = SHARES) -> BatchPlan:
    return BatchPlan(shares[rank], 0, 0, 1, shares, rank)


def cells(listed: list[str]) -> Tensor:
    """A table of booleans, written with x and dots."""
    return torch.tensor([[cell == "x" for cell in line] for line in listed])


# Claim 3's other gold is not a candidate: its score is not used.
TEACHER = {"3": {"c": 2.0, "d": 5.0, "b": -1.0}, "4": {"f": 0.25}}


# By process: its claims, positives, its mask, the teacher's scores, and keep_base's weights.
SCORES = [[NAN, NAN, -1.0, 2.0, NAN, NAN], [NAN, 5.0, -1.0, NAN, NAN, NAN], [NAN] * 5 + [0.25]]
EXPECTED: Any = (
    ("13", [0, 3], ["......", ".x...."], [[NAN] * 6, SCORES[0]], [0.75, 0.0]),
    ("234", [0, 1, 4], ["......", "...x..", "......"], [[NAN] * 6, *SCORES[1:]], [0.5, 0.0, 0.5]),
)


@pytest.mark.parametrize("query_only", [False, True])
@pytest.mark.parametrize("rank", [0, 1])
def test_what_the_losses_get(rank: int, query_only: bool, encoder: Encoder, tmp_path: Path) -> None:
    claims, positives, masked, teacher, weights = EXPECTED[rank]
    data, rendering = dataset_of(CLAIMS, SOURCES), Rendering("bilingual", "title")
    base = BaseVectors.encode(encoder, rendering, data, Store(tmp_path))
    keep_base = KeepBase(1.0, {"en": 0.75, "de": 0.5})
    losses = Losses([Distillation(1.0, Path("unused")), keep_base])
    recipe = recipe_of(1, rendering, losses, train="query_only" if query_only else "both")
    pairs = TrainingPairs(data, ROWS, encoder, recipe, base=base, teacher=TEACHER)
    batch = pairs.batch(plan_of(rank))
    claim_of = {c.id: c for c in CLAIMS}
    texts = rendering.claim_texts([claim_of[name] for name in claims])
    assert batch.claims == encoder.tokenize(texts, "claim")
    in_columns = {s.id: s for s in SOURCES}
    source_texts = rendering.source_texts([in_columns[name] for name in COLUMNS])
    own = encoder.tokenize(source_texts, "source")[3 * rank : 3 * rank + 3]
    assert batch.sources == ([] if query_only else own)
    assert batch.counts == (3, 3)
    assert batch.positives.tolist() == positives
    assert torch.equal(batch.masked, cells(masked))
    assert batch.teacher is not None
    assert torch.equal(batch.teacher.nan_to_num(-99.0), torch.tensor(teacher).nan_to_num(-99.0))
    assert keep_base.claim_weights(batch.languages) == weights
    require_same(batch.base_claims, encoder.encode(texts, "claim")[0])
    require_same(batch.base_sources, encoder.encode(source_texts, "source")[0])
    assert KeepBase(1.0).claim_weights(batch.languages) == [1.0] * len(claims)
    if query_only:
        require_same(batch.fixed_sources, encoder.encode(source_texts, "source")[0])
    else:
        assert batch.fixed_sources is None


def require_same(actual: Tensor | None, expected: object) -> None:
    assert actual is not None
    values = torch.as_tensor(expected)
    assert actual.shape == values.shape and torch.allclose(actual, values, atol=1e-6)
    # No two rows are equal, so that their order is tested.
    assert torch.pdist(values).min() > 1e-3


# g is a under another id, h is d under another id.
TWINS = (*SOURCES, replace(SOURCES[0], id="g"), replace(SOURCES[3], id="h"))


@pytest.mark.parametrize("query_only", [False, True])
def test_a_gold_under_another_id_is_masked(
    query_only: bool, encoder: Encoder, tmp_path: Path
) -> None:
    """It has the gold's own vector: as a negative it would push the gold away."""
    claims = (*CLAIMS, Claim("5", "masks? no", "en", golds=("g",)))
    rows = [mined_row(*names) for names in ("1ab", "3ch", "5g", "4eg")]
    data = dataset_of(claims, TWINS)
    base = BaseVectors.encode(encoder, Rendering(), data, Store(tmp_path))
    teacher = {"1": {"a": 1.0, "g": 1.0, "b": 0.0}}
    recipe = recipe_of(train="query_only" if query_only else "both")
    pairs = TrainingPairs(data, rows, encoder, recipe, base=base, teacher=teacher)
    batch = pairs.batch(BatchPlan((0, 1, 2, 3), 0, 0, 1))
    # Columns a c g e b h; claim 3's other gold, d, is not among them, but has h's text.
    assert torch.equal(batch.masked, cells(["..x...", ".....x", "x.....", "......"]))
    assert batch.teacher is not None
    assert batch.teacher[0].nan_to_num(-99.0).tolist() == [1.0, -99.0, -99.0, -99.0, 0.0, -99.0]


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
    golds = {"masks work": "a", "masks do not": "b", "tea wakes": "d", "coffee wakes": "e"}
    claims = [Claim(f"{i}", text, golds=(golds[text],)) for i, text in enumerate(golds, 1)]
    rows = [mined_row(*names) for names in ("1a", "2be", "3dc", "4e")]
    mining = MiningConfig(max_title_similarity=0.9, max_text_similarity=0.8)

    def masked(mining: MiningConfig, *plans: BatchPlan) -> list[Tensor]:
        data = dataset_of(claims, VERSIONS)
        pairs = TrainingPairs(data, rows, encoder, replace(recipe_of(), mining=mining))
        return [pairs.batch(plan).masked for plan in plans]

    batch_plan = BatchPlan((0, 1, 2, 3), 0, 0, 1)
    (mask,) = masked(mining, batch_plan)
    # Columns a b d e c.
    assert torch.equal(mask, cells([".x..x", "x...x", ".....", "....."]))
    two = [plan_of(rank, ((0, 2), (1, 3))) for rank in (0, 1)]
    found_by = masked(mining, *two)
    # In order of appearance a d b e c; columns by rank: a b c, d e.
    assert torch.equal(found_by[0], cells([".xx..", "....."]))
    assert torch.equal(found_by[1], cells(["x.x..", "....."]))
    (mask,) = masked(MiningConfig(max_title_similarity=None), batch_plan)
    assert not mask.any()
