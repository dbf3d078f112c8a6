"""Gradients of an optimizer step over several batches."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from claim2source.datasets import load
from claim2source.mining import MinedRow
from claim2source.models import ModelConfig, resolve
from claim2source.text import Rendering
from claim2source.training.batches import BatchSampler
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.losses import LossesConfig
from claim2source.training.module import RetrieverModule
from tests.training.small import small_setup


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_a_step_takes_the_mean_of_its_batches(chunk_size: int | None, tmp_path: Path) -> None:
    model, data = small_setup(tmp_path)
    encoder = resolve(ModelConfig(name=str(model), pooling="mean", max_length=24)).encoder
    train = load(str(data), "train")
    rows = [MinedRow(claim.id, claim.golds[0], ()) for claim in train.claims]
    pairs = TrainingPairs(train, rows, encoder, Rendering("bilingual", "metadata"), 0)
    config = OptimisationConfig(temperature=0.3, chunk_size=chunk_size, accumulation=2)
    module: Any = RetrieverModule(
        encoder, pairs, config, LossesConfig(), 2, lambda epoch: None, lambda _: None
    )
    module.manual_backward = lambda loss: loss.backward()
    module._without_sync = nullcontext
    weights = dict(encoder.model.requires_grad_(True).eval().named_parameters())

    def taken() -> dict[str, torch.Tensor]:
        found = {n: p.grad for n, p in weights.items() if p.grad is not None}
        encoder.model.zero_grad(set_to_none=True)
        return found

    plans = list(BatchSampler(pairs.groups(), 16, epochs=1, accumulation=2))
    assert [plan.window for plan in plans] == [2, 2, 1]
    alone = []
    for plan in plans:
        module._backward(pairs.batch(replace(plan, window=1)))
        alone.append(taken())
    steps: list[dict[str, torch.Tensor]] = []
    module._step = lambda: steps.append(taken())
    module.eval()
    module.model.train = lambda: None  # dropout would differ
    for index, plan in enumerate(plans):
        module.training_step(plan, index)
    expected = [{n: (alone[0][n] + alone[1][n]) / 2 for n in alone[0]}, alone[2]]
    assert len(steps) == 2
    for step, wanted in zip(steps, expected, strict=True):
        assert step.keys() == wanted.keys()
        size = sum(float(g.square().sum()) for g in wanted.values()) ** 0.5
        gap = sum(float((g - wanted[n]).square().sum()) for n, g in step.items()) ** 0.5
        assert size > 1e-3 and gap < 1e-5 * size
