"""The LightningModule: one optimizer loop, by hand, that can stop and go on at any step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import TQDMProgressBar
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup

from claim2source.cost import peak_memory
from claim2source.encode import Encoder
from claim2source.training.checkpoint import restore_random_state
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainBatch
from claim2source.training.losses import info_nce

# Called with the number of the epoch that has just ended (1 is the first).
EpochEnd = Callable[[int], None]


class RetrieverModule(pl.LightningModule):
    """Trains an `Encoder` contrastively.

    Lightning sees one long pass over the batches of all epochs; epochs, accumulation,
    clipping and the schedule are kept here, so that resuming needs only the number of
    batches done. `on_epoch_done` runs on every process after an epoch's last step,
    `on_save` on every process every `save_every` steps.
    """

    def __init__(
        self,
        encoder: Encoder,
        config: OptimisationConfig,
        optimizer_steps: int,
        on_epoch_done: EpochEnd,
        on_save: Callable[[], None],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.encoder = encoder
        self.model = encoder.model
        self.config = config
        self.optimizer_steps = optimizer_steps
        self.on_epoch_done, self.on_save = on_epoch_done, on_save
        self.batches_done = 0
        self.steps_done = 0
        self.restored: Mapping[str, Any] | None = None
        self.random: Mapping[str, Tensor] | None = None
        self.losses: list[float] = []
        self._window = _Window()

    def trainable(self) -> dict[str, torch.nn.Parameter]:
        """Name -> weight of what is trained."""
        return {n: p for n, p in self.model.named_parameters() if p.requires_grad}

    def configure_optimizers(self) -> Any:
        """AdamW without decay on biases and norms; linear warm-up, then a cosine to 0."""
        decayed = [p for p in self.trainable().values() if p.ndim > 1]
        others = [p for p in self.trainable().values() if p.ndim <= 1]
        groups = [
            {"params": decayed, "weight_decay": self.config.weight_decay},
            {"params": others, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], lr=self.config.learning_rate, fused=True
        )
        warmup = round(self.config.warmup_ratio * self.optimizer_steps)
        scheduler = get_cosine_schedule_with_warmup(optimizer, warmup, self.optimizer_steps)
        if self.restored is not None:
            optimizer.load_state_dict(self.restored["optimizer"])
            scheduler.load_state_dict(self.restored["scheduler"])
        return {"optimizer": optimizer, "lr_scheduler": scheduler}

    def on_train_start(self) -> None:
        """Training mode, which `from_pretrained` and evaluation leave off; then the dice."""
        self.model.train()
        # Here, since setting up draws random numbers that an uninterrupted run did not draw.
        if self.random is not None:
            restore_random_state(self.random)

    def training_step(self, batch: TrainBatch, batch_idx: int) -> None:
        """One batch forward and backward; an optimizer step when its window closes."""
        window = self._window
        with self._without_sync():
            loss = self._loss(batch)
            self.manual_backward(loss / batch.plan.window)
        window.add(loss.detach(), len(batch.claims))
        self.batches_done += 1
        if batch.plan.closes_window:
            self._step()
        if batch.plan.closes_epoch:
            self.on_epoch_done(batch.plan.epoch + 1)
            self.model.train()
            self._window = _Window()
        elif batch.plan.closes_window:
            every = self.config.save_every
            if every and self.steps_done % every == 0:
                self.on_save()

    def _loss(self, batch: TrainBatch) -> Tensor:
        claims = self._vectors(batch.claims)
        sources = self._vectors(batch.sources)
        return info_nce(
            claims,
            sources,
            batch.positives.to(claims.device),
            batch.masked.to(claims.device),
            self.config.temperature,
        )

    def _vectors(self, tokens: list[Any]) -> Tensor:
        """Vectors [n, dimensions] with gradient; texts of like length share a forward pass."""
        parts, order = [], []
        for rows in self.encoder.length_batches(tokens):
            batch = self.encoder.collate([tokens[row] for row in rows])
            self._window.real += batch.real_tokens
            self._window.padded += batch.padded_tokens
            parts.append(self.encoder.vectors(batch.to(self.device)))
            order += rows
        back = torch.empty(len(order), dtype=torch.long)
        back[torch.tensor(order)] = torch.arange(len(order))
        return torch.cat(parts)[back.to(parts[0].device)]

    def _without_sync(self) -> AbstractContextManager[Any]:
        """Gradients are reduced once, in `_step`: not by DDP after every backward."""
        strategy = self.trainer.strategy
        if isinstance(strategy, pl.strategies.DDPStrategy):
            return strategy.block_backward_sync()
        return nullcontext()

    def _step(self) -> None:
        optimizer, scheduler = self.optimizers(), self.lr_schedulers()
        parameters = list(self.trainable().values())
        self._reduce_gradients(parameters)
        limit = self.config.max_grad_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(parameters, limit)
        rate = float(scheduler.get_last_lr()[0])  # type: ignore[union-attr]
        optimizer.step()  # type: ignore[union-attr]
        scheduler.step()  # type: ignore[union-attr, call-arg]
        optimizer.zero_grad(set_to_none=True)  # type: ignore[union-attr]
        self.steps_done += 1
        loss = self._mean_over_ranks(self._window.mean_loss())
        self.losses.append(loss)
        if self.steps_done % self.config.log_every == 0:
            self._log(loss, rate, float(norm))
        self._window = _Window()

    def _reduce_gradients(self, parameters: list[torch.nn.Parameter]) -> None:
        """Average the gradients of all processes, once per optimizer step."""
        if self.trainer.world_size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        flat = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None])
        torch.distributed.all_reduce(flat)
        flat /= self.trainer.world_size
        start = 0
        for parameter in parameters:
            assert parameter.grad is not None
            size = parameter.grad.numel()
            parameter.grad.copy_(flat[start : start + size].view_as(parameter.grad))
            start += size

    def _mean_over_ranks(self, value: Tensor) -> float:
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(value)
            value = value / self.trainer.world_size
        return float(value)

    def _log(self, loss: float, rate: float, norm: float) -> None:
        window, world = self._window, self.trainer.world_size
        seconds = max(time.perf_counter() - window.started, 1e-9)
        values = {
            "loss": loss,
            "learning_rate": rate,
            "gradient_norm": norm,
            "claims_per_second": world * window.claims / seconds,
            "real_tokens_per_second": world * window.real / seconds,
            "padded_tokens_per_second": world * window.padded / seconds,
            "peak_memory_mib": peak_memory() / 2**20,
        }
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.steps_done)
        self.log("loss", loss, prog_bar=True, logger=False, rank_zero_only=True)


class Progress(TQDMProgressBar):
    """Lightning's bar; its one "epoch" holds all of ours."""

    def on_train_epoch_start(self, trainer: pl.Trainer, *_: Any) -> None:
        """Name the bar by what it counts."""
        super().on_train_epoch_start(trainer, *_)
        self.train_progress_bar.set_description("training")

    def get_metrics(self, *arguments: Any) -> dict[str, Any]:
        """The loss, without the logger's version number."""
        shown = super().get_metrics(*arguments)
        return {key: value for key, value in shown.items() if key != "v_num"}


class _Window:
    """Counters of the batches since the last optimizer step."""

    def __init__(self) -> None:
        self.started = time.perf_counter()
        self.losses: list[Tensor] = []
        self.claims = self.real = self.padded = 0

    def add(self, loss: Tensor, claims: int) -> None:
        self.losses.append(loss)
        self.claims += claims

    def mean_loss(self) -> Tensor:
        return torch.stack(self.losses).mean()
