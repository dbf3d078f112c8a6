"""Re-rank with a cross-encoder of sentence-transformers: claim and source in one sequence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from claim2source.models.manifest import RerankerKind
from claim2source.stages.load import LocalReranker, checkpoint_setting, load_cross_encoder
from claim2source.stages.pair_padding import changed_padding, counted_positions
from claim2source.stages.pairs import CHUNK, Pair, RawScores, scored_alone, token_budget

if TYPE_CHECKING:
    import torch
    from sentence_transformers import CrossEncoder as Model

# Increased if the same settings give other scores.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class CrossEncoder(LocalReranker):
    """Re-rank with a cross-encoder's raw logits.

    Args:
        instruction: prompt of a model that uses one; none: the prompt in its files.
    """

    model: str = "cross-encoder/ms-marco-MiniLM-L6-v2"
    instruction: str | None = None
    kind: ClassVar[RerankerKind | None] = "cross_encoder"

    @cached_property
    def prompt_settings(self) -> tuple[int | None, str | None]:
        """Return the length of a pair and the instruction; a checkpoint determines both."""
        if self.trained is None:
            return self.max_length, self.instruction
        own = self.trained[1].reranker
        return (
            checkpoint_setting(self, "max_length", own.max_length),
            checkpoint_setting(self, "instruction", own.instruction),
        )

    @cached_property
    def identity(self) -> Mapping[str, object]:
        folder, model, settings = self.files
        identity: dict[str, object] = {
            "reranker": "cross_encoder",
            "format": _FORMAT,
            "instruction": self.instruction,
            "sentence-transformers": version("sentence-transformers"),
            **model,
        }
        if not settings.own_code:
            padding = changed_padding(folder)
            if padding is not None:
                identity["padding"] = padding
        return identity

    @cached_property
    def network(self) -> Model:
        folder, _, settings = self.files
        return load_cross_encoder(folder, settings, self.prompt_settings[0])

    def features(self, pairs: Sequence[Pair]) -> dict[str, Any]:
        """Make the tensors of some pairs, on the CPU."""
        texts: list[Any] = [tuple(pair) for pair in pairs]
        features: dict[str, Any] = self.network.preprocess(texts, prompt=self.prompt_settings[1])
        positions = counted_positions(self.network, features["attention_mask"])
        if positions is None:
            return features
        return {**features, "position_ids": positions}

    def logits(self, features: Mapping[str, Any]) -> torch.Tensor:
        """Compute the logits of pairs, [pairs] or [pairs, labels], float32."""
        return self.network(dict(features))["scores"].float()

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs in batches of similar length, limited to the device's padded tokens."""
        # The longest first within a chunk, and chunks of similar texts: little padding.
        lengths = [len(pair.claim) + len(pair.source) for pair in pairs]
        order = sorted(range(len(pairs)), key=lambda row: -lengths[row])
        for start in range(0, len(order), CHUNK):
            yield from self._chunk(pairs, order[start : start + CHUNK])

    def _chunk(self, pairs: Sequence[Pair], chunk: Sequence[int]) -> Iterator[RawScores]:
        import torch

        from claim2source.models.tokens import grouped_lengths

        model = self.network
        features = self.features([pairs[row] for row in chunk])
        mask = features["attention_mask"]
        lengths = mask.sum(dim=1).tolist()
        padded = int(mask.shape[1])
        is_left_padded = bool(mask[:, 0].eq(0).any())
        budget, extra = token_budget(model.device, self.batch_tokens)

        @torch.inference_mode()
        def score(rows: Sequence[int]) -> np.ndarray:
            longest = max(lengths[row] for row in rows)
            if is_left_padded:
                columns = slice(padded - longest, None)
            else:
                columns = slice(0, longest)
            index = torch.tensor(rows)
            batch: dict[str, Any] = {}
            for key, value in features.items():
                part = _feature_rows(value, index, columns, padded)
                if isinstance(part, torch.Tensor):
                    part = part.to(model.device)
                batch[key] = part
            scores = self.logits(batch)
            if scores.shape[-1:] == (2,):  # logits of irrelevant and relevant: log-odds
                scores = scores[:, 1] - scores[:, 0]
            return scores.reshape(len(rows)).cpu().numpy()

        for rows in grouped_lengths(lengths, budget, extra):
            tokens = sum(lengths[row] for row in rows)
            for scored in scored_alone(rows, score, tokens):
                positions = [chunk[row] for row in scored.positions]
                reasons = {chunk[row]: reason for row, reason in scored.reason.items()}
                yield RawScores(positions, scored.scores, reasons, scored.tokens)


def _feature_rows(
    value: Any,
    index: torch.Tensor,
    columns: slice,
    padded: int,
) -> Any:
    """Return rows of a padded feature without padding that no row needs."""
    import torch

    if not isinstance(value, torch.Tensor):
        return value
    rows = value[index]
    if rows.ndim == 2 and rows.shape[1] == padded:
        return rows[:, columns]
    return rows
