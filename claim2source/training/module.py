"""Define the retriever's LightningModule: a training step and its losses."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from claim2source.mining import MinedRow
from claim2source.models import Encoder
from claim2source.training.batches import BatchPlan
from claim2source.training.config import OptimisationConfig
from claim2source.training.data import TrainBatch, TrainingPairs
from claim2source.training.distributed import gather_vectors
from claim2source.training.gradcache import Forward, chunked_forward, whole_forward
from claim2source.training.losses import LossesConfig, LossInputs, LossTargets, combined, taught
from claim2source.training.ready import ReadyBatch, ready_batch
from claim2source.training.steps import MOST_SKIPPED, TrainingModule
from claim2source.training.stop import StopSignals
from claim2source.training.strategies import most_chunks
from claim2source.training.temperature import first_loss_sentences

log = logging.getLogger(__name__)

__all__ = ["MOST_SKIPPED", "RetrieverModule"]


class RetrieverModule(TrainingModule):
    """Train an `Encoder` contrastively: the step and its losses."""

    config: OptimisationConfig

    def __init__(
        self,
        encoder: Encoder,
        pairs: TrainingPairs,
        config: OptimisationConfig,
        losses: LossesConfig,
        optimizer_steps: int,
        stop: StopSignals | None = None,
    ) -> None:
        super().__init__(encoder.model, config, optimizer_steps, stop)
        self.encoder, self.pairs, self.loss_config = encoder, pairs, losses
        # Sources that a claim of the last batch was compared with.
        self.candidates = 0

    def ready(self, plan: BatchPlan) -> ReadyBatch:
        """Make the tensors of a planned batch, before its step and in another thread."""
        batch = ready_batch(self.pairs.batch(plan), self.encoder, self.config)
        if self.device.type != "cuda":
            return batch
        # A thread begins with the first GPU as its own.
        with torch.cuda.device(self.device):
            return batch.pin_memory()

    @property
    def shown_rows(self) -> Sequence[MinedRow]:
        """List the pairs, where negatives are used."""
        return self.pairs.rows if self.pairs.negatives else ()

    def loss_of_batch(self, ready: ReadyBatch) -> tuple[Forward, BatchPlan]:
        """Compute the loss of one batch, and count what it used."""
        passed, batch = self._forward(ready), ready.batch
        self.window.claims += len(batch.claims)
        if batch.teacher is not None:
            self.window.taught.append(taught(batch.teacher))
        return passed, ready.plan

    def on_train_batch_end(self, *arguments: Any) -> None:
        """Compare the first step's loss with chance."""
        if self.steps_done != 1 or not self.window.closed or not self.trainer.is_global_zero:
            return
        if self.loss_config.info_nce.weight:
            loss, temperature = self.step.terms["info_nce"], self.config.temperature
            for line in first_loss_sentences(loss, self.candidates, temperature):
                log.warning("%s", line)

    def _forward(self, ready: ReadyBatch) -> Forward:
        """Compute the loss of one batch, and note its terms."""
        chunks = ready.chunks
        part_of = {rows[0]: part for rows, part in zip(chunks, ready.parts, strict=True)}

        def loss_of(vectors: Tensor) -> Tensor:
            # In bf16 logits would be coarse: at temperature 0.02 they reach 50.
            with torch.autocast(vectors.device.type, enabled=False):
                place = ready.place.to(vectors.device, non_blocking=True)
                inputs = self._inputs(ready.batch, vectors[place])
                self.candidates = len(inputs.sources)
                loss, parts = combined(inputs, self.loss_config, self.config.temperature)
            self.window.terms.append({**parts, "loss": loss.detach()})
            return loss

        def encode(rows: Sequence[int]) -> Tensor:
            # A chunk without texts keeps step with other processes: its vectors are dropped.
            part = part_of[rows[0]] if rows else self.encoder.batch(ready.distinct[:1])
            if torch.is_grad_enabled():
                self.window.real += part.real_tokens
                self.window.padded += part.padded_tokens
            return self.encoder.vectors(part.to(self.device, non_blocking=True))[: len(rows)]

        missing = most_chunks(len(chunks), self.device) - len(chunks) if self.sharded else 0
        whole = self.config.chunk_size is None and self.config.chunk_tokens is None
        run = whole_forward if whole else chunked_forward
        return run([*[[]] * missing, *chunks], encode, loss_of)

    def _inputs(self, batch: TrainBatch, vectors: Tensor) -> LossInputs:
        """Put a batch's vectors beside its targets, gathered over processes where asked."""
        sizes = [len(part) for part in (batch.claims, batch.sources, batch.views, batch.texts)]
        claims, sources, views, texts = vectors.split(sizes)
        plan = batch.plan
        if batch.fixed_sources is not None:
            sources = batch.fixed_sources.to(vectors.device, non_blocking=True)
        else:
            sources = gather_vectors(sources, batch.counts, plan.rank)
        all_claims = None
        if batch.claims_masked is not None:
            counts = [len(rows) for rows in plan.shares or (plan.rows,)]
            all_claims = gather_vectors(claims, counts, plan.rank)
        targets: dict[str, Any] = {
            spec.name: value if value is None else value.to(vectors.device, non_blocking=True)
            for spec in fields(LossTargets)
            for value in [getattr(batch, spec.name)]
        }
        return LossInputs(
            claims=claims,
            sources=sources,
            all_claims=all_claims,
            views=views,
            texts=texts,
            **targets,
        )
