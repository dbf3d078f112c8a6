"""Run module classes that a sentence-transformers folder ships, if they are allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from claim2source.core.errors import InputError
from claim2source.models.config import EncoderSettings
from claim2source.models.encoder import Encoder
from claim2source.models.hub import MODULES
from claim2source.models.tokens import TokenBatch

# Texts for which the author's module and ours must agree.
_PROBES = ("a claim", "Masks in schools. A trial of 31 schools.")
# Largest difference of two vectors of a token, as a share of the largest number.
_ROUNDING = 1e-4
_IN_16_BITS = 0.05


class OwnModules(torch.nn.Module):
    """Turn token vectors into a text's vector by all modules after the transformer."""

    def __init__(self, parts: Sequence[Any]) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList(parts)
        self.out_features = 0

    @torch.inference_mode()
    def measure(self, encoder: Encoder) -> None:
        """Measure and set the length of a vector."""
        batch = encoder.collate(encoder.tokenize(_PROBES[:1], "claim")).to(encoder.device)
        self.out_features = int(self(encoder.hidden(batch), batch).shape[1])

    def forward(self, hidden: Tensor, batch: TokenBatch) -> Tensor:
        """Compute vectors [n, dimensions] of token vectors [n, tokens, width], in float32."""
        features: dict[str, Any] = {
            "input_ids": batch.input_ids,
            "attention_mask": batch.attention_mask,
            "token_embeddings": hidden.float(),
        }
        for part in self.parts:
            features = part(features)
        vectors: Tensor = features["sentence_embedding"]
        return vectors.float()


def require_same_transformer(
    encoder: Encoder,
    part: Any,
    kind: str,
    folder: Path,
) -> None:
    """Raise `InputError` if the author's own Transformer encodes texts differently."""
    part = part.eval().to(encoder.device)
    tokenize = getattr(part, "preprocess", None) or part.tokenize
    settings = encoder.settings
    plain = copy(encoder)
    plain.settings = replace(settings, template=replace(settings.template, claim=""))
    for text in _PROBES:
        if not _reads_alike(plain, part, tokenize([text]), text):
            reason = f"{kind} does not encode texts like sentence-transformers' Transformer"
            raise InputError(folder / MODULES, field="type", reason=f"{reason}: not supported")


def _reads_alike(
    encoder: Encoder,
    part: Any,
    features: Mapping[str, Any],
    text: str,
) -> bool:
    """Whether an encoder and `part` return the same tokens and token vectors for a text."""
    tokens = encoder.tokenize([text], "claim")
    if features["input_ids"].tolist() != [list(row.ids) for row in tokens]:
        return False
    with torch.inference_mode():
        batch = encoder.collate(tokens).to(encoder.device)
        ours = encoder.hidden(batch).float()
        moved = {key: _moved(value, encoder.device) for key, value in features.items()}
        theirs = part(moved)["token_embeddings"].float()
    share = _ROUNDING if encoder.settings.dtype == "float32" else _IN_16_BITS
    difference = float((ours - theirs).abs().max())
    return difference <= share * float(theirs.abs().max())


def _moved(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device)
    return value


def require_pooled_prompts(
    settings: EncoderSettings,
    parts: Sequence[Any],
    folder: Path,
) -> None:
    """Raise `InputError` for a prompt that the author's own modules should leave out of pooling."""
    template = settings.template
    if not (template.claim or template.source):
        return
    left_out = any(getattr(part, "include_prompt", True) is False for part in parts)
    if left_out or template.pool_prefix is not True:
        reason = "the author's own modules pool the prompt too; set model.prompts: false"
        raise InputError(folder / MODULES, field="type", reason=reason)
