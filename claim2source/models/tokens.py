"""Tokens of texts, padded batches of them, and which texts go together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids of one text; the first `skip` of them are not pooled."""

    ids: tuple[int, ...]
    skip: int = 0


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """Padded tensors [n, longest]: ids, attention mask, and which tokens are pooled."""

    input_ids: Tensor
    attention_mask: Tensor
    pool_mask: Tensor

    def to(self, device: torch.device | str) -> TokenBatch:
        """The same batch on a device."""
        return TokenBatch(
            self.input_ids.to(device), self.attention_mask.to(device), self.pool_mask.to(device)
        )

    @property
    def real_tokens(self) -> int:
        """Tokens that are not padding."""
        return int(self.attention_mask.sum())

    @property
    def padded_tokens(self) -> int:
        """All positions, padding included."""
        return self.input_ids.numel()


def grouped(tokens: Sequence[Tokens], budget: int, extra: int) -> Iterator[list[int]]:
    """Positions grouped by like length, the longest first: memory runs out at once or never.

    The groups with the least padded tokens, a further group counting as `extra` of them; none
    has more than `budget`, unless it is one text.
    """
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row].ids))
    lengths, counts = np.unique([len(tokens[row].ids) for row in order], return_counts=True)
    lengths, ends = lengths[::-1], np.concatenate([[0], np.cumsum(counts[::-1])])
    # The best way to cut off the texts of the longest `n` lengths, and where its last group begins.
    least, begins = np.zeros(len(ends)), np.zeros(len(ends), dtype=int)
    for n in range(1, len(ends)):
        texts = ends[n] - ends[:n]
        groups = -(-texts // np.maximum(1, budget // lengths[:n]))
        costs = least[:n] + texts * lengths[:n] + groups * extra
        begins[n] = costs.argmin()
        least[n] = costs[begins[n]]
    cuts = [len(lengths)] if order else []
    while cuts and cuts[-1]:
        cuts.append(int(begins[cuts[-1]]))
    for end, start in reversed(list(pairwise(cuts))):
        rows = order[ends[start] : ends[end]]
        groups = -(-len(rows) // max(1, budget // int(lengths[start])))
        size, larger = divmod(len(rows), groups)
        place = 0
        for group in range(groups):
            step = size + (group < larger)
            yield rows[place : place + step]
            place += step


def in_rows(tokens: Sequence[Tokens], budget: int) -> Iterator[list[int]]:
    """Positions of texts in rows of about as many tokens each, the longest texts first.

    As few rows as hold `budget` tokens each; one may end with a text that reaches beyond.
    """
    order = sorted(range(len(tokens)), key=lambda row: -len(tokens[row].ids))
    ends = np.cumsum([len(tokens[row].ids) for row in order])
    count = -(-int(ends[-1]) // budget) if order else 0
    rows: list[list[int]] = [[] for _ in range(count)]
    for position, end in zip(order, ends.tolist(), strict=True):
        rows[(end - len(tokens[position].ids)) * count // int(ends[-1])].append(position)
    yield from (row for row in rows if row)
