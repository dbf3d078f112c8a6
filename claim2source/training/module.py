"""Define the LightningModule: an optimizer loop that can stop and resume at any step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from signal import SIGTERM
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup

from claim2source.core.errors import EXIT_CODE, Stopped, UserError
from claim2source.core.memory import peak_memory
from claim2source.models import Encoder, Tokens
from claim2source.training.batches import BatchPlan
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainBatch, TrainingPairs
from claim2source.training.distributed import gather_vectors
from claim2source.training.gradcache import (
    Run,
    chunked_backward,
    length_chunks,
    token_chunks,
    whole_backward,
)
from claim2source.training.kernels import make_optimizer, without_copies
from claim2source.training.losses import LossesConfig, LossInputs, LossTargets, combined, taught
from claim2source.training.state import (
    CALMER,
    RandomState,
    TrainingState,
    restore_random_state,
    skipped_steps,
    trainable_weights,
)
from claim2source.training.stop import StopSignals

# Steps in a row that may be skipped: one bad batch is no reason to stop, a lost training is.
MOST_SKIPPED = 5
_STOP, _SPOILT = "stop", "spoilt"


class RetrieverModule(pl.LightningModule):
    """Train an `Encoder` contrastively.

    Lightning sees one pass over the batches of all epochs; epochs, gradient accumulation,
    clipping and the learning rate are handled here, so that resuming needs only the number of
    batches done. `on_epoch_done` runs on every process after an epoch's last step, with the
    number of the epoch (1 is the first), `on_save` on every process every `save_every` steps, and
    before a signal stops the training; it is told whether an epoch's end is still to come.
    """

    def __init__(
        self,
        encoder: Encoder,
        pairs: TrainingPairs,
        config: OptimisationConfig,
        losses: LossesConfig,
        optimizer_steps: int,
        on_epoch_done: Callable[[int], None],
        on_save: Callable[[bool], None],
        stop: StopSignals | None = None,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.encoder = encoder
        self.model = encoder.model
        self.pairs = pairs
        self.config, self.loss_config = config, losses
        self.optimizer_steps = optimizer_steps
        self.on_epoch_done, self.on_save = on_epoch_done, on_save
        self.stop = stop or StopSignals()
        # Whether any process got a signal, as all of them know it after a step.
        self.stopping = False
        self.batches_done = 0
        self.steps_done = 0
        self.restored: TrainingState | None = None
        self.open_epoch: int | None = None
        self.random: RandomState | None = None
        self.losses: list[float] = []
        self._window = _Window()

    def configure_optimizers(self) -> Any:
        """Create AdamW without decay on biases and norms; linear warm-up, then a cosine to 0."""
        groups: list[dict[str, object]] = []
        for matrices, decay in ((True, self.config.weight_decay), (False, 0.0)):
            trainable = trainable_weights(self.model).values()
            if parameters := [p for p in trainable if (p.ndim > 1) is matrices]:
                groups.append({"params": parameters, "weight_decay": decay})
        optimizer = make_optimizer(groups, self.config)
        warmup = round(self.config.warmup_ratio * self.optimizer_steps)
        scheduler = get_cosine_schedule_with_warmup(optimizer, warmup, self.optimizer_steps)
        if self.restored is not None:
            optimizer.load_state_dict(self.restored.optimizer)
            scheduler.load_state_dict(self.restored.scheduler)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def transfer_batch_to_device(
        self, batch: BatchPlan, device: torch.device, dataloader_idx: int
    ) -> BatchPlan:
        """Leave a plan as it is: its texts become tensors on the model's device."""
        return batch

    def on_train_start(self) -> None:
        """Switch to training mode, restore the RNG state, and end an epoch that was left open."""
        self.stop.install()
        self.model.train()
        # Here, since Lightning's set-up draws random numbers when a run starts or resumes.
        if self.random is not None:
            restore_random_state(self.random)
        if self.open_epoch is not None:
            self.on_epoch_done(self.open_epoch)
            self.model.train()

    def training_step(self, plan: BatchPlan, batch_idx: int) -> None:
        """Run one batch forward and backward; take an optimizer step when its window closes."""
        window = self._window
        batch = self.pairs.batch(plan)
        with self._without_sync():
            window.terms.append(self._backward(batch))
        window.claims += len(batch.claims)
        if batch.teacher is not None:
            kind = self.loss_config.distillation.kind
            window.taught.append(taught(batch.teacher, batch.positives, kind))
        self.batches_done += 1
        if plan.closes_window:
            self._step()
            if self.stopping:
                self.on_save(plan.closes_epoch)
                raise Stopped("", self.stop.received or SIGTERM)
        if plan.closes_epoch:
            self.on_epoch_done(plan.epoch + 1)
            self.model.train()
            self._window = _Window()
        elif plan.closes_window:
            every = self.config.save_every
            if every and self.steps_done % every == 0:
                self.on_save(False)

    def _backward(self, batch: TrainBatch) -> dict[str, Tensor]:
        """Add the gradients of one batch; returns the loss and its terms, detached."""
        texts = [*batch.claims, *batch.sources, *batch.views]
        # Each distinct text is encoded once; the gradients of its copies add up.
        distinct: dict[Tokens, int] = {}
        place = torch.tensor([distinct.setdefault(text, len(distinct)) for text in texts])
        tokens = list(distinct)
        terms: dict[str, Tensor] = {}

        def loss_of(vectors: Tensor) -> Tensor:
            # In bf16 logits would be coarse: at temperature 0.02 they reach 50.
            with torch.autocast(vectors.device.type, enabled=False):
                inputs = self._inputs(batch, vectors[place.to(vectors.device)])
                loss, parts = combined(inputs, self.loss_config, self.config.temperature)
            terms.update(parts, loss=loss.detach())
            return loss

        def encode(rows: Sequence[int]) -> Tensor:
            part = self.encoder.batch([tokens[row] for row in rows])
            if torch.is_grad_enabled():
                self._window.real += part.real_tokens
                self._window.padded += part.padded_tokens
            return self.encoder.vectors(part.to(self.device))

        chunks, run = self._chunks(tokens)
        with without_copies(self.model):
            run(
                chunks, encode, loss_of, lambda loss: self.manual_backward(loss / batch.plan.window)
            )
        return terms

    def _chunks(self, tokens: Sequence[Tokens]) -> tuple[list[list[int]], Run]:
        """Divide a batch's texts for its forward passes, and choose how these are run."""
        size, budget = self.config.chunk_size, self.config.chunk_tokens
        assert size != "auto", "settled by memory_plan"
        if budget is not None:
            lengths = [len(text.ids) for text in tokens]
            packed = self.encoder.packs
            return token_chunks(lengths, budget, packed=packed), chunked_backward
        if size is not None:
            return length_chunks(tokens, size), chunked_backward
        return list(self.encoder.length_batches(tokens)), whole_backward

    def _inputs(self, batch: TrainBatch, vectors: Tensor) -> LossInputs:
        """Put a batch's vectors beside its targets, gathered over processes where asked."""
        sizes = [len(batch.claims), len(batch.sources), len(batch.views)]
        claims, sources, views = vectors.split(sizes)
        plan = batch.plan
        if batch.fixed_sources is not None:
            sources = batch.fixed_sources.to(vectors.device)
        else:
            sources = gather_vectors(sources, batch.counts, plan.rank)
        all_claims = None
        if batch.claims_masked is not None:
            counts = [len(rows) for rows in plan.shares or (plan.rows,)]
            all_claims = gather_vectors(claims, counts, plan.rank)
        targets: dict[str, Any] = {
            spec.name: value if value is None else value.to(vectors.device)
            for spec in fields(LossTargets)
            for value in [getattr(batch, spec.name)]
        }
        return LossInputs(
            claims=claims, sources=sources, all_claims=all_claims, views=views, **targets
        )

    def _without_sync(self) -> AbstractContextManager[Any]:
        """Keep DDP from averaging gradients after every backward; `_step` does it once."""
        strategy = self.trainer.strategy
        if isinstance(strategy, pl.strategies.DDPStrategy):
            return strategy.block_backward_sync()
        return nullcontext()

    def _step(self) -> None:
        """Take an optimizer step, then log its losses.

        A step whose loss or gradient is not finite is skipped by all processes; the learning rate
        goes on. Raises `UserError` after `MOST_SKIPPED` of them in a row.
        """
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        parameters = list(trainable_weights(self.model).values())
        self._reduce_gradients(parameters)
        limit = self.config.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        rate = float(scheduler.get_last_lr()[0])  # type: ignore[union-attr]
        # With the loss, so that all processes skip and stop at the same step, at no cost.
        stop = torch.tensor(float(self.stop.received is not None), device=self.device)
        spoilt = (~norm.isfinite()).to(stop)
        terms = self._mean_over_ranks({**self._window.mean_terms(), _STOP: stop, _SPOILT: spoilt})
        self.stopping = terms.pop(_STOP) > 0
        taken = terms.pop(_SPOILT) == 0 and math.isfinite(terms["loss"])
        if taken:
            optimizer.step()  # type: ignore[union-attr]
        scheduler.step()  # type: ignore[union-attr, call-arg]
        optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        self.steps_done += 1
        self.losses.append(terms["loss"] if taken else math.nan)
        if self.steps_done % self.config.log_every == 0:
            self._log(terms, rate, float(norm))
        self._window = _Window()
        if skipped_steps(self.losses[-MOST_SKIPPED:]) == MOST_SKIPPED:
            self._give_up()

    def _give_up(self) -> None:
        """Raise `UserError` in the first process; the others end with its exit code."""
        if not self.trainer.is_global_zero:
            raise SystemExit(EXIT_CODE)
        raise UserError(
            f"{MOST_SKIPPED} steps in a row, to step {self.steps_done}, had a loss or a gradient "
            f"that is not finite, and were not taken; {CALMER}"
        )

    def _reduce_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Average the gradients of all processes, once per optimizer step."""
        if self.trainer.world_size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in parameters if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        torch.distributed.all_reduce(flat)
        flat /= self.trainer.world_size
        means = flat.split([gradient.numel() for gradient in gradients])
        for gradient, mean in zip(gradients, means, strict=True):
            gradient.copy_(mean.view_as(gradient))

    def _mean_over_ranks(self, terms: dict[str, Tensor]) -> dict[str, float]:
        """Average the terms of the loss over all processes."""
        values = torch.stack([terms[name].float() for name in sorted(terms)])
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(values)
            values = values / self.trainer.world_size
        return dict(zip(sorted(terms), values.tolist(), strict=True))

    def _log(self, terms: dict[str, float], rate: float, norm: float) -> None:
        window, world = self._window, self.trainer.world_size
        seconds = max(time.perf_counter() - window.started, 1e-9)
        values = {
            "loss": terms["loss"],
            **window.taught_counts(),
            **({f"loss/{name}": value for name, value in terms.items() if name != "loss"}),
            "learning_rate": rate,
            "gradient_norm": norm,
            "skipped_steps": skipped_steps(self.losses),
            "claims_per_second": world * window.claims / seconds,
            "real_tokens_per_second": world * window.real / seconds,
            "padded_tokens_per_second": world * window.padded / seconds,
            "peak_memory_mib": peak_memory() / 2**20,
        }
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.steps_done)


@dataclass
class _Window:
    """Count what the batches since the last optimizer step used, in this process.

    `taught` marks the teacher's scores [n, m] that each batch used; empty without a teacher.
    """

    started: float = field(default_factory=time.perf_counter)
    terms: list[dict[str, Tensor]] = field(default_factory=list)
    claims: int = 0
    real: int = 0
    padded: int = 0
    taught: list[Tensor] = field(default_factory=list)

    def taught_counts(self) -> dict[str, float]:
        """Compute the share of claims that a teacher taught, and the scores used per claim."""
        if not self.taught:
            return {}
        rows = sum(int(scores.any(dim=1).sum()) for scores in self.taught)
        scores = sum(int(scores.sum()) for scores in self.taught)
        return {"taught_claims": rows / self.claims, "taught_scores": scores / self.claims}

    def mean_terms(self) -> dict[str, Tensor]:
        """Average each term of the loss over the batches."""
        return {
            name: torch.stack([terms[name] for terms in self.terms]).mean()
            for name in self.terms[0]
        }
