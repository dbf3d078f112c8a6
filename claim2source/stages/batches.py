"""Batch pairs by length, and keep one that fails from failing its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from claim2source.models.hub import one_line
from claim2source.stages.pairs import Scored

if TYPE_CHECKING:
    import torch

# Pairs that are tokenized at once: enough that lengths within a batch are alike.
CHUNK = 1024
# Padded tokens of a forward pass: few enough for a CPU's cache, enough for a GPU.
_CPU_TOKENS, _GPU_TOKENS = 2048, 2**15
# Cost of one more batch, in padded tokens.
_CPU_EXTRA, _GPU_EXTRA = 16, 2048


def token_budget(device: torch.device, asked: int | None) -> tuple[int, int]:
    """Return the padded tokens of a batch, and the cost of one more batch in such tokens."""
    on_cpu = device.type == "cpu"
    return asked or (_CPU_TOKENS if on_cpu else _GPU_TOKENS), _CPU_EXTRA if on_cpu else _GPU_EXTRA


def scored_alone(
    rows: Sequence[int], score: Callable[[Sequence[int]], np.ndarray], tokens: int = 0
) -> Iterator[Scored]:
    """Score a batch with `score`; what fails in it, or is no number, is scored again in parts.

    A pair that fails alone has NaN and the error.
    """
    try:
        scores = score(rows)
    except RuntimeError as error:  # torch's, out of memory among them
        if len(rows) == 1:
            nothing = np.full(1, np.nan, dtype=np.float32)
            yield Scored(rows, nothing, {rows[0]: one_line(error)[:200]}, tokens)
            return
        half = len(rows) // 2
        yield from scored_alone(rows[:half], score, tokens)
        yield from scored_alone(rows[half:], score)
        return
    bad = np.flatnonzero(~np.isfinite(scores)).tolist()
    if bad and len(rows) > 1:
        good = np.flatnonzero(np.isfinite(scores)).tolist()
        yield Scored([rows[place] for place in good], scores[good], tokens=tokens)
        for place in bad:
            yield from scored_alone([rows[place]], score)
        return
    yield Scored(rows, scores, tokens=tokens)
