"""Encode sources with the base model where only the claims' side was trained."""

from __future__ import annotations

from typing import Any

import torch

from claim2source.models.config import Identity
from claim2source.models.encoder import Encoder


class WithoutAdapter(torch.nn.Module):
    """Run a peft model without its adapter: the base model, with no second copy of it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tuned = model

    @property
    def training(self) -> bool:
        """Return the tuned model's mode."""
        return bool(self.tuned.training)

    @training.setter
    def training(self, mode: bool) -> None:
        """Keep no mode of its own: `train` passes it on to the tuned model."""

    @property
    def config(self) -> Any:
        """Return the base model's config."""
        return self.tuned.config

    def forward(self, **inputs: Any) -> Any:
        """Compute the base model's output."""
        with self.tuned.disable_adapter():
            return self.tuned(**inputs)


def base_encoder(encoder: Encoder, weights: Identity | None) -> Encoder:
    """Return an encoder of the base beneath an adapter; `weights` identify the base's."""
    model: Any = WithoutAdapter(encoder.model)
    base = Encoder(model, encoder.tokenizer, encoder.settings, weights)
    base.name = encoder.name
    return base
