"""Define the retriever's LightningModule: a training step, its losses, and the optimizer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from claim2source.core.errors import EXIT_CODE, UserError
from claim2source.mining.baseline import first_loss_sentences
from claim2source.models import Encoder, Tokens
from claim2source.models.packed import PackedBatch
from claim2source.models.tokens import TokenBatch, changed
from claim2source.training.batches import BatchPlan, BatchSampler
from claim2source.training.checkpoint import without_copies
from claim2source.training.config import DataConfig, OptimisationConfig, StepsConfig
from claim2source.training.data import TrainBatch, TrainingPairs
from claim2source.training.distributed import Sharded, gather_vectors, shard, start_reducer
from claim2source.training.gradcache import (
    Chunks,
    Encode,
    GradCache,
    LossOf,
    halved,
    length_chunks,
    token_chunks,
)
from claim2source.training.loss_list import Losses, combined
from claim2source.training.losses import LossInputs
from claim2source.training.resume import CALMER, StopSignals, skipped_steps, trainable_weights

if TYPE_CHECKING:
    from claim2source.training.reranker_data import RerankerPairs

log = logging.getLogger(__name__)

# Steps in a row that may be skipped: one bad batch is no reason to stop, a lost training is.
MOST_SKIPPED = 5
_STOP, _SPOILT = "stop", "spoilt"


class TrainingModule(pl.LightningModule):
    """Optimizer, and take the steps of any training in planned batches.

    `optimizer_steps` is how many the learning rate falls over. `losses` has the loss of every
    optimizer step so far, NaN if it was skipped. `measures` are terms that are counted, and no
    part of the loss. `pairs` are trained on. Chunks are halved `halvings` times, once for every
    time that the device's memory was too small.
    """

    measures: frozenset[str] = frozenset()
    pairs: TrainingPairs | RerankerPairs
    collate: Callable[[BatchPlan], Any]
    # The batch between its forward and its backward pass, and the gradients before it.
    cache: GradCache
    gradients: Mapping[str, Tensor]

    def __init__(
        self,
        model: torch.nn.Module,
        config: StepsConfig,
        optimizer_steps: int,
        stop: StopSignals | None = None,
    ) -> None:
        super().__init__()
        # A state holds the weights that training moves; their names are checked in it.
        self.strict_loading = False
        self.model: Any = model
        self.config = config
        self.optimizer_steps = optimizer_steps
        self.stop = stop or StopSignals()
        # Whether any process got a signal, as all of them know it after a step.
        self.stopping = False
        self.batches_done = 0
        self.steps_done = 0
        self.losses: list[float] = []
        self.window = StepSums()
        self.halvings = 0
        self.sharded = False

    @property
    def epochs_done(self) -> int:
        """Count the epochs that were begun, the current one too."""
        return -(-self.batches_done // int(self.trainer.num_training_batches))

    def configure_model(self) -> None:
        """Shard the model if the strategy does."""
        if isinstance(self.trainer.strategy, Sharded):
            mesh = self.trainer.strategy.device_mesh["data_parallel"]
            shard(self.model, mesh, half=self.config.precision == "bf16")
            self.sharded = True

    def configure_optimizers(self) -> Any:
        """Create AdamW without decay on biases and norms; linear warm-up, then a cosine to 0."""
        groups: list[dict[str, object]] = []
        for matrices, decay in ((True, self.config.weight_decay), (False, 0.0)):
            trainable = trainable_weights(self.model).values()
            if parameters := [p for p in trainable if (p.ndim > 1) is matrices]:
                groups.append({"params": parameters, "weight_decay": decay})
        optimizer = torch.optim.AdamW(groups, lr=self.config.learning_rate, fused=True)
        warmup = warmup_steps(self.config, self.optimizer_steps)
        first = 0 if self.config.warmup_from_zero else 1
        rate = partial(rate_at, warmup=warmup, steps=self.optimizer_steps, first=first)
        return [optimizer], [{"scheduler": LambdaLR(optimizer, rate), "interval": "step"}]

    def transfer_batch_to_device(self, batch: Any, *_: Any) -> Any:
        """Leave a batch if it is: its chunks are moved to the device one after the other."""
        return batch

    def on_train_start(self) -> None:
        self.model.train()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.window.closed:
            self.window = StepSums()

    def run_chunks(
        self, chunks: Chunks, encode: Encode, batch_loss: LossOf, *, one_chunk: bool
    ) -> Tensor:
        """Compute the loss of a batch, at once if it is `one_chunk`, else chunk by chunk.

        Where the device's memory is too small, it is computed again in chunks half as large.
        """
        chunks, whole = halved(chunks, self.halvings), one_chunk and not self.halvings
        self.cache, self.gradients = GradCache(chunks, encode, batch_loss, whole), {}
        # A CPU is not out of memory: nothing is copied there.
        if self.device.type == "cuda" and self.trainer.accumulate_grad_batches > 1:
            trained = trainable_weights(self.model).items()
            self.gradients = {n: p.grad.clone() for n, p in trained if p.grad is not None}
        return self._compute_loss()

    def _compute_loss(self) -> Tensor:
        while True:
            try:
                return self.cache.forward()
            except torch.OutOfMemoryError as error:
                reason = str(error)
            self._halve_chunks(reason)

    def _halve_chunks(self, reason: str) -> None:
        """Go back to where a batch began, with smaller chunks. Raises `UserError` for none."""
        if self.trainer.world_size > 1:
            self.give_up(
                f"out of memory: set optimisation.chunk_tokens or chunk_size lower ({reason})"
            )
        if max(map(len, self.cache.chunks)) < 2:
            self.give_up(f"out of memory with one text at a time: shorten texts ({reason})")
        self.cache.begin_again()
        torch.cuda.empty_cache()
        log.warning("out of memory: the step is repeated in chunks half as large")
        self.halvings += 1
        for name, weight in trainable_weights(self.model).items():
            earlier = self.gradients.get(name)
            weight.grad = None if earlier is None else earlier.clone()

    def step_share(self, loss: Tensor, plan: BatchPlan) -> Tensor:
        """Count a batch whose loss is computed, and return the loss to go backward from."""
        self.batches_done += 1
        accumulation = self.trainer.accumulate_grad_batches
        if plan.window == accumulation:
            return loss
        # Lightning divides by the accumulation, also where an epoch's last window has fewer.
        return loss * (accumulation / plan.window)

    def backward(self, loss: Tensor) -> None:  # type: ignore[override]
        """Add the gradients of the batch; in chunks these are several backward passes.

        Where the device's memory is too small they begin again, in smaller chunks.
        """
        share = loss.detach() / self.window.terms[-1]["loss"]
        # Chunks are encoded again, in the precision of the step.
        with self.trainer.precision_plugin.train_step_context(), without_copies(self.model):
            while True:
                try:
                    self.cache.backward(loss, partial(start_reducer, self.trainer.strategy))
                    # Copies that nothing goes back to any more.
                    self.gradients = {}
                    return
                except torch.OutOfMemoryError as error:
                    reason = str(error)
                # What the forward pass holds is freed before the next one.
                del loss
                self._halve_chunks(reason)
                loss = self._compute_loss() * share

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients by their norm; drop them where the loss or one of them is not finite.

        Without gradients the optimizer moves nothing: all processes skip the step alike, and the
        learning rate goes on. Raises `UserError` after `MOST_SKIPPED` of them in a row.
        """
        parameters = list(trainable_weights(self.model).values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, gradient_clip_val or float("inf"))
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        rate = float(optimizer.param_groups[0]["lr"])
        # With the loss, so that all processes skip and stop at the same step, at no cost.
        stop = torch.tensor(float(self.stop.received is not None), device=self.device)
        spoilt = (~norm.isfinite()).to(stop)
        window = self.window
        terms = {
            name: torch.stack([measured[name] for measured in window.terms]).mean()
            for name in window.terms[0]
        }
        terms |= {_STOP: stop, _SPOILT: spoilt}
        values = torch.stack([terms[name].float() for name in sorted(terms)])
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(values)
            values = values / self.trainer.world_size
        means = dict(zip(sorted(terms), values.tolist(), strict=True))
        self.stopping = means.pop(_STOP) > 0
        is_taken = means.pop(_SPOILT) == 0 and math.isfinite(means["loss"])
        if not is_taken:
            optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        self.losses.append(means["loss"] if is_taken else math.nan)
        window.means, window.rate, window.norm, window.closed = means, rate, float(norm), True
        if skipped_steps(self.losses[-MOST_SKIPPED:]) == MOST_SKIPPED:
            self.give_up(
                f"{MOST_SKIPPED} steps in a row, to step {self.steps_done}, had a loss or a "
                f"gradient that is not finite, and were not taken; {CALMER}"
            )

    def optimizer_zero_grad(self, *arguments: Any) -> None:
        """Do nothing: a forward pass of packed texts lays out a gradient; steps free them."""

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        """Take the step, then free the gradients: an epoch is scored without them."""
        super().optimizer_step(*arguments, **options)
        for optimizer in self.trainer.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trainable = {f"model.{name}" for name in trainable_weights(self.model)}
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: weights[name] for name in weights if name in trainable}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise `UserError` if a state trains other weights than this model."""
        if "state_dict" not in checkpoint:
            return  # a strategy that shards has read them
        trainable = {f"model.{name}" for name in trainable_weights(self.model)}
        if differing := sorted(trainable ^ checkpoint["state_dict"].keys()):
            name = differing[0].removeprefix("model.")
            raise UserError(f"the saved state trains other weights than this config ({name})")

    def summary(self, settings: DataConfig, sampler: BatchSampler, claims: int) -> list[str]:
        pairs, trained = self.pairs.rows, trainable_weights(self.model).values()
        repeated = f", {settings.repeat} times each," if settings.repeat > 1 else ""
        weights = sum(weight.numel() for weight in self.model.parameters())
        lines = [
            f"{len(pairs)} pairs{repeated} in {sampler.batches} batches an epoch, "
            f"{self.optimizer_steps} optimizer steps; "
            f"{sum(weight.numel() for weight in trained):,} of {weights:,} weights are trained",
        ]
        if settings.limit is not None:
            lines.append(f"data.limit: only {claims} claims are trained on")
        if left_out := sampler.left_out():
            lines.append(
                f"{left_out} pairs are left out of an epoch, so that all processes get equally many"
            )
        if sampler.config.alpha != 1:
            quotas = ", ".join(f"{name} {count}" for name, count in sampler.quotas.items())
            lines.append(f"pairs an epoch by language: {quotas}")
        return lines

    def give_up(self, reason: str) -> None:
        """Raise `UserError` in the first process; the others end with its exit code."""
        if not self.trainer.is_global_zero:
            raise SystemExit(EXIT_CODE)
        raise UserError(reason)


def warmup_steps(config: StepsConfig, steps: int) -> int:
    """Count the optimizer steps, of all `steps`, in which the learning rate rises."""
    share = steps * config.warmup_ratio
    return math.ceil(share) if config.warmup_rounding == "up" else round(share)


def rate_at(step: int, warmup: int, steps: int, first: int) -> float:
    """Return the share of the highest learning rate at a step, from 0: a rise, then a cosine to 0.

    The rise begins at `first` of `warmup` + `first` parts: at 0 the first step would move nothing.
    """
    if step < warmup:
        return (step + first) / (warmup + first)
    progress = (step - warmup) / max(1, steps - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


@dataclass
class StepSums:
    """Sum up what the micro-batches of an optimizer step measured.

    Once it is `closed`: the means of their terms over all processes, the step's learning rate, and
    the gradient's norm.
    """

    started: float = field(default_factory=time.perf_counter)
    terms: list[dict[str, Tensor]] = field(default_factory=list)
    claims: int = 0
    real: int = 0
    padded: int = 0
    closed: bool = False
    means: Mapping[str, float] = field(default_factory=dict)
    rate: float = 0.0
    norm: float = 0.0


@dataclass(frozen=True)
class CollatedBatch:
    """Batch as its step takes it, on the CPU.

    `distinct` are its texts, each once; `text_numbers` [texts] has the number of each of the
    batch's claims, sources, views and texts among them. `chunks` are their numbers, chunk by chunk,
    and `parts` each chunk's tensors.
    """

    batch: TrainBatch
    distinct: Sequence[Tokens]
    text_numbers: Tensor
    chunks: Sequence[Sequence[int]]
    parts: Sequence[TokenBatch | PackedBatch]

    def pin_memory(self) -> CollatedBatch:
        """Copy the tensors to memory that a GPU reads while it computes."""
        return replace(
            changed(self, Tensor.pin_memory),
            batch=changed(self.batch, Tensor.pin_memory),
            parts=[part.pin_memory() for part in self.parts],
        )


class RetrieverModule(TrainingModule):
    """Train an `Encoder` contrastively: the step and its losses."""

    config: OptimisationConfig
    pairs: TrainingPairs

    def __init__(
        self,
        encoder: Encoder,
        pairs: TrainingPairs,
        config: OptimisationConfig,
        losses: Losses,
        optimizer_steps: int,
        stop: StopSignals | None = None,
    ) -> None:
        super().__init__(encoder.model, config, optimizer_steps, stop)
        self.encoder, self.pairs, self.loss_list = encoder, pairs, losses
        # Sources that a claim of the last batch was compared with.
        self.candidates = 0

    def collate(self, plan: BatchPlan) -> CollatedBatch:
        """Divide a planned batch's texts into chunks, and make their tensors.

        It is done before the step, in another thread. Each distinct text is encoded once; the
        gradients of its copies add up.
        """
        batch, encoder = self.pairs.batch(plan), self.encoder
        texts = [*batch.claims, *batch.sources, *batch.views, *batch.texts]
        number: dict[Tokens, int] = {}
        row_of = torch.tensor([number.setdefault(text, len(number)) for text in texts])
        distinct = list(number)
        size, budget = self.config.chunk_size, self.config.chunk_tokens
        assert budget != "auto", "settled by memory_plan"
        lengths = [len(text.ids) for text in distinct]
        if budget is not None:
            chunks = token_chunks(lengths, budget, packed=encoder.packs)
        elif size is not None:
            chunks = length_chunks(lengths, size)
        else:
            chunks = list(encoder.length_batches(distinct))
        parts = [encoder.batch([distinct[row] for row in rows]) for rows in chunks]
        collated = CollatedBatch(batch, distinct, row_of, chunks, parts)
        if self.device.type != "cuda":
            return collated
        # A thread begins with the first GPU as its own.
        with torch.cuda.device(self.device):
            return collated.pin_memory()

    def training_step(self, collated: CollatedBatch, batch_idx: int) -> Tensor:
        """Compute the loss of one batch, and count its claims and tokens."""
        with without_copies(self.model):
            loss = self.forward_pass(collated)
        window, batch = self.window, collated.batch
        window.claims += len(batch.claims)
        window.real += sum(part.real_tokens for part in collated.parts)
        window.padded += sum(part.padded_tokens for part in collated.parts)
        return self.step_share(loss, batch.plan)

    def on_train_batch_end(self, *arguments: Any) -> None:
        if self.steps_done != 1 or not self.window.closed or not self.trainer.is_global_zero:
            return
        loss = self.window.means.get("info_nce")
        if loss is not None:
            temperature = self.config.temperature
            for line in first_loss_sentences(loss, self.candidates, temperature):
                log.warning("%s", line)

    def forward_pass(self, collated: CollatedBatch) -> Tensor:
        """Compute the loss of one batch, and note its terms."""
        chunks, terms, device = collated.chunks, dict[str, Tensor](), self.device
        part_of = {tuple(rows): part for rows, part in zip(chunks, collated.parts, strict=True)}

        def batch_loss(vectors: Tensor) -> Tensor:
            batch = changed(collated.batch, lambda tensor: tensor.to(device, non_blocking=True))
            rows = collated.text_numbers.to(device, non_blocking=True)
            sizes = [len(part) for part in (batch.claims, batch.sources, batch.views, batch.texts)]
            # In bf16 logits would be coarse: at temperature 0.02 they reach 50.
            with torch.autocast(device.type, enabled=False):
                claims, sources, views, texts = vectors[rows].split(sizes)
                if batch.fixed_sources is not None:
                    sources = batch.fixed_sources
                else:
                    sources = gather_vectors(sources, batch.counts, batch.plan.rank)
                self.candidates = len(sources)
                temperature = self.config.temperature
                inputs = LossInputs(claims, sources, views, texts, batch, temperature)
                loss, losses = combined(self.loss_list, inputs)
            terms.update(losses, loss=loss.detach())
            return loss

        def encode(rows: Sequence[int]) -> Tensor:
            part = part_of.get(tuple(rows))
            if part is None:
                # A chunk without texts keeps step with other processes: its vectors are dropped.
                part = self.encoder.batch([collated.distinct[row] for row in rows or [0]])
            return self.encoder.vectors(part.to(device, non_blocking=True))[: len(rows)]

        missing = 0
        if self.sharded:
            # All processes must run equally many.
            count = torch.tensor(len(chunks), device=device)
            torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MAX)
            missing = int(count) - len(chunks)
        one_chunk = self.config.chunk_size is None and self.config.chunk_tokens is None
        loss = self.run_chunks([*[[]] * missing, *chunks], encode, batch_loss, one_chunk=one_chunk)
        self.window.terms.append(terms)
        return loss
