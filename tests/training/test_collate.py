"""Batches whose tensors are made before their step."""

from __future__ import annotations

import threading
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from claim2source.datasets import load
from claim2source.mining import MinedRow
from claim2source.models.packed import PackedBatch
from claim2source.text import Rendering
from claim2source.training.batches import BatchPlan
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.losses import LossesConfig
from claim2source.training.module import CollatedBatch, RetrieverModule
from tests.training.small import small_encoder

PLAN = BatchPlan(tuple(range(12)), 0, 0, 1)


def module_of(setup: tuple[Path, Path], **settings: Any) -> RetrieverModule:
    encoder = small_encoder(setup[0])
    train = load(str(setup[1]), "train")
    rows = [MinedRow(claim.id, claim.golds[0], ()) for claim in train.claims]
    pairs = TrainingPairs(train, rows, encoder, Rendering("bilingual", "metadata"), 0)
    return RetrieverModule(encoder, pairs, OptimisationConfig(**settings), LossesConfig(), 2)


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in tensors(item)]
    return []


def test_a_batch_made_during_a_forward_pass_is_the_same(
    setup: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed texts replace the model's attention meanwhile, which says whether it can pack."""
    module = module_of(setup)
    first, batches = module.collate(PLAN), []
    real = torch.nn.functional.scaled_dot_product_attention

    def attend(*arguments: Any, **options: Any) -> Tensor:
        thread = threading.Thread(target=lambda: batches.append(module.collate(PLAN)))
        thread.start()
        thread.join()
        return real(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    module.forward_pass(first)
    during: CollatedBatch = batches[0]
    assert isinstance(during.parts[0], PackedBatch) and during.chunks == first.chunks
    pairs = zip(tensors(during), tensors(first), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.parametrize("settings", [{"chunk_size": 5}, {"chunk_tokens": 60}, {}])
def test_every_tensor_is_pinned_once_for_a_gpu(
    settings: dict[str, Any], setup: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = module_of(setup, **settings).collate(PLAN)
    assert (len(batch.chunks) > 1) is bool(settings)
    pinned: list[int] = []

    def pin(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        pinned.append(id(copy))
        return copy

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    copied = batch.pin_memory()
    assert sorted(id(tensor) for tensor in tensors(copied)) == sorted(pinned)
    assert len(pinned) == len(tensors(batch)) > 10
    pairs = zip(tensors(copied), tensors(batch), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
