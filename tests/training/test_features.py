"""Whole runs with each of the trainer's further settings, on a small real model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from claim2source.train.merge import MergeConfig, merge

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Source
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
    tuning: str, setup: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert sum(count for side, count in encoded if side == "source") == 36
    base = resolve(out / "checkpoints" / "epoch-0").encoder
    tuned = resolve(out / "checkpoints" / "epoch-2").encoder
    texts = ["Effect of masks on health", "some post"]
    assert tuned.encode(texts, "source")[0] == pytest.approx(base.encode(texts, "source")[0], abs=0)
    # An export of it has two models, so that it cannot be a base.
    merge(MergeConfig([str(out / "checkpoints" / "epoch-2")], tmp_path / "model"))
    with refused(UserError, f"model.name: {tmp_path / 'model'} "):
        finetune(small_config(tmp_path / "model", setup[1], tmp_path / "again", tuning=tuning))
    distance = abs(tuned.encode(texts, "claim")[0] - base.encode(texts, "claim")[0]).max()
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
    finetune(small_config(*setup, out, optimisation__negatives=0, optimisation__epochs=1))
    rows = [json.loads(line) for line in (out / "mined.jsonl").read_text().splitlines()]
    assert rows and all(row["negatives"] == [] for row in rows)


@pytest.mark.parametrize("chunk_size", [None, 3])
def test_texts_that_repeat_are_encoded_once(
    chunk_size: int | None, setup: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two claims of one text and two sources of one text: the gradients stay the plain loss's."""
    encoder = small_encoder(setup[0])
    encoder.model.requires_grad_(True)
    encoder.model.eval()  # dropout would differ
    posts, topics = ["masks!", "tea?", "masks!", "salt"], ["masks", "tea", "masks", "salt", "yoga"]
    claims = tuple(Claim(str(i), text, golds=("abcd"[i],)) for i, text in enumerate(posts))
    sources = tuple(Source(*fields, "A study.") for fields in zip("abcde", topics, strict=True))
    rows = [mined_row(c.id, c.golds[0], "e") for c in claims]
    losses = Losses()
    data = dataset_of(claims, sources)
    pairs = TrainingPairs(data, rows, encoder, recipe_of(losses=losses))
    config = OptimisationConfig(temperature=0.05, chunk_size=chunk_size)
    module = RetrieverModule(encoder, pairs, config, losses, 1)
    batch = pairs.batch(BatchPlan((0, 1, 2, 3), 0, 0, 1))
    texts = [*batch.claims, *batch.sources]

    def gradients() -> dict[str, torch.Tensor]:
        gradient_of = {n: p.grad for n, p in encoder.model.named_parameters() if p.grad is not None}
        encoder.model.zero_grad(set_to_none=True)
        return gradient_of

    vectors = encoder.vectors(encoder.collate(texts)).split([4, len(batch.sources), 0, 0])
    loss, _ = combined(losses.active, LossInputs(*vectors, batch, 0.05))
    loss.backward()
    expected = gradients()

    encoded: list[int] = []
    real = Encoder.vectors

    def remember(self: Encoder, texts: Any) -> torch.Tensor:
        vectors = real(self, texts)
        # In chunks all but the last are encoded twice: once without a graph.
        encoded.append(len(vectors) if torch.is_grad_enabled() else 0)
        return vectors

    monkeypatch.setattr(Encoder, "vectors", remember)
    chunked = module.forward_pass(module.collate(batch.plan))
    module.cache.backward(chunked)
    assert len(texts) == 9 and sum(encoded) == len(set(texts)) == 7
    assert chunked.item() == pytest.approx(loss.item(), rel=1e-5) and loss.item() > 0.1
    assert relative_gap(expected, gradients()) < 1e-5


@pytest.mark.parametrize("form", ["bilingual", "paired"])
def test_each_epoch_shows_another_view(
    form: ClaimForm, setup: tuple[Path, Path], encoder: Encoder
) -> None:
    train = load(setup[1], "train")
    rows = [MinedRow(c.id, c.golds[0], ()) for c in train.claims[:4]]
    losses = Losses([InfoNCE(), Consistency()])
    pairs = TrainingPairs(train, rows, encoder, recipe_of(0, Rendering(form), losses))
    german = [i for i, c in enumerate(train.claims[:4]) if c.lang == "de"]
    assert german
    for epoch, text in (
        (0, train.claims[german[0]].text),
        (1, train.claims[german[0]].translation),
        (2, train.claims[german[0]].text),  # as it is read anyway, it is no view
    ):
        batch = pairs.batch(BatchPlan((0, 1, 2, 3), epoch, 0, 1))
        assert batch.owners is not None and batch.owners.tolist() == german
        assert batch.views[0] == encoder.tokenize([str(text)], "claim")[0]


def test_the_table_of_negatives(setup: tuple[Path, Path]) -> None:
    train = load(setup[1], "train")
    rows = [MinedRow(c.id, c.golds[0], (Negative("s30", 0.25, "bm25"),)) for c in train.claims]
    negatives = negatives_table(rows, train, seed=1)
    table = negatives.rows
    assert negatives.columns == ["language", "claim", "gold", "negative", "score", "origin"]
    claim = {c.text: c for c in train.claims}[table[0][1]]
    titles = {s.id: s.title for s in train.sources}
    expected = [claim.lang, claim.text, titles[claim.golds[0]], titles["s30"], 0.25, "bm25"]
    assert table[0] == expected
    assert negatives_table(rows, train, seed=1) == negatives
    assert negatives_table(rows, train, seed=2) != negatives
