"""One side trained: claims by the tuned model, sources by its base."""

from __future__ import annotations

from typing import Any

import torch

from claim2source.models.encoder import Encoder


class WithoutAdapter(torch.nn.Module):
    """A peft model seen without its adapter: the base model, with no second copy of it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.tuned = model

    @property
    def training(self) -> bool:
        """The tuned model's mode: there are no layers here but its own."""
        return bool(self.tuned.training)

    @training.setter
    def training(self, mode: bool) -> None:
        """Nothing to note: `train` passes it on to the tuned model."""

    @property
    def config(self) -> Any:
        """The base model's config."""
        return self.tuned.config

    def forward(self, **inputs: Any) -> Any:
        """The base model's output."""
        with self.tuned.disable_adapter():
            return self.tuned(**inputs)


def base_side(encoder: Encoder, weights: dict[str, Any] | None) -> Encoder:
    """The base model of an encoder that carries an adapter; `weights` are the base's."""
    model: Any = WithoutAdapter(encoder.model)
    return Encoder(model, encoder.tokenizer, encoder.settings, weights)
