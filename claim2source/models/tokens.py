"""Define tokenized texts and padded batches, and group texts of like length."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Part = TypeVar("Part", bound="DataclassInstance")


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of one text; the first `skip` are not pooled.

    `types` are the tokens' types; empty if the tokenizer gives every token of a text the type 0.
    """

    ids: tuple[int, ...]
    skip: int = 0
    types: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Padded tensors [n, longest]: ids, attention mask, and mask of the pooled tokens.

    `token_types` are None if all are 0.
    """

    input_ids: Tensor
    attention_mask: Tensor
    pool_mask: Tensor
    token_types: Tensor | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> TokenBatch:
        return changed(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> TokenBatch:
        """Copy the batch to memory that a GPU reads while it computes."""
        return changed(self, Tensor.pin_memory)

    @property
    def real_tokens(self) -> int:
        return int(self.attention_mask.sum())

    @property
    def padded_tokens(self) -> int:
        return self.input_ids.numel()


def changed(part: Part, change: Callable[[Tensor], Tensor]) -> Part:
    """Change every tensor among a dataclass's fields."""
    tensors: dict[str, Any] = {}
    for field in fields(part):
        value = getattr(part, field.name)
        if isinstance(value, Tensor):
            tensors[field.name] = change(value)
    return replace(part, **tensors)


def grouped(
    tokens: Sequence[Tokens],
    budget: int,
    extra: int,
) -> Iterator[list[int]]:
    """Group positions of texts by length, the longest first: memory runs out at once or never.

    Minimises padded tokens plus `extra` for every group; no group of several texts has more than
    `budget` padded tokens.
    """
    return grouped_lengths([len(text.ids) for text in tokens], budget, extra)


def grouped_lengths(
    sizes: Sequence[int],
    budget: int,
    extra: int,
) -> Iterator[list[int]]:
    """Group texts of these numbers of tokens as `grouped` does."""
    if not sizes:
        return
    order = sorted(range(len(sizes)), key=lambda row: -sizes[row])
    lengths, counts = np.unique(sizes, return_counts=True)
    lengths = lengths[::-1]
    ends = np.concatenate([[0], np.cumsum(counts[::-1])])
    borders = _cheapest_borders(lengths, ends, budget, extra)
    for start, end in pairwise(borders):
        rows = order[ends[start] : ends[end]]
        groups = -(-len(rows) // max(1, budget // int(lengths[start])))
        size, larger = divmod(len(rows), groups)
        position = 0
        for group in range(groups):
            step = size + (group < larger)
            yield rows[position : position + step]
            position += step


def _cheapest_borders(
    lengths: np.ndarray,
    ends: np.ndarray,
    budget: int,
    extra: int,
) -> list[int]:
    """Choose the borders, among the falling `lengths`, of the groups of least cost.

    `ends` [lengths + 1] count the texts up to each length. Returns all borders, from 0 on.
    """
    # Least cost of grouping the texts of the longest `n` lengths; begin of its last group.
    costs_to = np.zeros(len(ends))
    begins = np.zeros(len(ends), dtype=int)
    for n in range(1, len(ends)):
        texts = ends[n] - ends[:n]
        groups = -(-texts // np.maximum(1, budget // lengths[:n]))
        costs = costs_to[:n] + texts * lengths[:n] + groups * extra
        begins[n] = costs.argmin()
        costs_to[n] = costs[begins[n]]
    borders = [len(lengths)]
    while borders[-1]:
        borders.append(int(begins[borders[-1]]))
    return borders[::-1]


def in_rows(tokens: Sequence[Tokens], budget: int) -> Iterator[list[int]]:
    """Divide positions of texts into rows of about equal tokens, the longest texts first.

    There are as few rows as `budget` tokens in each allow; a row's last text may exceed it.
    """
    lengths = [len(text.ids) for text in tokens]
    total = sum(lengths)
    count = -(-total // budget)
    rows: list[list[int]] = [[] for _ in range(count)]
    start = 0
    for position in sorted(range(len(tokens)), key=lambda row: -lengths[row]):
        rows[start * count // total].append(position)
        start += lengths[position]
    yield from filter(None, rows)
