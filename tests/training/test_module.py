"""Gradients of an optimizer step over several batches, as Lightning accumulates them, and their tensors."""

from __future__ import annotations

import threading
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as pl
import torch
from torch import Tensor
from transformers import TrainingArguments, get_cosine_schedule_with_warmup

from claim2source.core.errors import UserError
from claim2source.data.loading import load
from claim2source.mining import MinedRow
from claim2source.models.layers import set_dropout
from claim2source.models.packed import PackedBatch
from claim2source.text import Rendering
from claim2source.training.batches import BatchLoader, BatchPlan, BatchSampler
from claim2source.training.config import StepsConfig
from claim2source.training.data import CollatedBatch, TrainingPairs
from claim2source.training.loss_list import Losses
from claim2source.training.module import (
    RetrieverModule,
    rate_at,
    warmup_steps,
)
from tests.refusals import refused
from tests.training.small import recipe_of, relative_gap, small_encoder, small_setup


class Gradients(pl.Callback):
    """Keep the gradients that every optimizer step takes."""

    def __init__(self) -> None:
        self.steps: list[dict[str, torch.Tensor]] = []

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        gradients: dict[str, torch.Tensor] = {}
        for name, parameter in module.model.named_parameters():
            if parameter.grad is not None:
                gradients[name] = parameter.grad.clone()
        self.steps.append(gradients)


def quiet_trainer(**options: Any) -> pl.Trainer:
    """Train for an epoch on the CPU; nothing is logged or kept."""
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(
        max_epochs=1,
        accelerator="cpu",
        **quiet,
        **options,
    )


def small_pairs(folder: Path, **settings: Any) -> tuple[TrainingPairs, RetrieverModule]:
    """All training pairs of the small data, and a module that trains the small model on them."""
    model, data = small_setup(folder)
    encoder = small_encoder(model)
    train = load(str(data), "train")
    set_dropout(encoder.model, 0.0)
    encoder.model.requires_grad_(True)
    rows = []
    for claim in train.claims:
        gold = claim.golds[0]
        rows.append(MinedRow(claim.id, gold, ()))
    rendering = Rendering("bilingual", "metadata")
    recipe = recipe_of(
        0,
        rendering,
        temperature=0.3,
        **settings,
    )
    pairs = TrainingPairs(train, rows, encoder, recipe)
    module = RetrieverModule(
        encoder,
        pairs,
        recipe.optimisation,
        Losses(),
        5,
    )
    return pairs, module


@pytest.mark.parametrize("chunk_size", [None, 5])
def test_a_step_takes_the_mean_of_its_batches(chunk_size: int | None, tmp_path: Path) -> None:
    # The weights do not change, so that all batches use the same ones.
    still = {
        "accumulation": 3,
        "learning_rate": 1e-30,
        "weight_decay": 0,
    }
    pairs, module = small_pairs(tmp_path, chunk_size=chunk_size, **still)
    encoder = module.encoder
    weights = dict(encoder.model.named_parameters())
    groups = pairs.groups()
    sampler = BatchSampler(groups, 10, epochs=1, accumulation=3)
    plans = list(sampler)
    assert [plan.window for plan in plans] == [3, 3, 3, 2, 2]

    single_gradients = []
    for plan in plans:
        alone = replace(plan, window=1)
        loss = module.forward_pass(module.collate(alone))
        module.cache.backward(loss)
        gradient_of = {}
        for name, weight in weights.items():
            if weight.grad is not None:
                gradient_of[name] = weight.grad
        single_gradients.append(gradient_of)
        encoder.model.zero_grad(set_to_none=True)
    module.window.terms.clear()

    gradients = Gradients()
    trainer = quiet_trainer(accumulate_grad_batches=3, callbacks=gradients)
    loader = BatchLoader(sampler, module.collate)
    trainer.fit(module, loader)
    steps = gradients.steps
    assert module.steps_done == trainer.global_step == len(steps) == 2
    windows = (single_gradients[:3], single_gradients[3:])
    for step, window in zip(steps, windows, strict=True):
        mean_of = {}
        for name in window[0]:
            total = sum(gradient_of[name] for gradient_of in window)
            mean_of[name] = total / len(window)
        assert relative_gap(mean_of, step) < 1e-5


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.07, 0.1, 0.3])
def test_the_rise_is_rounded_as_transformers_does_where_that_is_asked_for(ratio: float) -> None:
    """Otherwise to the nearest number, as before the setting existed."""
    up = StepsConfig(warmup_ratio=ratio, warmup_rounding="up")
    nearest = StepsConfig(warmup_ratio=ratio)
    for steps in (1, 3, 20, 31, 100, 590, 1767, 1768):
        arguments = TrainingArguments(warmup_steps=ratio, use_cpu=True)
        theirs = arguments.get_warmup_steps(steps)
        assert warmup_steps(up, steps) == theirs
        assert warmup_steps(nearest, steps) == round(ratio * steps)


@pytest.mark.parametrize(("warmup", "steps"), [(0, 5), (1, 6), (4, 20)])
def test_the_first_step_moves_unless_an_older_schedule_is_asked_for(
    warmup: int, steps: int
) -> None:
    rates = [rate_at(step, warmup, steps, 1) for step in range(steps)]
    rise = [(step + 1) / (warmup + 1) for step in range(warmup)]
    first_rates = rates[: warmup + 1]
    assert first_rates == [*rise, 1.0]
    assert min(rates) > 0

    # As transformers' has it, to the bit.
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=1.0)
    schedule = get_cosine_schedule_with_warmup(optimizer, warmup, steps)
    theirs = schedule.lr_lambdas[0]
    numbers = range(steps + 1)
    older = [rate_at(step, warmup, steps, 0) for step in numbers]
    assert older == [theirs(step) for step in numbers]
    assert rates[warmup:] == older[warmup:-1]


class SmallMemory:
    """Encode as a device that holds so many tokens with their activations, or without them."""

    def __init__(self, encoder: Any, trained: int, read: int) -> None:
        self.vectors = encoder.vectors
        self.trained = trained
        self.read = read
        self.errors: list[bool] = []

    def __call__(self, batch: Any) -> torch.Tensor:
        graded = torch.is_grad_enabled()
        limit = self.trained if graded else self.read
        if batch.padded_tokens > limit:
            self.errors.append(graded)
            raise torch.OutOfMemoryError("CUDA out of memory")
        vectors_read: torch.Tensor = self.vectors(batch)
        return vectors_read


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trained", "read", "chunks"),
    [
        (200, 10**6, {}),
        (60, 60, {"chunk_size": 7}),
        (60, 10**6, {"chunk_size": 40}),
    ],
)
def test_out_of_memory_the_step_is_repeated_in_smaller_chunks(
    trained: int, read: int, chunks: dict[str, int], tmp_path: Path
) -> None:
    """The gradients, losses and counts are those of a device with enough memory."""
    ends: list[tuple[Gradients, RetrieverModule, Any]] = []
    for small in (False, True):
        folder = tmp_path / str(small)
        pairs, module = small_pairs(folder, learning_rate=1e-4, **chunks)
        memory = SmallMemory(module.encoder, trained, read)
        if small:
            module.encoder.vectors = memory  # type: ignore[method-assign]
        sampler = BatchSampler(pairs.groups(), 10, epochs=1)
        gradients = Gradients()
        trainer = quiet_trainer(callbacks=gradients)
        loader = BatchLoader(sampler, module.collate)
        trainer.fit(module, loader)
        ends.append((gradients, module, memory))

    reference, expected, _ = ends[0]
    repeated, module, memory = ends[1]
    # In the forward pass without gradients, or in the backward pass, where gradients were added.
    assert memory.errors
    assert read == 10**6 or False in memory.errors
    assert module.losses == pytest.approx(expected.losses, rel=1e-5)
    window = module.window
    assert window.claims == expected.window.claims
    assert window.real == expected.window.real
    assert len(window.terms) == 1
    assert module.halvings > 0
    steps = zip(repeated.steps, reference.steps, strict=True)
    for step, expected_step in steps:
        assert relative_gap(expected_step, step) < 1e-4


def test_a_text_that_no_memory_holds_ends_the_training(tmp_path: Path) -> None:
    pairs, module = small_pairs(tmp_path)
    memory = SmallMemory(module.encoder, 1, 1)
    module.encoder.vectors = memory  # type: ignore[method-assign]
    trainer = quiet_trainer()
    sampler = BatchSampler(pairs.groups(), 10, epochs=1)
    with refused(UserError, "memory"):
        trainer.fit(module, BatchLoader(sampler, module.collate))


ROWS = tuple(range(12))
PLAN = BatchPlan(ROWS, 0, 0, 1)


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]
    if not isinstance(value, list | tuple):
        return []
    found = []
    for item in value:
        found += tensors(item)
    return found


def test_a_batch_made_during_a_forward_pass_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed texts replace the model's attention meanwhile, which says whether it can pack."""
    _, module = small_pairs(tmp_path)
    first = module.collate(PLAN)
    batches = []
    real = torch.nn.functional.scaled_dot_product_attention

    def collate() -> None:
        batch = module.collate(PLAN)
        batches.append(batch)

    def attend(*arguments: Any, **options: Any) -> Tensor:
        thread = threading.Thread(target=collate)
        thread.start()
        thread.join()
        return real(*arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    module.forward_pass(first)
    during: CollatedBatch = batches[0]
    assert isinstance(during.parts[0], PackedBatch)
    assert during.chunks == first.chunks
    pairs = zip(tensors(during), tensors(first), strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)


@pytest.mark.parametrize(
    "settings",
    [
        {"chunk_size": 5},
        {"chunk_tokens": 60},
        {},
    ],
)
def test_every_tensor_is_pinned_once_for_a_gpu(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, module = small_pairs(tmp_path, **settings)
    batch = module.collate(PLAN)
    is_chunked = len(batch.chunks) > 1
    assert is_chunked is bool(settings)
    pinned: list[int] = []

    def pin(tensor: Tensor) -> Tensor:
        copy = tensor.clone()
        pinned.append(id(copy))
        return copy

    monkeypatch.setattr(Tensor, "pin_memory", pin)
    copied = batch.pin_memory()
    copies = tensors(copied)
    identities = sorted(id(tensor) for tensor in copies)
    assert identities == sorted(pinned)
    originals = tensors(batch)
    assert len(pinned) == len(originals) > 10
    pairs = zip(copies, originals, strict=True)
    assert all(torch.equal(left, right) for left, right in pairs)
