"""Re-rank with jina-reranker-v3, which reads a claim and up to 64 sources in one prompt.

Its own code does so, `model.rerank(query, documents)` of its model card; that runs only where it is
allowed by name. A source's score depends a little on those that it is read with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np

from claim2source.core.config import Between
from claim2source.core.errors import ConfigError, UserError
from claim2source.models.hub import one_line
from claim2source.stages.load import LocalReranker, load_with_code
from claim2source.stages.pairs import Pair, RawScores, rows_by_claim, scored_alone
from claim2source.text.control import defused

# Counted up when the same settings would give other scores.
_FORMAT = 1
# The model card's window.
_MOST_SOURCES = 64


@dataclass(frozen=True, kw_only=True)
class Jina(LocalReranker):
    """Re-rank by the cosines of jina-reranker-v3's own code.

    Args:
        documents: sources that are read together, up to 64.
    """

    model: str = "jinaai/jina-reranker-v3"
    documents: Annotated[int, Between(1, _MOST_SOURCES)] = _MOST_SOURCES

    def check(self) -> None:
        super().check()
        for key in ("max_length", "batch_tokens"):
            if (value := getattr(self, key)) is not None:
                raise ConfigError(key, value, "none: the model's own code cuts texts")

    @cached_property
    def identity(self) -> Mapping[str, object]:
        """Describe the model's files and how many sources are read together."""
        values = {"reranker": "jina", "format": _FORMAT, "documents": self.documents}
        return {**values, **self.files[1]}

    @cached_property
    def network(self) -> Any:
        """Load the model with its own code. Raises `UserError` where that may not run."""
        folder, _, settings = self.files
        model = load_with_code(folder, settings, self.model)
        if not callable(getattr(model, "rerank", None)):
            raise UserError(f"model {self.model}: its code has no `rerank(query, documents)`")
        return model

    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs claim by claim, in blocks; score a failed block again in halves."""
        for claim, rows in rows_by_claim(pairs).items():

            def score(rows: Sequence[int], claim: str = claim) -> np.ndarray:
                texts = [defused(pairs[row].source) for row in rows]
                return self._rerank(defused(claim), texts)

            for start in range(0, len(rows), self.documents):
                yield from scored_alone(rows[start : start + self.documents], score)

    def _rerank(self, claim: str, texts: list[str]) -> np.ndarray:
        scores = np.full(len(texts), np.nan, dtype=np.float32)
        try:
            for result in self.network.rerank(claim, texts):
                scores[int(result["index"])] = float(result["relevance_score"])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise UserError(f"model {self.model}: rerank: {one_line(error)}") from None
        return scores
