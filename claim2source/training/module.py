"""The LightningModule: one optimizer loop, by hand, that can stop and go on at any step."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import TQDMProgressBar
from torch import Tensor
from transformers import get_cosine_schedule_with_warmup

from claim2source.core.memory import peak_memory
from claim2source.models import Encoder, Tokens
from claim2source.training.batches import BatchPlan
from claim2source.training.checkpoint import restore_random_state
from claim2source.training.chunked import chunked_backward, whole_backward
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainBatch, TrainingPairs
from claim2source.training.gather import gather_vectors
from claim2source.training.losses import LossesConfig, LossInputs, combined, taught

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
        pairs: TrainingPairs,
        config: OptimisationConfig,
        losses: LossesConfig,
        optimizer_steps: int,
        on_epoch_done: EpochEnd,
        on_save: Callable[[], None],
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.encoder = encoder
        self.model = encoder.model
        self.pairs = pairs
        self.config, self.loss_config = config, losses
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

    def training_step(self, plan: BatchPlan, batch_idx: int) -> None:
        """One batch forward and backward; an optimizer step when its window closes."""
        window = self._window
        batch = self.pairs.batch(plan)
        with self._without_sync():
            window.add(self._backward(batch), len(batch.claims))
            if batch.teacher is not None:
                kind = self.loss_config.distillation.kind
                window.learn(taught(batch.teacher, batch.positives, kind))
        self.batches_done += 1
        if plan.closes_window:
            self._step()
        if plan.closes_epoch:
            self.on_epoch_done(plan.epoch + 1)
            self.model.train()
            self._window = _Window()
        elif plan.closes_window:
            every = self.config.save_every
            if every and self.steps_done % every == 0:
                self.on_save()

    def _backward(self, batch: TrainBatch) -> dict[str, Tensor]:
        """Gradients of one batch; returns the loss and its terms, detached."""
        texts = [*batch.claims, *batch.sources, *batch.views]
        # Texts that repeat are encoded once; their gradients add up.
        distinct: dict[Tokens, int] = {}
        place = torch.tensor([distinct.setdefault(text, len(distinct)) for text in texts])
        tokens = list(distinct)
        terms: dict[str, Tensor] = {}

        def loss_of(vectors: Tensor) -> Tensor:
            # Logits in bf16 would be coarse: at temperature 0.02 they reach 50.
            with torch.autocast(vectors.device.type, enabled=False):
                inputs = self._inputs(batch, vectors[place.to(vectors.device)])
                loss, found = combined(inputs, self.loss_config, self.config.temperature)
            terms.update(found, loss=loss.detach())
            return loss

        def encode(rows: Sequence[int]) -> Tensor:
            part = self.encoder.batch([tokens[row] for row in rows])
            if torch.is_grad_enabled():
                self._window.real += part.real_tokens
                self._window.padded += part.padded_tokens
            return self.encoder.vectors(part.to(self.device))

        size = self.config.chunk_size
        if size is None:
            chunks, run = list(self.encoder.length_batches(tokens)), whole_backward
        else:
            chunks, run = length_chunks(tokens, size), chunked_backward
        run(chunks, encode, loss_of, lambda loss: self.manual_backward(loss / batch.plan.window))
        return terms

    def _inputs(self, batch: TrainBatch, vectors: Tensor) -> LossInputs:
        """What the losses look at; sources (and claims) of all processes where gathered."""
        sizes = [len(batch.claims), len(batch.sources), len(batch.views)]
        claims, sources, views = vectors.split(sizes)

        def here(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(vectors.device)

        plan, fixed = batch.plan, here(batch.fixed_sources)
        all_claims = None
        if batch.claims_masked is not None:
            shares = plan.shares or (plan.rows,)
            all_claims = gather_vectors(claims, [len(share) for share in shares], plan.rank)
        return LossInputs(
            claims=claims,
            sources=gather_vectors(sources, batch.counts, plan.rank) if fixed is None else fixed,
            positives=batch.positives.to(vectors.device),
            masked=batch.masked.to(vectors.device),
            all_claims=all_claims,
            rows=here(batch.rows),
            claims_masked=here(batch.claims_masked),
            teacher=here(batch.teacher),
            base_claims=here(batch.base_claims),
            base_sources=here(batch.base_sources),
            keep_weights=here(batch.keep_weights),
            views=None if batch.owners is None else views,
            owners=here(batch.owners),
        )

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
        terms = self._mean_over_ranks(self._window.mean_terms())
        self.losses.append(terms["loss"])
        if self.steps_done % self.config.log_every == 0:
            self._log(terms, rate, float(norm))
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

    def _mean_over_ranks(self, terms: dict[str, Tensor]) -> dict[str, float]:
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
            **window.learned(),
            **({f"loss/{name}": value for name, value in terms.items() if name != "loss"}),
            "learning_rate": rate,
            "gradient_norm": norm,
            "claims_per_second": world * window.claims / seconds,
            "real_tokens_per_second": world * window.real / seconds,
            "padded_tokens_per_second": world * window.padded / seconds,
            "peak_memory_mib": peak_memory() / 2**20,
        }
        for logger in self.trainer.loggers:
            logger.log_metrics(values, step=self.steps_done)
        self.log("loss", terms["loss"], prog_bar=True, logger=False, rank_zero_only=True)


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
        self.terms: list[dict[str, Tensor]] = []
        self.claims = self.real = self.padded = 0
        # Claims that a teacher taught, and its scores that did; None without one.
        self.taught: tuple[int, int] | None = None

    def add(self, terms: dict[str, Tensor], claims: int) -> None:
        self.terms.append(terms)
        self.claims += claims

    def learn(self, taught: Tensor) -> None:
        """Count which scores of a batch's teacher [n, m] were of use."""
        rows, scores = self.taught or (0, 0)
        self.taught = rows + int(taught.any(dim=1).sum()), scores + int(taught.sum())

    def learned(self) -> dict[str, float]:
        """Share of this process's claims that were taught, and scores used for each claim."""
        if self.taught is None:
            return {}
        rows, scores = self.taught
        return {"taught_claims": rows / self.claims, "taught_scores": scores / self.claims}

    def mean_terms(self) -> dict[str, Tensor]:
        return {
            name: torch.stack([terms[name] for terms in self.terms]).mean()
            for name in self.terms[0]
        }


def length_chunks(tokens: Sequence[Tokens], size: int) -> list[list[int]]:
    """Positions of texts in chunks of `size`, those of like length together, shortest first.

    The last chunk is full and has the longest: it is the one that is encoded only once.
    """
    order = sorted(range(len(tokens)), key=lambda row: len(tokens[row].ids))
    cuts = [*range(len(order) % size, len(order), size), len(order)]
    return [order[start:end] for start, end in pairwise([0, *cuts]) if end > start]
