"""Token batches: positives, masks, each source once, tokens as in evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from claim2source.encode import Encoder, ModelConfig, resolve
from claim2source.mining import MinedRow, Negative
from claim2source.records import Claim, Dataset, Qrels, Source
from claim2source.text import Rendering
from claim2source.training.batches import BatchPlan
from claim2source.training.data import TrainingPairs
from tests.training.small import save_small_model


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    folder = save_small_model(tmp_path_factory.mktemp("model"))
    return resolve(ModelConfig(name=str(folder), pooling="mean", max_length=24)).encoder


def dataset() -> Dataset:
    sources = tuple(Source(s, f"title {s}", f"abstract {s}") for s in "abcdef")
    claims = (
        Claim("1", "first", golds=("a", "b")),
        Claim("2", "second", golds=("c",)),
        Claim("3", " FIRST", golds=("d",)),  # the same text as claim 1
    )
    qrels = Qrels({c.id: dict.fromkeys(c.golds, 1) for c in claims})
    return Dataset(claims, sources, qrels, "train")


def row(claim: str, positive: str, *negatives: str) -> MinedRow:
    return MinedRow(claim, positive, tuple(Negative(n, 0.5, "both") for n in negatives))


ROWS = [row("1", "a", "e", "f"), row("2", "c", "a", "e"), row("3", "d", "c")]
PLAN = BatchPlan((0, 1, 2), 0, 0, 1, True, True)


def test_positives_masks_and_each_source_once(encoder: Encoder) -> None:
    pairs = TrainingPairs(dataset(), ROWS, encoder, Rendering(), negatives=1)
    batch = pairs.batch(PLAN)
    # Columns in order of appearance: positives a, c, d, then the first negatives e, (a), (c).
    assert len(batch.sources) == 4
    assert batch.positives.tolist() == [0, 1, 2]
    a, c, d, e = range(4)
    expected = torch.zeros(3, 4, dtype=torch.bool)
    expected[0, d] = True  # gold of the same text
    expected[2, a] = True
    assert torch.equal(batch.masked, expected)
    assert not batch.masked[1, a] and not batch.masked[0, c] and not batch.masked[0, e]
    assert pairs.short_rows == 0
    assert TrainingPairs(dataset(), ROWS, encoder, Rendering(), negatives=2).short_rows == 1


def test_second_gold_of_the_same_claim_is_masked(encoder: Encoder) -> None:
    rows = [row("1", "a"), row("2", "c", "b")]
    pairs = TrainingPairs(dataset(), rows, encoder, Rendering(), negatives=1)
    batch = pairs.batch(BatchPlan((0, 1), 0, 0, 1, True, True))
    assert batch.masked.tolist() == [[False, False, True], [False, False, False]]


def test_groups_join_claims_that_share_a_gold_or_a_text(encoder: Encoder) -> None:
    rows = [*ROWS, row("1", "b")]
    groups = TrainingPairs(dataset(), rows, encoder, Rendering(), negatives=1).groups()
    assert groups[0] == groups[2] == groups[3]
    assert groups[1] != groups[0]


def test_token_ids_are_those_of_evaluation(encoder: Encoder) -> None:
    rendering = Rendering("bilingual", "metadata")
    pairs = TrainingPairs(dataset(), ROWS, encoder, rendering, negatives=1)
    data = dataset()
    for claim, text in zip(data.claims, rendering.claim_texts(data.claims), strict=True):
        assert pairs.claim_tokens[claim.id] == encoder.tokenize([text], "claim")[0]
    source = data.sources[0]
    text = rendering.source_texts([source])[0]
    assert pairs.source_tokens["a"] == encoder.tokenize([text], "source")[0]


def test_unused_negatives_are_not_tokenised(encoder: Encoder, tmp_path: Path) -> None:
    pairs = TrainingPairs(dataset(), ROWS, encoder, Rendering(), negatives=1)
    assert "f" not in pairs.source_tokens
