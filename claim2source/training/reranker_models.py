"""Load re-rankers to train, and write their checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
from lightning_fabric.utilities.apply_func import move_data_to_device
from torch import Tensor

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError
from claim2source.models import Weights, tokenizer_files
from claim2source.models.manifest import Base, RerankerManifest, RerankerSettings
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.load import keep_head, load_cross_encoder
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo
from claim2source.training.checkpoint import Kind, check_layers, make_trainable, write_checkpoint
from claim2source.training.export.reranker import save_cross_encoder
from claim2source.training.export.weighted_sum import ONE_SHARD
from claim2source.training.reranker_config import RerankerRecipe
from claim2source.training.targets import check_targets


@dataclass(eq=False)
class TrainedReranker:
    """Re-ranker in training, with the stage that loads its checkpoints.

    The stage scores with its `network`, and Lightning trains `model`: the same weights, with any
    adapters. `transformer` is the transformers model inside. `headless`: the head is random, and
    not in the base's files.
    """

    recipe: RerankerRecipe
    base: Base
    stage: CrossEncoder | YesNo
    model: Any
    transformer: Any
    headless: bool = False

    def adapt(self) -> None:
        """Make the model trainable; a cross-encoder's head stays float32."""
        stage = self.stage
        task = "SEQ_CLS" if isinstance(stage, CrossEncoder) else "CAUSAL_LM"  # peft's names
        self.model = make_trainable(self.model, self.recipe, task)
        if self.recipe.optimisation.gradient_checkpointing:
            # Reentrant checkpointing would pass no gradient through a frozen first block.
            self.transformer.gradient_checkpointing_enable({"use_reentrant": False})
        if isinstance(stage, CrossEncoder) and self.recipe.model.dtype != "float32":
            keep_head(stage.network)

    def manifest(self, provenance: Mapping[str, Any]) -> RerankerManifest:
        """Return the manifest before training, with the fields that all checkpoints share."""
        model, stage = self.recipe.model, self.stage
        names = "max_length", "instruction", "template"
        prompt: dict[str, Any] = dict(zip(names, stage.prompt_settings, strict=False))
        settings = RerankerSettings(
            model.kind,
            labels=model.labels,
            dtype=model.dtype,
            own_code=stage.files[2].own_code,
            **prompt,
        )
        return RerankerManifest(
            base=self.base,
            weights=Weights(),
            reranker=settings,
            rendering=self.recipe.rendering,
            depth=stage.depth,
            epoch=0,
            **provenance,
        )

    def save(self, folder: Path, manifest: RerankerManifest) -> RerankerManifest:
        """Write a checkpoint; epoch 0 of a headless base includes its random head."""
        kind: Kind = self.recipe.tuning
        if manifest.epoch == 0:
            kind = "full" if self.headless else "base"
        return write_checkpoint(folder, self.model, manifest, kind, self.write_full)

    def write_full(self, folder: Path) -> None:
        """Write the full model; a cross-encoder with its base's activation."""
        if isinstance(self.stage, YesNo):
            self.transformer.save_pretrained(str(folder), max_shard_size=ONE_SHARD)
            for file in tokenizer_files(self.stage.files[0]):
                shutil.copyfile(file, folder / file.name)
            return
        network: Any = self.stage.network
        if self.headless:
            network.save_pretrained(str(folder), create_model_card=False)
        else:
            save_cross_encoder(network, folder, network.named_activation)


def load_to_train(
    recipe: RerankerRecipe, claims: Sequence[str], depth: int, device: str | None = None
) -> TrainedReranker:
    """Load the re-ranker of a recipe. Raises `UserError` if it cannot be trained with it.

    `claims` are the training texts, which must leave room for a source; its checkpoints re-rank
    `depth` sources. The stage formats texts as in training, and does not use the store.
    """
    model = recipe.model
    texts = {"max_length": model.max_length, "instruction": model.instruction}
    options: dict[str, Any] = {key: value for key, value in texts.items() if value is not None}
    reads: type[CrossEncoder | YesNo] = CrossEncoder
    if model.kind == "yes_no":
        reads, options["template"] = YesNo, model.template
    stage = reads(
        model=model.name,
        revision=model.revision,
        dtype=model.dtype,
        allow_remote_code=model.allow_remote_code,
        depth=depth,
        claims=recipe.rendering.claims,
        sources=recipe.rendering.sources,
        **options,
    ).with_runtime(None, device)
    is_full = stage.trained is not None
    if stage.trained is not None and stage.trained[1].weights.kind != "full":
        raise UserError(
            f"model.name: {model.name} is an adapter; train from its base "
            f"({stage.trained[1].base.name})"
        )
    folder, identity, loading = stage.files
    path = str(folder) if is_full else model.name
    path = str(Path(path).resolve()) if Path(path).is_dir() else path
    base = Base(path, None if is_full else model.revision, str(identity["weights"]))
    # From here on the recipe's settings apply: see functools.cached_property.
    stage.__dict__.update(trained=None, identity={})
    if isinstance(stage, CrossEncoder):
        reranker = _cross_encoder(recipe, base, stage)
    else:
        causal: Any = stage.network[0]
        causal.config.use_cache = False
        reranker = TrainedReranker(recipe, base, stage, causal, causal)
    check_layers(reranker.model, recipe, own_code=loading.own_code)
    if isinstance(stage, YesNo):
        rows = stage.tokens([Pair(text, "some words of a source") for text in claims])
        if missing := sum(not row for row in rows):
            allowed = f"a higher value: {missing} claims of train leave no room for a source"
            raise ConfigError("model.max_length", model.max_length, allowed)
    check_targets(reranker.model, recipe, lambda: _pair_logits(reranker))
    return reranker


def _pair_logits(reranker: TrainedReranker) -> Tensor:
    features = reranker.stage.features([Pair("a text", "some words of a source")])
    return reranker.stage.logits(move_data_to_device(features, reranker.model.device))


def _cross_encoder(recipe: RerankerRecipe, base: Base, stage: CrossEncoder) -> TrainedReranker:
    """Load a cross-encoder; a head that its files lack is initialised at random, by the seed."""
    labels, tuning = recipe.model.labels, recipe.tuning
    folder, _, settings = stage.files
    pl.seed_everything(recipe.optimisation.seed, verbose=False)
    # If no length is set, use the longest that the files allow.
    length = recipe.model.max_length
    network: Any = load_cross_encoder(folder, settings, length, labels, trains=True, new_head=True)
    headless: bool = network.headless
    allowed = f"full, because the model has no head with {labels} logits for adapters to use"
    require(tuning == "full" or not headless, "tuning", tuning, allowed)
    stage.__dict__["network"], transformer = network, network[0].model
    model = transformer if tuning == "lora" else network
    return TrainedReranker(recipe, base, stage, model, transformer, headless)
