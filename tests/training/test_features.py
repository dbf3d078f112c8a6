"""Whole runs with each of the trainer's further settings, on a small real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from claim2source.train.merge import MergeConfig, merge

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Source
from claim2source.data.loading import load
from claim2source.data.store import Store
from claim2source.mining import MinedRow, Negative
from claim2source.models import Encoder, resolve
from claim2source.text import ClaimForm, Rendering
from claim2source.training.batches import BatchPlan
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.finetune import finetune
from claim2source.training.loss_list import Losses
from claim2source.training.losses import Consistency, InfoNCE, LossInputs, combined
from claim2source.training.module import RetrieverModule
from claim2source.training.negatives import negatives_table
from tests.refusals import refused
from tests.training.small import (
    dataset_of,
    mined_row,
    recipe_of,
    relative_gap,
    small_config,
    small_encoder,
)


@pytest.mark.parametrize("tuning", [pytest.param("full", marks=pytest.mark.slow), "lora"])
@pytest.mark.slow
def test_query_only_leaves_source_vectors_as_they_were(
    tuning: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "run"
    config = small_config(
        *setup,
        out,
        tuning=tuning,
        optimisation__train="query_only",
        optimisation__epochs=2,
        store=tmp_path / "store",
    )
    encoded: list[tuple[str, int]] = []
    real = Encoder._encode_chunk

    def count_texts(self: Encoder, texts: Any, side: Any, *rest: Any) -> Any:
        encoded.append((side, len(texts)))
        return real(self, texts, side, *rest)

    monkeypatch.setattr(Encoder, "_encode_chunk", count_texts)
    finetune(config)
    # An index of the sources stays valid: they are encoded once, at step 0, and never again.
    source_counts = [count for side, count in encoded if side == "source"]
    assert sum(source_counts) == 36
    checkpoints = out / "checkpoints"
    last = checkpoints / "epoch-2"
    base = resolve(checkpoints / "epoch-0").encoder
    tuned = resolve(last).encoder
    texts = ["Effect of masks on health", "some post"]
    tuned_sources = tuned.encode(texts, "source")[0]
    base_sources = base.encode(texts, "source")[0]
    assert tuned_sources == pytest.approx(base_sources, abs=0)

    # An export of it has two models, so that it cannot be a base.
    export = tmp_path / "model"
    merge(MergeConfig([str(last)], export))
    with refused(UserError, f"model.name: {export} "):
        finetune(small_config(export, setup[1], tmp_path / "again", tuning=tuning))
    tuned_claims = tuned.encode(texts, "claim")[0]
    base_claims = base.encode(texts, "claim")[0]
    distance = abs(tuned_claims - base_claims).max()
    assert distance > 1e-3

    # In the store too: the same key for sources, another for claims.
    store = Store(tmp_path / "other")
    base.encode(texts, "source", store=store)
    encoded.clear()
    tuned.encode(texts, "source", store=store)
    assert encoded == []
    tuned.encode(texts, "claim", store=store)
    assert encoded == [("claim", 2)]


def test_no_negatives_no_mining(
    setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("mined in vain")

    monkeypatch.setattr("claim2source.training.negatives.Miner", never)
    out = tmp_path / "run"
    config = small_config(
        *setup,
        out,
        optimisation__negatives=0,
        optimisation__epochs=1,
    )
    finetune(config)
    mined = (out / "mined.jsonl").read_text()
    rows = [json.loads(line) for line in mined.splitlines()]
    assert rows
    assert all(row["negatives"] == [] for row in rows)


def repeating_data() -> Dataset:
    """Four claims and five sources, of which two claims and two sources have one text."""
    posts = ["masks!", "tea?", "masks!", "salt"]
    topics = ["masks", "tea", "masks", "salt", "yoga"]
    claims = []
    for number, text in enumerate(posts):
        gold = "abcd"[number]
        claim = Claim(str(number), text, golds=(gold,))
        claims.append(claim)
    sources = []
    for name, topic in zip("abcde", topics, strict=True):
        source = Source(name, topic, "A study.")
        sources.append(source)
    return dataset_of(tuple(claims), tuple(sources))


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_texts_that_repeat_are_encoded_once(
    chunk_size: int | None, setup: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claims of one text and two sources of one text: the gradients stay the plain loss's."""
    encoder = small_encoder(setup[0])
    encoder.model.requires_grad_(True)
    encoder.model.eval()  # dropout would differ
    data = repeating_data()
    rows = [mined_row(claim.id, claim.golds[0], "e") for claim in data.claims]
    losses = Losses()
    recipe = recipe_of(losses=losses)
    pairs = TrainingPairs(data, rows, encoder, recipe)
    config = OptimisationConfig(temperature=0.05, chunk_size=chunk_size)
    module = RetrieverModule(encoder, pairs, config, losses, 1)
    plan = BatchPlan((0, 1, 2, 3), 0, 0, 1)
    batch = pairs.batch(plan)
    texts = [*batch.claims, *batch.sources]

    def gradients() -> dict[str, torch.Tensor]:
        gradient_of = {}
        for name, parameter in encoder.model.named_parameters():
            if parameter.grad is not None:
                gradient_of[name] = parameter.grad
        encoder.model.zero_grad(set_to_none=True)
        return gradient_of

    collated = encoder.collate(texts)
    counts = [4, len(batch.sources), 0, 0]
    vectors = encoder.vectors(collated).split(counts)
    inputs = LossInputs(*vectors, batch, 0.05)
    loss, _ = combined(losses.active, inputs)
    loss.backward()
    expected = gradients()

    encoded: list[int] = []
    real = Encoder.vectors

    def remember(self: Encoder, texts: Any) -> torch.Tensor:
        vectors = real(self, texts)
        # In chunks all but the last are encoded twice: once without a graph.
        count = len(vectors) if torch.is_grad_enabled() else 0
        encoded.append(count)
        return vectors

    monkeypatch.setattr(Encoder, "vectors", remember)
    collated_batch = module.collate(batch.plan)
    chunked = module.forward_pass(collated_batch)
    module.cache.backward(chunked)
    assert len(texts) == 9
    distinct = set(texts)
    assert sum(encoded) == len(distinct) == 7
    plain_loss = loss.item()
    assert chunked.item() == pytest.approx(plain_loss, rel=1e-5)
    assert plain_loss > 0.1
    assert relative_gap(expected, gradients()) < 1e-5


@pytest.mark.parametrize("form", ["bilingual", "paired"])
def test_each_epoch_shows_another_view(
    form: ClaimForm, setup: tuple[Path, Path], encoder: Encoder
) -> None:
    train = load(setup[1], "train")
    claims = train.claims[:4]
    rows = [MinedRow(claim.id, claim.golds[0], ()) for claim in claims]
    losses = Losses([InfoNCE(), Consistency()])
    recipe = recipe_of(0, Rendering(form), losses)
    pairs = TrainingPairs(train, rows, encoder, recipe)
    german = [i for i, claim in enumerate(claims) if claim.lang == "de"]
    assert german
    first = train.claims[german[0]]
    for epoch, text in (
        (0, first.text),
        (1, first.translation),
        (2, first.text),  # as it is read anyway, it is no view
    ):
        plan = BatchPlan((0, 1, 2, 3), epoch, 0, 1)
        batch = pairs.batch(plan)
        assert batch.owners is not None
        assert batch.owners.tolist() == german
        tokens = encoder.tokenize([str(text)], "claim")
        assert batch.views[0] == tokens[0]


def test_the_table_of_negatives(setup: tuple[Path, Path]) -> None:
    train = load(setup[1], "train")
    rows = []
    for claim in train.claims:
        negative = Negative("s30", 0.25, "bm25")
        row = MinedRow(claim.id, claim.golds[0], (negative,))
        rows.append(row)
    negatives = negatives_table(rows, train, seed=1)
    assert negatives.columns == [
        "language",
        "claim",
        "gold",
        "negative",
        "score",
        "origin",
    ]
    first = negatives.rows[0]
    by_text = {claim.text: claim for claim in train.claims}
    first_claim = by_text[first[1]]
    titles = {source.id: source.title for source in train.sources}
    assert first == [
        first_claim.lang,
        first_claim.text,
        titles[first_claim.golds[0]],
        titles["s30"],
        0.25,
        "bm25",
    ]
    assert negatives_table(rows, train, seed=1) == negatives
    assert negatives_table(rows, train, seed=2) != negatives
