"""Decoders small enough for tests: a Mistral-style tokenizer and tiny random models around it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

from tests.models.layout import change_json

INSTRUCTION = "Given a scientific claim from a social media post, retrieve the source paper"
CLAIM, SOURCE = f"<|user|>\n{INSTRUCTION}\n<|embed|>\n", "<|embed|>\n"
SPECIALS = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
LETTERS = "▁!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[]_`abcdefghijklmnopqrstuvwxyz{|}~éü"
_PAIRS = "u s,e r,us er,e m,b e,em be,embe d,▁ <,t h,th e,▁ the,▁ ▁,i n,a b"
MERGES = [tuple(pair.split()) for pair in _PAIRS.split(",")]
# Of a decoder's layers: two heads of queries share one of keys.
SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}
VOCABULARY = list(dict.fromkeys([*SPECIALS, *BYTES, *LETTERS, *("".join(m) for m in MERGES)]))


def save_tokenizer(folder: Path, *, adds_eos: bool = False, **config: Any) -> None:
    """SentencePiece's BPE as in Mistral's files: "▁" as a prefix, bytes for the rest, BOS."""
    vocabulary = {token: i for i, token in enumerate(VOCABULARY)}
    core = Tokenizer(
        models.BPE(vocabulary, MERGES, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    end = " </s>" if adds_eos else ""
    core.post_processor = processors.TemplateProcessing(
        single=f"<s> $A{end}", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    core.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "LlamaTokenizer",
        "add_bos_token": True,
        "add_eos_token": adds_eos,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "legacy": True,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | config))


def save_mistral(folder: Path, seed: int = 0, **config: Any) -> Path:
    """A causal language model as in GritLM's repository, which also declares its own code."""
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"vocab_size": len(VOCABULARY)} | SIZES
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        MistralForCausalLM(MistralConfig(**sizes | config)).save_pretrained(folder)
    declare_code(folder, {"AutoModel": "modeling_gritlm.MistralModel"})
    save_tokenizer(folder)
    return folder


def declare_code(folder: Path, auto_map: Any, file: str = "config.json") -> None:
    """Make `file` of a model's folder point to code, as a model with its own code does."""
    change_json(folder / file, auto_map=auto_map)
