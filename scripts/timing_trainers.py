"""Take a few training steps with our trainer and with sentence-transformers', on equal terms."""

from __future__ import annotations

import logging
import random
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch

from claim2source.core.errors import UserError
from claim2source.core.memory import peak_memory
from claim2source.core.records import Dataset
from claim2source.datasets import load
from claim2source.mining import MinedRow, Negative
from claim2source.models import Encoder, ModelConfig, resolve
from claim2source.retrieve import BM25Config, BM25Index
from claim2source.text import Rendering
from claim2source.training.adapt import adapt, set_dropout
from claim2source.training.config import FinetuneConfig, LoraConfig, OptimisationConfig
from claim2source.training.data import TrainingPairs
from claim2source.training.gradcache import length_chunks
from claim2source.training.losses import LossesConfig
from claim2source.training.model_shape import ModelShape, Tuning
from claim2source.training.module import RetrieverModule
from claim2source.training.state import trainable_weights
from scripts.measure import Clock, seconds_by
from scripts.timing_common import InOrder, fit, steps_between

Texts = Literal["ct25", "short"]
RENDERING = Rendering()


@dataclass(frozen=True)
class Recipe:
    """Settings of both trainers; dropout is 0, arithmetic fp32, without warm-up.

    `chunk` is the number of texts per forward pass of the chunked loss; None: the plain loss.
    """

    model: str
    tuning: Tuning
    chunk: int | None
    batch_size: int
    max_length: int
    temperature: float
    learning_rate: float
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    lora_r: int = 16
    lora_alpha: int = 64
    clock: Clock = "wall"

    @property
    def model_config(self) -> ModelConfig:
        """The base model with mean pooling at the recipe's length."""
        return ModelConfig(self.model, pooling="mean", normalize=True, max_length=self.max_length)


@dataclass(frozen=True)
class Steps:
    """What a training took.

    Args:
        seconds: by step.
        losses: by step.
        preparing: seconds of tokenizing before the first step.
        trained: number of trained weights.
        before: peak memory before the first step, in bytes.
    """

    seconds: list[float]
    losses: list[float]
    preparing: float
    trained: int
    before: int


@dataclass(frozen=True)
class Material:
    """Training pairs in the order of their batches."""

    dataset: Dataset
    rows: tuple[MinedRow, ...]

    @property
    def claims(self) -> list[str]:
        """The claim's text of each pair."""
        by_id = {claim.id: claim for claim in self.dataset.claims}
        return RENDERING.claim_texts(by_id[row.claim] for row in self.rows)

    @property
    def sources(self) -> list[str]:
        """The gold's text of each pair."""
        by_id = {source.id: source for source in self.dataset.sources}
        return RENDERING.source_texts(by_id[row.positive] for row in self.rows)


def material(texts: Texts, ct25: Path | None, pairs: int, seed: int) -> Material:
    """Draw training pairs with distinct claims, papers and texts.

    `ct25`: claims and papers with their metadata. `short`: claims and titles of the demo set.
    A paper twice in a batch would be a false negative in the peer's loss but not in ours.
    """
    if texts == "ct25":
        if ct25 is None or not ct25.is_dir():
            raise UserError(
                "ct25: no such folder; set CLAIM2SOURCE_DATA to the folder that holds ct25, "
                "or choose --cells of the demo's short texts"
            )
        dataset = load(ct25, "train")
    else:
        dataset = load("demo", "train")
        titles = tuple(replace(s, abstract="", authors=(), venue="") for s in dataset.sources)
        dataset = replace(dataset, sources=titles)
    rendered = dict(
        zip((s.id for s in dataset.sources), RENDERING.source_texts(dataset.sources), strict=True)
    )
    claims = [claim for claim in dataset.claims if claim.golds]
    random.Random(seed).shuffle(claims)
    seen: set[str] = set()
    rows = []
    for claim in claims:
        pair = {RENDERING.claim_texts([claim])[0], rendered[claim.golds[0]]}
        if len(pair) == 2 and "" not in pair and not pair & seen:
            seen |= pair
            rows.append(MinedRow(claim.id, claim.golds[0], ()))
    if len(rows) < pairs:
        raise UserError(f"{texts}: {len(rows)} pairs of distinct texts, {pairs} are needed")
    return Material(dataset, tuple(rows[:pairs]))


def with_negatives(pairs: Material, count: int, seed: int) -> Material:
    """Add to each pair the `count` best sources by BM25 that are not its golds.

    Random sources fill up where BM25 finds fewer.
    """
    by_id = {claim.id: claim for claim in pairs.dataset.claims}
    claims = [by_id[row.claim] for row in pairs.rows]
    run = BM25Index(pairs.dataset.sources, BM25Config()).rank(claims, count + 4)
    draw = random.Random(seed)
    rows = []
    for row in pairs.rows:
        scores = run.scored(row.claim)
        others = [source.id for source in pairs.dataset.sources if source.id not in scores]
        names = [*scores, *draw.sample(others, min(count + 4, len(others)))]
        golds = by_id[row.claim].golds
        negatives = [
            Negative(name, scores.get(name, 0.0), "bm25" if name in scores else "random")
            for name in names
            if name not in golds
        ]
        rows.append(replace(row, negatives=tuple(negatives[:count])))
    return Material(pairs.dataset, tuple(rows))


def run_ours(
    pairs: Material,
    recipe: Recipe,
    *,
    callbacks: Iterable[pl.Callback] = (),
    encoder_kind: type[Encoder] = Encoder,
    pairs_kind: type[TrainingPairs] = TrainingPairs,
    module_kind: type[RetrieverModule] = RetrieverModule,
) -> Steps:
    """Train with Lightning and `RetrieverModule`; an ablation replaces classes by its own."""
    loaded = resolve(recipe.model_config, "cpu").encoder
    encoder = encoder_kind(loaded.model, loaded.tokenizer, loaded.settings, None)
    optimisation = OptimisationConfig(
        batch_size=recipe.batch_size,
        chunk_size=recipe.chunk,
        negatives=0,
        temperature=recipe.temperature,
        learning_rate=recipe.learning_rate,
        warmup_ratio=0.0,
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        dropout=0.0,
        save_every=0,
    )
    lora = LoraConfig(r=recipe.lora_r, alpha=recipe.lora_alpha, dropout=0.0)
    torch.manual_seed(0)
    adapt(encoder, FinetuneConfig(tuning=recipe.tuning, lora=lora, optimisation=optimisation))
    started = seconds_by(recipe.clock)
    negatives = max(len(row.negatives) for row in pairs.rows)
    data = pairs_kind(pairs.dataset, pairs.rows, encoder, RENDERING, negatives)
    preparing = seconds_by(recipe.clock) - started
    sampler = InOrder(len(data), recipe.batch_size)
    module = module_kind(
        encoder,
        data,
        optimisation,
        LossesConfig(),
        sampler.optimizer_steps,
    )
    trained = sum(p.numel() for p in trainable_weights(module.model).values())
    before = peak_memory(gpu=False)
    seconds = fit(module, sampler, callbacks=callbacks, clock=recipe.clock)
    return Steps(seconds, module.losses, preparing, trained, before)


def run_peer(pairs: Material, recipe: Recipe) -> Steps:
    """Train with sentence-transformers and its loss of in-batch negatives, plain or cached.

    Settings that the recipe does not fix are its defaults (fused AdamW among them); it
    tokenizes within each step.
    """
    from datasets import Dataset as Table
    from datasets.utils import disable_progress_bars
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
        MultipleNegativesRankingLoss,
    )
    from torch.utils.data import SequentialSampler
    from transformers import PrinterCallback, TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.ends: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.ends.append(seconds_by(recipe.clock))

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.ends.append(seconds_by(recipe.clock))

    def in_order(dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> Any:
        return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    disable_progress_bars()
    for name in ("sentence_transformers", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    torch.manual_seed(0)
    model = SentenceTransformer(str(resolve(recipe.model_config, "cpu").folder), device="cpu")
    model.max_seq_length = recipe.max_length
    model.model_card_data.generate_widget_examples = False
    set_dropout(model, 0.0)
    if recipe.tuning == "lora":
        import peft

        # The adapter that `adapt` adds.
        adapter = peft.LoraConfig(
            r=recipe.lora_r,
            lora_alpha=recipe.lora_alpha,
            lora_dropout=0.0,
            target_modules="all-linear",
        )
        # What `add_adapter` does, which transformers allows with a later peft only.
        inner: Any = model[0].auto_model
        peft.inject_adapter_in_model(adapter, inner)
    scale = 1 / recipe.temperature
    loss: torch.nn.Module
    if recipe.chunk is None:
        loss = MultipleNegativesRankingLoss(model, scale=scale)
    else:
        loss = CachedMultipleNegativesRankingLoss(model, scale=scale, mini_batch_size=recipe.chunk)
    losses: list[torch.Tensor] = []
    loss.register_forward_hook(lambda _module, _inputs, value: losses.append(value.detach()))
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=1,
            per_device_train_batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            lr_scheduler_type="cosine",
            weight_decay=recipe.weight_decay,
            max_grad_norm=recipe.max_grad_norm,
            batch_sampler=in_order,
            use_cpu=True,
            dataloader_pin_memory=False,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Table.from_dict({"anchor": pairs.claims, "positive": pairs.sources}),
            loss=loss,
            callbacks=[clock],
        )
        trainer.remove_callback(PrinterCallback)
        trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
        before = peak_memory(gpu=False)
        trainer.train()
    values = [float(value) for value in losses]
    return Steps(steps_between(clock.ends), values, 0.0, trained, before)


@dataclass(frozen=True)
class Work:
    """Needed FLOPs and tokens of a mean step, and tokens including each side's padding."""

    flops: float
    real_tokens: float
    ours_padded: float
    peer_padded: float


def step_work(pairs: Material, recipe: Recipe) -> Work:
    """Count the FLOPs of the texts' real tokens, and the tokens that each side pads them to.

    Ours packs texts, or pads texts of similar length; the peer pads the claims of a batch to one
    length and its sources to another.
    """
    encoder = resolve(recipe.model_config, "cpu").encoder
    if recipe.tuning == "lora":
        lora = LoraConfig(r=recipe.lora_r, dropout=0.0)
        adapt(encoder, FinetuneConfig(tuning="lora", lora=lora))
    claims = encoder.tokenize(pairs.claims, "claim")
    sources = encoder.tokenize(pairs.sources, "source")
    lengths = [len(text.ids) for text in [*claims, *sources]]
    ours = peer = 0
    for start in range(0, len(claims), recipe.batch_size):
        columns = [texts[start : start + recipe.batch_size] for texts in (claims, sources)]
        tokens = [*columns[0], *columns[1]]
        if recipe.chunk is None:
            chunks = list(encoder.length_batches(tokens))
        else:
            chunks = length_chunks(tokens, recipe.chunk)
        ours += sum(encoder.batch([tokens[r] for r in rows]).padded_tokens for rows in chunks)
        peer += sum(len(texts) * max(len(text.ids) for text in texts) for texts in columns)
    steps = len(claims) / recipe.batch_size
    flops = ModelShape.of(encoder.model).training(lengths, recipe.tuning)
    return Work(flops / steps, sum(lengths) / steps, ours / steps, peer / steps)


def same_losses(ours: Sequence[float], peer: Sequence[float], limit: float) -> float:
    """Compute the relative difference of the first step's losses; `UserError` above `limit`."""
    difference = abs(ours[0] - peer[0]) / abs(peer[0])
    if not difference <= limit:
        raise UserError(
            f"the losses of the same first batch differ: ours {ours[0]:.6f}, "
            f"sentence-transformers' {peer[0]:.6f}; their times cannot be compared"
        )
    return difference
