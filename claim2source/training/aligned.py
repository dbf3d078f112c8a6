"""Draw texts of the pool that need no judgement, and have the teacher encode them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from claim2source.core.records import Source
from claim2source.io.store import Store
from claim2source.models import Encoder, Tokens
from claim2source.text.clean import sentences_of

# A shorter sentence is mostly a heading: "Methods."
_FEWEST_WORDS = 4
SIZE = 64


def pool_texts(sources: Sequence[Source], most: int | None, seed: int) -> list[str]:
    """List the papers' titles and sentences, each once; of many `most`, drawn."""
    found = [source.title.strip() for source in sources]
    sentences = (text for source in sources for text in sentences_of(source.abstract))
    found += [text for text in sentences if len(text.split()) >= _FEWEST_WORDS]
    texts = list(dict.fromkeys(filter(None, found)))
    if most is None or len(texts) <= most:
        return texts
    return random.Random(seed).sample(texts, most)


class AlignedTexts:
    """Hold texts without labels, as the student reads them, and the teacher's vectors of them.

    Both read them as claims. `size` of them go to each batch, beside its claims; every epoch begins
    a new order.
    """

    def __init__(
        self,
        texts: Sequence[str],
        student: Encoder,
        teacher: Encoder,
        store: Store,
        seed: int,
        size: int = SIZE,
        progress: bool = False,
    ) -> None:
        self.texts, self.seed = texts, seed
        self.size = min(size, len(texts))
        self.tokens = student.tokenize(texts, "claim")
        name = "texts without labels, teacher" if progress else None
        self.vectors: np.ndarray = teacher.encode(texts, "claim", store=store, progress=name)[0]

    def batch(self, epoch: int, index: int) -> tuple[list[Tokens], Tensor]:
        """Take the texts of the epoch's batch `index`, and their vectors [texts, dimensions]."""
        if not self.size:
            return [], torch.from_numpy(self.vectors)
        order = np.random.default_rng((self.seed, epoch)).permutation(len(self.texts))
        rows = order.take(range(index * self.size, (index + 1) * self.size), mode="wrap")
        return [self.tokens[row] for row in rows], torch.from_numpy(self.vectors[rows])
