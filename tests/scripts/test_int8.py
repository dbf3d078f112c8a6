"""Weights in int8 stand behind the same Encoder."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import UserError
from claim2source.io.store import Store
from claim2source.models import Encoder, ModelConfig, Template, resolve

TEXTS = ["a b c", "vaccine works", "claim", "paper : a vaccine works . b c a b c"]


def tiny(folder: Path, **settings: object) -> Encoder:
    config = ModelConfig(str(folder), pooling="mean", max_length=16, **settings)  # type: ignore[arg-type]
    return resolve(config, "cpu").encoder


def test_vectors_are_near_those_of_the_whole_weights(tiny_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from scripts.int8 import to_int8

    template = Template(claim="query : ", pool_prefix=False)
    encoder, store = tiny(tiny_folder, template=template), Store(tmp_path)
    small = to_int8(encoder)
    for side in ("claim", "source"):
        whole, _ = encoder.encode(TEXTS, side, store=store)  # type: ignore[arg-type]
        # The store must not take one for the other.
        found, cost = small.encode(TEXTS, side, store=store)  # type: ignore[arg-type]
        assert cost.items == len(TEXTS) and not np.array_equal(found, whole)
        assert ((found * whole).sum(axis=1) > 0.95).all()
        # Padding and the batch change nothing but how activations are rounded.
        alone = np.concatenate([small.encode([text], side)[0] for text in TEXTS])  # type: ignore[arg-type]
        assert ((found * alone).sum(axis=1) > 0.98).all()
    assert small.key() != encoder.key()
    assert encoder.model.training is False


def test_what_it_needs_is_said(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.int8 import to_int8

    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "onnx", None)
        with pytest.raises(UserError, match=r"pip install .claim2source\[int8\]"):
            to_int8(tiny(tiny_folder))
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    with pytest.raises(UserError, match="float32 weights on the CPU, not torch.bfloat16"):
        to_int8(tiny(tiny_folder, dtype="bfloat16"))


def test_a_model_that_cannot_be_exported_is_one_line(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from scripts.int8 import to_int8

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("no such operator\nand a page of a graph")

    monkeypatch.setattr("torch.onnx.export", refuse)
    encoder = tiny(tiny_folder)
    encoder.model.train()
    with pytest.raises(UserError, match=r"ONNX: RuntimeError: no such operator$") as said:
        to_int8(encoder)
    assert "\n" not in str(said.value)
    assert encoder.model.training  # as it was
