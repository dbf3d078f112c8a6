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
from claim2source.models.packed import PackedBatch
from claim2source.models.tokens import TokenBatch, changed
from claim2source.text.views import FORMS
from claim2source.training.batches import BatchPlan, in_turn
from claim2source.training.config import OptimisationConfig, RetrieverRecipe
from claim2source.training.losses import LossTargets
from claim2source.training.teacher import AlignedTexts, BaseVectors
from claim2source.training.teacher_scores import TeacherScores

# Row numbers of texts, chunk by chunk.
Chunks = Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class TrainBatch(LossTargets):
    """Batch of one process: the texts to encode and the targets of the losses.

    The m columns are the distinct sources of all processes that share negatives, by rank;
    `counts` is how many each of them encodes, `sources` are this process's. `fixed_sources` [m, d]
    replaces encoding if sources are not trained. `views` are other representations of claims,
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
    With `rotate_negatives`, every use of a row takes the next negatives of its list, random ones
    in the list's proportion. Negatives that the teacher scores come before all others, in every
    epoch. Sources with equal texts, and near-duplicates by `mining`'s limits, are one paper: if
    one of them is gold, none is a negative. Similarity of vectors is ignored, because it changes
    with the model.
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
        self._claim_languages = {claim.id: claim.lang for claim in claims}
        texts = self.rendering.claim_texts(claims)
        tokens = encoder.tokenize(texts, "claim", self.length)
        self.claim_tokens: dict[str, Tokens] = {}
        for claim, text in zip(claims, tokens, strict=True):
            self.claim_tokens[claim.id] = text
        self.views: Mapping[str, list[Tokens]] = {}
        if self.losses.needing("translations"):
            self.views = self._views(claims)
        self.source_tokens: dict[str, Tokens] = {}
        # Id of a source -> number of its paper, shared by all sources with the same tokens, hence
        # the same vector, and of their near-duplicates.
        self.papers: dict[str, int] = {}
        self.rows = list(rows)
        self.use(rows)

    def use(self, rows: Sequence[MinedRow]) -> None:
        """Train on these rows from now on: the same pairs, possibly with other negatives.

        Raises `ValueError` for other pairs or another order: batches are planned by row number.
        """
        if list(map(_pair, rows)) != list(map(_pair, self.rows)):
            raise ValueError("the rows must have the same pairs in the same order")
        self.rows = [self._taught_first(row) for row in rows]
        source_ids = self._source_ids()
        sources: list[Source] = []
        new: list[Source] = []
        for source in self.dataset.sources:
            if source.id not in source_ids:
                continue
            sources.append(source)
            if source.id not in self.source_tokens:
                new.append(source)
        texts = self.rendering.source_texts(new)
        tokens = self.encoder.tokenize(texts, "source", self.length)
        for source, text in zip(new, tokens, strict=True):
            self.source_tokens[source.id] = text
        self.papers = self._paper_numbers(sources)

    def _source_ids(self) -> set[str]:
        """Collect the ids of the sources in batches, and of all golds of their claims."""
        source_ids: set[str] = set()
        for row in self.rows:
            source_ids.add(row.positive)
            # Another gold of the claim may have the same text as another row's negative.
            source_ids.update(self.golds[row.claim])
            negatives = row.negatives if self.rotate else row.negatives[: self.negatives]
            for negative in negatives:
                source_ids.add(negative.source)
        return source_ids

    def _paper_numbers(self, sources: Sequence[Source]) -> dict[str, int]:
        """Number the papers of sources: equal texts and near-duplicates share a number."""
        first: dict[Tokens, str] = {}
        pairs: list[tuple[str, str]] = []
        for source in sources:
            text = self.source_tokens[source.id]
            pairs.append((source.id, first.setdefault(text, source.id)))
        limits = self.mining.max_title_similarity, self.mining.max_text_similarity
        pairs += same_papers(sources, *limits)
        numbers = connected_groups(pairs)
        papers: dict[str, int] = {}
        for source, number in zip(sources, numbers, strict=False):
            papers[source.id] = number
        return papers

    def _teacher_scores_for(self, claim: str) -> Mapping[str, float]:
        return {} if self.teacher is None else self.teacher.get(claim, {})

    def _taught_first(self, row: MinedRow) -> MinedRow:
        """Put the negatives with teacher scores first: only sources in the batch are distilled."""
        scored = self._teacher_scores_for(row.claim)
        # The sort is stable: the hardest of each kind stay first.
        ordered = sorted(row.negatives, key=lambda negative: negative.source not in scored)
        return replace(row, negatives=tuple(ordered))

    def _views(self, claims: Sequence[Claim]) -> dict[str, list[Tokens]]:
        """Tokenise the other representations of claims that have a translation, by claim id."""
        claims = [claim for claim in claims if claim.lang != "en" and claim.translation]
        views: dict[str, list[Tokens]] = {claim.id: [] for claim in claims}
        # The original and the translation of a claim have the same bilingual text.
        own = "bilingual" if self.rendering.claims == "paired" else self.rendering.claims
        for form in FORMS:
            if form == own:
                continue
            texts = replace(self.rendering, claims=form).claim_texts(claims)
            tokens = self.encoder.tokenize(texts, "claim", self.length)
            for claim, text in zip(claims, tokens, strict=True):
                views[claim.id].append(text)
        return views

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def short_rows(self) -> int:
        """Count the pairs with fewer mined negatives than are trained on."""
        return sum(len(row.negatives) < self.negatives for row in self.rows)

    def sentences(self, repeats: int) -> list[str]:
        """Describe pairs that share a batch with their own paper, and those short of negatives."""
        lines: list[str] = []
        if repeats:
            lines.append(f"{repeats} pairs share a batch with another of their paper (masked)")
        if self.short_rows:
            lines.append(f"{self.short_rows} pairs have too few negatives")
        return lines

    @property
    def languages(self) -> list[str]:
        return [self._claim_languages[row.claim] for row in self.rows]

    def groups(self) -> list[int]:
        """Number the rows' groups: claims that share a gold, directly or through others."""
        return connected_groups([row.positive, *self.golds[row.claim]] for row in self.rows)

    def choose_negatives(self, row: MinedRow, turn: int) -> list[Negative]:
        """Choose the negatives for a use of a row; `turn` counts the uses before it."""
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
        columns: dict[str, int] = {}
        for part in by_rank:
            for source in part:
                columns[source] = len(columns)
        positives = torch.tensor([columns[row.positive] for row in own])
        masked = self._gold_mask(own, list(columns))
        masked[torch.arange(len(own)), positives] = False
        sources: list[Tokens] = []
        if not self.query_only:
            sources = [self.source_tokens[source] for source in by_rank[plan.rank]]
        base_claims = None
        if self.base is not None and self.compares:
            base_claims = self.base.claims(claims)
        base_sources, fixed_sources = self._base_sources(list(columns))
        views, owners = self._batch_views(claims, plan.epoch)
        texts, aligned = self._aligned_texts(claims, plan, len(shares))
        return TrainBatch(
            plan=plan,
            claims=[self.claim_tokens[claim] for claim in claims],
            sources=sources,
            counts=tuple(map(len, by_rank)),
            fixed_sources=fixed_sources,
            views=views,
            texts=texts,
            positives=positives,
            masked=masked,
            languages=tuple(self._claim_languages[claim] for claim in claims),
            teacher=self._teacher_scores(own, columns, masked),
            base_claims=base_claims,
            base_sources=base_sources,
            owners=owners,
            aligned=aligned,
        )

    def _planned_rows(self, numbers: Sequence[int]) -> list[MinedRow]:
        """Look up the pairs of row numbers, which cover the pairs `data.repeat` times."""
        return [self.rows[number % len(self.rows)] for number in numbers]

    def _sources_by_rank(self, plan: BatchPlan, shares: Sequence[Sequence[int]]) -> list[list[str]]:
        """Deal the distinct sources of all shares to the processes: each is encoded once."""
        rows: list[MinedRow] = []
        for share in shares:
            rows += self._planned_rows(share)
        # A dictionary keeps its order of insertion.
        names: dict[str, None] = {}
        for row in rows:
            names[row.positive] = None
        for row, turn in zip(rows, plan.turns or repeat(0), strict=False):
            for negative in self.choose_negatives(row, turn):
                names[negative.source] = None
        sources = list(names)
        return [sources[rank :: len(shares)] for rank in range(len(shares))]

    def _batch_views(self, claims: Sequence[str], epoch: int) -> tuple[list[Tokens], Tensor | None]:
        """Return one other representation of each claim that has some, in turn, and its row.

        The rows are None if no claim of the training data has any.
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
        """Look up the base's vectors of the columns, for losses and as a replacement for encoding.

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
        """Mark sources that are the paper of one of the claim's golds, [own, columns]."""
        papers = [self.papers[source] for source in columns]
        mask: list[list[bool]] = []
        for row in own:
            golds = {self.papers.get(gold) for gold in self.golds[row.claim]}
            mask.append([paper in golds for paper in papers])
        return torch.tensor(mask)

    def _teacher_scores(
        self, own: Sequence[MinedRow], columns: Mapping[str, int], masked: Tensor
    ) -> Tensor | None:
        """Collect the teacher's scores [own, columns], NaN if absent; None without a teacher."""
        if self.teacher is None:
            return None
        teacher = torch.full((len(own), len(columns)), torch.nan)
        for number, row in enumerate(own):
            for source, score in self._teacher_scores_for(row.claim).items():
                if source in columns:
                    teacher[number, columns[source]] = score
        # Another gold is not a candidate: the student must not learn to rank it below.
        return teacher.masked_fill(masked, torch.nan)


def _pair(row: MinedRow) -> tuple[str, str]:
    return row.claim, row.positive


@dataclass(frozen=True)
class CollatedBatch:
    """Batch in the form that a training step needs, on the CPU.

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
        batch = changed(self.batch, Tensor.pin_memory)
        parts = [part.pin_memory() for part in self.parts]
        return replace(changed(self, Tensor.pin_memory), batch=batch, parts=parts)


def collate(batch: TrainBatch, encoder: Encoder, config: OptimisationConfig) -> CollatedBatch:
    """Divide a batch's texts into chunks, and make their tensors.

    Each distinct text is encoded once; the gradients of its copies add up.
    """
    texts = [*batch.claims, *batch.sources, *batch.views, *batch.texts]
    number: dict[Tokens, int] = {}
    for text in texts:
        number.setdefault(text, len(number))
    text_numbers = torch.tensor([number[text] for text in texts])
    distinct = list(number)
    lengths = [len(text.ids) for text in distinct]
    assert config.chunk_tokens != "auto", "settled by memory_plan"
    if config.chunk_tokens is not None:
        chunks = token_chunks(lengths, config.chunk_tokens, packed=encoder.packs)
    elif config.chunk_size is not None:
        chunks = length_chunks(lengths, config.chunk_size)
    else:
        chunks = list(encoder.length_batches(distinct))
    parts = [encoder.batch([distinct[row] for row in rows]) for rows in chunks]
    return CollatedBatch(batch, distinct, text_numbers, chunks, parts)


def halved(chunks: Chunks, times: int) -> Chunks:
    """Divide every chunk in two, `times` times; a single text stays whole."""
    for _ in range(times):
        halves: list[Sequence[int]] = []
        for chunk in chunks:
            middle = len(chunk) // 2
            if middle:
                halves.append(chunk[:middle])
            halves.append(chunk[middle:])
        chunks = halves
    return chunks


def length_chunks(lengths: Sequence[int], size: int) -> list[list[int]]:
    """Group positions of texts of these lengths into chunks of `size`, shortest first.

    The last chunk is full and has the longest texts: it is encoded only once.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    return [order[max(end - size, 0) : end] for end in range(len(order), 0, -size)][::-1]


def token_chunks(lengths: Sequence[int], budget: int, *, packed: bool = False) -> list[list[int]]:
    """Group positions of texts of these lengths into chunks of at most `budget` tokens.

    Padding counts, unless texts are packed. As in `length_chunks` the shortest texts come first
    and the last chunk, which is encoded only once, is full; a longer text is a chunk by itself.
    """
    chunks: list[list[int]] = []
    longest = total = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        padded = (len(chunks[-1]) + 1) * longest if chunks else 0
        if not chunks or (total + lengths[row] if packed else padded) > budget:
            chunks.append([])
            longest, total = lengths[row], 0
        chunks[-1].append(row)
        total += lengths[row]
    return [chunk[::-1] for chunk in reversed(chunks)]
