"""Compare training with sentence-transformers' trainer: seconds a step at equal loss.

Both sides train the same model on the same batches with dropout 0 in fp32: ours with Lightning
and RetrieverModule, theirs with SentenceTransformerTrainer and MultipleNegativesRankingLoss (or
its cached version). A cell is TEXTS_TUNING_LOSS, such as ct25_full_plain. TEXTS: ct25 (claims and
papers of ct25) or short (claims and titles of the demo); TUNING: full or lora; LOSS: plain or
cached. `ratio` is that of the first cell. Ours is charged with tokenizing before the first step.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Annotated, Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LambdaCallback

from claim2source.core.config import MOST, Between, Number, list_field, require
from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.datasets import load
from claim2source.mining import MinedRow
from claim2source.models import ModelConfig, resolve
from claim2source.text import Rendering
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.checkpoint import adapt, set_dropout
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.losses import LossesConfig
from claim2source.training.memory_plan import Tuning
from claim2source.training.module import RetrieverModule
from claim2source.training.resume import trainable_weights
from scripts.benches import common
from scripts.benches.common import Bench, Clock, Measured, largest_difference, seconds_by

Texts = Literal["ct25", "short"]
Loss = Literal["plain", "cached"]
RENDERING = Rendering()
SCALE = 20.0  # 1 / temperature
# What both trainers call alike.
ALIKE: dict[str, Any] = {"learning_rate": 5e-5, "weight_decay": 0.01, "max_grad_norm": 1.0}
LORA = LoraConfig(r=16, alpha=64, dropout=0.0)
TOLERANCE = 1e-3  # of the first step's losses


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py training`.

    Args:
        model: a model's name or folder; mean pooling.
        batch_size: pairs per step.
        max_length: tokens per text.
        chunk: texts per forward pass of the cached losses.
        steps: timed steps of each training, after one that is not.
    """

    model: str = common.MINILM
    batch_size: Annotated[int, Between(2, MOST)] = 32
    max_length: Number = 256
    chunk: Number = 16
    steps: Number = 2
    texts: list[Texts] = list_field(["ct25", "short"], help="texts of the cells")
    tunings: list[Tuning] = list_field(["full"], help="what is trained in the cells")
    losses: list[Loss] = list_field(["plain"], help="losses of the cells")

    def check(self) -> None:
        for key in ("texts", "tunings", "losses"):
            require(bool(getattr(self, key)), key, [], "one or more")


@dataclass(frozen=True)
class Cell:
    """Draw the pairs of a comparison, and train on them with either side.

    No two pairs have a claim, a paper or a text in common, and a claim has one gold: a gold of
    another pair in a batch would be a false negative in the peer's loss but not in ours.
    """

    config: Config
    texts: str
    tuning: Tuning
    loss: Loss

    def pairs(self) -> tuple[Dataset, list[MinedRow], list[tuple[str, str]]]:
        """Draw the data set, its pairs, and the texts of each."""
        data = load("demo" if self.texts == "short" else self.texts, "train")
        if self.texts == "short":
            titles = (replace(source, abstract="", authors=(), venue="") for source in data.sources)
            data = replace(data, sources=tuple(titles))
        rendered = RENDERING.source_texts(data.sources)
        text_of = {source.id: text for source, text in zip(data.sources, rendered, strict=True)}
        claims = [claim for claim in data.claims if len(claim.golds) == 1]
        random.Random(self.config.seed).shuffle(claims)
        texts, seen = dict[MinedRow, tuple[str, str]](), set[str]()
        for claim in claims:
            pair = RENDERING.claim_texts([claim])[0], text_of[claim.golds[0]]
            if len({"", *pair} - seen) == 3:
                seen.update(pair)
                texts[MinedRow(claim.id, claim.golds[0], ())] = pair
        count = self.config.batch_size * (1 + self.config.steps)
        if len(texts) < count:
            raise UserError(f"{self.texts}: {len(texts)} pairs of distinct texts, not {count}")
        rows = list(texts)[:count]
        return data, rows, [texts[row] for row in rows]


@dataclass(frozen=True)
class Steps:
    """Hold seconds and losses by step, trained weights, and seconds of tokenizing before."""

    seconds: list[float]
    losses: list[float]
    trained: int
    preparing: float = 0.0


def run(config: Config) -> Measured:
    """Train with both sides in turn, cell by cell."""
    kinds = list(product(config.texts, config.tunings, config.losses))
    cells = {"_".join(kind): Cell(config, *kind) for kind in kinds}
    for cell in cells.values():
        cell.pairs()  # missing data fails now, not after minutes
    results = {name: compare(cell) for name, cell in cells.items()}
    first = next(iter(results.values()))
    return {"ratio": first["ratio"], "spread": first["spread"], "cells": results}


def compare(cell: Cell) -> Measured:
    """Measure a cell. Raises `UserError` where the sides' first losses differ."""
    steps: dict[str, list[Steps]] = {side: [] for side in SIDES}
    for side in common.turns(list(SIDES), cell.config.repeats):
        steps[side].append(SIDES[side](cell))
    ours, peer = steps["ours"][0], steps["peer"][0]
    if ours.trained != peer.trained:
        raise UserError(f"{ours.trained} weights are trained, and {peer.trained} by the peer")
    losses = np.array(ours.losses[0]), np.array(peer.losses[0])
    seconds = {
        side: np.array([np.mean(one.seconds[1:]) + one.preparing / len(one.seconds) for one in of])
        for side, of in steps.items()
    }
    return {
        **common.ratio_of(seconds["peer"] / seconds["ours"]),
        "seconds_a_step": {side: common.median(took, 4) for side, took in seconds.items()},
        "loss_difference": largest_difference(*losses, TOLERANCE, "losses of the first batch"),
        "last_losses": [ours.losses[-1], peer.losses[-1]],
        "trained_weights": ours.trained,
    }


def model_of(config: Config) -> ModelConfig:
    """Configure the base model with mean pooling."""
    length = config.max_length
    return ModelConfig(config.model, pooling="mean", normalize=True, max_length=length)


def train_ours(cell: Cell) -> Steps:
    """Train with Lightning and `RetrieverModule`."""
    (data, rows, _), clock = cell.pairs(), cell.config.clock
    encoder = resolve(model_of(cell.config), "cpu").encoder
    chunk = cell.config.chunk if cell.loss == "cached" else None
    optimisation = OptimisationConfig(
        batch_size=cell.config.batch_size,
        chunk_size=chunk,
        temperature=1 / SCALE,
        negatives=0,
        warmup_ratio=0.0,
        dropout=0.0,
        save_every=0,
        **ALIKE,
    )
    torch.manual_seed(0)
    adapt(encoder, FinetuneConfig(tuning=cell.tuning, lora=LORA, optimisation=optimisation))
    started = seconds_by(clock)
    pairs = TrainingPairs(data, rows, encoder, RENDERING, 0)
    preparing = seconds_by(clock) - started
    sampler = sampler_of(cell, rows)
    module = RetrieverModule(encoder, pairs, optimisation, LossesConfig(), sampler.optimizer_steps)
    trained = sum(p.numel() for p in trainable_weights(module.model).values())
    return Steps(fit(module, sampler, clock=clock), module.losses, trained, preparing)


def sampler_of(cell: Cell, rows: Sequence[MinedRow]) -> BatchSampler:
    """Deal the pairs to batches; both sides have these."""
    return BatchSampler(range(len(rows)), cell.config.batch_size, epochs=1)


def fit(
    module: RetrieverModule,
    sampler: BatchSampler,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    clock: Clock = "wall",
) -> list[float]:
    """Train for an epoch as `train/finetune.py` does, without logs; give seconds per step."""
    ends: list[float] = []

    def note(*_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        ends.append(seconds_by(clock))

    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="gpu" if module.encoder.device.type == "cuda" else "cpu",
        devices=1,
        precision=precision,
        gradient_clip_val=module.config.max_grad_norm or None,
        callbacks=[LambdaCallback(on_train_start=note, on_train_batch_end=note)],
        barebones=True,
    )
    module.encoder.model.train()
    trainer.fit(module, BatchLoader(sampler, module.collate))
    return np.diff(ends).tolist()


def train_peer(cell: Cell) -> Steps:
    """Train with sentence-transformers and its loss of in-batch negatives, plain or cached.

    Settings that the cell does not fix are its defaults (fused AdamW among them); it tokenizes
    within each step.
    """
    import sentence_transformers as st
    from datasets import Dataset as Columns
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer import losses as peers
    from torch.utils.data import SequentialSampler
    from transformers import TrainerCallback

    (_, rows, texts), ends = cell.pairs(), list[float]()

    class Ends(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(seconds_by(cell.config.clock))

        on_step_end = on_train_begin

    def in_order(dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> Any:
        return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    torch.manual_seed(0)
    model = st.SentenceTransformer(str(resolve(model_of(cell.config), "cpu").folder), device="cpu")
    model.max_seq_length = cell.config.max_length
    model.model_card_data.generate_widget_examples = False
    set_dropout(model, 0.0)
    if cell.tuning == "lora":  # as `adapt` does, and `add_adapter` with a later peft only
        import peft

        inner: Any = model[0].auto_model
        lora = peft.LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules="all-linear")
        peft.inject_adapter_in_model(lora, inner)
    kind: Any = peers.MultipleNegativesRankingLoss
    if cell.loss == "cached":
        chunk = cell.config.chunk
        kind = partial(peers.CachedMultipleNegativesRankingLoss, mini_batch_size=chunk)
    loss = kind(model, scale=SCALE)
    losses: list[torch.Tensor] = []
    loss.register_forward_hook(lambda _module, _inputs, value: losses.append(value.detach()))
    order = [texts[row] for plan in sampler_of(cell, rows) for row in plan.rows]
    columns = {"anchor": [claim for claim, _ in order], "positive": [one for _, one in order]}
    with tempfile.TemporaryDirectory() as folder:
        arguments = st.SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=cell.config.batch_size,
            lr_scheduler_type="cosine",
            batch_sampler=in_order,
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            **ALIKE,
        )
        trainer = st.SentenceTransformerTrainer(
            model, arguments, Columns.from_dict(columns), loss=loss, callbacks=[Ends()]
        )
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        trainer.train()
    return Steps(np.diff(ends).tolist(), [float(value) for value in losses], trained)


SIDES = {"ours": train_ours, "peer": train_peer}
