"""Encode sources with the base model, or a teacher, if only the claims' side was trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from claim2source.models.config import Identity
from claim2source.models.encoder import Encoder, computes_fast
from claim2source.models.manifest import SourceModel


class WithoutAdapter(torch.nn.Module):
    """Run a peft model without its adapter: the base model, with no second copy of it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tuned = model

    @property
    def training(self) -> bool:
        return bool(self.tuned.training)

    @training.setter
    def training(self, mode: bool) -> None:
        """Ignore the mode: `train` passes it on to the tuned model."""

    @property
    def config(self) -> Any:
        return self.tuned.config

    def forward(self, **inputs: Any) -> Any:
        with self.tuned.disable_adapter():
            return self.tuned(**inputs)


def base_encoder(encoder: Encoder, weights: Identity | None) -> Encoder:
    """Return an encoder of the base under an adapter; `weights` identify the base's weights."""
    model: Any = WithoutAdapter(encoder.model)
    base = Encoder(model, encoder.tokenizer, encoder.settings, weights)
    base.name = encoder.name
    base.own_modules = encoder.own_modules
    base.dense = encoder.dense
    base.reads_types = encoder.reads_types
    return base


class LateEncoder(Encoder):
    """Encode sources with a model that is loaded only when a text has no vector in the store.

    A process that only answers claims then loads only the small model.
    """

    def __init__(self, record: SourceModel, load: Callable[[], Encoder]) -> None:
        # Attributes of the model itself are loaded by `__getattr__`.
        self.record = record
        self._load = load
        self.settings = record.encoder
        self.weights = record.weights
        self.name = Path(record.name).name
        self.source_encoder = None

    @cached_property
    def loaded(self) -> Encoder:
        return self._load()

    @property
    def dimensions(self) -> int:
        return self.record.dimensions

    def config_hash(self) -> str:
        return self.record.config

    def in_bfloat16(self) -> Encoder:
        settings = self.settings
        exact = settings.dtype != "float32" or settings.own_code or torch.cuda.is_available()
        if exact or not computes_fast():
            return super().in_bfloat16()
        record = replace(self.record, encoder=replace(settings, dtype="bfloat16"))
        late = LateEncoder(record, lambda: self.loaded.in_bfloat16())
        late.name = self.name
        return late

    def __getattr__(self, name: str) -> Any:
        if name not in ("model", "tokenizer", "dense", "own_modules", "reads_types"):
            raise AttributeError(name)
        return getattr(self.loaded, name)


def source_model(
    encoder: Encoder,
    name: str,
    revision: str | None,
) -> SourceModel:
    """Record an encoder of the sources; `name` is a model's, or a folder."""
    assert encoder.weights is not None
    if Path(name).is_dir():
        path = str(Path(name).resolve())
    else:
        path = name
    return SourceModel(
        path,
        revision,
        dict(encoder.weights),
        encoder.config_hash(),
        encoder.dimensions,
        encoder.settings,
    )
