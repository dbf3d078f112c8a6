"""Checkpoints without training: tiny models with randomly changed weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from claim2source.models import (
    Encoder,
    Manifest,
    ModelConfig,
    Template,
    Weights,
    resolve,
    tokenizer_hash,
)
from claim2source.text import Rendering
from claim2source.training.checkpoint import save_checkpoint

# None of these is a default, and the two sides differ, so that mistakes are noticed.
TEMPLATE = Template("query : a ", "passage : b c ", True)
RENDERING = Rendering("bilingual", "title_abstract")


def config(folder: Path, **changes: Any) -> ModelConfig:
    """How the tiny model of `save_tiny` is read."""
    settings = {"pooling": "mean", "normalize": True, "max_length": 12, "template": TEMPLATE}
    return ModelConfig(str(folder), **settings | changes)  # type: ignore[arg-type]


def write_point(
    model: ModelConfig, folder: Path, kind: str, move: float = 0.3, seed: int = 1, **adapter: Any
) -> Encoder:
    """Disturb and save a checkpoint; returns its encoder as it is in memory."""
    from peft import LoraConfig, get_peft_model

    resolved = resolve(model, "cpu")
    encoder = resolved.encoder
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)  # an adapter's beginning is random too
        if kind == "lora":
            keys = {"r": 2, "lora_alpha": 8, "target_modules": "all-linear", "lora_dropout": 0.1}
            lora = LoraConfig(**keys | adapter)  # type: ignore[arg-type]
            encoder.model = get_peft_model(encoder.model, lora)  # type: ignore[assignment]
        if kind != "base":
            for parameter in encoder.model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * move)
    encoder.model.eval()
    manifest = Manifest(
        base=resolved.base,
        weights=Weights(),
        encoder=encoder.settings,
        rendering=RENDERING,
        epoch=1,
    )
    checkpoint = save_checkpoint(folder, encoder, resolved.folder, manifest, kind)
    encoder.weights = checkpoint.weights.identity(
        {"base": resolved.base.sha256, "tokenizer": tokenizer_hash(resolved.folder)}
    )
    return encoder


def byte_level(folder: Path, join: str | None = None, pad: bool = False) -> None:
    """A byte-level tokenizer with an end token; `join` is a letter that takes the space before."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = ["<unk>", "</s>", *alphabet, *([f"Ġ{join}"] if join else [])]
    vocabulary = {word: i for i, word in enumerate(words)}
    core = Tokenizer(models.BPE(vocabulary, [("Ġ", join)] if join else []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    extra = {"pad_token": "<unk>"} if pad else {}
    PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="</s>", unk_token="<unk>", **extra
    ).save_pretrained(folder)
