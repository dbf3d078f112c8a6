"""Encode texts with a BERT model in PyTorch, its weights packed once for the processor's products.

For a few short texts transformers' own calls, and packing weights for each product, take longer
than the products themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from claim2source.models.numpy_encoder import NumpyEncoder

# Rows that weights are packed for: the tokens of a post and its sentences.
_ROWS = 64
_OPERATORS = ("_linear_pointwise", "_reorder_linear_weight")


class PrepackedEncoder(NumpyEncoder):
    """Encode texts as a `NumpyEncoder` does, with PyTorch's operators on the CPU."""

    def __init__(
        self, tokenizer: Any, table: Any, weights: Mapping[str, np.ndarray], *described: Any
    ) -> None:
        super().__init__(tokenizer, table, {}, *described)
        tensors = {name: torch.from_numpy(weight) for name, weight in weights.items()}
        self._embeddings = {name: tensors[f"embeddings.{name}"] for name in _EMBEDDINGS}
        self._layers = [_Layer(tensors, f"encoder.layer.{i}") for i in range(self._depth)]

    @property
    def _depth(self) -> int:
        return int(self.config["num_hidden_layers"])

    @torch.inference_mode()
    def _vectors(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        lengths, epsilon = [len(text) for text in ids], float(self.config["layer_norm_eps"])
        words = np.concatenate([self._table[i : i + 1] for text in ids for i in text])
        positions = torch.cat([torch.arange(length) for length in lengths])
        hidden = torch.from_numpy(words) + self._embeddings["position_embeddings.weight"][positions]
        hidden += self._embeddings["token_type_embeddings.weight"][0]
        norm = self._embeddings["LayerNorm.weight"], self._embeddings["LayerNorm.bias"]
        hidden = functional.layer_norm(hidden, hidden.shape[1:], *norm, epsilon)
        for layer in self._layers:
            hidden = layer(hidden, lengths, int(self.config["num_attention_heads"]), epsilon)
        return self._pool(hidden.numpy(), lengths)


_EMBEDDINGS = (
    "position_embeddings.weight",
    "token_type_embeddings.weight",
    "LayerNorm.weight",
    "LayerNorm.bias",
)


class _Layer:
    def __init__(self, tensors: Mapping[str, Tensor], name: str) -> None:
        def pair(*parts: str) -> tuple[Tensor, Tensor]:
            weight, bias = (
                torch.cat([tensors[f"{name}.{part}.{kind}"] for part in parts])
                for kind in ("weight", "bias")
            )
            return weight, bias

        self.inputs = _Linear(*pair(*(f"attention.self.{s}" for s in ("query", "key", "value"))))
        self.attended = _Linear(*pair("attention.output.dense"))
        self.inner = _Linear(*pair("intermediate.dense"), "gelu")
        self.outer = _Linear(*pair("output.dense"))
        self.norms = pair("attention.output.LayerNorm"), pair("output.LayerNorm")

    def __call__(
        self, hidden: Tensor, lengths: Sequence[int], heads: int, epsilon: float
    ) -> Tensor:
        """Compute a layer for the texts of a row [tokens, width]; attention keeps them apart."""
        sides = self.inputs(hidden).unflatten(1, (3, heads, -1)).permute(1, 2, 0, 3)
        texts = sides.split(list(lengths), dim=2)
        attended = torch.cat(
            [functional.scaled_dot_product_attention(*text[:, None]) for text in texts], dim=2
        )
        attended = attended[0].transpose(0, 1).flatten(1)
        first, second = self.norms
        hidden = functional.layer_norm(
            self.attended(attended) + hidden, hidden.shape[1:], *first, epsilon
        )
        outer = self.outer(self.inner(hidden))
        return functional.layer_norm(outer + hidden, hidden.shape[1:], *second, epsilon)


class _Linear:
    """Apply a linear layer and what follows it; oneDNN packs the weight where PyTorch has it."""

    def __init__(self, weight: Tensor, bias: Tensor, then: str = "none") -> None:
        operators = torch.ops.mkldnn
        self.packed = torch.backends.mkldnn.is_available() and all(
            hasattr(operators, name) for name in _OPERATORS
        )
        self.weight, self.bias, self.then = weight, bias, then
        if self.packed:
            self.weight = operators._reorder_linear_weight(weight, _ROWS)

    def __call__(self, inputs: Tensor) -> Tensor:
        if self.packed:
            output: Tensor = torch.ops.mkldnn._linear_pointwise(
                inputs, self.weight, self.bias, self.then, [], "none"
            )
            return output
        output = functional.linear(inputs, self.weight, self.bias)
        return functional.gelu(output) if self.then == "gelu" else output
