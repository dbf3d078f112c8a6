"""Encode texts with BERT or Nomic BERT in PyTorch, its weights packed once for the processor.

For a few short texts, transformers' Python code and packing the weights for each product take
longer than the products themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from claim2source.models.numpy_encoder import NumpyEncoder, rotate

# Number of rows that weights are packed for: the tokens of a post and its sentences.
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
        self._linears: dict[str, tuple[Tensor, Tensor | None]] = {}
        has_operators = all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
        self._packs = torch.backends.mkldnn.is_available() and has_operators

        names = self.layout
        layer_count = int(self.config["num_hidden_layers"])
        for number in range(layer_count):
            layer = names.layer.format(number)
            sides = [f"{layer}.{side}" for side in names.sides]
            self._pack(layer, sides)
            for name in (names.attended, names.inner, names.gate):
                if name is None:
                    continue
                linear = f"{layer}.{name}"
                self._pack(linear, [linear])
            outer = f"{layer}.{names.outer}"
            self._pack(outer, [outer])

    def _pack(self, name: str, parts: Sequence[str]) -> None:
        weights = [self._tensors.pop(f"{part}.weight") for part in parts]
        weight = torch.cat(weights)
        bias = None
        if self.layout.biases:
            biases = [self._tensors.pop(f"{part}.bias") for part in parts]
            bias = torch.cat(biases)
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
        turns: tuple[np.ndarray, np.ndarray] | None,
    ) -> np.ndarray:
        heads = int(self.config["num_attention_heads"])
        output = self._linear(hidden, layer)
        joined_sides = output.reshape(len(hidden), 3, heads, -1)
        if turns is not None:
            cosines, sines = (turn[:, None] for turn in turns)
            query_and_key = joined_sides[:, :2]
            joined_sides[:, :2] = rotate(query_and_key, cosines, sines)

        sides = torch.from_numpy(joined_sides)
        lengths = [end - start for start, end in bounds]
        by_side = sides.permute(1, 2, 0, 3)
        attended: list[Tensor] = []
        for text in by_side.split(lengths, dim=2):
            query, key, value = text[:, None]
            result = functional.scaled_dot_product_attention(query, key, value)
            attended.append(result)

        joined = torch.cat(attended, dim=2)
        by_token = joined[0].transpose(0, 1)
        return by_token.flatten(1).numpy()

    def _linear(
        self,
        hidden: np.ndarray,
        name: str,
        then: str = "none",
    ) -> np.ndarray:
        """Apply a linear layer and the operation after it, by oneDNN if the weight is packed."""
        inputs = torch.from_numpy(hidden)
        weight, bias = self._linears[name]
        if self._packs:
            output = torch.ops.mkldnn._linear_pointwise(
                inputs,
                weight,
                bias,
                then,
                [],
                "none",
            )
            return np.asarray(output)
        output = functional.linear(inputs, weight, bias)
        if then == "gelu":
            output = functional.gelu(output)
        elif then == "swish":
            output = functional.silu(output)
        return np.asarray(output)

    def _norm(self, hidden: np.ndarray, name: str) -> np.ndarray:
        weight = self._tensors[f"{name}.weight"]
        bias = self._tensors[f"{name}.bias"]
        epsilon = float(self.config["layer_norm_eps"])
        inputs = torch.from_numpy(hidden)
        normalised = functional.layer_norm(
            inputs,
            inputs.shape[1:],
            weight,
            bias,
            epsilon,
        )
        return normalised.numpy()
