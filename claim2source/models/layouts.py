"""Name the tensors and defaults of the models that run without transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layout:
    """Names of a model's tensors: those of a layer follow `layer`, with its number for `{}`.

    `sides` are the linear layers of query, key and value, or one for all three. If there is a
    `gate`, its SiLU multiplies the inner layer's output; else that passes a GELU. `rotates`:
    positions rotate queries and keys; else they have a table. `biases`: linear layers have biases.
    `defaults` are transformers' values of keys that a config lacks. A config with another value of
    a key in `fixed` belongs to another model.
    """

    layer: str
    sides: tuple[str, ...]
    attended: str
    attention_norm: str
    inner: str
    gate: str | None
    outer: str
    output_norm: str
    embedding_norm: str
    rotates: bool
    biases: bool
    fixed: Mapping[str, object] = field(repr=False)
    defaults: Mapping[str, object] = field(repr=False)


_DEFAULTS: Mapping[str, object] = {
    "bos_token_id": None,
    "classifier_dropout": None,
    "eos_token_id": None,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "type_vocab_size": 2,
}
_BERT = Layout(
    layer="encoder.layer.{}",
    sides=("attention.self.query", "attention.self.key", "attention.self.value"),
    attended="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    inner="intermediate.dense",
    gate=None,
    outer="output.dense",
    output_norm="output.LayerNorm",
    embedding_norm="embeddings.LayerNorm",
    rotates=False,
    biases=True,
    fixed={
        "model_type": "bert",
        "hidden_act": "gelu",
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
    defaults={
        **_DEFAULTS,
        "add_cross_attention": False,
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "is_decoder": False,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "vocab_size": 30522,
    },
)
_NOMIC = Layout(
    layer="encoder.layers.{}",
    sides=("attn.Wqkv",),
    attended="attn.out_proj",
    attention_norm="norm1",
    inner="mlp.fc11",
    gate="mlp.fc12",
    outer="mlp.fc2",
    output_norm="norm2",
    embedding_norm="emb_ln",
    rotates=True,
    biases=False,
    fixed={"model_type": "nomic_bert", "hidden_act": "silu"},
    defaults={
        **_DEFAULTS,
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "max_position_embeddings": 2048,
        "vocab_size": 30528,
    },
)
LAYOUTS: Mapping[object, Layout] = {"bert": _BERT, "nomic_bert": _NOMIC}


def rotation_base(config: Mapping[str, object]) -> float | None:
    """Return the base of a config's rotations; None for rotations of another kind."""
    parameters = config.get("rope_parameters")
    if not isinstance(parameters, Mapping) or parameters.get("rope_type") != "default":
        return None
    base = parameters.get("rope_theta")
    if not isinstance(base, int | float) or parameters.keys() != {"rope_type", "rope_theta"}:
        return None
    return float(base)
