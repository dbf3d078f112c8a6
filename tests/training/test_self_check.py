"""Before training, steps are compared with the same steps computed in another way."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from claim2source.core.errors import UserError
from claim2source.models import Encoder, ModelConfig, packed, resolve
from claim2source.training.base import check_training, cut_encoder
from claim2source.training.config import FinetuneConfig, OptimisationConfig
from tests.models.mistral import save_mistral, save_tokenizer
from tests.refusals import refused
from tests.training.small import small_encoder, small_setup

CLAIMS = ["masks work", "coffee and sleep of nurses in the night", "noise", "sugar " * 20]
GOLDS = ["a study of masks", "sleep " * 15, "noise and stress in cities", "taxes on sugar"]


def settings(precision: Any = "fp32", **model: Any) -> FinetuneConfig:
    train = OptimisationConfig(precision=precision, temperature=0.05)
    return FinetuneConfig(optimisation=train, model=ModelConfig("x", **model))


@pytest.fixture(params=["bert", "mistral"])
def encoder(request: pytest.FixtureRequest, tmp_path: Path) -> Encoder:
    if request.param == "bert":
        return small_encoder(small_setup(tmp_path)[0])
    base = save_mistral(tmp_path / "mistral")
    save_tokenizer(base)
    resolved = resolve(
        ModelConfig(str(base), pooling="mean", max_length=64, bidirectional=True), "cpu"
    )
    return resolved.encoder


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_right_training_passes_and_changes_nothing(encoder: Encoder, precision: str) -> None:
    weights = {n: p.clone() for n, p in encoder.model.named_parameters()}
    state = torch.get_rng_state()
    lines = check_training(encoder, settings(precision), CLAIMS, GOLDS)
    assert any("padded" in line for line in lines)
    assert any("bfloat16" in line for line in lines) is (precision == "bf16")
    assert torch.equal(torch.get_rng_state(), state)
    for name, weight in encoder.model.named_parameters():
        assert torch.equal(weight, weights[name]) and weight.grad is None


def test_texts_are_as_long_as_in_the_training(
    encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: set[int] = set()
    batch = Encoder.batch

    def watched(self: Encoder, tokens: Any) -> Any:
        lengths.update(len(text.ids) for text in tokens)
        return batch(self, tokens)

    monkeypatch.setattr(Encoder, "batch", watched)
    config = settings()
    check_training(encoder, config, CLAIMS, GOLDS)
    assert max(lengths) > 8
    lengths.clear()
    head = replace(config, optimisation=replace(config.optimisation, max_length=8))
    check_training(encoder, head, CLAIMS, GOLDS)
    assert max(lengths) == 8


def test_the_cut_model_attends_as_the_whole_one(encoder: Encoder) -> None:
    head = cut_encoder(encoder)
    assert head.model.config.num_hidden_layers == 2
    assert getattr(head.model.config, "is_causal", None) is getattr(
        encoder.model.config, "is_causal", None
    )
    ids = torch.tensor([[5, 6, 7, 8]])
    first = [head.model(input_ids=row).last_hidden_state[0, 0] for row in (ids, ids.flip(1))]
    # Bidirectional: the first token attends to later ones.
    output = head.model(input_ids=torch.tensor([[5, 9, 9, 9]])).last_hidden_state[0, 0]
    assert not torch.allclose(first[0], output, atol=1e-4)


@pytest.mark.parametrize("wrong", ["attention", "positions", "gradient"])
def test_a_wrong_way_of_computing_stops_the_training(
    wrong: str, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed texts that attend to each other, have wrong positions, or half of a gradient."""
    hidden = packed.packed_hidden

    def spoilt(model: Any, batch: Any) -> torch.Tensor:
        if wrong == "attention":
            seen = [None if g.mask is None else torch.ones_like(g.mask) for g in batch.groups]
            groups = tuple(
                replace(g, mask=mask) for g, mask in zip(batch.groups, seen, strict=True)
            )
            batch = replace(batch, groups=groups)
        if wrong == "positions":
            batch = replace(batch, positions=batch.positions // 2)
        states = hidden(model, batch)
        return states.detach() / 2 + states / 2 if wrong == "gradient" else states

    monkeypatch.setattr("claim2source.models.encoder.packed_hidden", spoilt)
    with refused(UserError, "padded", "--self_check"):
        check_training(encoder, settings(), CLAIMS, GOLDS)
