"""Measure how near a claim is to the known posts of each source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from claim2source.core.records import Claim
from claim2source.data.grouping import connected_groups
from claim2source.data.known_posts import numbers_by_key, post_keys

# Posts that are compared with all others at once.
_BLOCK = 1024


@dataclass(frozen=True, eq=False)
class NearPosts:
    """Vectors of known posts by paper, with the scale of their cosines.

    `vectors` [posts, dimensions] have length 1; `rows` are those of each paper's posts, `keys`
    those of the posts with an id or a text. `mean` and `spread` are those of the highest cosine of
    a post with a post of another paper.
    """

    vectors: np.ndarray
    rows: Mapping[str, Sequence[int]]
    keys: Mapping[tuple[str, str], Sequence[int]]
    mean: float
    spread: float

    @classmethod
    def measured(
        cls,
        posts: Sequence[Claim],
        vectors: np.ndarray,
    ) -> Self:
        """Group the vectors [posts, dimensions] by paper, and measure their scale."""
        rows = defaultdict[str, list[int]](list)
        for row, post in enumerate(posts):
            for gold in post.golds:
                rows[gold].append(row)

        papers = connected_groups(post.golds for post in posts)
        mean, spread = other_papers_cosines(vectors, papers)
        return cls(vectors, rows, numbers_by_key(posts), mean, spread)

    def nearness(
        self,
        vector: np.ndarray,
        sources: Sequence[str],
        hidden: Collection[int] = (),
    ) -> np.ndarray:
        """Return each source's nearness, [sources]: that of its nearest post to the claim.

        0 is the `mean` or less, 1 is one `spread` above; a source without known posts has 0. Posts
        in the rows `hidden` do not count.
        """
        cosines = self.vectors @ vector
        if hidden:
            cosines[list(hidden)] = -np.inf

        nearest: list[float] = []
        for source in sources:
            if source in self.rows:
                own = cosines[self.rows[source]]
                nearest.append(own.max())
            else:
                nearest.append(self.mean)

        above_mean = np.array(nearest) - self.mean
        near: np.ndarray = np.maximum(above_mean / self.spread, 0.0)
        return near

    def rows_equal_to(self, claim: Claim) -> set[int]:
        """Return the rows of posts that have the claim's id or text."""
        rows: set[int] = set()
        for key in post_keys(claim):
            rows.update(self.keys.get(key, ()))
        return rows


def other_papers_cosines(
    vectors: np.ndarray,
    papers: Sequence[int],
) -> tuple[float, float]:
    """Return mean and deviation of each post's highest cosine with a post of another paper.

    `vectors` [posts, dimensions] have length 1, `papers` [posts] are the numbers of their papers.
    With fewer than two papers the result is 1 and 1.
    """
    numbers = np.array(papers)
    highest = np.empty(len(papers), np.float32)
    for start in range(0, len(papers), _BLOCK):
        block = slice(start, start + _BLOCK)
        cosines = vectors[block] @ vectors.T
        cosines[numbers[block, None] == numbers] = -np.inf
        highest[block] = cosines.max(axis=1)
    if not len(highest) or not np.isfinite(highest).all():
        return 1.0, 1.0
    mean = float(highest.mean())
    deviation = float(highest.std())
    spread = max(deviation, 1e-6)
    return mean, spread
