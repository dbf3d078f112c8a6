"""Turn claims with golds and hard negatives into token batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat

import torch
from torch import Tensor

from claim2source.core.records import Claim, Dataset, Source
from claim2source.data.grouping import connected_groups, golds_by_text
from claim2source.mining import MinedRow, Negative
from claim2source.mining.near_duplicates import same_papers
from claim2source.models import Encoder, Tokens
from claim2source.text.views import FORMS
from claim2source.training.batches import BatchPlan, in_turn
from claim2source.training.config import RetrieverRecipe
from claim2source.training.losses import LossTargets
from claim2source.training.teacher import AlignedTexts, BaseVectors
from claim2source.training.teacher_scores import TeacherScores


@dataclass(frozen=True, kw_only=True)
class TrainBatch(LossTargets):
    """One batch of one process: the texts to encode and the targets of the losses.

    The m columns are the distinct sources of all processes that share negatives, by rank;
    `counts` says how many each of them encodes, `sources` are this one's. `fixed_sources` [m, d]
    replaces encoding where sources are not trained. `views` are other representations of claims,
    for consistency; `texts` have no labels, for the alignment.
    """

    plan: BatchPlan
    claims: list[Tokens]
    sources: list[Tokens]
    counts: tuple[int, ...]
    fixed_sources: Tensor | None = None
    views: list[Tokens] = field(default_factory=list)
    texts: list[Tokens] = field(default_factory=list)


class TrainingPairs:
    """Claims with their gold and hard negatives, tokenised once.

    `base` is needed for `query_only` and by losses that need `base_vectors`, `teacher` by those
    that need `teacher_scores`, and `aligned`, with the same model's `base`, for `aligned_texts`.
    With `rotate_negatives`, every use of a row takes the next of its list, random ones in the
    list's proportion. Negatives that the teacher scores come before all others, in every epoch.
    Sources of one text, and those that `mining`'s limits take for near-duplicates, are one paper:
    no negatives if one of them is gold. Likeness by vector does not count here: it changes with
    the model.
    """

    def __init__(
        self,
        dataset: Dataset,
        rows: Sequence[MinedRow],
        encoder: Encoder,
        recipe: RetrieverRecipe,
        *,
        base: BaseVectors | None = None,
        teacher: TeacherScores | None = None,
        aligned: AlignedTexts | None = None,
    ) -> None:
        self.dataset, self.encoder, self.rendering = dataset, encoder, recipe.rendering
        self.mining, self.losses = recipe.mining, recipe.losses
        self.negatives, self.length = recipe.optimisation.negatives, recipe.optimisation.max_length
        self.query_only = recipe.optimisation.train == "query_only"
        self.rotate = recipe.batches.rotate_negatives
        self.base, self.teacher, self.aligned = base, teacher, aligned
        self.compares = bool(self.losses.needing("base_vectors"))
        assert base is not None or not (self.query_only or self.compares or aligned is not None)
        self.golds: Mapping[str, frozenset[str]] = golds_by_text(dataset.claims)
        claim_ids = {row.claim for row in rows}
        claims = [claim for claim in dataset.claims if claim.id in claim_ids]
        self._language_of = {claim.id: claim.lang for claim in claims}
        tokens = encoder.tokenize(self.rendering.claim_texts(claims), "claim", self.length)
        self.claim_tokens = {c.id: t for c, t in zip(claims, tokens, strict=True)}
        self.views: Mapping[str, list[Tokens]] = {}
        if self.losses.needing("translations"):
            self.views = self._views(claims)
        self.source_tokens: dict[str, Tokens] = {}
        # Id of a source -> number of its paper: that of all sources with the same tokens, hence
        # the same vector, and of their near-duplicates.
        self.papers: dict[str, int] = {}
        self.rows = list(rows)
        self.use(rows)

    def use(self, rows: Sequence[MinedRow]) -> None:
        """Train on these rows from now on: the same pairs, perhaps with other negatives.

        Raises `ValueError` for other pairs or another order: batches are planned by row number.
        """
        if [(r.claim, r.positive) for r in rows] != [(r.claim, r.positive) for r in self.rows]:
            raise ValueError("not the pairs that are trained on, each in its place")
        self.rows = [self._taught_first(row) for row in rows]
        source_ids = {row.positive for row in self.rows}
        for row in self.rows:
            # Another gold of the claim may have the same text as another row's negative.
            source_ids.update(self.golds[row.claim])
            negatives = row.negatives if self.rotate else row.negatives[: self.negatives]
            source_ids.update(negative.source for negative in negatives)
        new = [
            s for s in self.dataset.sources if s.id in source_ids and s.id not in self.source_tokens
        ]
        tokens = self.encoder.tokenize(self.rendering.source_texts(new), "source", self.length)
        self.source_tokens |= {s.id: text for s, text in zip(new, tokens, strict=True)}
        self.papers = self._paper_numbers([s for s in self.dataset.sources if s.id in source_ids])

    def _paper_numbers(self, sources: Sequence[Source]) -> dict[str, int]:
        """Number the papers of sources: equal texts and near-duplicates share a number."""
        texts = [self.source_tokens[source.id] for source in sources]
        first: dict[Tokens, str] = {}
        pairs = [
            (s.id, first.setdefault(text, s.id)) for s, text in zip(sources, texts, strict=True)
        ]
        limits = self.mining.max_title_similarity, self.mining.max_text_similarity
        pairs += same_papers(sources, *limits)
        numbers = connected_groups(pairs)
        return {source.id: number for source, number in zip(sources, numbers, strict=False)}

    def _teacher_scores_for(self, claim: str) -> Mapping[str, float]:
        return {} if self.teacher is None else self.teacher.get(claim, {})

    def _taught_first(self, row: MinedRow) -> MinedRow:
        """Put the negatives with teacher scores first: only sources in the batch teach."""
        scored = self._teacher_scores_for(row.claim)
        # The sort is stable: of either kind the hardest stay first.
        ordered = sorted(row.negatives, key=lambda negative: negative.source not in scored)
        return replace(row, negatives=tuple(ordered))

    def _views(self, claims: Sequence[Claim]) -> dict[str, list[Tokens]]:
        """Tokenise the other representations of claims that have a translation, by claim id."""
        claims = [claim for claim in claims if claim.lang != "en" and claim.translation]
        # A claim with a translation is the same text paired as bilingual.
        own = "bilingual" if self.rendering.claims == "paired" else self.rendering.claims
        forms = [form for form in FORMS if form != own]
        renderings = [replace(self.rendering, claims=form) for form in forms]
        texts = [rendering.claim_texts(claims) for rendering in renderings]
        tokens = [self.encoder.tokenize(form, "claim", self.length) for form in texts]
        return {claim.id: [form[i] for form in tokens] for i, claim in enumerate(claims)}

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def short_rows(self) -> int:
        """Count the pairs with fewer mined negatives than are trained on."""
        return sum(len(row.negatives) < self.negatives for row in self.rows)

    @property
    def languages(self) -> list[str]:
        return [self._language_of[row.claim] for row in self.rows]

    def groups(self) -> list[int]:
        """Number the rows' groups: claims that share a gold, directly or through others."""
        return connected_groups([row.positive, *self.golds[row.claim]] for row in self.rows)

    def choose_negatives(self, row: MinedRow, turn: int) -> list[Negative]:
        """Choose the negatives that a row's use takes; `turn` counts the uses before it."""
        count = self.negatives
        if not self.rotate or len(row.negatives) <= count:
            return list(row.negatives[:count])
        scored = self._teacher_scores_for(row.claim)
        with_scores = [negative for negative in row.negatives if negative.source in scored]
        if len(with_scores) >= count:
            return in_turn(with_scores, count, turn)
        untaught = row.negatives[len(with_scores) :]
        return [*with_scores, *in_turn(untaught, count - len(with_scores), turn)]

    def batch(self, plan: BatchPlan) -> TrainBatch:
        """Collect the texts and targets of a planned batch."""
        shares = plan.shares or (plan.rows,)
        own = self._planned_rows(plan.rows)
        claims = [row.claim for row in own]
        by_rank = self._sources_by_rank(plan, shares)
        columns = [source for part in by_rank for source in part]
        column_of = {source: column for column, source in enumerate(columns)}
        positives = torch.tensor([column_of[row.positive] for row in own])
        masked = self._gold_mask(own, columns)
        masked[torch.arange(len(own)), positives] = False
        views, owners = self._batch_views(claims, plan.epoch)
        texts, aligned = self._aligned_texts(claims, plan, len(shares))
        base_sources, fixed_sources = self._base_sources(columns)
        return TrainBatch(
            plan=plan,
            claims=[self.claim_tokens[claim] for claim in claims],
            sources=[] if self.query_only else [self.source_tokens[s] for s in by_rank[plan.rank]],
            counts=tuple(len(part) for part in by_rank),
            fixed_sources=fixed_sources,
            views=views,
            texts=texts,
            positives=positives,
            masked=masked,
            languages=tuple(self._language_of[claim] for claim in claims),
            teacher=self._teacher_scores(own, column_of, masked),
            base_claims=self.base.claims(claims) if self.base and self.compares else None,
            base_sources=base_sources,
            owners=owners,
            aligned=aligned,
        )

    def _planned_rows(self, numbers: Sequence[int]) -> list[MinedRow]:
        """Look up the pairs of row numbers, which go through the pairs `data.repeat` times."""
        return [self.rows[number % len(self.rows)] for number in numbers]

    def _sources_by_rank(self, plan: BatchPlan, shares: Sequence[Sequence[int]]) -> list[list[str]]:
        """Deal the distinct sources of all shares to the processes: each is encoded once."""
        rows: list[MinedRow] = []
        for share in shares:
            rows += self._planned_rows(share)
        names = dict.fromkeys(row.positive for row in rows)
        for row, turn in zip(rows, plan.turns or repeat(0), strict=False):
            negatives = self.choose_negatives(row, turn)
            names |= dict.fromkeys(negative.source for negative in negatives)
        return [list(names)[rank :: len(shares)] for rank in range(len(shares))]

    def _batch_views(self, claims: Sequence[str], epoch: int) -> tuple[list[Tokens], Tensor | None]:
        """Take one other representation of each claim that has some, in turn; and its claim's row.

        No rows if no claim of the training has any.
        """
        if not self.views:
            return [], None
        views: list[Tokens] = []
        owners: list[int] = []
        for row, claim in enumerate(claims):
            forms = self.views.get(claim)
            if forms:
                views.append(forms[epoch % len(forms)])
                owners.append(row)
        return views, torch.tensor(owners, dtype=torch.long)

    def _base_sources(self, columns: Sequence[str]) -> tuple[Tensor | None, Tensor | None]:
        """Look up the base's vectors of the columns: as a loss compares, and in place of encoding.

        Each is None if it is not needed.
        """
        if self.base is None or not (self.compares or self.query_only):
            return None, None
        vectors = self.base.sources(columns)
        return vectors if self.compares else None, vectors if self.query_only else None

    def _aligned_texts(
        self, claims: Sequence[str], plan: BatchPlan, processes: int
    ) -> tuple[list[Tokens], Tensor | None]:
        """Take the batch's texts without labels, and the teacher's vectors of claims and texts."""
        if self.base is None or self.aligned is None:
            return [], None
        index = plan.index * processes + plan.rank
        texts, vectors = self.aligned.batch(plan.epoch, index)
        return texts, torch.cat((self.base.claims(claims), vectors))

    def _gold_mask(self, own: Sequence[MinedRow], columns: Sequence[str]) -> Tensor:
        """Mark [own, columns] if the source is the paper of one of the claim's golds."""
        papers = [self.papers[source] for source in columns]
        golds = [{self.papers.get(gold) for gold in self.golds[row.claim]} for row in own]
        return torch.tensor([[paper in own_golds for paper in papers] for own_golds in golds])

    def _teacher_scores(
        self, own: Sequence[MinedRow], column_of: Mapping[str, int], masked: Tensor
    ) -> Tensor | None:
        """Collect the teacher's scores [own, columns], NaN where it has none; None without one."""
        if self.teacher is None:
            return None
        teacher = torch.full((len(own), len(column_of)), torch.nan)
        for i, row in enumerate(own):
            for source, score in self._teacher_scores_for(row.claim).items():
                if source in column_of:
                    teacher[i, column_of[source]] = score
        # Another gold is no candidate: the student must not learn to rank it below.
        return teacher.masked_fill(masked, torch.nan)
