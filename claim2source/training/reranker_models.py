"""Load re-rankers to train, one class a kind: from pairs to logits, and the files to save."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytorch_lightning as pl
import torch
from torch import Tensor

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError
from claim2source.models import Weights, tokenizer_files
from claim2source.models.manifest import Base
from claim2source.models.reranker_manifest import RerankerManifest, RerankerSettings
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.load import keep_head, load_cross_encoder
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo, answers_direction, left_padded
from claim2source.training.checkpoint import Kind, check_layers, make_trainable, write_checkpoint
from claim2source.training.export.weighted_sum import ONE_SHARD
from claim2source.training.reranker_config import RerankerRecipe

# Tensors by name; a kind's own.
Features = Mapping[str, Any]


@dataclass(eq=False)
class TrainedReranker(ABC):
    """Hold a re-ranker that is trained, as the stage that reads its checkpoints.

    The stage scores with its `network`, Lightning trains `model`: the same weights, with adapters
    on them where they are trained. Of a `headless` one the head is random, and in no file.
    """

    recipe: RerankerRecipe
    base: Base
    stage: Any
    model: Any = None
    # The transformers model within.
    transformer: Any = None
    headless: bool = False
    # peft's name of what the model does.
    task: ClassVar[str]

    @abstractmethod
    def load(self) -> None:
        """Load the model from the stage's files."""

    @abstractmethod
    def features(self, pairs: Sequence[Pair]) -> Features:
        """Make the tensors of some pairs, on the CPU."""

    @abstractmethod
    def logits(self, features: Features) -> Tensor:
        """Compute the logits of pairs, [pairs, labels], with gradients."""

    @abstractmethod
    def write_full(self, folder: Path) -> None:
        """Write the whole model to a folder."""

    def adapt(self) -> None:
        self.model = make_trainable(self.model, self.recipe, self.task)
        if self.recipe.optimisation.gradient_checkpointing:
            # Reentrant checkpointing would pass no gradient through a frozen first block.
            self.transformer.gradient_checkpointing_enable({"use_reentrant": False})

    def manifest(self, provenance: Mapping[str, Any]) -> RerankerManifest:
        """Describe the re-ranker before training, with the fields that all checkpoints share."""
        model, stage = self.recipe.model, self.stage
        names = "max_length", "instruction", "template"
        settings = RerankerSettings(
            model.kind,
            labels=model.labels,
            dtype=model.dtype,
            own_code=stage.files[2].own_code,
            **dict(zip(names, stage.prompt_settings, strict=False)),
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
        """Write a checkpoint; epoch 0 of a base without a head has its random head too."""
        kind: Kind = self.recipe.tuning
        if manifest.epoch == 0:
            kind = "full" if self.headless else "base"
        return write_checkpoint(folder, self.model, manifest, kind, self.write_full)


class CrossEncoderToTrain(TrainedReranker):
    task = "SEQ_CLS"

    def load(self) -> None:
        """Load the model; a head that its files do not have begins random, by the seed."""
        labels, tuning = self.recipe.model.labels, self.recipe.tuning
        folder, _, settings = self.stage.files
        pl.seed_everything(self.recipe.optimisation.seed, verbose=False)
        # Cut to all that the files allow, where no length is set.
        length = self.recipe.model.max_length
        network: Any = load_cross_encoder(folder, settings, length, labels, trains=True)
        self.stage.__dict__["network"], self.transformer = network, network[0].model
        self.model = self.transformer if tuning == "lora" else network
        self.headless = not _has_head(folder, labels)
        allowed = f"full: the model has no head of {labels} logits, and adapters need their base's"
        require(tuning == "full" or not self.headless, "tuning", tuning, allowed)

    def adapt(self) -> None:
        """Make the model trainable; the head stays float32."""
        super().adapt()
        if self.recipe.model.dtype != "float32":
            keep_head(self.stage.network)

    def features(self, pairs: Sequence[Pair]) -> Features:
        texts: list[Any] = [tuple(pair) for pair in pairs]
        batch: Features = self.stage.network.preprocess(texts, prompt=self.stage.instruction)
        return batch

    def logits(self, features: Features) -> Tensor:
        scores: Tensor = self.stage.network(dict(features))["scores"]
        return scores.float().reshape(-1, self.recipe.model.labels)

    def write_full(self, folder: Path) -> None:
        """Write the whole model, as sentence-transformers loads it, with its base's activation."""
        from sentence_transformers.util import fullname

        network: Any = self.stage.network
        if not self.headless:
            network.activation_fn = network.named_activation
            # Versions of sentence-transformers before 6 read it here.
            config = network[0].model.config
            settings = getattr(config, "sentence_transformers", None) or {}
            config.sentence_transformers = settings | {
                "activation_fn": fullname(network.activation_fn)
            }
        try:
            network.save_pretrained(str(folder), create_model_card=False)
        finally:
            network.activation_fn = torch.nn.Identity()


def _has_head(folder: Path, labels: int) -> bool:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    architectures = config.get("architectures") or [""]
    classifies = any(name.endswith("ForSequenceClassification") for name in architectures)
    # transformers leaves the names of two out.
    return classifies and len(config.get("id2label") or "01") == labels


class YesNoToTrain(TrainedReranker):
    """Train a generative model's log-odds of yes at the prompt's last position."""

    task = "CAUSAL_LM"

    def load(self) -> None:
        self.model = self.transformer = self.stage.network[0]
        self.model.config.use_cache = False

    def features(self, pairs: Sequence[Pair]) -> Features:
        ids, mask = left_padded(self.stage.tokens(pairs))
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}

    def logits(self, features: Features) -> Tensor:
        """Compute logit(yes) - logit(no), [pairs, 1]."""
        causal = self.transformer
        hidden = causal.base_model(**features, use_cache=False).last_hidden_state[:, -1]
        with torch.autocast(hidden.device.type, enabled=False):
            direction, bias = answers_direction(causal, self.stage.answers)
            scores = hidden.float() @ direction + bias
        return scores[:, None]

    def write_full(self, folder: Path) -> None:
        self.transformer.save_pretrained(str(folder), max_shard_size=ONE_SHARD)
        for file in tokenizer_files(self.stage.files[0]):
            shutil.copyfile(file, folder / file.name)


def load_to_train(
    recipe: RerankerRecipe, claims: Sequence[str], depth: int, device: str | None = None
) -> TrainedReranker:
    """Load the re-ranker of a recipe. Raises `UserError` for one that cannot be trained so.

    `claims` are the texts to train on, which must leave room for a source; its checkpoints re-rank
    `depth` sources. The stage reads texts as they are trained on, and keeps nothing in the store.
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
    # From here on it is read as the recipe says: see functools.cached_property.
    stage.__dict__.update(trained=None, identity={})
    kind = CrossEncoderToTrain if model.kind == "cross_encoder" else YesNoToTrain
    reranker: TrainedReranker = kind(recipe, base, stage)
    reranker.load()
    check_layers(reranker.model, recipe, own_code=loading.own_code)
    if isinstance(stage, YesNo):
        rows = stage.tokens([Pair(text, "some words of a source") for text in claims])
        if missing := sum(not row for row in rows):
            allowed = f"more: {missing} claims of train leave no room for a source"
            raise ConfigError("model.max_length", model.max_length, allowed)
    return reranker
