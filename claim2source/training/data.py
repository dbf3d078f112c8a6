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
        settings = recipe.optimisation
        self.dataset = dataset
        self.encoder = encoder
        self.rendering = recipe.rendering
        self.mining = recipe.mining
        self.losses = recipe.losses
        self.negatives = settings.negatives
        self.length = settings.max_length
        self.query_only = settings.train == "query_only"
        self.rotate = recipe.batches.rotate_negatives
        self.base = base
        self.teacher = teacher
        self.aligned = aligned
        self.compares = bool(self.losses.needing("base_vectors"))
        needs_base = self.query_only or self.compares or aligned is not None
        assert base is not None or not needs_base
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
        own_pairs = [_pair(row) for row in self.rows]
        new_pairs = [_pair(row) for row in rows]
        if new_pairs != own_pairs:
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
            negatives = row.negatives
            if not self.rotate:
                negatives = negatives[: self.negatives]
            for negative in negatives:
                source_ids.add(negative.source)
        return source_ids

    def _paper_numbers(self, sources: Sequence[Source]) -> dict[str, int]:
        """Number the papers of sources: equal texts and near-duplicates share a number."""
        first: dict[Tokens, str] = {}
        pairs: list[tuple[str, str]] = []
        for source in sources:
            text = self.source_tokens[source.id]
            first_id = first.setdefault(text, source.id)
            pairs.append((source.id, first_id))
        pairs += same_papers(
            sources,
            self.mining.max_title_similarity,
            self.mining.max_text_similarity,
        )
        numbers = connected_groups(pairs)
        papers: dict[str, int] = {}
        for source, number in zip(sources, numbers, strict=False):
            papers[source.id] = number
        return papers

    def _teacher_scores_for(self, claim: str) -> Mapping[str, float]:
        if self.teacher is None:
            return {}
        return self.teacher.get(claim, {})

    def _taught_first(self, row: MinedRow) -> MinedRow:
        """Put the negatives with teacher scores first: only sources in the batch are distilled."""
        scored = self._teacher_scores_for(row.claim)
        # The sort is stable: the hardest of each kind stay first.
        ordered = sorted(row.negatives, key=lambda negative: negative.source not in scored)
        return replace(row, negatives=tuple(ordered))

    def _views(self, claims: Sequence[Claim]) -> dict[str, list[Tokens]]:
        """Tokenise the other representations of claims that have a translation, by claim id."""
        translated: list[Claim] = []
        views: dict[str, list[Tokens]] = {}
        for claim in claims:
            if claim.lang != "en" and claim.translation:
                translated.append(claim)
                views[claim.id] = []
        # The original and the translation of a claim have the same bilingual text.
        own = self.rendering.claims
        if own == "paired":
            own = "bilingual"
        for form in FORMS:
            if form == own:
                continue
            rendering = replace(self.rendering, claims=form)
            texts = rendering.claim_texts(translated)
            tokens = self.encoder.tokenize(texts, "claim", self.length)
            for claim, text in zip(translated, tokens, strict=True):
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
        short = self.short_rows
        if short:
            lines.append(f"{short} pairs have too few negatives")
        return lines

    @property
    def languages(self) -> list[str]:
        return [self._claim_languages[row.claim] for row in self.rows]

    def groups(self) -> list[int]:
        """Number the rows' groups: claims that share a gold, directly or through others."""
        keys: list[list[str]] = []
        for row in self.rows:
            golds = self.golds[row.claim]
            keys.append([row.positive, *golds])
        return connected_groups(keys)

    def choose_negatives(
        self,
        row: MinedRow,
        turn: int,
    ) -> list[Negative]:
        """Choose the negatives for a use of a row; `turn` counts the uses before it."""
        count = self.negatives
        if not self.rotate or len(row.negatives) <= count:
            return list(row.negatives[:count])
        scored = self._teacher_scores_for(row.claim)
        with_scores = [negative for negative in row.negatives if negative.source in scored]
        missing = count - len(with_scores)
        if missing <= 0:
            return in_turn(with_scores, count, turn)
        untaught = row.negatives[len(with_scores) :]
        others = in_turn(untaught, missing, turn)
        return [*with_scores, *others]

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
        all_sources = list(columns)

        positives = torch.tensor([columns[row.positive] for row in own])
        masked = self._gold_mask(own, all_sources)
        own_rows = torch.arange(len(own))
        masked[own_rows, positives] = False

        sources: list[Tokens] = []
        if not self.query_only:
            own_sources = by_rank[plan.rank]
            sources = [self.source_tokens[source] for source in own_sources]
        base_claims = None
        if self.base is not None and self.compares:
            base_claims = self.base.claims(claims)
        base_sources, fixed_sources = self._base_sources(all_sources)
        views, owners = self._batch_views(claims, plan.epoch)
        texts, aligned = self._aligned_texts(claims, plan, len(shares))

        claim_tokens = [self.claim_tokens[claim] for claim in claims]
        languages = [self._claim_languages[claim] for claim in claims]
        counts = [len(part) for part in by_rank]
        teacher = self._teacher_scores(own, columns, masked)
        return TrainBatch(
            plan=plan,
            claims=claim_tokens,
            sources=sources,
            counts=tuple(counts),
            fixed_sources=fixed_sources,
            views=views,
            texts=texts,
            positives=positives,
            masked=masked,
            languages=tuple(languages),
            teacher=teacher,
            base_claims=base_claims,
            base_sources=base_sources,
            owners=owners,
            aligned=aligned,
        )

    def _planned_rows(self, numbers: Sequence[int]) -> list[MinedRow]:
        """Look up the pairs of row numbers, which cover the pairs `data.repeat` times."""
        count = len(self.rows)
        return [self.rows[number % count] for number in numbers]

    def _sources_by_rank(
        self,
        plan: BatchPlan,
        shares: Sequence[Sequence[int]],
    ) -> list[list[str]]:
        """Deal the distinct sources of all shares to the processes: each is encoded once."""
        rows: list[MinedRow] = []
        for share in shares:
            rows += self._planned_rows(share)
        # A dictionary keeps its order of insertion.
        names: dict[str, None] = {}
        for row in rows:
            names[row.positive] = None
        turns = plan.turns or repeat(0)
        for row, turn in zip(rows, turns, strict=False):
            negatives = self.choose_negatives(row, turn)
            for negative in negatives:
                names[negative.source] = None
        sources = list(names)
        processes = len(shares)
        return [sources[rank::processes] for rank in range(processes)]

    def _batch_views(
        self,
        claims: Sequence[str],
        epoch: int,
    ) -> tuple[list[Tokens], Tensor | None]:
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
                form_in_turn = epoch % len(forms)
                views.append(forms[form_in_turn])
                owners.append(row)
        return views, torch.tensor(owners, dtype=torch.long)

    def _base_sources(self, columns: Sequence[str]) -> tuple[Tensor | None, Tensor | None]:
        """Look up the base's vectors of the columns, for losses and as a replacement for encoding.

        Each is None if it is not needed.
        """
        if self.base is None or not (self.compares or self.query_only):
            return None, None
        vectors = self.base.sources(columns)
        compared = vectors if self.compares else None
        fixed = vectors if self.query_only else None
        return compared, fixed

    def _aligned_texts(
        self,
        claims: Sequence[str],
        plan: BatchPlan,
        processes: int,
    ) -> tuple[list[Tokens], Tensor | None]:
        """Take the batch's texts without labels, and the teacher's vectors of claims and texts."""
        if self.base is None or self.aligned is None:
            return [], None
        index = plan.index * processes + plan.rank
        texts, text_vectors = self.aligned.batch(plan.epoch, index)
        claim_vectors = self.base.claims(claims)
        return texts, torch.cat((claim_vectors, text_vectors))

    def _gold_mask(
        self,
        own: Sequence[MinedRow],
        columns: Sequence[str],
    ) -> Tensor:
        """Mark sources that are the paper of one of the claim's golds, [own, columns]."""
        papers = [self.papers[source] for source in columns]
        mask: list[list[bool]] = []
        for row in own:
            golds = self.golds[row.claim]
            gold_papers = {self.papers.get(gold) for gold in golds}
            mask.append([paper in gold_papers for paper in papers])
        return torch.tensor(mask)

    def _teacher_scores(
        self,
        own: Sequence[MinedRow],
        columns: Mapping[str, int],
        masked: Tensor,
    ) -> Tensor | None:
        """Collect the teacher's scores [own, columns], NaN if absent; None without a teacher."""
        if self.teacher is None:
            return None
        shape = (len(own), len(columns))
        teacher = torch.full(shape, torch.nan)
        for number, row in enumerate(own):
            scores = self._teacher_scores_for(row.claim)
            for source, score in scores.items():
                if source not in columns:
                    continue
                column = columns[source]
                teacher[number, column] = score
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
        pinned = changed(self, Tensor.pin_memory)
        return replace(pinned, batch=batch, parts=parts)


def collate(
    batch: TrainBatch,
    encoder: Encoder,
    config: OptimisationConfig,
) -> CollatedBatch:
    """Divide a batch's texts into chunks, and make their tensors.

    Each distinct text is encoded once; the gradients of its copies add up.
    """
    texts = [
        *batch.claims,
        *batch.sources,
        *batch.views,
        *batch.texts,
    ]
    numbers: dict[Tokens, int] = {}
    for text in texts:
        numbers.setdefault(text, len(numbers))
    text_numbers = torch.tensor([numbers[text] for text in texts])
    distinct = list(numbers)
    lengths = [len(text.ids) for text in distinct]
    assert config.chunk_tokens != "auto", "settled by memory_plan"
    if config.chunk_tokens is not None:
        chunks = token_chunks(lengths, config.chunk_tokens, packed=encoder.packs)
    elif config.chunk_size is not None:
        chunks = length_chunks(lengths, config.chunk_size)
    else:
        chunks = list(encoder.length_batches(distinct))
    parts: list[TokenBatch | PackedBatch] = []
    for rows in chunks:
        chunk_texts = [distinct[row] for row in rows]
        parts.append(encoder.batch(chunk_texts))
    return CollatedBatch(batch, distinct, text_numbers, chunks, parts)


def halved(
    chunks: Chunks,
    times: int,
) -> Chunks:
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


def length_chunks(
    lengths: Sequence[int],
    size: int,
) -> list[list[int]]:
    """Group positions of texts of these lengths into chunks of `size`, shortest first.

    The last chunk is full and has the longest texts: it is encoded only once.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    chunks: list[list[int]] = []
    for end in range(len(order), 0, -size):
        start = max(end - size, 0)
        chunks.append(order[start:end])
    chunks.reverse()
    return chunks


def token_chunks(
    lengths: Sequence[int],
    budget: int,
    *,
    packed: bool = False,
) -> list[list[int]]:
    """Group positions of texts of these lengths into chunks of at most `budget` tokens.

    Padding counts, unless texts are packed. As in `length_chunks` the shortest texts come first
    and the last chunk, which is encoded only once, is full; a longer text is a chunk by itself.
    """
    chunks: list[list[int]] = []
    longest = 0
    total = 0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        length = lengths[row]
        if packed:
            needed = total + length
        else:
            needed = (len(chunks[-1]) + 1) * longest if chunks else 0
        if not chunks or needed > budget:
            chunks.append([])
            longest = length
            total = 0
        chunks[-1].append(row)
        total += length
    return [chunk[::-1] for chunk in reversed(chunks)]
