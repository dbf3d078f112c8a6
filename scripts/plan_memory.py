"""Estimate a training step's memory: weights, optimizer states, what is kept of a token."""

from __future__ import annotations

from dataclasses import dataclass

from transformers import PreTrainedModel

from claim2source.training.config import FinetuneConfig
from scripts.flops import ModelShape

GIB, MIB = 2**30, 2**20
# Of a trained weight: itself, its gradient and AdamW's two means, in fp32.
TRAINED = 16
DTYPES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# NF4 with its scales.
FOUR_BITS = 0.56


@dataclass(frozen=True)
class Memory:
    """Bytes that a device holds in training.

    Args:
        weights: of what is not trained.
        states: of what is trained: weights, gradients, AdamW's means.
        a_token: what the forward pass keeps of each token until its gradient is known.
        tokens: that are kept at once.
        recomputed: what one layer keeps while its gradient is computed, with checkpointing.
    """

    weights: float
    states: float
    a_token: float
    tokens: int
    recomputed: float = 0.0

    @property
    def total(self) -> float:
        """Add everything."""
        return self.weights + self.states + self.tokens * (self.a_token + self.recomputed)

    def __str__(self) -> str:
        kept = f"{self.a_token / MIB:,.2f} MiB a token"
        if self.recomputed:
            kept += f" and {self.recomputed / MIB:,.2f} of the layer that is computed again"
        return (
            f"{self.weights / GIB:,.1f} GiB of weights, {self.states / GIB:,.1f} GiB of trained "
            f"ones with AdamW's means, {kept}, {self.tokens:,} tokens at once: "
            f"{self.total / GIB:,.1f} GiB"
        )

    @classmethod
    def of(
        cls, model: PreTrainedModel, shape: ModelShape, config: FinetuneConfig, tokens: int
    ) -> Memory:
        """Estimate what a config needs where so many tokens are in the forward pass at once."""
        size = DTYPES[config.model.dtype]
        if config.tuning == "qlora":
            size = FOUR_BITS
        whole = sum(parameter.numel() for parameter in model.parameters())
        trained = float(shape.adapters)
        if config.tuning == "full":
            train, embeddings = config.optimisation, model.get_input_embeddings()
            trained = float(whole)
            if train.train_layers is not None:
                layers = shape.linear / shape.layers
                trained = layers * min(train.train_layers, shape.layers)
            elif not train.train_embeddings:
                trained -= sum(parameter.numel() for parameter in embeddings.parameters())
        frozen = whole - trained if config.tuning == "full" else float(whole)
        a_layer = bytes_per_token(model, config)
        checkpointed = config.optimisation.gradient_checkpointing
        width = 2 if config.optimisation.precision == "bf16" or size < 4 else 4
        kept = model.config.hidden_size * width if checkpointed else a_layer
        return cls(
            frozen * size,
            trained * TRAINED,
            kept * shape.layers,
            tokens,
            a_layer if checkpointed else 0.0,
        )


def bytes_per_token(model: PreTrainedModel, config: FinetuneConfig) -> float:
    """Count what a layer keeps of a token until its gradients are known, in bytes.

    LoRA's dropout keeps its mask and its output for every adapter, 4 bytes of each input.
    """
    made = model.config
    hidden, inner = made.hidden_size, made.intermediate_size
    head = getattr(made, "head_dim", None) or hidden // made.num_attention_heads
    queries = head * made.num_attention_heads
    keys = head * (getattr(made, "num_key_value_heads", None) or made.num_attention_heads)
    bf16 = config.optimisation.precision == "bf16" or config.model.dtype != "float32"
    size = 2 if bf16 else 4
    gated = any(name.endswith("gate_proj") for name, _ in model.named_modules())
    # Inputs of attention, its three projections, its output; the inner layer's input and values:
    # with a gate, both halves, the activation and their product.
    values = hidden + queries + 2 * keys + queries + hidden + (4 if gated else 2) * inner
    # A layer norm keeps its input; an RMS norm also a copy in fp32 and its normalised value.
    norm = (8 if bf16 else 2 * size) if gated else size
    kept = float(size * values + 2 * hidden * norm)
    if config.tuning != "full" and config.lora.dropout:
        inputs = {"o_proj": queries, "down_proj": inner}
        names = config.lora.targets or (
            *("q_proj", "k_proj", "v_proj", "o_proj"),
            *(("gate_proj", "up_proj", "down_proj") if gated else ("up_proj", "down_proj")),
        )
        kept += 4 * sum(inputs.get(name, hidden) for name in names)
    return kept
