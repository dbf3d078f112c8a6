"""Load the posts whose papers are known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from claim2source.core.config import Settings, require
from claim2source.core.errors import UserError
from claim2source.core.files import content_hash
from claim2source.core.records import Claim
from claim2source.data.grouping import plain_text
from claim2source.data.loading import load


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
        claims = load(self.dataset, self.split).claims
        posts = [post for post in claims if post.golds]
        if not posts:
            raise UserError(f"{self.dataset}, {self.split}: no post has a gold")
        return posts

    @property
    def content(self) -> str:
        """Hash the posts: their ids, texts, translations and papers."""
        return hash_posts(self.posts)


def hash_posts(posts: Iterable[Claim]) -> str:
    """Hash posts: their ids, texts, translations and papers."""
    described: list[list[object]] = []
    for post in posts:
        golds = list(post.golds)
        described.append([post.id, post.text, post.translation, golds])
    return content_hash(described)


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


def numbers_by_key(posts: Iterable[Claim]) -> Mapping[tuple[str, str], Sequence[int]]:
    """Return the numbers of the posts that have each key."""
    numbers = defaultdict[tuple[str, str], list[int]](list)
    for number, post in enumerate(posts):
        for key in post_keys(post):
            numbers[key].append(number)
    return numbers


def post_keys(claim: Claim) -> set[tuple[str, str]]:
    """Return the keys that equal posts share: the id, and the text."""
    text = plain_text(claim.text)
    return {(claim.id, ""), ("", text)}
