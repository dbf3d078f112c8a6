"""Load re-rankers to train, one class a kind: from pairs to logits, and the files to save."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from claim2source.core.config import require
from claim2source.core.errors import ConfigError, UserError
from claim2source.models import Weights, tokenizer_files
from claim2source.models.manifest import Base
from claim2source.models.reranker_manifest import RerankerManifest, RerankerSettings
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.load import keep_head, load_causal, load_cross_encoder
from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import YesNo
from claim2source.training.checkpoint import Kind, check_layers, make_trainable, write_checkpoint
from claim2source.training.export.weighted_sum import ONE_SHARD
from claim2source.training.reranker_config import RerankerRecipe

# Tensors by name; a kind's own.
Features = Mapping[str, Any]


class TrainedReranker(ABC):
    """Hold a re-ranker that is trained.

    `network` is what a stage scores with, `model` what Lightning trains: the same weights, with
    adapters on them where they are trained. `labels` are the logits of a pair; of a `headless` one
    the head is random, and in no file of the base.
    """

    model: Any
    network: Any
    # The stage that reads such checkpoints, and peft's name of what the model does.
    reads: type[CrossEncoder | YesNo]
    task: str
    headless = False

    def __init__(self, recipe: RerankerRecipe, depth: int, device: str | None = None) -> None:
        self.recipe, self.labels = recipe, recipe.model.labels
        self.depth, self._device = depth, device

    def load(self) -> None:
        """Find the files, a base's or a whole re-ranker's, and load the model from them."""
        model = self.recipe.model
        stage = self._empty_stage(1).with_runtime(None, self._device)
        if stage.trained is not None and stage.trained[1].weights.kind != "full":
            raise UserError(
                f"model.name: {model.name} is an adapter; train from its base "
                f"({stage.trained[1].base.name})"
            )
        self.folder, identity, self.loading = stage.files
        is_full = stage.trained is not None
        path = str(self.folder) if is_full else model.name
        path = str(Path(path).resolve()) if Path(path).is_dir() else path
        self.base = Base(path, None if is_full else model.revision, str(identity["weights"]))
        self.load_network()

    @abstractmethod
    def load_network(self) -> None:
        """Load the model from `folder`."""

    @abstractmethod
    def features(self, pairs: Sequence[Pair]) -> Features:
        """Make the tensors of some pairs, on the CPU."""

    @abstractmethod
    def logits(self, features: Features) -> Tensor:
        """Compute the logits of pairs, [pairs, labels], with gradients."""

    @property
    @abstractmethod
    def transformer(self) -> Any:
        """Return the transformers model within."""

    @abstractmethod
    def write_full(self, folder: Path) -> None:
        """Write the whole model to a folder."""

    def too_long(self, claims: Sequence[str]) -> int:
        """Count the claims that leave no room for a source."""
        return 0

    @property
    def device(self) -> torch.device:
        return next(iter(self.model.parameters())).device

    def adapt(self) -> None:
        self.model = make_trainable(self.model, self.recipe, self.task)
        if self.recipe.optimisation.gradient_checkpointing:
            # Reentrant checkpointing would pass no gradient through a frozen first block.
            self.transformer.gradient_checkpointing_enable({"use_reentrant": False})

    @property
    def settings(self) -> RerankerSettings:
        model, own_code = self.recipe.model, self.loading.own_code
        settings = RerankerSettings(
            model.kind, labels=self.labels, dtype=model.dtype, own_code=own_code
        )
        names = "max_length", "instruction", "template"
        return replace(settings, **dict(zip(names, self.stage(1).prompt_settings, strict=False)))

    def manifest(self, provenance: Mapping[str, Any]) -> RerankerManifest:
        """Describe the re-ranker before training, with the fields that all checkpoints share."""
        return RerankerManifest(
            base=self.base,
            weights=Weights(),
            reranker=self.settings,
            rendering=self.recipe.rendering,
            depth=self.depth,
            epoch=0,
            **provenance,
        )

    def stage(self, depth: int) -> Any:
        """Make the stage of checkpoints with the weights as they are now.

        It reads texts as they are trained on, and keeps nothing in the store.
        """
        stage = self._empty_stage(depth).with_runtime(None, str(self.device))
        # In the place of what it would load and read: see functools.cached_property.
        stage.__dict__.update(
            trained=None, rendering=self.recipe.rendering, identity={}, network=self.network
        )
        return stage

    def _empty_stage(self, depth: int) -> Any:
        config = self.recipe.model
        texts = {"max_length": config.max_length, "instruction": config.instruction}
        options: dict[str, Any] = {key: value for key, value in texts.items() if value is not None}
        if self.reads is YesNo:
            options["template"] = config.template
        return self.reads(
            model=config.name,
            revision=config.revision,
            dtype=config.dtype,
            allow_remote_code=config.allow_remote_code,
            depth=depth,
            **options,
        )

    def save(self, folder: Path, manifest: RerankerManifest) -> RerankerManifest:
        """Write a checkpoint; epoch 0 of a base without a head has its random head too."""
        kind: Kind = self.recipe.tuning
        if manifest.epoch == 0:
            kind = "full" if self.headless else "base"
        return write_checkpoint(folder, self.model, manifest, kind, self.write_full)


class CrossEncoderToTrain(TrainedReranker):
    reads = CrossEncoder
    task = "SEQ_CLS"

    def load_network(self) -> None:
        """Load the model; a head that its files do not have begins random, by the seed."""
        config, labels = self.recipe.model, self.labels
        pl.seed_everything(self.recipe.optimisation.seed, verbose=False)
        # Cut to all that the files allow, where no length is set.
        self.network = load_cross_encoder(
            self.folder, self.loading, config.max_length, labels, trains=True
        )
        self.model = self.transformer if self.recipe.tuning == "lora" else self.network
        self.headless = not _has_head(self.folder, labels)
        allowed = f"full: the model has no head of {labels} logits, and adapters need their base's"
        good = self.recipe.tuning == "full" or not self.headless
        require(good, "tuning", self.recipe.tuning, allowed)

    @property
    def transformer(self) -> Any:
        return self.network[0].model

    def adapt(self) -> None:
        """Make the model trainable; the head stays float32."""
        super().adapt()
        if self.recipe.model.dtype != "float32":
            keep_head(self.network)

    def features(self, pairs: Sequence[Pair]) -> Features:
        texts: list[Any] = [tuple(pair) for pair in pairs]
        batch: Features = self.network.preprocess(texts, prompt=self.recipe.model.instruction)
        return batch

    def logits(self, features: Features) -> Tensor:
        scores: Tensor = self.network(dict(features))["scores"]
        return scores.float().reshape(-1, self.labels)

    def write_full(self, folder: Path) -> None:
        """Write the whole model, as sentence-transformers loads it, with its base's activation."""
        from sentence_transformers.util import fullname

        network: Any = self.network
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

    reads = YesNo
    task = "CAUSAL_LM"

    def load_network(self) -> None:
        self.network = load_causal(self.folder, self.loading)
        self.model = self.transformer
        self.model.config.use_cache = False
        # Its prompt is written by the stage that reads the checkpoint.
        self.reader: YesNo = self.stage(1)
        self.words = self.reader.answers

    @property
    def transformer(self) -> Any:
        return self.network[0]

    def too_long(self, claims: Sequence[str]) -> int:
        rows = self.reader.tokens([Pair(text, "some words of a source") for text in claims])
        return sum(not row for row in rows)

    def features(self, pairs: Sequence[Pair]) -> Features:
        """Make the tensors of some pairs, padded on the left, on the CPU."""
        rows = self.reader.tokens(pairs)
        longest = max(map(len, rows))
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for row, tokens in enumerate(rows):
            # The last position is every prompt's last.
            ids[row, longest - len(tokens) :] = torch.tensor(tokens)
            mask[row, longest - len(tokens) :] = 1
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
        return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}

    def logits(self, features: Features) -> Tensor:
        """Compute logit(yes) - logit(no), [pairs, 1]."""
        causal, (yes, no) = self.transformer, self.words
        hidden = causal.base_model(**features, use_cache=False).last_hidden_state[:, -1]
        head = causal.get_output_embeddings()
        with torch.autocast(hidden.device.type, enabled=False):
            # The two answers' logits alone, in float32: half precision ties many pairs.
            direction = head.weight[yes].float() - head.weight[no].float()
            scores = hidden.float() @ direction
            bias = getattr(head, "bias", None)
            scores = scores if bias is None else scores + (bias[yes] - bias[no]).float()
        return scores[:, None]

    def write_full(self, folder: Path) -> None:
        self.transformer.save_pretrained(str(folder), max_shard_size=ONE_SHARD)
        for file in tokenizer_files(self.folder):
            shutil.copyfile(file, folder / file.name)


def load_to_train(
    recipe: RerankerRecipe, claims: Sequence[str], depth: int, device: str | None = None
) -> TrainedReranker:
    """Load the re-ranker of a recipe. Raises `UserError` for one that cannot be trained so.

    `claims` are the texts to train on, which must leave room for a source; its checkpoints re-rank
    `depth` sources.
    """
    kind = CrossEncoderToTrain if recipe.model.kind == "cross_encoder" else YesNoToTrain
    reranker: TrainedReranker = kind(recipe, depth, device)
    reranker.load()
    check_layers(reranker.model, recipe, own_code=reranker.loading.own_code)
    if missing := reranker.too_long(claims):
        allowed = f"more: {missing} claims of train leave no room for a source"
        raise ConfigError("model.max_length", recipe.model.max_length, allowed)
    return reranker
