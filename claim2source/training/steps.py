"""Define what all trainings' modules share: accumulation, the optimizer, steps that are skipped."""

from __future__ import annotations

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import get_cosine_schedule_with_warmup

from claim2source.core.errors import EXIT_CODE, UserError
from claim2source.mining import MinedRow
from claim2source.training.adapt import without_copies
from claim2source.training.batches import BatchPlan
from claim2source.training.config import StepsConfig
from claim2source.training.gradcache import Forward
from claim2source.training.state import CALMER, skipped_steps, trainable_weights
from claim2source.training.stop import StopSignals
from claim2source.training.strategies import Sharded, backward_pass, shard

# Steps in a row that may be skipped: one bad batch is no reason to stop, a lost training is.
MOST_SKIPPED = 5
_STOP, _SPOILT = "stop", "spoilt"


class TrainingModule(pl.LightningModule):
    """Train a model in planned batches: `ready` makes one, `loss_of_batch` computes its loss.

    Lightning accumulates, counts epochs and steps, and calls the callbacks. `optimizer_steps` is
    how many the learning rate falls over. `losses` has the loss of every optimizer step so far,
    NaN where it was skipped. `measures` are terms that are counted, and no part of the loss.
    """

    measures: frozenset[str] = frozenset()

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
        self.window, self.step = Window(), Step()
        self._forward_pass: Forward | None = None
        self.sharded = False

    @abstractmethod
    def ready(self, plan: BatchPlan) -> Any:
        """Make the tensors of a planned batch, before its step and in another thread."""

    @property
    @abstractmethod
    def shown_rows(self) -> Sequence[MinedRow]:
        """List the pairs whose negatives a reader may see; none where none are trained on."""

    @abstractmethod
    def loss_of_batch(self, ready: Any) -> tuple[Forward, BatchPlan]:
        """Compute the loss of one batch, and count what it used."""

    @property
    def epochs_done(self) -> int:
        """Count the epochs that were begun, the current one too."""
        return -(-self.batches_done // int(self.trainer.num_training_batches))

    def steps_before(self, epoch: int) -> int:
        """Count the optimizer steps before an epoch; the first is 1."""
        trainer = self.trainer
        per_epoch = -(-int(trainer.num_training_batches) // trainer.accumulate_grad_batches)
        return (epoch - 1) * per_epoch

    def configure_model(self) -> None:
        """Shard the model where the strategy does."""
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
        warmup = round(self.config.warmup_ratio * self.optimizer_steps)
        scheduler = get_cosine_schedule_with_warmup(optimizer, warmup, self.optimizer_steps)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": scheduler, "interval": "step"},
        }

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Leave a batch where it is: its chunks are moved to the device one after the other."""
        return batch

    def on_train_start(self) -> None:
        """Switch to training mode."""
        self.stop.install()
        self.model.train()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Begin to count what an optimizer step uses."""
        if self.window.closed:
            self.window = Window()

    def training_step(self, ready: Any, batch_idx: int) -> Tensor:
        """Compute the loss of one batch."""
        with without_copies(self.model):
            passed, plan = self.loss_of_batch(ready)
        self._forward_pass = passed
        self.batches_done += 1
        accumulation = self.trainer.accumulate_grad_batches
        if plan.window == accumulation:
            return passed.loss
        # Lightning divides by the accumulation, also where an epoch's last window has fewer.
        return passed.loss * (accumulation / plan.window)

    def backward(self, loss: Tensor) -> None:  # type: ignore[override]
        """Add the gradients of the batch; in chunks these are several backward passes."""
        passed, self._forward_pass = self._forward_pass, None
        assert passed is not None
        # Chunks are encoded again, in the precision of the step.
        with self.trainer.precision_plugin.train_step_context(), without_copies(self.model):
            passed.backward(loss, partial(backward_pass, self.trainer.strategy))

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
        terms = self._mean_over_ranks({**self.window.mean_terms(), _STOP: stop, _SPOILT: spoilt})
        self.stopping = terms.pop(_STOP) > 0
        taken = terms.pop(_SPOILT) == 0 and math.isfinite(terms["loss"])
        if not taken:
            optimizer.zero_grad(set_to_none=True)
        self.steps_done += 1
        self.losses.append(terms["loss"] if taken else math.nan)
        self.window.closed = True
        self.step = Step(terms, rate, float(norm))
        if skipped_steps(self.losses[-MOST_SKIPPED:]) == MOST_SKIPPED:
            self.give_up(
                f"{MOST_SKIPPED} steps in a row, to step {self.steps_done}, had a loss or a "
                f"gradient that is not finite, and were not taken; {CALMER}"
            )

    def optimizer_zero_grad(self, *arguments: Any) -> None:
        """Do nothing: a forward pass of packed texts lays out a gradient; steps free them."""

    def optimizer_step(self, *arguments: Any, **more: Any) -> None:
        """Take the step, then free the gradients: an epoch is scored without them."""
        super().optimizer_step(*arguments, **more)
        for optimizer in self.trainer.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep only the weights that training moves."""
        moved = {f"model.{name}" for name in trainable_weights(self.model)}
        weights = checkpoint["state_dict"]
        checkpoint["state_dict"] = {name: weights[name] for name in weights if name in moved}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Raise `UserError` where a state trains other weights than this model."""
        if "state_dict" not in checkpoint:
            return  # a strategy that shards has read them
        moved = {f"model.{name}" for name in trainable_weights(self.model)}
        if odd := sorted(moved ^ checkpoint["state_dict"].keys()):
            name = odd[0].removeprefix("model.")
            raise UserError(f"the saved state trains other weights than this config ({name})")

    def give_up(self, why: str) -> None:
        """Raise `UserError` in the first process; the others end with its exit code."""
        if not self.trainer.is_global_zero:
            raise SystemExit(EXIT_CODE)
        raise UserError(why)

    def _mean_over_ranks(self, terms: dict[str, Tensor]) -> dict[str, float]:
        """Average the terms of the loss over all processes."""
        values = torch.stack([terms[name].float() for name in sorted(terms)])
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(values)
            values = values / self.trainer.world_size
        return dict(zip(sorted(terms), values.tolist(), strict=True))


@dataclass(frozen=True)
class Step:
    """Hold what an optimizer step said: the terms of the loss, its rate, the gradient's norm."""

    terms: Mapping[str, float] = field(default_factory=dict)
    rate: float = 0.0
    norm: float = 0.0


@dataclass
class Window:
    """Count what the batches of an optimizer step used, in this process.

    `taught` marks the teacher's scores [n, m] that each batch used; empty without a teacher.
    """

    started: float = field(default_factory=time.perf_counter)
    terms: list[dict[str, Tensor]] = field(default_factory=list)
    claims: int = 0
    real: int = 0
    padded: int = 0
    taught: list[Tensor] = field(default_factory=list)
    closed: bool = False

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
