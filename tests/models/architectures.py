"""Tiny random models of today's architectures, in the layout of their publishers' folders."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.models.layout import declare
from tests.training.points import byte_level

TINY: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
_DECODER: dict[str, Any] = {"num_key_value_heads": 2, "head_dim": 8}


@dataclass(frozen=True)
class Architecture:
    """A class of transformers, its sizes, pooling, and the widths of Dense layers behind it."""

    kind: str
    sizes: dict[str, Any]
    pooling: str = "mean"
    dense: tuple[int, ...] = ()

    def save(self, folder: Path) -> Path:
        config = getattr(transformers, f"{self.kind}Config")(**TINY | self.sizes)
        model: Callable[..., Any] = getattr(transformers, f"{self.kind}Model")
        with torch.random.fork_rng():
            torch.manual_seed(4)
            model(config).save_pretrained(folder)
            byte_level(folder, pad=True)
            kinds = ["Transformer", "Pooling", *["Dense"] * len(self.dense), "Normalize"]
            prompts = {"query": "task: search | query: ", "document": "title: none | text: "}
            whole = {"prompts": prompts}
            sbert = {"max_seq_length": 96}
            declare(folder, *kinds, pooling=self.pooling, whole=whole, sbert=sbert)
            self._save_dense(folder)
        return folder

    def _save_dense(self, folder: Path) -> None:
        from sentence_transformers.sentence_transformer.modules import Dense

        width = TINY["hidden_size"]
        for number, wider in enumerate(self.dense, start=2):
            layer = Dense(width, wider, bias=False, activation_function=torch.nn.Identity())
            (folder / f"{number}_Dense").mkdir()
            layer.save(str(folder / f"{number}_Dense"))
            width = wider


# Windows of 16 tokens: texts are longer.
_GEMMA = _DECODER | {"sliding_window": 16, "query_pre_attn_scalar": 8}
ARCHITECTURES: dict[str, Architecture] = {
    "BERT": Architecture("Bert", {}),
    "XLM-R": Architecture("XLMRoberta", {"max_position_embeddings": 130, "type_vocab_size": 1}),
    "Nomic": Architecture("NomicBert", {}),
    "ModernBERT": Architecture(
        "ModernBert", {"local_attention": 16, "global_attn_every_n_layers": 2}, "cls"
    ),
    "Qwen3": Architecture("Qwen3", _DECODER, "lasttoken"),
    "EmbeddingGemma": Architecture(
        "Gemma3Text", _GEMMA | {"use_bidirectional_attention": True}, "mean", (48, 24)
    ),
    "Harrier": Architecture("Gemma3Text", _GEMMA, "lasttoken"),
}
