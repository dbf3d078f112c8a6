"""Training pairs as token batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import get_args

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from claim2source.core.records import Dataset
from claim2source.datasets.grouping import connected_groups, golds_by_text
from claim2source.mining import MinedRow, Negative
from claim2source.models import Encoder, Tokens
from claim2source.text import Rendering
from claim2source.text.render import ClaimForm
from claim2source.training.base_vectors import BaseVectors
from claim2source.training.batches import BatchPlan, BatchSampler
from claim2source.training.losses import LossesConfig
from claim2source.training.losses.keep_base import language_weights


@dataclass(frozen=True)
class TrainBatch:
    """One step's texts for one process: its n claims, and its share of the m distinct sources.

    The m columns are the sources of all processes that share negatives, by rank; `counts` says
    how many each encodes. `positives` [n] is the column of each claim's gold, `masked` [n, m]
    true where a source is gold for the row, or reads as one does, without being its positive.
    Among the claims of all those processes, `rows` [n] are this one's places and
    `claims_masked` [n, c] is true where another claim has the row's source, or one that reads
    the same, as gold (None unless trained both ways).
    `fixed_sources` [m, d] replaces encoding when sources are not trained; the last ones serve
    single losses.
    """

    plan: BatchPlan
    claims: list[Tokens]
    sources: list[Tokens]
    counts: tuple[int, ...]
    positives: Tensor
    masked: Tensor
    rows: Tensor
    claims_masked: Tensor | None
    fixed_sources: Tensor | None = None
    views: list[Tokens] = field(default_factory=list)
    owners: Tensor | None = None
    teacher: Tensor | None = None
    base_claims: Tensor | None = None
    base_sources: Tensor | None = None
    keep_weights: Tensor | None = None


class TrainingPairs:
    """Claims with their gold and mined negatives, tokenised once by the one Encoder.

    `base` is needed by `losses.keep_base` and for `query_only`, `teacher` (claim id -> source
    id -> score) by `losses.distillation`. With `rotate`, every epoch uses the next `negatives`
    of a row's list, random ones as often as they are in it; rows mined anew go on where the list
    before stood. Negatives that the teacher scores go before all others, in every epoch.
    """

    def __init__(
        self,
        dataset: Dataset,
        rows: Sequence[MinedRow],
        encoder: Encoder,
        rendering: Rendering,
        negatives: int,
        *,
        rotate: bool = False,
        losses: LossesConfig | None = None,
        base: BaseVectors | None = None,
        query_only: bool = False,
        teacher: Mapping[str, Mapping[str, float]] | None = None,
    ) -> None:
        self.dataset, self.encoder, self.rendering = dataset, encoder, rendering
        self.negatives, self.rotate = negatives, rotate
        self.losses = losses or LossesConfig()
        self.base, self.query_only, self.teacher = base, query_only, teacher
        self.golds: Mapping[str, frozenset[str]] = golds_by_text(dataset.claims)
        wanted = {row.claim for row in rows}
        claims = [claim for claim in dataset.claims if claim.id in wanted]
        self.languages = {claim.id: claim.lang for claim in claims}
        tokens = encoder.tokenize(rendering.claim_texts(claims), "claim")
        self.claim_tokens = {c.id: t for c, t in zip(claims, tokens, strict=True)}
        self.views = self._views() if self.losses.consistency.weight else {}
        self.source_tokens: dict[str, Tokens] = {}
        # Id of a source -> id of the first one with the same tokens: one vector, two names.
        self.reads_as: dict[str, str] = {}
        self._first_of: dict[Tokens, str] = {}
        self.rows = list(rows)
        self.use(rows)

    def use(self, rows: Sequence[MinedRow]) -> None:
        """Train on these rows from now on: the same pairs, perhaps with other negatives.

        Raises `ValueError` for other pairs or another order: batches are planned by row number.
        """
        if [(r.claim, r.positive) for r in rows] != [(r.claim, r.positive) for r in self.rows]:
            raise ValueError("not the pairs that are trained on, each in its place")
        self.rows = [self._taught_first(row) for row in rows]
        used = {row.positive for row in self.rows}
        for row in self.rows:
            # A gold that no row trains on may still read as another row's negative.
            used.update(self.golds[row.claim])
            kept = row.negatives if self.rotate else row.negatives[: self.negatives]
            used.update(negative.source for negative in kept)
        new = [s for s in self.dataset.sources if s.id in used and s.id not in self.source_tokens]
        tokens = self.encoder.tokenize(self.rendering.source_texts(new), "source")
        for source, text in zip(new, tokens, strict=True):
            self.source_tokens[source.id] = text
            self.reads_as[source.id] = self._first_of.setdefault(text, source.id)

    def _gold_texts(self, claim: str) -> set[str]:
        """What the claim's golds read as (see `reads_as`)."""
        return {self.reads_as[gold] for gold in self.golds[claim] if gold in self.reads_as}

    def _taught_first(self, row: MinedRow) -> MinedRow:
        """A teacher's word counts only for sources in the batch: those it scores, then others."""
        if self.teacher is None:
            return row
        scored = self.teacher.get(row.claim, {})
        # Stable: of either kind the hardest stay first.
        ordered = sorted(row.negatives, key=lambda negative: negative.source not in scored)
        return replace(row, negatives=tuple(ordered))

    def _views(self) -> dict[str, list[Tokens]]:
        """Claim id -> its other representations, of claims that have a translation."""
        claims = [
            claim
            for claim in self.dataset.claims
            if claim.id in self.claim_tokens and claim.lang != "en" and claim.translation
        ]
        found: dict[str, list[Tokens]] = {claim.id: [] for claim in claims}
        for form in get_args(ClaimForm):
            if form == self.rendering.claims:
                continue
            texts = Rendering(form, self.rendering.sources).claim_texts(claims)
            for claim, tokens in zip(claims, self.encoder.tokenize(texts, "claim"), strict=True):
                found[claim.id].append(tokens)
        return found

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def short_rows(self) -> int:
        """Pairs with fewer mined negatives than are trained on."""
        return sum(len(row.negatives) < self.negatives for row in self.rows)

    @property
    def untaught(self) -> int:
        """Pairs of whose gold the teacher says nothing; 0 without a teacher."""
        if self.teacher is None:
            return 0
        return sum(row.positive not in self.teacher.get(row.claim, {}) for row in self.rows)

    def taught_sentences(self) -> list[str]:
        """What the teacher can teach by a pair's own sources in the first epoch, for a person."""
        if self.teacher is None:
            return []
        rows = candidates = 0
        for row in self.rows:
            own = [row.positive, *(n.source for n in self.negatives_of(row, 0))]
            scored = self.teacher.get(row.claim, {})
            here = [source for source in own if source in scored]
            needed = row.positive in scored or self.losses.distillation.kind == "kl"
            if needed and len(here) >= 2:
                rows, candidates = rows + 1, candidates + len(here)
        known = sum(len(scores) for scores in self.teacher.values())
        return [
            f"the teacher teaches {rows} of {len(self.rows)} pairs by their own sources, with "
            f"{candidates} of its {known} scores (other pairs' sources may add to them)"
        ]

    def lengths(self) -> list[int]:
        """Tokens of each pair's claim and source; sources that are not encoded count 0."""
        return [
            len(self.claim_tokens[row.claim].ids)
            + (0 if self.query_only else len(self.source_tokens[row.positive].ids))
            for row in self.rows
        ]

    def groups(self) -> list[int]:
        """A number per row; rows whose claims share a gold have the same."""
        return connected_groups([row.positive, *self.golds[row.claim]] for row in self.rows)

    def negatives_of(self, row: MinedRow, epoch: int) -> list[Negative]:
        """The negatives of a row that an epoch uses."""
        wanted = self.negatives
        if not self.rotate or len(row.negatives) <= wanted:
            return list(row.negatives[:wanted])
        scored = self.teacher.get(row.claim, {}) if self.teacher is not None else {}
        known = [negative for negative in row.negatives if negative.source in scored]
        if len(known) >= wanted:
            return _in_turn(known, wanted, epoch)
        others = row.negatives[len(known) :]
        return [*known, *_in_turn(others, wanted - len(known), epoch)]

    def batch(self, plan: BatchPlan) -> TrainBatch:
        """The texts of a planned batch."""
        shares = plan.shares or (plan.rows,)
        own = [self.rows[i] for i in plan.rows]
        everyone = [self.rows[i] for share in shares for i in share]
        # Every distinct source is encoded once, by one process.
        names = dict.fromkeys(row.positive for row in everyone)
        for row in everyone:
            names |= dict.fromkeys(n.source for n in self.negatives_of(row, plan.epoch))
        by_rank = [list(names)[rank :: len(shares)] for rank in range(len(shares))]
        columns = [source for part in by_rank for source in part]
        place = {source: column for column, source in enumerate(columns)}
        reading: dict[str, list[int]] = {}
        for source, column in place.items():
            reading.setdefault(self.reads_as[source], []).append(column)
        masked = torch.zeros(len(own), len(columns), dtype=torch.bool)
        first = sum(len(share) for share in shares[: plan.rank]) if plan.shares else 0
        for i, row in enumerate(own):
            for text in self._gold_texts(row.claim):
                for column in reading.get(text, ()):
                    if column != place[row.positive]:
                        masked[i, column] = True
        return TrainBatch(
            plan,
            [self.claim_tokens[row.claim] for row in own],
            [] if self.query_only else [self.source_tokens[s] for s in by_rank[plan.rank]],
            tuple(len(part) for part in by_rank),
            torch.tensor([place[row.positive] for row in own]),
            masked,
            first + torch.arange(len(own)),
            self._claims_masked(own, everyone, first) if self.losses.info_nce.both_ways else None,
            **self._extras(plan, own, columns, place, masked),  # type: ignore[arg-type]
        )

    def _claims_masked(self, own: list[MinedRow], everyone: list[MinedRow], first: int) -> Tensor:
        """Where [own, everyone] another claim has the row's source, by its text, as gold."""
        has: dict[str, list[int]] = {}
        for j, other in enumerate(everyone):
            for text in self._gold_texts(other.claim):
                has.setdefault(text, []).append(j)
        masked = torch.zeros(len(own), len(everyone), dtype=torch.bool)
        for i, row in enumerate(own):
            masked[i, has[self.reads_as[row.positive]]] = True
            masked[i, first + i] = False
        return masked

    def _extras(
        self,
        plan: BatchPlan,
        own: list[MinedRow],
        columns: list[str],
        place: Mapping[str, int],
        masked: Tensor,
    ) -> dict[str, object]:
        """What single losses need."""
        extras: dict[str, object] = {}
        if self.query_only:
            assert self.base is not None
            extras["fixed_sources"] = self.base.sources(columns)
        if self.views:
            shown = [
                (i, forms[plan.epoch % len(forms)])
                for i, row in enumerate(own)
                if (forms := self.views.get(row.claim))
            ]
            extras["views"] = [tokens for _, tokens in shown]
            extras["owners"] = torch.tensor([i for i, _ in shown], dtype=torch.long)
        if self.teacher is not None:
            teacher = torch.full((len(own), len(columns)), torch.nan)
            for i, row in enumerate(own):
                for source, score in self.teacher.get(row.claim, {}).items():
                    if source in place:
                        teacher[i, place[source]] = score
            # Another gold is no candidate: the student is not taught to rank it down.
            extras["teacher"] = teacher.masked_fill(masked, torch.nan)
        keep = self.losses.keep_base
        if keep.weight:
            assert self.base is not None
            languages = [self.languages[row.claim] for row in own]
            extras["base_claims"] = self.base.claims([row.claim for row in own])
            extras["base_sources"] = self.base.sources(columns)
            extras["keep_weights"] = torch.tensor(language_weights(languages, keep.languages))
        return extras


def _in_turn(negatives: Sequence[Negative], wanted: int, turn: int) -> list[Negative]:
    """The next `wanted` of a list that begins again at its end, its random ones spread evenly."""
    random = [negative for negative in negatives if negative.origin == "random"]
    hard = [negative for negative in negatives if negative.origin != "random"]
    share = len(random), len(negatives)
    listed = []
    for place in (turn * wanted + i for i in range(wanted)):
        place %= len(negatives)
        before, after = (count * share[0] // share[1] for count in (place, place + 1))
        listed.append(random[before] if after > before else hard[place - before])
    return listed


class PairsModule(pl.LightningDataModule):
    """Feeds the plans of all epochs in one stream, so that a run can start at any of them."""

    def __init__(self, sampler: BatchSampler) -> None:
        super().__init__()
        self.sampler = sampler

    def train_dataloader(self) -> DataLoader[BatchPlan]:
        """Plans, not batches: one fetched ahead must not hold negatives that are mined anew."""
        # A generator of its own: drawing its seed must not move the training's dice.
        return DataLoader(_Plans(self.sampler), batch_size=None, generator=torch.Generator())

    def transfer_batch_to_device(
        self, batch: BatchPlan, device: torch.device, dataloader_idx: int
    ) -> BatchPlan:
        """Plans hold row numbers; tensors are made where the model is."""
        return batch


class _Plans(IterableDataset[BatchPlan]):
    def __init__(self, sampler: BatchSampler) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[BatchPlan]:
        return iter(self.sampler)
