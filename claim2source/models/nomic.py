"""Translate the config of a Nomic BERT model by its authors for transformers' own class.

Their config has names of its own, which transformers ignores: it would take its defaults instead.
Its class has the one form below; the authors' code has others too.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from claim2source.core.errors import InputError

KIND = "nomic_bert"
# Their names of sizes -> transformers' names.
_SIZES = {
    "n_embd": "hidden_size",
    "n_layer": "num_hidden_layers",
    "n_head": "num_attention_heads",
    "n_inner": "intermediate_size",
    "layer_norm_epsilon": "layer_norm_eps",
    "max_trained_positions": "max_position_embeddings",
}
_BASE = "rotary_emb_base"
_HAS_FORM = {
    "activation_function": ("swiglu",),
    "causal": (False,),
    "mlp_fc1_bias": (False,),
    "mlp_fc2_bias": (False,),
    "num_experts": (0, 1, None),
    "parallel_block": (False,),
    "prenorm": (False,),
    "qkv_proj_bias": (False,),
    "rotary_emb_fraction": (1, None),
    "rotary_emb_interleaved": (False,),
    "rotary_scaling_factor": (None,),
    "use_rms_norm": (False, None),
}


def native_values(config: Mapping[str, object], file: Path) -> dict[str, object]:
    """Translate a config with the authors' names to transformers' names; any other gives {}.

    Raises `InputError` for a variant of the model that transformers' class does not have.
    """
    if "n_embd" not in config:
        return {}
    for key, allowed in _HAS_FORM.items():
        if key in config and config[key] not in allowed:
            reason = f"{config[key]!r} is not supported; transformers' class has {allowed[0]!r}"
            raise InputError(file, field=key, reason=reason)
    values: dict[str, object] = {}
    for theirs, ours in _SIZES.items():
        if config.get(theirs) is not None:
            values[ours] = config[theirs]
    width, heads = config["n_embd"], config.get("n_head")
    if not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or width % heads:
        reason = f"{heads!r} is not a number of heads that divides {width!r}"
        raise InputError(file, field="n_head", reason=reason)
    values["head_dim"] = width // heads
    base = config.get(_BASE)
    if base is not None:
        values["rope_parameters"] = {"rope_type": "default", "rope_theta": base}
    return values
