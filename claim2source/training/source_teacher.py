"""Teach a small encoder of claims the vector space of the model that encodes the sources."""

from __future__ import annotations

from pathlib import Path

import torch

from claim2source.core.config import require
from claim2source.core.files import content_hash
from claim2source.core.records import Dataset
from claim2source.io.store import Store
from claim2source.models import Encoder, Identity, ModelConfig, Weights, resolve
from claim2source.models.projection import (
    FILE,
    fit_projection,
    load_projection,
    new_projection,
    projection_hash,
)
from claim2source.models.query_only import source_model
from claim2source.training.aligned import AlignedTexts, pool_texts
from claim2source.training.config import FinetuneConfig
from claim2source.training.data import BaseVectors
from claim2source.training.distributed import World, barrier


class SourceTeacher:
    """Hold the `teacher` of a config, and give `student` a projection into its space.

    From here on the student's `source_encoder` is the teacher's. `record` is for manifests.
    Raises `UserError` where the teacher cannot be loaded, or reads sources otherwise.
    """

    def __init__(self, config: FinetuneConfig, student: Encoder) -> None:
        assert config.teacher is not None
        self.config, self.student = config, student
        allowed = "a model whose folder states no truncate_dim: a student has its teacher's length"
        require(student.settings.truncate_dim is None, "model.name", config.model.name, allowed)
        found = resolve(ModelConfig(config.teacher.name), config.device)
        found.rendering_for(config.rendering)
        self.encoder = found.encoder
        sources = found.encoder.source_encoder or found.encoder
        revision = None if found.manifest is not None else found.base.revision
        self.record = source_model(sources, config.teacher.name, revision)
        self.projection = new_projection(student.dimensions, sources.dimensions)
        student.dense = self.projection.to(student.device)
        student.source_encoder = sources

    @property
    def sha256(self) -> str:
        """Hash what identifies the teacher's weights, of both sides."""
        return content_hash([dict(self.encoder.weights or {}), dict(self.record.weights)])

    def prepare(
        self,
        train: Dataset,
        store: Store,
        world: World,
        untrained: Identity,
        begun: Path | None,
    ) -> None:
        """Encode claims, sources and texts without labels: `base`, and `aligned` where it is on.

        Where training begins, the projection is fitted too, or taken from the checkpoint of epoch
        0 in `begun`; `untrained` identifies the student's base. None: the saved state has it.
        """
        config, alignment = self.config, self.config.losses.alignment
        seed = config.optimisation.seed
        texts = pool_texts(train.sources, alignment.most, seed)
        # The first process encodes; the others then read the vectors from the store.
        for turn in (True, False):
            if world.is_first is turn:
                both = config.rendering, train.claims, train.sources
                self.base = BaseVectors(self.encoder, *both, store, progress=turn)
                self.aligned: AlignedTexts | None = None
                if alignment.weight:
                    of = texts, self.student, self.encoder, store
                    self.aligned = AlignedTexts(*of, seed, progress=turn)
            barrier(world)
        if begun is not None:
            self._place(train, store, untrained, begun)

    def _place(self, train: Dataset, store: Store, untrained: Identity, folder: Path) -> None:
        """Give the projection its first weights, and name those of the student."""
        projection = self.projection
        if (folder / FILE).is_file():
            known = load_projection(folder, projection.in_features)
            projection.load_state_dict(known.state_dict())
        else:
            plain = Encoder(
                self.student.model, self.student.tokenizer, self.student.settings, untrained
            )
            texts = list(self.config.rendering.claim_texts(train.claims))
            targets = self.base.claims([claim.id for claim in train.claims])
            if self.aligned is not None:
                texts += self.aligned.texts
                targets = torch.cat((targets, torch.from_numpy(self.aligned.vectors)))
            vectors, _ = plain.encode(texts, "claim", store=store, progress="texts, student")
            fit_projection(projection, torch.from_numpy(vectors), targets)
        self.student.weights = Weights(projection=projection_hash(projection)).identity(untrained)


def check_strategy(config: FinetuneConfig, sharded: bool) -> None:
    """Raise `ConfigError` where a small encoder of claims would be sharded."""
    allowed = "auto or ddp with a `teacher`: a small encoder is not sharded"
    require(config.teacher is None or not sharded, "trainer.strategy", "fsdp2", allowed)
