"""Load re-rankers to train, one class a kind: from pairs to logits, and the files to save."""

from __future__ import annotations

import json
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor

from claim2source.core.config import require
from claim2source.core.errors import UserError
from claim2source.core.files import atomic_folder, file_hash
from claim2source.models import Weights, tokenizer_files
from claim2source.models.hub import ADAPTER_CONFIG_FILE
from claim2source.models.manifest import Base
from claim2source.models.reranker_manifest import (
    RerankerKind,
    RerankerManifest,
    RerankerSettings,
)
from claim2source.models.resolve import ADAPTER_FILE
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.load import LocalReranker, keep_head, load_causal, load_cross_encoder
from claim2source.stages.pairs import Pair, Reranker
from claim2source.stages.yes_no import YesNo
from claim2source.training.checkpoint import (
    ONE_SHARD,
    check_layers,
    make_trainable,
    save_adapter,
)
from claim2source.training.reranker_config import RerankerConfig
from claim2source.training.resume import require_finite_weights

# Tensors by name; a kind's own.
Features = Mapping[str, Any]


class TrainedReranker(ABC):
    """Hold a re-ranker that is trained.

    `network` is what a stage scores with, `model` what Lightning trains: the same weights, with
    adapters on them where they are trained. `labels` are the logits of a pair.
    """

    model: Any
    network: Any
    base: Base
    folder: Path
    settings: RerankerSettings
    own_code = False
    task: str | None = None
    labels = 1

    def __init__(self, config: RerankerConfig) -> None:
        self.config = config

    @abstractmethod
    def load(self) -> None:
        """Load the model."""

    @abstractmethod
    def features(self, pairs: Sequence[Pair]) -> Features:
        """Make the tensors of some pairs, on the CPU."""

    @abstractmethod
    def logits(self, features: Features) -> Tensor:
        """Compute the logits of pairs, [pairs, labels], with gradients."""

    def too_long(self, claims: Sequence[str]) -> int:
        """Count the claims that leave no room for a source."""
        return 0

    @abstractmethod
    def empty_stage(self, depth: int) -> Reranker:
        """Make the stage that reads such checkpoints."""

    @abstractmethod
    def write_full(self, folder: Path) -> None:
        """Write the whole model to a folder."""

    @property
    def device(self) -> torch.device:
        """Return the device of the model."""
        return next(iter(self.model.parameters())).device

    @property
    def parameters(self) -> int:
        """Count the weights."""
        return sum(p.numel() for p in self.model.parameters())

    def adapt(self) -> None:
        """Make the model trainable."""
        config = self.config
        self.model = make_trainable(self.model, config, self.task)
        if config.optimisation.gradient_checkpointing:
            # Reentrant checkpointing would pass no gradient through a frozen first block.
            self.transformer.gradient_checkpointing_enable({"use_reentrant": False})

    @property
    def transformer(self) -> Any:
        """Return the transformers model within."""
        return self.model

    def stage(self, depth: int) -> Reranker:
        """Make the stage of checkpoints with the weights as they are now.

        It reads texts as they are trained on, and keeps nothing in the store.
        """
        stage = self.empty_stage(depth).with_runtime(None, str(self.device))
        own: dict[str, Any] = {"trained": None, "rendering": self.config.rendering, "identity": {}}
        # In the place of what it would load and read: see functools.cached_property.
        stage.__dict__.update(own | self.live())
        return stage

    @abstractmethod
    def live(self) -> dict[str, Any]:
        """Name the stage's own parts that are trained here."""

    def save(self, folder: Path, manifest: RerankerManifest, *, base: bool = False) -> None:
        """Write a checkpoint atomically: the adapter, the whole model, or of `base` its manifest.

        Raises `UserError` for weights that are not finite.
        """
        kind = self.config.tuning
        with atomic_folder(folder) as temporary:
            weights = Weights()
            if not base or self.needs_weights:
                every = self.model.named_parameters()
                full = base or kind == "full"
                tensors = {name: p.detach() for name, p in every if full or p.requires_grad}
                require_finite_weights(tensors, folder)
                if full:
                    self.write_full(temporary)
                    files = "model.safetensors", "config.json"
                else:
                    save_adapter(self.model, temporary, manifest.base.name)
                    files = ADAPTER_FILE, ADAPTER_CONFIG_FILE
                content, settings = (file_hash(temporary / name) for name in files)
                weights = Weights("full" if full else "lora", content, config_sha256=settings)
            replace(manifest, weights=weights).write(temporary)

    @property
    def needs_weights(self) -> bool:
        """Tell whether the base's own files do not make the model before training."""
        return False

    def located(self, stage: LocalReranker) -> Any:
        """Find a stage's files, a base's or a whole re-ranker's, and how they are loaded."""
        if stage.trained is not None and stage.trained[1].weights.kind != "full":
            raise UserError(
                f"model.name: {self.config.model.name} is an adapter; train from its base "
                f"({stage.trained[1].base.name})"
            )
        self.folder, identity, settings = stage.files
        self.own_code = settings.own_code
        config = self.config.model
        name = str(self.folder) if stage.trained is not None else config.name
        revision = None if stage.trained is not None else config.revision
        sha256 = str(identity["weights"])
        path = str(Path(name).resolve()) if Path(name).is_dir() else name
        self.base = Base(path, revision, sha256)
        return settings


class CrossEncoderToTrain(TrainedReranker):
    """Train a classifier of pairs."""

    task = "SEQ_CLS"

    def load(self) -> None:
        """Load the model; a head that its files do not have begins random, by the seed."""
        config = self.config.model
        self.labels = config.labels
        settings = self.located(self.empty_stage(1).with_runtime(None, self.config.device))
        pl.seed_everything(self.config.optimisation.seed, verbose=False)
        labels, length = config.labels, config.max_length
        self.network = load_cross_encoder(self.folder, settings, length, labels, trains=True)
        # Cut to all that the files allow, where nothing is said.
        self.length = length
        self.model = self.network[0].model if self.config.tuning == "lora" else self.network
        self.headless = not _has_head(self.folder, labels)
        allowed = f"full: the model has no head of {labels} logits, and adapters need their base's"
        good = self.config.tuning == "full" or not self.headless
        require(good, "tuning", self.config.tuning, allowed)
        self.settings = RerankerSettings(
            "cross_encoder",
            length,
            config.instruction,
            labels=labels,
            dtype=config.dtype,
            own_code=self.own_code,
        )

    @property
    def needs_weights(self) -> bool:
        """Tell whether the head is random: it is in no file of the base."""
        return self.headless

    @property
    def transformer(self) -> Any:
        return self.network[0].model

    def adapt(self) -> None:
        """Make the model trainable; the head stays float32."""
        super().adapt()
        if self.config.model.dtype != "float32":
            keep_head(self.network)

    def empty_stage(self, depth: int) -> CrossEncoder:
        config = self.config.model
        return CrossEncoder(
            model=config.name,
            revision=config.revision,
            max_length=config.max_length,
            dtype=config.dtype,
            allow_remote_code=config.allow_remote_code,
            instruction=config.instruction,
            depth=depth,
        )

    def live(self) -> dict[str, Any]:
        settings = self.config.model.max_length, self.config.model.instruction
        return {"network": self.network, "prompt_settings": settings}

    def features(self, pairs: Sequence[Pair]) -> Features:
        texts: list[Any] = [tuple(pair) for pair in pairs]
        batch: Features = self.network.preprocess(texts, prompt=self.config.model.instruction)
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
            known = getattr(config, "sentence_transformers", None) or {}
            config.sentence_transformers = known | {
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
        config = self.config.model
        settings = self.located(self.empty_stage(1).with_runtime(None, self.config.device))
        self.network = load_causal(self.folder, settings)
        self.model = self.network[0]
        self.model.config.use_cache = False
        self.causal = self.network[0]
        # Its prompt is written by the stage that reads the checkpoint.
        self.reader = self.stage(1)
        assert isinstance(self.reader, YesNo)
        length, instruction, template = self.reader.prompt_settings
        self.words = self.reader.answers
        self.settings = RerankerSettings(
            "yes_no",
            length,
            instruction,
            template,
            dtype=config.dtype,
            own_code=self.own_code,
        )

    @property
    def transformer(self) -> Any:
        return self.causal

    def empty_stage(self, depth: int) -> YesNo:
        config = self.config.model
        plain = YesNo()
        return YesNo(
            model=config.name,
            revision=config.revision,
            max_length=config.max_length or plain.max_length,
            dtype=config.dtype,
            allow_remote_code=config.allow_remote_code,
            instruction=config.instruction or plain.instruction,
            template=config.template,
            depth=depth,
        )

    def live(self) -> dict[str, Any]:
        plain, config = YesNo(), self.config.model
        length = config.max_length or plain.max_length
        settings = length, config.instruction or plain.instruction, config.template
        return {"network": self.network, "prompt_settings": settings}

    def too_long(self, claims: Sequence[str]) -> int:
        assert isinstance(self.reader, YesNo)
        rows = self.reader.tokens([Pair(text, "some words of a source") for text in claims])
        return sum(not row for row in rows)

    def features(self, pairs: Sequence[Pair]) -> Features:
        """Make the tensors of some pairs, padded on the left, on the CPU."""
        assert isinstance(self.reader, YesNo)
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
        hidden = self.causal.base_model(**features, use_cache=False).last_hidden_state[:, -1]
        head = self.causal.get_output_embeddings()
        yes, no = self.words
        with torch.autocast(hidden.device.type, enabled=False):
            # The two answers' logits alone, in float32: half precision ties many pairs.
            direction = head.weight[yes].float() - head.weight[no].float()
            scores = hidden.float() @ direction
            bias = getattr(head, "bias", None)
            scores = scores if bias is None else scores + (bias[yes] - bias[no]).float()
        return scores[:, None]

    def write_full(self, folder: Path) -> None:
        self.causal.save_pretrained(str(folder), max_shard_size=ONE_SHARD)
        for file in tokenizer_files(self.folder):
            shutil.copyfile(file, folder / file.name)


KINDS: Mapping[RerankerKind, Callable[[RerankerConfig], TrainedReranker]] = {
    "cross_encoder": CrossEncoderToTrain,
    "yes_no": YesNoToTrain,
}


def load_to_train(config: RerankerConfig) -> TrainedReranker:
    """Load the re-ranker of a config. Raises `UserError` for one that cannot be trained so."""
    reranker = KINDS[config.model.kind](config)
    reranker.load()
    check_layers(reranker.model, config, own_code=reranker.own_code)
    return reranker
