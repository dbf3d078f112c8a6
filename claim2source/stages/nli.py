"""Judge stances with a cross-encoder for natural language inference (ours).

The post is the premise and the rumour the hypothesis: entailment supports it, contradiction
denies it. The stance is 2 * (P(entailment) - P(contradiction)), -2 to 2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from claim2source.core.errors import InputError
from claim2source.stages.cross_encoder import CrossEncoder
from claim2source.stages.load import load_cross_encoder
from claim2source.stages.pairs import Pair, Scored

if TYPE_CHECKING:
    import torch
    from sentence_transformers import CrossEncoder as Model

# Counted up when the same settings would give other scores.
_FORMAT = 1
LABELS = 3
_SUPPORTS, _DENIES = "entail", "contra"


@dataclass(frozen=True, kw_only=True)
class NLI(CrossEncoder):
    """Score pairs of a rumour and a post by what the post says of the rumour.

    `model` classifies pairs in three classes that its config names (`id2label`): one begins with
    "entail", one with "contra", in any order.
    """

    model: str = "cross-encoder/nli-deberta-v3-base"

    @cached_property
    def identity(self) -> Mapping[str, object]:
        """Describe the model's files and settings."""
        return {**super().identity, "reranker": "nli", "nli": _FORMAT}

    @cached_property
    def network(self) -> Model:
        """Load the model."""
        folder, _, settings = self._files
        return load_cross_encoder(folder, settings, self.max_length, LABELS)

    @cached_property
    def places(self) -> tuple[int, int]:
        """Find the logits of entailment and of contradiction. Raises `InputError`."""
        config: Any = self.network.config
        names = {int(i): str(label) for i, label in config.id2label.items()}
        found = [
            [i for i, label in names.items() if label.casefold().startswith(front)]
            for front in (_SUPPORTS, _DENIES)
        ]
        if [len(places) for places in found] != [1, 1]:
            why = f"{', '.join(names.values())}: entailment and contradiction must be among them"
            raise InputError.at(self._files[0] / "config.json", field="id2label", why=why)
        return found[0][0], found[1][0]

    def score(self, pairs: Sequence[Pair]) -> Iterator[Scored]:
        """Score pairs with the post as the premise."""
        self.places  # noqa: B018  wrong labels are said before anything is scored
        yield from super().score([Pair(pair.source, pair.claim) for pair in pairs])

    def from_logits(self, logits: torch.Tensor) -> torch.Tensor:
        """Turn logits [rows, 3] into stances [rows]."""
        shares = logits.softmax(dim=-1)
        supports, denies = self.places
        return 2 * (shares[:, supports] - shares[:, denies])
