"""Compare encoding and a training step with sentence-transformers, by architecture.

Models have random weights of one size, MiniLM's tokenizer and one length. Both sides run in turn on
the same texts and threads, and their vectors agree (1e-4). A step is a forward and backward pass of
16 claims and their documents, over all weights. `ratio` is the peer's total time divided by ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from claim2source.core.config import Number, list_field, require_one_of
from claim2source.models import Encoder, EncoderSettings, ModelConfig, resolve
from claim2source.models.config import Pooling
from claim2source.training.export.sentence_transformers import write_modules
from scripts.benches import common
from scripts.benches.common import DataBench, Measured, Watch

STEP = 16
# Size of a head; three heads of queries share one of keys.
HEAD = 32
SHARED = 3
_DECODER: dict[str, Any] = {
    "head_dim": HEAD,
    "pad_token_id": 0,
}
_GEMMA: dict[str, Any] = {
    **_DECODER,
    "query_pre_attn_scalar": HEAD,
}
_BIDIRECTIONAL_GEMMA: dict[str, Any] = {
    **_GEMMA,
    "use_bidirectional_attention": True,
}
# Name -> transformers' class, config values besides sizes, pooling.
MODELS: dict[str, tuple[str, dict[str, Any], Pooling]] = {
    "BERT": ("Bert", {}, "mean"),
    "XLM-R": ("XLMRoberta", {"type_vocab_size": 1}, "mean"),
    "Nomic BERT": ("NomicBert", {}, "mean"),
    "ModernBERT": ("ModernBert", {"pad_token_id": 0}, "mean"),
    "Qwen3": ("Qwen3", _DECODER, "last"),
    "EmbeddingGemma": ("Gemma3Text", _BIDIRECTIONAL_GEMMA, "mean"),
    "Gemma 3": ("Gemma3Text", _GEMMA, "last"),
}


@dataclass(frozen=True)
class Config(DataBench):
    """Settings of `scripts/bench.py architectures`.

    Args:
        documents: number of sources to draw, besides the `claims`.
        width: size of a token's vector.
    """

    documents: Number = 48
    claims: Number = 96
    width: Number = 384
    layers: Number = 6
    models: tuple[str, ...] = list_field(
        tuple(MODELS),
        help="architectures, by name",
    )

    def check(self) -> None:
        for name in self.models:
            require_one_of("models", name, list(MODELS))


def run(config: Config) -> Measured:
    documents, claims = config.texts(config.documents, config.claims)
    texts = documents + claims
    pairs = min(STEP, len(claims), len(documents))
    step_claims = claims[:pairs]
    step_documents = documents[:pairs]

    whole = Watch(config.clock)
    table: dict[str, object] = {}
    for name in config.models:
        with tempfile.TemporaryDirectory() as folder:
            pair = _Pair(name, Path(folder), config)
        difference = pair.compare(texts)
        watch = Watch(config.clock)
        sides: dict[str, Callable[[], Any]] = {
            "ours encode": partial(pair.ours.encode, texts, "source"),
            "peer encode": partial(pair.peer_vectors, texts),
            "ours step": partial(pair.our_step, step_claims, step_documents),
            "peer step": partial(pair.peer_step, step_claims, step_documents),
        }
        watch.take_turns(sides, config.repeats)
        table[name] = {
            **watch.ratio("peer encode", "ours encode", "encode_"),
            **watch.ratio("peer step", "ours step", "step_"),
            "packed": pair.ours.packs,
            "largest_difference": difference,
            "seconds": watch.medians,
        }
        for part, seconds in watch.seconds.items():
            whole.seconds[f"{part} {name}"] = seconds

    return {
        **whole.ratio("peer"),
        "architectures": table,
    }


class _Pair:
    """Load one random model twice, here and in sentence-transformers."""

    def __init__(self, name: str, folder: Path, config: Config) -> None:
        import transformers
        from sentence_transformers import SentenceTransformer

        kind, values, pooling = MODELS[name]
        base = resolve(ModelConfig(common.MINILM), "cpu")
        tokenizer = base.encoder.tokenizer
        heads = max(1, config.width // HEAD)
        sizes: dict[str, Any] = {
            "vocab_size": len(tokenizer),
            "hidden_size": config.width,
            "num_hidden_layers": config.layers,
            "num_attention_heads": heads,
            "intermediate_size": 4 * config.width,
            "max_position_embeddings": 514,
            "initializer_range": 0.1,
            **values,
        }
        if "head_dim" in values:
            sizes["num_key_value_heads"] = max(1, heads // SHARED)

        torch.manual_seed(common.SEED)
        config_class = getattr(transformers, f"{kind}Config")
        model_config = config_class(**sizes)
        model_class = getattr(transformers, f"{kind}Model")
        model_class(model_config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        max_length = base.encoder.settings.max_length
        settings = EncoderSettings(pooling, max_length=max_length)
        write_modules(folder, settings, config.width)

        self.name = name
        place = str(folder)
        self.ours: Encoder = resolve(ModelConfig(place), "cpu").encoder
        self.peer: Any = SentenceTransformer(place, device="cpu")

    def compare(self, texts: list[str]) -> float:
        ours, _ = self.ours.encode(texts, "source")
        theirs = self.peer_vectors(texts)
        return common.largest_difference(ours, theirs, 1e-4, self.name)

    def peer_vectors(self, texts: list[str]) -> np.ndarray:
        vectors = self.peer.encode(texts, show_progress_bar=False)
        return np.asarray(vectors)

    def our_step(self, claims: list[str], documents: list[str]) -> None:
        self.ours.model.requires_grad_(True)
        claim_tokens = self.ours.tokenize(claims, "claim")
        document_tokens = self.ours.tokenize(documents, "source")
        tokens = claim_tokens + document_tokens

        order: list[int] = []
        parts: list[Tensor] = []
        for rows in self.ours.length_batches(tokens):  # as in training
            picked = [tokens[row] for row in rows]
            batch = self.ours.batch(picked)
            parts.append(self.ours.vectors(batch))
            order += rows
        places = torch.tensor(order).argsort()
        vectors = torch.cat(parts)[places]
        _step(vectors, self.ours.model)

    def peer_step(self, claims: list[str], documents: list[str]) -> None:
        halves: list[Tensor] = []
        for texts in (claims, documents):  # one side at a time, like its trainer
            features = self.peer.preprocess(texts)
            output = self.peer(features)
            halves.append(output["sentence_embedding"])
        _step(torch.cat(halves), self.peer)


def _step(vectors: Tensor, model: torch.nn.Module) -> None:
    claims, documents = vectors.chunk(2)
    scores = claims @ documents.T / 0.05
    golds = torch.arange(len(scores))
    loss = torch.nn.functional.cross_entropy(scores, golds)
    loss.backward()
    for parameter in model.parameters():
        parameter.grad = None
