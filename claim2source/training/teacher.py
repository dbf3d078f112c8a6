"""Encode the training texts with the base or a teacher."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from claim2source.core.errors import ConfigError
from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Dataset, Source
from claim2source.data.store import Store
from claim2source.models import Encoder, Identity, ModelConfig, Side, Tokens, Weights, resolve
from claim2source.models.projection import (
    FILE,
    fit_projection,
    load_projection,
    new_projection,
    projection_hash,
)
from claim2source.models.query_only import source_model
from claim2source.text import Rendering
from claim2source.text.clean import split_sentences
from claim2source.training.config import RetrieverRecipe
from claim2source.training.distributed import first_before_others
from claim2source.training.launcher import World
from claim2source.training.losses import Alignment

if TYPE_CHECKING:
    from claim2source.models.manifest import SourceModel

# Id of a claim or source -> its vector [dimensions].
Vectors = Mapping[str, np.ndarray]
# Shorter sentences are mostly headings: "Methods."
_FEWEST_WORDS = 4


@dataclass(frozen=True, eq=False)
class BaseVectors:
    """Vectors of the training texts by the base model or a teacher, by id."""

    claim_vectors: Vectors
    source_vectors: Vectors

    @classmethod
    def encode(
        cls,
        encoder: Encoder,
        rendering: Rendering,
        train: Dataset,
        store: Store,
        progress: bool = False,
    ) -> BaseVectors:
        def by_id(records: Sequence[Claim | Source], texts: Sequence[str], side: Side) -> Vectors:
            name = f"{side}s, base model" if progress else None
            vectors, *_ = encoder.encode(texts, side, store=store, progress=name)
            ids = [record.id for record in records]
            return dict(zip(ids, vectors, strict=True))

        claim_texts = rendering.claim_texts(train.claims)
        claim_vectors = by_id(train.claims, claim_texts, "claim")
        source_texts = rendering.source_texts(train.sources)
        source_vectors = by_id(train.sources, source_texts, "source")
        return cls(claim_vectors, source_vectors)

    def claims(self, ids: Sequence[str]) -> Tensor:
        """Look up the vectors [n, dimensions] of claims, float32, without gradient."""
        vectors = [self.claim_vectors[name] for name in ids]
        return torch.from_numpy(np.stack(vectors))

    def sources(self, ids: Sequence[str]) -> Tensor:
        """Look up the vectors [n, dimensions] of sources, float32, without gradient."""
        vectors = [self.source_vectors[name] for name in ids]
        return torch.from_numpy(np.stack(vectors))


def pool_texts(
    sources: Sequence[Source],
    limit: int | None,
    seed: int,
) -> list[str]:
    """List the papers' distinct titles and sentences, at most `limit`, drawn at random."""
    pooled = [source.title.strip() for source in sources]
    for source in sources:
        for sentence in split_sentences(source.abstract):
            words = sentence.split()
            if len(words) >= _FEWEST_WORDS:
                pooled.append(sentence)
    filled = filter(None, pooled)
    texts = list(dict.fromkeys(filled))
    if limit is None or len(texts) <= limit:
        return texts
    draw = random.Random(seed)
    return draw.sample(texts, limit)


@dataclass(frozen=True, eq=False)
class AlignedTexts:
    """Texts without labels, tokenised for the student, and the teacher's vectors of them.

    Both encode them as claims. Each batch gets `size` of them; every epoch has a new order.
    """

    texts: Sequence[str]
    tokens: Sequence[Tokens]
    vectors: np.ndarray
    seed: int
    size: int = 64

    def batch(self, epoch: int, index: int) -> tuple[list[Tokens], Tensor]:
        """Return the texts of the epoch's batch `index`, and their vectors [texts, dimensions]."""
        count = len(self.texts)
        size = min(self.size, count)
        if not size:
            return [], torch.from_numpy(self.vectors)
        draw = np.random.default_rng((self.seed, epoch))
        order = draw.permutation(count)
        first = index * size
        rows = order.take(range(first, first + size), mode="wrap")
        tokens = [self.tokens[row] for row in rows]
        return tokens, torch.from_numpy(self.vectors[rows])


@dataclass
class SourceTeacher:
    """The `teacher` of a recipe, into whose space `student` has a projection.

    `record` is for manifests; `base` and `aligned` are made by `prepare`.
    """

    recipe: RetrieverRecipe
    student: Encoder
    encoder: Encoder
    record: SourceModel
    base: BaseVectors | None = None
    aligned: AlignedTexts | None = None

    @property
    def sha256(self) -> str:
        own_weights = dict(self.encoder.weights or {})
        recorded = dict(self.record.weights)
        return content_hash([own_weights, recorded])

    def prepare(
        self,
        train: Dataset,
        store: Store,
        world: World,
        untrained: Identity,
        folder: Path | None,
    ) -> None:
        """Encode claims, sources and texts without labels: `base`, and `aligned` if it is used.

        A new run also fits the projection, or loads it from the checkpoint of epoch 0 in `folder`;
        `untrained` identifies the student's base. If it is None, the saved state has the
        projection.
        """
        self._encode_texts(train, store, world)
        if folder is not None:
            self._prepare_projection(train, store, untrained, folder)

    def _encode_texts(
        self,
        train: Dataset,
        store: Store,
        world: World,
    ) -> None:
        """Set `base`, and `aligned` if a loss uses it."""
        recipe = self.recipe
        losses = recipe.losses
        encoder = self.encoder
        seed = recipe.optimisation.seed
        most: int | None = losses.setting("aligned_texts", "most", Alignment.most)
        texts = pool_texts(train.sources, most, seed)
        with first_before_others(world):
            self.base = BaseVectors.encode(
                encoder,
                recipe.rendering,
                train,
                store,
                world.is_first,
            )
            if losses.needing("aligned_texts"):
                name = "texts without labels, teacher" if world.is_first else None
                vectors, _ = encoder.encode(texts, "claim", store=store, progress=name)
                tokens = self.student.tokenize(texts, "claim")
                self.aligned = AlignedTexts(texts, tokens, vectors, seed)

    def _prepare_projection(
        self,
        train: Dataset,
        store: Store,
        untrained: Identity,
        folder: Path,
    ) -> None:
        """Load the student's projection from `folder`, or fit it."""
        student = self.student
        projection: Any = student.dense
        if (folder / FILE).is_file():
            initial = load_projection(folder, projection.in_features)
            projection.load_state_dict(initial.state_dict())
        else:
            self._fit_projection(projection, train, store, untrained)
        sha256 = projection_hash(projection)
        weights = Weights(projection=sha256)
        student.weights = weights.identity(untrained)

    def _fit_projection(
        self,
        projection: Any,
        train: Dataset,
        store: Store,
        untrained: Identity,
    ) -> None:
        """Fit the projection on the training's claims and the texts without labels."""
        assert self.base is not None
        student = self.student
        own = Encoder(student.model, student.tokenizer, student.settings, untrained)
        texts = list(self.recipe.rendering.claim_texts(train.claims))
        claim_ids = [claim.id for claim in train.claims]
        targets = self.base.claims(claim_ids)
        if self.aligned is not None:
            texts += self.aligned.texts
            aligned = torch.from_numpy(self.aligned.vectors)
            targets = torch.cat((targets, aligned))
        vectors, _ = own.encode(texts, "claim", store=store, progress="texts, student")
        fit_projection(projection, torch.from_numpy(vectors), targets)


def load_teacher(
    recipe: RetrieverRecipe,
    student: Encoder,
    device: str | None,
) -> SourceTeacher:
    """Load the teacher, and add a projection into its space to `student`.

    The student's `source_encoder` is then the teacher's. Raises `UserError` if the teacher cannot
    be loaded, or renders sources differently.
    """
    assert recipe.teacher is not None
    name = recipe.teacher.name
    dimensions = student.settings.truncate_dim
    if dimensions is not None:
        allowed = "none, also in the model's folder: a student has its teacher's dimensions"
        raise ConfigError("model.truncate_dim", dimensions, allowed)
    resolved = resolve(ModelConfig(name), device)
    resolved.rendering_for(recipe.rendering)
    sources = resolved.encoder.source_encoder or resolved.encoder
    revision: str | None = None
    if resolved.manifest is None:
        revision = resolved.base.revision
    record = source_model(sources, name, revision)
    projection = new_projection(student.dimensions, sources.dimensions)
    student.dense = projection.to(student.device)
    student.projects = True
    student.source_encoder = sources
    return SourceTeacher(recipe, student, resolved.encoder, record)
