"""Load the model that a retriever's training begins with, and make it trainable."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Dataset
from claim2source.io.store import Store
from claim2source.models import Encoder, Identity, Manifest, Weights, resolve
from claim2source.models.manifest import FILE, Base
from claim2source.models.query_only import base_encoder
from claim2source.models.resolve import checkpoint_folder
from claim2source.systems.heldout import require_held_out
from claim2source.training.checkpoint import PART, Kind, adapt, check_layers, save_checkpoint
from claim2source.training.config import RetrieverRecipe
from claim2source.training.data import TrainingData
from claim2source.training.distributed import World, first_before_others, gather_values
from claim2source.training.memory_plan import MemoryPlan, plan_memory_here, trained_length
from claim2source.training.session import Session
from claim2source.training.teacher import BaseVectors, SourceTeacher, load_teacher


@dataclass(frozen=True)
class LoadedBase:
    """Hold the model to train, as it was loaded.

    `untrained` identifies its weights, `folder` has its files, `record` is for manifests.
    `plan` has the training's recipe with numbers in place of `auto`.
    """

    encoder: Encoder
    record: Base
    folder: Path
    untrained: Identity
    teacher: SourceTeacher | None
    plan: MemoryPlan

    @property
    def recipe(self) -> RetrieverRecipe:
        return self.plan.recipe

    @contextmanager
    def as_checkpoint(self, folder: Path, world: World) -> Iterator[None]:
        """Name the weights in the store as the checkpoint in `folder`, while the body runs.

        All processes name them as the first one reads its manifest.
        """
        identity: Identity = {}
        if world.is_first:
            identity = Manifest.read(folder).weights.identity(self.untrained)
        before, self.encoder.weights = self.encoder.weights, gather_values(identity, world)[0]
        try:
            yield
        finally:
            self.encoder.weights = before

    def save(self, folder: Path, manifest: Manifest) -> Manifest:
        kind: Kind = "base"
        if manifest.epoch:
            kind = "full" if self.recipe.tuning == "full" else "lora"
        return save_checkpoint(folder, self.encoder, self.folder, manifest, kind)

    def manifest(self, provenance: Mapping[str, Any]) -> Manifest:
        """Describe the model before training, with the fields that all its checkpoints share."""
        return Manifest(
            base=self.record,
            weights=Weights(trained=self.recipe.optimisation.train),
            encoder=self.encoder.settings,
            rendering=self.recipe.rendering,
            epoch=0,
            source_model=None if self.teacher is None else self.teacher.record,
            **provenance,
        )


def load_base(recipe: RetrieverRecipe, data: TrainingData, session: Session) -> LoadedBase:
    """Load the base and the teacher, to which the claims of val are new.

    Raises `UserError` for what cannot be trained as the recipe says.
    """
    name, trained_on = recipe.model.name, data.settings
    require_held_out("model.name", [name], data.val, trained_on)
    if recipe.teacher is not None:
        require_held_out("teacher.name", [recipe.teacher.name], data.val, trained_on)
    folder = checkpoint_folder(name)
    if (folder / FILE).is_file():
        raise UserError(
            f"model.name: {name} is a checkpoint of a run; train from its export "
            f"(python train/merge.py --checkpoints {name} --out DIR) or from its base "
            f"({Manifest.read(folder).base.name})"
        )
    resolved = resolve(recipe.model, session.device)
    encoder = resolved.encoder
    if encoder.source_encoder is not None:
        raise UserError(f"model.name: {name} was tuned for claims alone; train from its base")
    if encoder.dense is not None:
        allowed = "a model without a Dense layer behind its pooling: such a layer is not trained"
        raise ConfigError("model.name", name, allowed)
    check_layers(encoder.model, recipe, own_code=encoder.settings.own_code)
    teacher = None
    if recipe.teacher is not None:
        teacher = load_teacher(recipe, encoder, session.device)
    longest = trained_length(recipe.optimisation, encoder.settings.max_length)
    if recipe.optimisation.max_length is not None:
        # Else it would fail once negatives are mined.
        encoder.tokenize(["a text"], "claim", longest)
        if recipe.optimisation.train == "both":
            encoder.tokenize(["a text"], "source", longest)
    plan = plan_memory_here(recipe, encoder.model, longest, session.world.local_size)
    return LoadedBase(encoder, resolved.base, resolved.folder, encoder.weights or {}, teacher, plan)


def prepare_to_train(
    loaded: LoadedBase, train: Dataset, store: Store, world: World
) -> BaseVectors | None:
    """Make the model trainable; first encode the targets of the losses."""
    recipe, encoder, teacher = loaded.recipe, loaded.encoder, loaded.teacher
    query_only = recipe.optimisation.train == "query_only"
    vectors = None if teacher is None else teacher.base
    if teacher is None and (recipe.losses.keep_base.weight or query_only):
        with first_before_others(world):
            vectors = BaseVectors(encoder, recipe.rendering, train, store, world.is_first)
    own = query_only and teacher is None
    frozen = None
    if own and recipe.tuning == "full":
        model = copy.deepcopy(encoder.model).eval().requires_grad_(False)
        frozen = Encoder(model, encoder.tokenizer, encoder.settings, encoder.weights)
    # All processes start with the same adapters; dropout is seeded by process in `fit`.
    pl.seed_everything(recipe.optimisation.seed, verbose=False)
    adapt(encoder, recipe)
    encoder.weights = None
    if teacher is not None:
        assert encoder.dense is not None
        # A part of the model, whose weights are trained, saved and restored.
        encoder.model.add_module(PART, encoder.dense.requires_grad_(True))
    elif own:
        encoder.source_encoder = frozen or base_encoder(encoder, loaded.untrained)
    return vectors
