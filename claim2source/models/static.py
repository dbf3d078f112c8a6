"""Read static embeddings: a vector for each token, and a text is their mean (model2vec)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file
from transformers import PreTrainedModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import BaseModelOutput

from claim2source.core.errors import InputError
from claim2source.models.hub import one_line

MODEL_TYPE = "model2vec"
_WEIGHTS, _TOKENIZER, _VECTORS = "model.safetensors", "tokenizer.json", "embeddings"


class StaticDescription(transformers.PretrainedConfig):
    """Describe static embeddings, as model2vec writes their `config.json`."""

    model_type = MODEL_TYPE
    attribute_map = {"hidden_size": "hidden_dim"}


class StaticEmbeddings(PreTrainedModel):  # type: ignore[misc]
    """Look up a vector for each token; no token sees another."""

    config_class = StaticDescription

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = torch.nn.Parameter(torch.zeros(config.vocab_size, config.hidden_dim))
        self.post_init()

    def _init_weights(self, module: torch.nn.Module) -> None:
        """Leave the vectors as they are."""

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None
    ) -> BaseModelOutput:
        """Return the tokens' vectors [texts, tokens, dimensions] as the last hidden state."""
        return BaseModelOutput(torch.nn.functional.embedding(input_ids, self.embeddings))


def load_static(folder: Path) -> tuple[StaticEmbeddings, PreTrainedTokenizerFast]:
    """Load the vectors, in float32, and the tokenizer of a folder.

    A token outside the vocabulary adds nothing to its text, as in model2vec. Raises `InputError`.
    """
    try:
        config = StaticDescription.from_pretrained(folder)
        tensors = load_file(folder / _WEIGHTS)
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / _TOKENIZER))
    except Exception as error:  # libraries raise anything for files that are damaged
        raise InputError.at(folder, why=f"no static embeddings: {one_line(error)}") from None
    if _VECTORS not in tensors or tensors[_VECTORS].ndim != 2:
        raise InputError.at(folder / _WEIGHTS, field=_VECTORS, why="not a table of vectors")
    vectors = tensors[_VECTORS].float()
    # A vocabulary that was quantised: several tokens share a vector, each with its weight.
    if "mapping" in tensors:
        vectors = vectors[tensors["mapping"].long()]
    if "weights" in tensors:
        vectors = vectors * tensors["weights"].float()[:, None]
    known = tokenizer.get_vocab()
    if len(vectors) <= max(known.values(), default=0):
        why = f"{len(vectors)} vectors for a vocabulary of {max(known.values()) + 1} tokens"
        raise InputError.at(folder / _WEIGHTS, field=_VECTORS, why=why)
    vectors[[known[token] for token in _unknown(tokenizer) if token in known]] = 0.0
    config.vocab_size, config.hidden_dim = vectors.shape
    model = StaticEmbeddings(config)
    model.embeddings.data = vectors
    tokenizer.pad_token = next((token for token in ("[PAD]", "<pad>") if token in known), None)
    return model, tokenizer


def _unknown(tokenizer: PreTrainedTokenizerFast) -> list[str]:
    """Name the tokenizer's token for what it does not know, where it has one."""
    unknown = getattr(tokenizer.backend_tokenizer.model, "unk_token", None)
    return [unknown] if isinstance(unknown, str) else []
