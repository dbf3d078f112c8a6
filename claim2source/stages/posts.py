"""Rank papers of similar known posts higher."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np

from claim2source.core.config import Between, require
from claim2source.core.files import content_hash
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result, Run
from claim2source.data.grouping import plain_text
from claim2source.data.known_posts import KnownPosts
from claim2source.models import ModelConfig, Resolved, resolve
from claim2source.search.dense import encoder_keys, unit_vectors
from claim2source.stages.known_posts import NearPosts
from claim2source.stages.pairs import (
    DEEPEST,
    Ranking,
    WithRuntime,
    first_scores,
    ranked_by,
    standardised,
)
from claim2source.text import ClaimForm, Rendering


@dataclass(frozen=True, kw_only=True)
class Posts(WithRuntime):
    """Add to a source's score the similarity of the claim and the source's nearest known post.

    Similarities are standardised cosines: 0 is the mean cosine of a known post with its nearest
    post of another paper, 1 is one standard deviation above. Papers without known posts have 0, so
    they lose in comparison. Claims that are ranked are never used as known posts, even if their ids
    have the prefix of a mixed data set.

    Args:
        dataset: data set of the known posts: a folder, or a name in CLAIM2SOURCE_DATA.
        split: split of the data set.
        model: a checkpoint, a folder, a packaged model or a name on the hub.
        claims: the claim form to encode; a checkpoint has its own.
        depth: number of first sources to score, up to 2,000; the others keep their order below.
        weight: weight of the similarity relative to the previous scores, which are standardised
            over a claim's first `depth`; `fit` chooses it on val, by the expected share of seen
            papers.
    """

    dataset: str
    split: str = "train"
    model: str = "sentence-transformers/all-MiniLM-L6-v2"
    claims: ClaimForm = "bilingual"
    depth: Annotated[int, Between(1, DEEPEST)] = 100
    weight: Annotated[float, Between(0, 100)] = 0.5

    def check(self) -> None:
        KnownPosts(self.dataset, self.split)  # checks both
        require(bool(self.model.strip()), "model", self.model, "a name or a folder")

    @cached_property
    def known(self) -> KnownPosts:
        """Name the known posts, which are loaded on use."""
        return KnownPosts(self.dataset, self.split)

    @property
    def read_content(self) -> str:
        """Hash the posts that it reads when it ranks."""
        return self.known.content

    @cached_property
    def resolved(self) -> Resolved:
        config = ModelConfig(self.model)
        return resolve(config, self.runtime.device)

    @property
    def rendering(self) -> Rendering:
        own = self.resolved.rendering
        return own or Rendering(self.claims)

    @cached_property
    def identity(self) -> Mapping[str, object]:
        posts: list[list[object]] = []
        for post in self.known.posts:
            golds = list(post.golds)
            posts.append([post.id, golds])
        texts = self.rendering.claim_texts(self.known.posts)
        keys = encoder_keys(self.resolved.encoder)
        return {
            "encoder": keys,
            "posts": content_hash([posts, texts]),
        }

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Re-rank the first `depth` sources of every claim; equal scores keep their order."""
        posts = self._other_posts(claims)
        texts = self.rendering.claim_texts([*posts, *claims])
        encoder = self.resolved.encoder
        store = self.runtime.store
        vectors, read = encoder.encode(texts, "claim", store=store)
        vectors = unit_vectors(vectors)
        known, claim_vectors = np.split(vectors, [len(posts)])

        near_posts = NearPosts.measured(posts, known)
        ranked: dict[str, Ranking] = {}
        notes: dict[str, str] = {}
        for claim, vector in zip(claims, claim_vectors, strict=True):
            before = run.scored(claim.id)
            first = list(before)[: self.depth]
            near = near_posts.nearness(vector, first)

            scores = standardised(first_scores(before, self.depth))
            with_near = scores + self.weight * near
            ranked[claim.id] = ranked_by(before, with_near)

            has_near = near > 0
            count = int(has_near.sum())
            notes[claim.id] = f"{count} of {len(first)} sources have a near post"

        run = Run.from_lists(ranked, pool=run.pool)
        cost = Cost(tokens=read.tokens)
        return Result(run, notes, cost=cost)

    def _other_posts(self, claims: Sequence[Claim]) -> list[Claim]:
        """List the known posts without the claims that are ranked."""
        own: set[tuple[str, str]] = set()
        for claim in claims:
            own |= _keys(claim)

        others: list[Claim] = []
        for post in self.known.posts:
            if own.isdisjoint(_keys(post)):
                others.append(post)
        return others


def _keys(claim: Claim) -> set[tuple[str, str]]:
    """Return keys of a claim: its id; in a mixed data set also the id without prefix, and text."""
    _, _, own_id = claim.id.rpartition("/")
    text = plain_text(claim.text)
    return {(claim.id, ""), (own_id, text)}
