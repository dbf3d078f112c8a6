"""Training pairs as token batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from claim2source.encode import Encoder, Tokens
from claim2source.mining import MinedRow
from claim2source.mining.mine import golds_by_text
from claim2source.records import Dataset
from claim2source.text import Rendering
from claim2source.training.batches import BatchPlan, BatchSampler


@dataclass(frozen=True)
class TrainBatch:
    """One step's texts: each distinct source once.

    `positives` [n] is the column of each claim's gold, `masked` [n, m] true where a source is
    gold for the row without being its positive.
    """

    plan: BatchPlan
    claims: list[Tokens]
    sources: list[Tokens]
    positives: Tensor
    masked: Tensor


class TrainingPairs:
    """Claims with their gold and mined negatives, tokenised once by the one Encoder."""

    def __init__(
        self,
        dataset: Dataset,
        rows: Sequence[MinedRow],
        encoder: Encoder,
        rendering: Rendering,
        negatives: int,
    ) -> None:
        self.rows = list(rows)
        self.negatives = negatives
        self.golds: Mapping[str, frozenset[str]] = golds_by_text(dataset.claims)
        wanted = {row.claim for row in self.rows}
        claims = [claim for claim in dataset.claims if claim.id in wanted]
        tokens = encoder.tokenize(rendering.claim_texts(claims), "claim")
        self.claim_tokens = {c.id: t for c, t in zip(claims, tokens, strict=True)}
        used = {row.positive for row in self.rows} | {
            negative.source for row in self.rows for negative in row.negatives[:negatives]
        }
        sources = [source for source in dataset.sources if source.id in used]
        tokens = encoder.tokenize(rendering.source_texts(sources), "source")
        self.source_tokens = {s.id: t for s, t in zip(sources, tokens, strict=True)}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def short_rows(self) -> int:
        """Pairs with fewer mined negatives than are trained on."""
        return sum(len(row.negatives) < self.negatives for row in self.rows)

    def groups(self) -> list[int]:
        """A number per row; rows whose claims share a gold have the same."""
        parent: dict[str, str] = {}

        def root(source: str) -> str:
            while parent.setdefault(source, source) != source:
                parent[source] = parent[parent[source]]
                source = parent[source]
            return source

        for row in self.rows:
            for gold in self.golds[row.claim]:
                parent[root(gold)] = root(row.positive)
        number: dict[str, int] = {}
        return [number.setdefault(root(row.positive), len(number)) for row in self.rows]

    def batch(self, plan: BatchPlan) -> TrainBatch:
        """The texts of a planned batch."""
        rows = [self.rows[i] for i in plan.rows]
        column: dict[str, int] = {}
        for row in rows:
            column.setdefault(row.positive, len(column))
        for row in rows:
            for negative in row.negatives[: self.negatives]:
                column.setdefault(negative.source, len(column))
        positives = torch.tensor([column[row.positive] for row in rows])
        masked = torch.zeros(len(rows), len(column), dtype=torch.bool)
        for i, row in enumerate(rows):
            for gold in self.golds[row.claim]:
                if gold in column and gold != row.positive:
                    masked[i, column[gold]] = True
        return TrainBatch(
            plan,
            [self.claim_tokens[row.claim] for row in rows],
            [self.source_tokens[source] for source in column],
            positives,
            masked,
        )


class PairsModule(pl.LightningDataModule):
    """Feeds the batches of all epochs in one stream, so that a run can start at any of them."""

    def __init__(self, pairs: TrainingPairs, sampler: BatchSampler) -> None:
        super().__init__()
        self.pairs, self.sampler = pairs, sampler

    def train_dataloader(self) -> DataLoader[TrainBatch]:
        """Batches are built in this process: tokens are ready, there is nothing to wait for."""
        # A generator of its own: drawing its seed must not move the training's dice.
        planned = _Planned(self.pairs, self.sampler)
        return DataLoader(planned, batch_size=None, generator=torch.Generator())

    def transfer_batch_to_device(
        self, batch: TrainBatch, device: torch.device, dataloader_idx: int
    ) -> TrainBatch:
        """Batches hold token ids; their tensors are made where the model is."""
        return batch


class _Planned(torch.utils.data.IterableDataset[TrainBatch]):
    def __init__(self, pairs: TrainingPairs, sampler: BatchSampler) -> None:
        self.pairs, self.sampler = pairs, sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self):  # type: ignore[no-untyped-def]
        for plan in self.sampler:
            yield self.pairs.batch(plan)
