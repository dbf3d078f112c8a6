"""Dividing texts among processes, and filling the store from several."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

from claim2source.core.errors import UserError
from claim2source.io.store import Store
from claim2source.models import Encoder, EncoderSettings
from claim2source.models import multi_process as module
from claim2source.models.multi_process import fill_store, texts_of_process

TEXTS = ["a b", "claim", "paper works", "a b", "vaccine works a b c", "c", "b"]


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text(max_size=6)), st.integers(1, 5))
def test_every_text_goes_to_one_process(texts: list[str], size: int) -> None:
    shares = [texts_of_process(texts, rank, size) for rank in range(size)]
    assert sorted(text for share in shares for text in share) == sorted(set(texts))


def test_shares_are_blocks_of_like_length_and_as_long_as_each_other() -> None:
    texts = [
        "x" * n + str(i) for i, n in enumerate(np.random.default_rng(0).integers(1, 400, 2000))
    ]
    shares = [texts_of_process(texts, rank, 3) for rank in range(3)]
    assert [texts_of_process(texts[::-1], rank, 3) for rank in range(3)] == shares
    letters = [sum(map(len, share)) for share in shares]
    assert max(letters) < 1.05 * min(letters)
    for share in shares:
        lengths = [len(text) for text in share]
        assert lengths == sorted(lengths, reverse=True)
    assert texts_of_process(texts, 0, 1)[: module.BLOCK] == shares[0][: module.BLOCK]


@pytest.fixture
def encoder(tiny_folder: Path) -> Encoder:
    model = AutoModel.from_pretrained(tiny_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    return Encoder(model, tokenizer, EncoderSettings(max_length=16), {"base": "b"})


def test_shares_fill_one_store_and_what_is_there_is_said(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BLOCK", 1)
    plain, _ = encoder.encode(TEXTS, "claim")
    first = fill_store(encoder, TEXTS, "claim", Store(tmp_path), 0, 2)
    assert (first.texts, first.encoded, first.reused) == (3, 3, 0)
    again = fill_store(encoder, TEXTS, "claim", Store(tmp_path), 0, 2)
    assert (again.texts, again.encoded, again.reused, again.cost.tokens) == (3, 0, 3, 0)
    # Another process that starts late takes its own share, and nothing is left over.
    second = fill_store(encoder, TEXTS, "claim", Store(tmp_path), 1, 2)
    assert (second.texts, second.encoded) == (3, 3)
    read, cost = encoder.encode(TEXTS, "claim", store=Store(tmp_path))
    assert cost.tokens == 0
    assert np.abs(read - plain).max() < 1e-6
    assert first.cost.items == 3 and first.cost.tokens > 0


def test_the_source_side_is_encoded_by_its_own_encoder(encoder: Encoder, tmp_path: Path) -> None:
    base = Encoder(encoder.model, encoder.tokenizer, encoder.settings, {"base": "other"})
    encoder.source_encoder = base
    fill_store(encoder, TEXTS, "source", Store(tmp_path))
    assert base.encode(TEXTS, "claim", store=Store(tmp_path))[1].tokens == 0
    assert encoder.encode(TEXTS, "claim", store=Store(tmp_path))[1].tokens > 0


def test_weights_in_training_fill_nothing(encoder: Encoder, tmp_path: Path) -> None:
    encoder.weights = None
    with pytest.raises(UserError, match="in training"):
        fill_store(encoder, TEXTS, "claim", Store(tmp_path))
    assert list(tmp_path.iterdir()) == []
