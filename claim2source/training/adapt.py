"""Making a loaded model trainable: adapters or every weight, dropout, checkpointing."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from claim2source.core.errors import ConfigError
from claim2source.models import Encoder
from claim2source.training.config import FinetuneConfig

if TYPE_CHECKING:
    from peft import PeftModel


def adapt(encoder: Encoder, config: FinetuneConfig) -> None:
    """Prepare `encoder.model` for training as the config says; the base stays pristine.

    Adapters are float32 whatever the base's type (`model.dtype`, or 4 bits with qlora). Raises
    `ConfigError` when a LoRA target names no layer of the model, or the model cannot be
    trained so.
    """
    check_adaptable(encoder, config)
    if config.optimisation.dropout is not None:
        set_dropout(encoder.model, config.optimisation.dropout)
    if config.tuning == "full":
        encoder.model.requires_grad_(True)
    else:
        encoder.model = _with_adapter(encoder, config)  # type: ignore[assignment]
    if config.optimisation.gradient_checkpointing:
        # Not reentrant: a frozen first block would pass no gradient on.
        encoder.model.gradient_checkpointing_enable({"use_reentrant": False})


def check_adaptable(encoder: Encoder, config: FinetuneConfig) -> None:
    """Raise `ConfigError` as `adapt` does, and do nothing else."""
    if config.tuning == "full":
        if encoder.settings.own_code:
            allowed = "lora: a full checkpoint does not carry the code that this model ships"
            raise ConfigError("tuning", config.tuning, allowed)
        return
    layers = dict(encoder.model.named_modules())
    for name in config.lora.targets:
        if not any(path == name or path.endswith(f".{name}") for path in layers):
            linear = {
                path.rsplit(".", 1)[-1]
                for path, module in layers.items()
                if isinstance(module, torch.nn.Linear)
            }
            allowed = "layers of this model: " + ", ".join(sorted(linear))
            raise ConfigError("lora.targets", name, allowed)


def frozen_copy(encoder: Encoder) -> Encoder:
    """The encoder as it is now, with weights of its own that nothing will move."""
    model = copy.deepcopy(encoder.model).eval().requires_grad_(False)
    return Encoder(model, encoder.tokenizer, encoder.settings, encoder.weights)


def set_dropout(model: torch.nn.Module, rate: float) -> None:
    """Set every dropout of a model, those kept as plain numbers by attention layers included."""
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate
        if isinstance(getattr(module, "attention_dropout", None), float):
            module.attention_dropout = rate  # type: ignore[assignment]


def _with_adapter(encoder: Encoder, config: FinetuneConfig) -> PeftModel:
    from peft import LoraConfig, get_peft_model

    return get_peft_model(
        encoder.model,
        LoraConfig(
            r=config.lora.r,
            lora_alpha=config.lora.alpha,
            lora_dropout=config.lora.dropout,
            target_modules=list(config.lora.targets) or "all-linear",
        ),
        # 16-bit adapters would lose steps smaller than their last digit.
        autocast_adapter_dtype=True,
    )
