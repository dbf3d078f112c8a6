"""Compute sentence-transformers' losses of cross-encoders on logits that are there already."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from claim2source.training.reranker.config import RerankerLossConfig

_TOP = 5  # places that LambdaLoss looks at


def given_logits(labels: int) -> Any:
    """Stand for a cross-encoder whose `logits` [pairs, labels] are known: a text is a row number.

    The losses of sentence-transformers run the model themselves. Pairs are scored in chunks here,
    and their gradients taken chunk by chunk.
    """
    from sentence_transformers.cross_encoder import CrossEncoder

    class GivenLogits(CrossEncoder):
        """Look up the logits of rows."""

        logits = torch.zeros(0, labels)

        def __init__(self) -> None:
            nn.Module.__init__(self)

        @property
        def num_labels(self) -> int:
            return labels

        @property
        def device(self) -> torch.device:
            return self.logits.device

        def preprocess(
            self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any
        ) -> dict[str, Tensor]:
            return {"rows": torch.tensor([row for _, row in inputs])}

        def forward(self, input: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
            return {"scores": self.logits[input["rows"]]}

    return GivenLogits()


class GroupLoss:
    """Compute the loss of groups of pairs: a claim's golds and negatives.

    All losses take raw logits (identity activation): squashed to 0..1, the softmax over a group
    could hardly prefer any of its sources.
    """

    def __init__(self, config: RerankerLossConfig, labels: int = 1) -> None:
        from sentence_transformers.cross_encoder import losses

        self.config, self.given = config, given_logits(labels)
        raw = nn.Identity()
        kinds: Mapping[str, Any] = {
            "listwise": lambda: losses.ListNetLoss(self.given, raw, mini_batch_size=-1),
            "lambda": lambda: losses.LambdaLoss(
                self.given, k=_TOP, activation_fn=raw, mini_batch_size=-1
            ),
            "bce": lambda: losses.BinaryCrossEntropyLoss(self.given, raw),
            "cross_entropy": lambda: losses.CrossEntropyLoss(self.given, raw),
            "margin_mse": lambda: losses.MarginMSELoss(self.given, raw),
            "mse": lambda: losses.MSELoss(self.given, raw),
        }
        self.loss = kinds[config.kind]()

    def __call__(
        self, logits: Tensor, sizes: Sequence[int], golds: Tensor, teacher: Tensor | None = None
    ) -> Tensor:
        """Compute the mean loss, a scalar.

        `logits` [pairs, labels] come group after group, each of the next of `sizes` pairs; `golds`
        [pairs] tells which are golds. `teacher` [pairs] are its scores.
        """
        self.given.logits = logits
        ends = torch.tensor(sizes).cumsum(0).tolist()
        rows = [range(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        kind = self.config.kind
        if kind in ("listwise", "lambda"):
            parts = golds.split(list(sizes))
            if kind == "listwise":
                # Its targets are a softmax: these give the golds all of it.
                wanted = [torch.where(part, 0.0, -math.inf) for part in parts]
            else:
                wanted = [part.float() for part in parts]
            found: Tensor = self.loss([[""] * len(rows), [list(part) for part in rows]], wanted)
            return found
        if kind == "margin_mse":
            assert teacher is not None
            # Groups may differ in size: one at a time, each claim counts alike.
            single = [
                self.loss([[""], *([row] for row in part)], teacher[None, part.start : part.stop])
                for part in rows
            ]
            return torch.stack(single).mean()
        every = list(range(len(logits)))
        if kind == "cross_entropy":
            target = golds.long()
        else:
            target = golds.float() if teacher is None else teacher
        found = self.loss([[""] * len(every), every], target)
        return found
