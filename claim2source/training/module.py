"""Define the retriever's LightningModule: a training step, its losses, and the optimizer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from claim2source.core.errors import EXIT_CODE, UserError
from claim2source.mining.baseline import first_loss_sentences
from claim2source.models import Encoder
from claim2source.models.tokens import changed
from claim2source.training.batches import BatchPlan, BatchSampler
from claim2source.training.checkpoint import without_copies
from claim2source.training.config import DataConfig, OptimisationConfig, StepsConfig
from claim2source.training.data import Chunks, CollatedBatch, TrainingPairs, collate, halved
from claim2source.training.distributed import Sharded, shard, start_reducer
from claim2source.training.loss_list import Losses
from claim2source.training.losses import LossInputs, combined
from claim2source.training.resume import (
    CALMER,
    RandomState,
    StopSignals,
    random_state,
    restore_random_state,
    skipped_steps,
    trainable_weights,
)

if TYPE_CHECKING:
    from claim2source.training.reranker_data import RerankerPairs

log = logging.getLogger(__name__)

# Consecutive steps that may be skipped: one bad batch is harmless, a diverged training is not.
MOST_SKIPPED = 5
_STOP = "stop"
_SPOILT = "spoilt"

Encode = Callable[[Sequence[int]], Tensor]  # row numbers -> their vectors [rows, d]
LossOf = Callable[[Tensor], Tensor]  # all vectors [n, d] -> the loss, a scalar


@dataclass
class GradCache:
    """Compute a batch's loss and its gradients: in one graph if it is `whole`, else in chunks.

    All chunks except the last are encoded without gradient. The loss's backward pass goes through
    the last chunk and computes the gradient of all other vectors. Then every other chunk is
    encoded again, with the same RNG state, and its gradient is propagated. The gradients are those
    of one graph, but only one chunk's activations are in memory.
    """

    chunks: Chunks
    encode: Encode
    loss_of: LossOf
    whole: bool = False

    def __post_init__(self) -> None:
        self._before = self._after = random_state()
        # Rows, the RNG state of their first pass, and their vectors, which are leaves of the loss.
        self._repeats: list[tuple[Sequence[int], RandomState, Tensor]] = []

    def forward(self) -> Tensor:
        """Compute the loss, before `backward`."""
        repeated = 0 if self.whole else len(self.chunks) - 1
        with torch.no_grad():
            for rows in self.chunks[:repeated]:
                state = random_state()
                self._repeats.append((rows, state, self.encode(rows)))
        # Autocast caches weights that were cast without gradient and would reuse them below.
        torch.clear_autocast_cache()
        leaves = [vectors.requires_grad_() for _, _, vectors in self._repeats]
        encoded = map(self.encode, self.chunks[repeated:])
        vectors = torch.cat([*leaves, *encoded])
        numbers = [row for rows in self.chunks for row in rows]
        order = torch.tensor(numbers).argsort()
        in_order = vectors[order.to(vectors.device)]
        loss = self.loss_of(in_order)
        # After the loss, which may draw random numbers.
        self._after = random_state()
        return loss

    def backward(
        self,
        loss: Tensor,
        before_last: Callable[[Tensor], None] = lambda output: None,
    ) -> None:
        """Add the gradients of `loss`, which `forward` returned, or of a multiple of it.

        `before_last` is called with the output at which the last backward pass begins.
        """
        if not self._repeats:
            before_last(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        while self._repeats:
            rows, state, leaf = self._repeats.pop(0)
            # Dropout must be the same as in the first pass.
            restore_random_state(state)
            vectors = self.encode(rows)
            if not self._repeats:
                before_last(vectors)
            torch.autograd.backward(vectors, leaf.grad)
        if not self.whole:
            restore_random_state(self._after)

    def begin_again(self) -> None:
        """Restore the state before the forward pass, and divide every chunk in two."""
        self.chunks = halved(self.chunks, 1)
        self.whole = False
        self._repeats = []
        restore_random_state(self._before)


class TrainingModule(pl.LightningModule):
    """Configure the optimizer, and take the steps of any training in planned batches.

    The learning rate falls over `optimizer_steps`. `losses` has the loss of every optimizer step
    so far, NaN if it was skipped. `measures` are terms that are logged but not part of the loss.
    `pairs` are the training pairs. Chunks are halved `halvings` times, once whenever the device's
    memory was too small.
    """

    measures: frozenset[str] = frozenset()
    pairs: TrainingPairs | RerankerPairs
    collate: Callable[[BatchPlan], Any]
    # The batch between its forward and backward pass, and the gradients before it.
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
        # A state has only the trained weights; their names are checked on loading.
        self.strict_loading = False
        self.model: Any = model
        self.config = config
        self.optimizer_steps = optimizer_steps
        self.stop = stop or StopSignals()
        # Whether any process received a signal; all of them know it after a step.
        self.stopping = False
        self.batches_done = 0
        self.steps_done = 0
        self.losses: list[float] = []
        self.window = StepSums()
        self.halvings = 0
        self.sharded = False

    @property
    def epochs_done(self) -> int:
        """Count the epochs that were begun, including the current one."""
        return -(-self.batches_done // int(self.trainer.num_training_batches))

    def configure_model(self) -> None:
        """Shard the model if the strategy does."""
        if isinstance(self.trainer.strategy, Sharded):
            mesh = self.trainer.strategy.device_mesh["data_parallel"]
            shard(self.model, mesh, half=self.config.precision == "bf16")
            self.sharded = True

    def configure_optimizers(self) -> Any:
        """Create AdamW without decay on biases and norms; linear warm-up, then a cosine to 0."""
        matrices: list[Tensor] = []
        vectors: list[Tensor] = []
        for weight in trainable_weights(self.model).values():
            if weight.ndim > 1:
                matrices.append(weight)
            else:
                vectors.append(weight)
        groups: list[dict[str, object]] = []
        for weights, decay in ((matrices, self.config.weight_decay), (vectors, 0.0)):
            if weights:
                groups.append({"params": weights, "weight_decay": decay})
        optimizer = torch.optim.AdamW(groups, lr=self.config.learning_rate, fused=True)
        rate = partial(
            rate_at,
            warmup=warmup_steps(self.config, self.optimizer_steps),
            steps=self.optimizer_steps,
            first=0 if self.config.warmup_from_zero else 1,
        )
        schedule = {"scheduler": LambdaLR(optimizer, rate), "interval": "step"}
        return [optimizer], [schedule]

    def transfer_batch_to_device(self, batch: Any, *_: Any) -> Any:
        """Leave the batch on the CPU: its chunks are moved to the device one by one."""
        return batch

    def on_train_start(self) -> None:
        self.model.train()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.window.closed:
            self.window = StepSums()

    def run_chunks(
        self,
        chunks: Chunks,
        encode: Encode,
        batch_loss: LossOf,
        *,
        one_chunk: bool,
    ) -> Tensor:
        """Compute the loss of a batch, at once if it is `one_chunk`, else chunk by chunk.

        If the device runs out of memory, it is computed again in chunks half as large.
        """
        chunks = halved(chunks, self.halvings)
        whole = one_chunk and not self.halvings
        self.cache = GradCache(chunks, encode, batch_loss, whole)
        self.gradients = {}
        # A CPU does not raise this error, so no copy is needed.
        if self.device.type == "cuda" and self.trainer.accumulate_grad_batches > 1:
            gradients: dict[str, Tensor] = {}
            for name, weight in trainable_weights(self.model).items():
                if weight.grad is not None:
                    gradients[name] = weight.grad.clone()
            self.gradients = gradients
        return self._compute_loss()

    def _compute_loss(self) -> Tensor:
        while True:
            try:
                return self.cache.forward()
            except torch.OutOfMemoryError as error:
                reason = str(error)
            self._halve_chunks(reason)

    def _halve_chunks(self, reason: str) -> None:
        """Restart the batch with smaller chunks. Raises `UserError` if there are none."""
        if self.trainer.world_size > 1:
            self.give_up(f"out of memory: lower optimisation.chunk_tokens or chunk_size ({reason})")
        most_texts = max(map(len, self.cache.chunks))
        if most_texts < 2:
            self.give_up(f"out of memory with one text per chunk: shorten texts ({reason})")
        self.cache.begin_again()
        torch.cuda.empty_cache()
        log.warning("out of memory: repeating the step in chunks half as large")
        self.halvings += 1
        for name, weight in trainable_weights(self.model).items():
            earlier = self.gradients.get(name)
            weight.grad = None if earlier is None else earlier.clone()

    def step_share(self, loss: Tensor, plan: BatchPlan) -> Tensor:
        """Count a batch, and return its share of the step's loss for the backward pass."""
        self.batches_done += 1
        accumulation = self.trainer.accumulate_grad_batches
        if plan.window == accumulation:
            return loss
        # Lightning divides by the accumulation, even if an epoch's last window has fewer batches.
        return loss * (accumulation / plan.window)

    def backward(self, loss: Tensor) -> None:  # type: ignore[override]
        """Add the gradients of the batch; with chunks in several backward passes.

        If the device runs out of memory, they restart with smaller chunks.
        """
        share = loss.detach() / self.window.terms[-1]["loss"]
        # Chunks are encoded again, in the precision of the step.
        precision = self.trainer.precision_plugin
        with precision.train_step_context(), without_copies(self.model):
            before_last = partial(start_reducer, self.trainer.strategy)
            while True:
                try:
                    self.cache.backward(loss, before_last)
                    # The copies are no longer needed.
                    self.gradients = {}
                    return
                except torch.OutOfMemoryError as error:
                    reason = str(error)
                # Free the activations before the next forward pass.
                del loss
                self._halve_chunks(reason)
                loss = self._compute_loss() * share

    def configure_gradient_clipping(
        self,
        optimizer: torch.optim.Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """Clip the gradients by their norm; drop them if the loss or the norm is not finite.

        Without gradients the optimizer changes nothing: all processes skip the step, and the
        learning rate advances. Raises `UserError` after `MOST_SKIPPED` skipped steps in a row.
        """
        parameters = list(trainable_weights(self.model).values())
        norm = torch.nn.utils.clip_grad_norm_(parameters, gradient_clip_val or float("inf"))
        if isinstance(norm, DTensor):
            norm = norm.full_tensor()
        window = self.window
        terms = window.mean_terms()
        window.rate = float(optimizer.param_groups[0]["lr"])
        # Together with the loss, so that all processes skip and stop at the same step, at no cost.
        is_stopped = self.stop.received is not None
        stop = torch.tensor(float(is_stopped), device=self.device)
        terms[_STOP] = stop
        terms[_SPOILT] = (~norm.isfinite()).to(stop)
        means = self._mean_of_processes(terms)
        self.stopping = means.pop(_STOP) > 0
        is_taken = means.pop(_SPOILT) == 0 and math.isfinite(means["loss"])
        if not is_taken:
            optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        self.losses.append(means["loss"] if is_taken else math.nan)
        window.means = means
        window.norm = float(norm)
        window.closed = True
        skipped = skipped_steps(self.losses[-MOST_SKIPPED:])
        if skipped == MOST_SKIPPED:
            self.give_up(
                f"{MOST_SKIPPED} steps in a row, to step {self.steps_done}, were skipped because "
                f"their loss or gradient is not finite; {CALMER}"
            )

    def _mean_of_processes(self, terms: Mapping[str, Tensor]) -> dict[str, float]:
        """Average terms over all processes, in one exchange."""
        names = sorted(terms)
        values = torch.stack([terms[name].float() for name in names])
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(values)
            values = values / self.trainer.world_size
        return dict(zip(names, values.tolist(), strict=True))

    def optimizer_zero_grad(self, *arguments: Any) -> None:
        """Do nothing: packed texts prepare a gradient in the forward pass; steps free them."""

    def optimizer_step(self, *arguments: Any, **options: Any) -> None:
        """Take the step, then free the gradients, which scoring does not need."""
        super().optimizer_step(*arguments, **options)
        for optimizer in self.trainer.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trainable = {f"model.{name}" for name in trainable_weights(self.model)}
        weights: dict[str, Tensor] = {}
        for name, weight in checkpoint["state_dict"].items():
            if name in trainable:
                weights[name] = weight
        checkpoint["state_dict"] = weights

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise `UserError` if a saved state has other trained weights than this model."""
        if "state_dict" not in checkpoint:
            return  # a sharding strategy has read them
        trainable = {f"model.{name}" for name in trainable_weights(self.model)}
        if differing := sorted(trainable ^ checkpoint["state_dict"].keys()):
            name = differing[0].removeprefix("model.")
            raise UserError(f"the saved state has other trained weights than this config ({name})")

    def summary(
        self,
        settings: DataConfig,
        sampler: BatchSampler,
        claims: int,
    ) -> list[str]:
        pairs = len(self.pairs.rows)
        repeated = f", {settings.repeat} times each," if settings.repeat > 1 else ""
        weights = sum(weight.numel() for weight in self.model.parameters())
        trained = sum(weight.numel() for weight in trainable_weights(self.model).values())
        lines = [
            f"{pairs} pairs{repeated} in {sampler.batches} batches per epoch, "
            f"{self.optimizer_steps} optimizer steps; "
            f"{trained:,} of {weights:,} weights are trained",
        ]
        if settings.limit is not None:
            lines.append(f"data.limit: training on only {claims} claims")
        left_out = sampler.left_out()
        if left_out:
            lines.append(
                f"{left_out} pairs are left out of an epoch, so that all processes get equally many"
            )
        if sampler.config.alpha != 1:
            quotas = [f"{name} {count}" for name, count in sampler.quotas.items()]
            lines.append(f"pairs per epoch by language: {', '.join(quotas)}")
        return lines

    def give_up(self, reason: str) -> None:
        """Raise `UserError` in the first process; the others end with its exit code."""
        if not self.trainer.is_global_zero:
            raise SystemExit(EXIT_CODE)
        raise UserError(reason)


def warmup_steps(config: StepsConfig, steps: int) -> int:
    """Count the optimizer steps, out of `steps`, in which the learning rate rises."""
    share = steps * config.warmup_ratio
    return math.ceil(share) if config.warmup_rounding == "up" else round(share)


def rate_at(
    step: int,
    warmup: int,
    steps: int,
    first: int,
) -> float:
    """Return a step's share of the highest learning rate: a linear rise, then a cosine to 0.

    Steps count from 0. The rise begins at `first` / (`warmup` + `first`), because a first step at
    rate 0 would change nothing.
    """
    if step < warmup:
        return (step + first) / (warmup + first)
    progress = (step - warmup) / max(1, steps - warmup)
    cosine = math.cos(math.pi * progress)
    return max(0.0, 0.5 * (1.0 + cosine))


@dataclass
class StepSums:
    """Sum up the measurements of an optimizer step's micro-batches.

    Once it is `closed`, it has the means of their terms over all processes, the step's learning
    rate and the gradient's norm.
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

    def mean_terms(self) -> dict[str, Tensor]:
        """Average the terms over the micro-batches."""
        means: dict[str, Tensor] = {}
        for name in self.terms[0]:
            measured = [terms[name] for terms in self.terms]
            means[name] = torch.stack(measured).mean()
        return means


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
        self.encoder = encoder
        self.pairs = pairs
        self.active_losses = losses.active
        # Number of sources that a claim of the last batch was compared with.
        self.candidates = 0

    def collate(self, plan: BatchPlan) -> CollatedBatch:
        """Make a planned batch's tensors, before the step and in another thread."""
        batch = self.pairs.batch(plan)
        collated = collate(batch, self.encoder, self.config)
        if self.device.type != "cuda":
            return collated
        # A new thread uses the first GPU by default.
        with torch.cuda.device(self.device):
            return collated.pin_memory()

    def training_step(self, collated: CollatedBatch, batch_idx: int) -> Tensor:
        """Compute the loss of one batch, and count its claims and tokens."""
        with without_copies(self.model):
            loss = self.forward_pass(collated)
        window = self.window
        batch = collated.batch
        window.claims += len(batch.claims)
        for part in collated.parts:
            window.real += part.real_tokens
            window.padded += part.padded_tokens
        return self.step_share(loss, batch.plan)

    def on_train_batch_end(self, *arguments: Any) -> None:
        is_first_step = self.steps_done == 1 and self.window.closed
        if not is_first_step or not self.trainer.is_global_zero:
            return
        loss = self.window.means.get("info_nce")
        if loss is not None:
            temperature = self.config.temperature
            for line in first_loss_sentences(loss, self.candidates, temperature):
                log.warning("%s", line)

    def forward_pass(self, collated: CollatedBatch) -> Tensor:
        """Compute the loss of one batch, and record its terms."""
        device = self.device
        chunks = collated.chunks
        parts = {tuple(rows): part for rows, part in zip(chunks, collated.parts, strict=True)}
        terms: dict[str, Tensor] = {}

        def encode(rows: Sequence[int]) -> Tensor:
            part = parts.get(tuple(rows))
            if part is None:
                # A chunk without texts keeps this process in step with others; drop its vectors.
                texts = [collated.distinct[row] for row in rows or [0]]
                part = self.encoder.batch(texts)
            vectors = self.encoder.vectors(part.to(device, non_blocking=True))
            return vectors[: len(rows)]

        def batch_loss(vectors: Tensor) -> Tensor:
            # In bf16, logits would be coarse: at temperature 0.02 they reach 50.
            with torch.autocast(device.type, enabled=False):
                inputs = self._loss_inputs(collated, vectors)
                loss, losses = combined(self.active_losses, inputs)
            terms.update(losses, loss=loss.detach())
            return loss

        missing = 0
        if self.sharded:
            # All processes must run the same number of chunks.
            count = torch.tensor(len(chunks), device=device)
            torch.distributed.all_reduce(count, torch.distributed.ReduceOp.MAX)
            missing = int(count) - len(chunks)
        one_chunk = self.config.chunk_size is None and self.config.chunk_tokens is None
        loss = self.run_chunks(
            [*[[]] * missing, *chunks],
            encode,
            batch_loss,
            one_chunk=one_chunk,
        )
        self.window.terms.append(terms)
        return loss

    def _loss_inputs(self, collated: CollatedBatch, vectors: Tensor) -> LossInputs:
        """Arrange the vectors of the distinct texts for the losses, with all processes' sources."""
        device = self.device
        batch = changed(collated.batch, lambda tensor: tensor.to(device, non_blocking=True))
        rows = collated.text_numbers.to(device, non_blocking=True)
        sizes = [len(part) for part in (batch.claims, batch.sources, batch.views, batch.texts)]
        claims, sources, views, texts = vectors[rows].split(sizes)
        if batch.fixed_sources is not None:
            sources = batch.fixed_sources
        else:
            sources = gather_vectors(sources, batch.counts, batch.plan.rank)
        self.candidates = len(sources)
        return LossInputs(claims, sources, views, texts, batch, self.config.temperature)


def gather_vectors(
    own: Tensor,
    counts: Sequence[int],
    rank: int,
) -> Tensor:
    """Gather vectors [sum of counts, d] of all processes by rank; `own` is [counts[rank], d].

    The gradient of a vector is summed over the losses of all processes; once the gradients of
    the weights are averaged, as DDP does, they are those of the mean loss. Every process must
    call it, forward and backward, in the same order.
    """
    if len(counts) == 1:
        return own
    return _Gather.apply(own, tuple(counts), rank)  # type: ignore[no-any-return, no-untyped-call]


class _Gather(torch.autograd.Function):
    """All-gather rows; the backward pass sums a row's gradient over all processes."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...], rank: int) -> Tensor:
        ctx.counts = counts
        ctx.rank = rank
        # Collectives need equal shapes: pad to the longest, then cut.
        padded = own.new_zeros(max(counts), own.shape[1])
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in counts]
        torch.distributed.all_gather(parts, padded)
        cut = [part[:count] for part, count in zip(parts, counts, strict=True)]
        return torch.cat(cut)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        total = gradients[0].contiguous().clone()
        torch.distributed.all_reduce(total)
        by_rank = total.split(ctx.counts)
        return by_rank[ctx.rank], None, None
