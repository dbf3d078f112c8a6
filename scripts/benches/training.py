"""Compare training with sentence-transformers' trainer: seconds per step at equal loss.

Both sides train the same model on the same batches with dropout 0 in fp32: ours with Lightning
and RetrieverModule, theirs with SentenceTransformerTrainer and MultipleNegativesRankingLoss (or
its cached version). `ratio` is theirs divided by ours; our time includes tokenization before the
first step.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import LambdaCallback

from claim2source.core.config import LARGEST, Between, Number
from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.data.loading import load
from claim2source.mining import MinedRow, MiningConfig
from claim2source.models import Encoder, ModelConfig, resolve
from claim2source.models.layers import set_dropout
from claim2source.text import Rendering
from claim2source.training.batches import BatchLoader, BatchSampler
from claim2source.training.checkpoint import adapt
from claim2source.training.config import (
    FinetuneConfig,
    LoraConfig,
    OptimisationConfig,
    RetrieverRecipe,
)
from claim2source.training.data import TrainingPairs
from claim2source.training.loss_list import Losses
from claim2source.training.module import RetrieverModule
from scripts.benches import common
from scripts.benches.common import SEED, Bench, Clock, Measured, largest_difference, seconds_by
from scripts.flops import Tuning

RENDERING = Rendering()
# Without a search for near-duplicates, which the peer lacks.
RECIPE = RetrieverRecipe(rendering=RENDERING, mining=MiningConfig(max_title_similarity=None))
SCALE = 20.0  # 1 / temperature
# Settings with the same name in both trainers.
SHARED: dict[str, Any] = {"learning_rate": 5e-5, "weight_decay": 0.01, "max_grad_norm": 1.0}
LORA = LoraConfig(r=16, alpha=64, dropout=0.0)


@dataclass(frozen=True)
class Config(Bench):
    """Settings of `scripts/bench.py training`.

    Args:
        model: a model's name or folder; mean pooling.
        texts: a data set with claims and papers to train on; or `short`: claims and titles of the
            demo.
        tuning: which weights are trained.
        loss: over the whole batch, or cached, in chunks.
        batch_size: pairs per step.
        max_length: tokens per text.
        chunk: texts per forward pass of the cached loss.
    """

    model: str = common.MINILM
    texts: str = "ct25"
    tuning: Tuning = "full"
    loss: Literal["plain", "cached"] = "plain"
    batch_size: Annotated[int, Between(2, LARGEST)] = 32
    max_length: Number = 256
    chunk: Number = 16

    @property
    def base(self) -> ModelConfig:
        length = self.max_length
        return ModelConfig(self.model, pooling="mean", normalize=True, max_length=length)


Pairs = tuple[Dataset, list[MinedRow], list[tuple[str, str]]]


def draw_pairs(config: Config, steps: int = 2) -> Pairs:
    """Draw a data set, its pairs for `steps` timed steps after a warm-up, and their texts.

    No two pairs have a claim, a paper or a text in common, and a claim has one gold: a gold of
    another pair in a batch would be a false negative in the peer's loss but not in ours.
    """
    data = load("demo" if config.texts == "short" else config.texts, "train")
    if config.texts == "short":
        titles = (replace(source, abstract="", authors=(), venue="") for source in data.sources)
        data = replace(data, sources=tuple(titles))
    rendered = RENDERING.source_texts(data.sources)
    text_of = {source.id: text for source, text in zip(data.sources, rendered, strict=True)}
    claims = [claim for claim in data.claims if len(claim.golds) == 1]
    random.Random(SEED).shuffle(claims)
    texts = dict[MinedRow, tuple[str, str]]()
    seen = set[str]()
    for claim in claims:
        pair = RENDERING.claim_texts([claim])[0], text_of[claim.golds[0]]
        if len({"", *pair} - seen) == 3:
            seen.update(pair)
            texts[MinedRow(claim.id, claim.golds[0], ())] = pair
    count = config.batch_size * (1 + steps)
    if len(texts) < count:
        raise UserError(f"{config.texts}: has {len(texts)} pairs of distinct texts, not {count}")
    rows = list(texts)[:count]
    return data, rows, [texts[row] for row in rows]


class Steps(NamedTuple):
    """Seconds of every step except the first, and all losses."""

    seconds: list[float]
    losses: list[float]


def run(config: Config) -> Measured:
    """Train with both sides in turn. Raises `UserError` if their first losses differ."""
    pairs = draw_pairs(config)
    sides = {"ours": partial(train_ours, config, pairs), "peer": partial(train_peer, config, pairs)}
    steps = common.Watch().take_turns(sides, config.repeats)
    ours = steps["ours"][0]
    peer = steps["peer"][0]
    losses = np.array(ours.losses[0]), np.array(peer.losses[0])
    seconds = {}
    for name, of in steps.items():
        seconds[name] = np.array([np.mean(step.seconds) for step in of])
    return {
        **common.measured_ratio(seconds["peer"] / seconds["ours"]),
        "seconds_a_step": {side: common.median(took, 4) for side, took in seconds.items()},
        "loss_difference": largest_difference(*losses, 1e-3, "losses of the first batch"),
        "last_losses": [ours.losses[-1], peer.losses[-1]],
    }


def train_ours(config: Config, pairs: Pairs) -> Steps:
    encoder = resolve(config.base, "cpu").encoder
    optimisation = OptimisationConfig(
        batch_size=config.batch_size,
        chunk_size=config.chunk if config.loss == "cached" else None,
        temperature=1 / SCALE,
        negatives=0,
        warmup_ratio=0.0,
        dropout=0.0,
        save_every=0,
        **SHARED,
    )
    torch.manual_seed(0)
    adapt(encoder, FinetuneConfig(tuning=config.tuning, lora=LORA, optimisation=optimisation))
    return train(encoder, optimisation, pairs, clock=config.clock)


def train(
    encoder: Encoder,
    optimisation: OptimisationConfig,
    data_pairs: Pairs,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    clock: Clock = "wall",
) -> Steps:
    """Train for an epoch with Lightning and `RetrieverModule`, as `train/finetune.py` does."""
    ends: list[float] = []

    def note(*_: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        ends.append(seconds_by(clock))

    recipe = replace(RECIPE, optimisation=optimisation)
    (data, rows, _), started = data_pairs, seconds_by(clock)
    pairs = TrainingPairs(data, rows, encoder, recipe)
    preparing = seconds_by(clock) - started
    sampler = BatchSampler(range(len(rows)), optimisation.batch_size, epochs=1)
    module = RetrieverModule(encoder, pairs, optimisation, Losses(), sampler.optimizer_steps)
    trainer = pl.Trainer(
        max_epochs=1,
        accelerator="gpu" if encoder.device.type == "cuda" else "cpu",
        devices=1,
        precision=precision,
        gradient_clip_val=optimisation.max_grad_norm or None,
        callbacks=[LambdaCallback(on_train_start=note, on_train_batch_end=note)],
        barebones=True,
    )
    trainer.fit(module, BatchLoader(sampler, module.collate))
    share = preparing / sampler.optimizer_steps
    return Steps([took + share for took in np.diff(ends)[1:].tolist()], module.losses)


def train_peer(config: Config, pairs: Pairs) -> Steps:
    """Train with sentence-transformers and its loss of in-batch negatives, plain or cached.

    Other settings are its defaults, such as fused AdamW; it tokenizes within each step.
    """
    import sentence_transformers as st
    from datasets import Dataset as Columns
    from sentence_transformers.base.sampler import DefaultBatchSampler
    from sentence_transformers.sentence_transformer import losses as peers
    from torch.utils.data import SequentialSampler
    from transformers import TrainerCallback

    (_, rows, texts), ends = pairs, list[float]()

    class Ends(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            ends.append(seconds_by(config.clock))

        on_step_end = on_train_begin

    def in_order(dataset: Any, batch_size: int, drop_last: bool, **_: Any) -> Any:
        return DefaultBatchSampler(SequentialSampler(dataset), batch_size, drop_last)

    torch.manual_seed(0)
    model = st.SentenceTransformer(str(resolve(config.base, "cpu").folder), device="cpu")
    model.max_seq_length = config.max_length
    model.model_card_data.generate_widget_examples = False
    set_dropout(model, 0.0)
    if config.tuning == "lora":  # like `adapt`; `add_adapter` needs a later peft
        import peft

        inner: Any = model[0].auto_model
        lora = peft.LoraConfig(r=LORA.r, lora_alpha=LORA.alpha, target_modules="all-linear")
        peft.inject_adapter_in_model(lora, inner)
    kind: Any = peers.MultipleNegativesRankingLoss
    if config.loss == "cached":
        kind = partial(peers.CachedMultipleNegativesRankingLoss, mini_batch_size=config.chunk)
    loss = kind(model, scale=SCALE)
    losses: list[torch.Tensor] = []
    loss.register_forward_hook(lambda _module, _inputs, value: losses.append(value.detach()))
    sampler = BatchSampler(range(len(rows)), config.batch_size, epochs=1)
    order = []
    for plan in sampler:
        for row in plan.rows:
            order.append(texts[row])
    columns = {"anchor": [claim for claim, _ in order], "positive": [source for _, source in order]}
    with tempfile.TemporaryDirectory() as folder:
        arguments = st.SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=config.batch_size,
            lr_scheduler_type="cosine",
            batch_sampler=in_order,
            use_cpu=True,
            dataloader_pin_memory=False,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            **SHARED,
        )
        trainer = st.SentenceTransformerTrainer(
            model,
            arguments,
            Columns.from_dict(columns),
            loss=loss,
            callbacks=[Ends()],
        )
        trainer.train()
    return Steps(np.diff(ends)[1:].tolist(), [float(value) for value in losses])
