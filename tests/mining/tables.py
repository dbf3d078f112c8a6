"""Data sets and encoders whose vectors are looked up in a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Cost
from claim2source.mining import MinedRow, Miner, MiningConfig
from claim2source.models import Encoder
from claim2source.text import Rendering

PLAIN = Rendering(sources="title_abstract")
# Dense only and no limits, so that a test sets only what it is about.
FREE = MiningConfig(alpha=0.0, max_share=None)


@dataclass
class Table:
    vectors: Mapping[str, list[float]]

    def encode(self, texts: list[str], side: str, **_: Any) -> tuple[np.ndarray, Cost]:
        vectors = [self.vectors[text] for text in texts]
        return np.array(vectors, dtype=np.float32).reshape(len(texts), -1), Cost()


def data_of(claims: list[Claim], sources: list[Source]) -> Dataset:
    return Dataset(tuple(claims), tuple(sources), Qrels(), "train")


def scored(scores: Mapping[str, float], *claims: Claim) -> tuple[Dataset, Encoder]:
    sources = [Source(name, title=name) for name in scores]
    table = {name: [score] for name, score in scores.items()} | {c.text: [1.0] for c in claims}
    return data_of(list(claims), sources), Table(table)  # type: ignore[return-value]


def mined(dataset: Dataset, encoder: Encoder, config: MiningConfig) -> tuple[list[MinedRow], Miner]:
    miner = Miner(dataset, encoder, PLAIN, config)
    return list(miner.mine()), miner


def names(row: MinedRow, origin: str | None = None) -> list[str]:
    if origin == "hard":
        return [n.source for n in row.negatives if n.origin != "random"]
    return [n.source for n in row.negatives if origin in (None, n.origin)]


def ladder(n: int) -> dict[str, float]:
    return {f"s{i:02d}": (n - i) / n for i in range(n)}
