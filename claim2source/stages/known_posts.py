"""Measure how near a claim is to the known posts of each source."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np

from claim2source.core.config import Settings, require
from claim2source.core.errors import UserError
from claim2source.core.files import content_hash
from claim2source.core.records import Claim
from claim2source.data.grouping import connected_groups, plain_text
from claim2source.data.loading import load

# Posts that are compared with all others at once.
_BLOCK = 1024


@dataclass(frozen=True)
class KnownPosts(Settings):
    """Name the posts whose papers are known.

    Args:
        dataset: data set of the posts: a folder, or a name in CLAIM2SOURCE_DATA.
        split: split of the data set.
    """

    dataset: str
    split: str = "train"

    def check(self) -> None:
        for key in ("dataset", "split"):
            value = getattr(self, key)
            is_named = bool(value.strip())
            require(is_named, key, value, "a name or a folder")

    @cached_property
    def posts(self) -> Sequence[Claim]:
        """Load the posts with a gold. Raises `UserError` if there are none."""
        return load_known_posts(self.dataset, self.split)

    @property
    def content(self) -> str:
        """Hash the posts: their ids, texts, translations and papers."""
        posts: list[list[object]] = []
        for post in self.posts:
            golds = list(post.golds)
            posts.append([post.id, post.text, post.translation, golds])
        return content_hash(posts)


def load_known_posts(dataset: str, split: str) -> Sequence[Claim]:
    """Load the posts with a gold. Raises `UserError` if there are none."""
    claims = load(dataset, split).claims
    posts = [post for post in claims if post.golds]
    if not posts:
        raise UserError(f"{dataset}, {split}: no post has a gold")
    return posts


def other_posts(
    posts: Iterable[Claim],
    hidden: Iterable[Claim],
) -> list[Claim]:
    """List the posts that have neither the id nor the text of a hidden claim."""
    own: set[tuple[str, str]] = set()
    for claim in hidden:
        own |= post_keys(claim)

    others: list[Claim] = []
    for post in posts:
        if own.isdisjoint(post_keys(post)):
            others.append(post)
    return others


def post_keys(claim: Claim) -> set[tuple[str, str]]:
    """Return the keys that equal posts share: the id, and the text."""
    text = plain_text(claim.text)
    return {(claim.id, ""), ("", text)}


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
        keys = defaultdict[tuple[str, str], list[int]](list)
        for row, post in enumerate(posts):
            for gold in post.golds:
                rows[gold].append(row)
            for key in post_keys(post):
                keys[key].append(row)

        papers = connected_groups(post.golds for post in posts)
        mean, spread = other_papers_cosines(vectors, papers)
        return cls(vectors, rows, keys, mean, spread)

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
