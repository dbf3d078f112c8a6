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
        self,
        tokenizer: Any,
        table: Any,
        weights: Mapping[str, np.ndarray],
        *described: Any,
    ) -> None:
        super().__init__(tokenizer, table, weights, *described)
        self._tensors = {name: torch.from_numpy(weight) for name, weight in weights.items()}
        self._linears: dict[str, tuple[Tensor, Tensor]] = {}
        has_operators = all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
        self._packs = torch.backends.mkldnn.is_available() and has_operators
        for number in range(int(self.config["num_hidden_layers"])):
            layer = f"encoder.layer.{number}"
            self._pack(f"{layer}.attention.self", (".query", ".key", ".value"))
            for name in ("attention.output", "intermediate", "output"):
                self._pack(f"{layer}.{name}.dense", ("",))

    def _pack(self, name: str, parts: Sequence[str]) -> None:
        weight = torch.cat([self._tensors.pop(f"{name}{part}.weight") for part in parts])
        bias = torch.cat([self._tensors.pop(f"{name}{part}.bias") for part in parts])
        if self._packs:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS)
        self._linears[name] = weight, bias

    @torch.inference_mode()
    def _vectors(self, ids: Sequence[Sequence[int]]) -> np.ndarray:
        return super()._vectors(ids)

    def _attention(
        self,
        hidden: np.ndarray,
        layer: str,
        bounds: Sequence[tuple[int, int]],
    ) -> np.ndarray:
        heads = int(self.config["num_attention_heads"])
        sides = torch.from_numpy(self._linear(hidden, layer)).unflatten(1, (3, heads, -1))
        lengths = [end - start for start, end in bounds]
        attended: list[Tensor] = []
        for text in sides.permute(1, 2, 0, 3).split(lengths, dim=2):
            query, key, value = text[:, None]
            attended.append(functional.scaled_dot_product_attention(query, key, value))
        joined = torch.cat(attended, dim=2)
        return joined[0].transpose(0, 1).flatten(1).numpy()

    def _linear(
        self,
        hidden: np.ndarray,
        name: str,
        then: str = "none",
    ) -> np.ndarray:
        """Apply a linear layer and what follows it; oneDNN has the weight packed, if it is."""
        inputs = torch.from_numpy(hidden)
        weight, bias = self._linears[name]
        if self._packs:
            output = torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, then, [], "none")
        else:
            output = functional.linear(inputs, weight, bias)
            if then == "gelu":
                output = functional.gelu(output)
        return np.asarray(output)

    def _norm(self, hidden: np.ndarray, name: str) -> np.ndarray:
        weight = self._tensors[f"{name}.weight"]
        bias = self._tensors[f"{name}.bias"]
        epsilon = float(self.config["layer_norm_eps"])
        inputs = torch.from_numpy(hidden)
        return functional.layer_norm(inputs, inputs.shape[1:], weight, bias, epsilon).numpy()
