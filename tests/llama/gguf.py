"""Write the tiny Qwen3 of `vllm/model` as GGUF, the format of llama.cpp, in float32.

write_tiny_qwen(folder, path)                # a model that chats
write_tiny_qwen(folder, path, ranks=True)    # Qwen3-Reranker's form: P(yes) of a pair
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from claim2source.stages.pairs import Pair
from claim2source.stages.yes_no import RELEASED, write_prompt

Value = str | bool | int | float | Sequence[str] | Sequence[int]
_ALIGNMENT = 32
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_NORMAL, _CONTROL = 1, 3
_RANK = 4  # of llama.cpp's kinds of pooling
_NAMES = {
    "input_layernorm": "attn_norm",
    "mlp.down_proj": "ffn_down",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.k_proj": "attn_k",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.v_proj": "attn_v",
}


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Mapping[str, np.ndarray],
) -> None:
    """Write version 3 of GGUF; whole numbers are uint32, tensors float32."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata))
    for key, value in metadata.items():
        head += _text(key) + _value(value)
    offset = 0
    data = b""
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head += _text(name) + struct.pack("<I", len(shape))
        head += struct.pack(f"<{len(shape)}QIQ", *shape, 0, offset)
        data += _padded(np.ascontiguousarray(tensor, np.float32).tobytes())
        offset = len(data)
    path.write_bytes(_padded(head) + data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % _ALIGNMENT)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Value) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        return struct.pack("<II", _UINT32, value)
    if isinstance(value, float):
        return struct.pack("<If", _FLOAT32, value)
    items = list(value)
    kind = _STRING if isinstance(items[0], str) else _INT32
    head = struct.pack("<IIQ", _ARRAY, kind, len(items))
    if kind == _STRING:
        return head + b"".join(_text(str(item)) for item in items)
    return head + struct.pack(f"<{len(items)}i", *(int(item) for item in items))


def write_tiny_qwen(folder: Path, path: Path, *, ranks: bool = False) -> None:
    """Write the model of a folder; with `ranks` its classifier has the rows of yes and no."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokenizer = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = tokenizer["model"]["vocab"]
    metadata: dict[str, Value] = {
        "general.architecture": "qwen3",
        "general.name": "tiny",
        "general.file_type": 0,
        "qwen3.block_count": config["num_hidden_layers"],
        "qwen3.context_length": config["max_position_embeddings"],
        "qwen3.embedding_length": config["hidden_size"],
        "qwen3.feed_forward_length": config["intermediate_size"],
        "qwen3.attention.head_count": config["num_attention_heads"],
        "qwen3.attention.head_count_kv": config["num_key_value_heads"],
        "qwen3.attention.key_length": config["head_dim"],
        "qwen3.attention.value_length": config["head_dim"],
        "qwen3.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "qwen3.rope.freq_base": config["rope_parameters"]["rope_theta"],
    }
    metadata |= _tokenizer_metadata(folder, tokenizer, config["eos_token_id"])
    weights = load_file(folder / "model.safetensors")
    tensors = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    for layer in range(config["num_hidden_layers"]):
        for theirs, ours in _NAMES.items():
            name = f"model.layers.{layer}.{theirs}.weight"
            tensors[f"blk.{layer}.{ours}.weight"] = weights[name]
    if ranks:
        embeddings = weights["model.embed_tokens.weight"]
        rows = [vocabulary["yes"], vocabulary["no"]]
        tensors["cls.output.weight"] = embeddings[rows]
        metadata["qwen3.pooling_type"] = _RANK
        metadata["qwen3.classifier.output_labels"] = ["yes", "no"]
        prompt = write_prompt(Pair("{query}", "{document}"), RELEASED)
        metadata["tokenizer.chat_template.rerank"] = "".join(prompt)
    write_gguf(path, metadata, tensors)


def _tokenizer_metadata(
    folder: Path,
    tokenizer: Mapping[str, object],
    end: int,
) -> dict[str, Value]:
    model = tokenizer["model"]
    added = tokenizer["added_tokens"]
    assert isinstance(model, dict) and isinstance(added, list)
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    special = {token["id"] for token in added}
    kinds = [_CONTROL if number in special else _NORMAL for number in range(len(tokens))]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": (folder / "chat_template.jinja").read_text(encoding="utf-8"),
    }
