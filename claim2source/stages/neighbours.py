"""Rank the claims of a run together: similar claims vote for each other's sources.

The constants were chosen on the training posts of ct25; docs/log.md has the figures.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, ClassVar

import numpy as np
from scipy.sparse import csr_array

from claim2source.core.config import Between, Settings
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.data.known_posts import KnownPosts, other_posts
from claim2source.search.bm25 import BM25, library_versions
from claim2source.stages.pairs import DEEPEST, Ranking, first_scores, ranked_by, standardised

log = logging.getLogger(__name__)

# Most similar claims that vote for a claim's sources.
NEIGHBOURS = 30
# A neighbour's vote counts by this power of its similarity.
_POWER = 2
# Increased if the same claims and scores give another ranking.
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Neighbours(Settings):
    """Raise the scores of sources that similar claims of the same run also rank high.

    Several posts often refer to the same paper, and one of them may name it more clearly. A claim's
    scores become probabilities of its sources. To them, `weight` times the mean of its neighbours'
    probabilities is added, weighted by the squared BM25 score of the two texts as posted. No gold
    of a ranked claim is read, and no source enters a claim's list. The ranking of a claim depends
    on the other claims of the run.

    Args:
        depth: number of first sources to score, up to 2,000; the others keep their order below.
        weight: weight of the neighbours relative to the claim's own scores; `fit` chooses it on
            val.
        posts: posts whose sources are known are neighbours too, and vote for these sources, unless
            they equal a claim that is ranked. For claims that mostly refer to sources with known
            posts.
    """

    ranks_together: ClassVar[bool] = True

    depth: Annotated[int, Between(1, DEEPEST)] = 100
    weight: Annotated[float, Between(0, 100)] = 1.0
    posts: KnownPosts | None = None

    @property
    def read_content(self) -> str | None:
        """Hash the known posts that it reads when it ranks; None without any."""
        return self.posts.content if self.posts is not None else None

    @property
    def identity(self) -> Mapping[str, object]:
        words = BM25()
        return {
            "format": [_FORMAT, words.format],
            "versions": library_versions(words),
            "posts": self.read_content,
        }

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Re-rank the first `depth` sources of every claim; equal scores keep their order.

        Raises `UserError` if all known posts equal claims that are ranked.
        """
        known = self._known(claims)
        columns: dict[str, int] = {}
        lists: list[np.ndarray] = []
        own: list[np.ndarray] = []
        for claim in claims:
            before = run.scored(claim.id)
            first = islice(before, self.depth)
            lists.append(_numbered(first, columns))
            own.append(_probabilities(first_scores(before, self.depth)))
        ranked_sources = set(columns)
        for post in known:
            lists.append(_numbered(post.golds, columns))
            own.append(np.full(len(post.golds), 1 / len(post.golds)))

        golds = {gold for post in known for gold in post.golds}
        if known and golds.isdisjoint(ranked_sources):
            log.warning("neighbours.posts: no known post refers to a source that is ranked")

        similar = similarities(claims, known)
        given = _sparse(lists, own, len(columns))

        ranked: dict[str, Ranking] = {}
        notes: dict[str, str] = {}
        for row, claim in enumerate(claims):
            part = slice(similar.indptr[row], similar.indptr[row + 1])
            near = similar.indices[part]
            votes = _mean(given[near], similar.data[part] ** _POWER)
            scores = own[row] + self.weight * votes[lists[row]]
            ranked[claim.id] = ranked_by(run.scored(claim.id), scores)

            posts = int((near >= len(claims)).sum())
            notes[claim.id] = f"similar claims: {len(near) - posts}"
            if self.posts is not None:
                notes[claim.id] += f", known posts: {posts}"
        run = Run.from_lists(ranked, pool=run.pool)
        return Result(run, notes)

    def _known(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """List the known posts that do not equal a claim."""
        if self.posts is None:
            return ()
        known = other_posts(self.posts.posts, claims)
        if not known:
            dataset = self.posts.dataset
            reason = "all known posts equal claims that are ranked, so none can vote"
            raise UserError(f"neighbours.posts: {dataset}: {reason}")
        return known


def similarities(claims: Sequence[Claim], posts: Sequence[Claim] = ()) -> csr_array:
    """Measure how similar each claim is to its nearest others, [claims, claims + posts].

    A row has up to `NEIGHBOURS` values above 0: the BM25 scores of the other texts for the claim.
    A claim is not its own neighbour.
    """
    texts = [claim.text for claim in (*claims, *posts)]
    documents = [Source(str(number), "", text) for number, text in enumerate(texts)]
    queries = [Claim(str(row), claim.text, claim.lang) for row, claim in enumerate(claims)]
    found = BM25().index(documents).search(queries, k=NEIGHBOURS + 1).run

    near: list[np.ndarray] = []
    values: list[np.ndarray] = []
    for query in queries:
        scores = dict(found.scored(query.id))
        # Behind more than `NEIGHBOURS` copies of its text, a claim is not in its own list.
        scores.pop(query.id, None)
        nearest = list(scores)[:NEIGHBOURS]
        near.append(np.array([int(key) for key in nearest], np.int64))
        values.append(np.array([scores[key] for key in nearest], np.float64))
    return _sparse(near, values, len(texts))


def _numbered(sources: Iterable[str], columns: dict[str, int]) -> np.ndarray:
    """Return the columns of sources; a new source gets the next column."""
    numbers = [columns.setdefault(source, len(columns)) for source in sources]
    return np.array(numbers, np.int64)


def _probabilities(scores: np.ndarray) -> np.ndarray:
    """Turn a claim's scores [sources] into probabilities: the softmax of standardised scores."""
    powers = np.exp(standardised(scores))
    probabilities: np.ndarray = powers / powers.sum()
    return probabilities


def _mean(votes: csr_array, weights: np.ndarray) -> np.ndarray:
    """Average `votes` [neighbours, sources] by weights [neighbours]; 0 without neighbours."""
    if not len(weights):
        return np.zeros(votes.shape[1])
    mean: np.ndarray = (weights / weights.sum()) @ votes
    return mean


def _sparse(
    columns: Sequence[np.ndarray],
    values: Sequence[np.ndarray],
    width: int,
) -> csr_array:
    """Make a matrix [rows, width] of each row's columns and values."""
    ends = np.cumsum([0, *map(len, columns)])
    nothing = np.empty(0)
    data = np.concatenate([nothing, *values])
    numbers = np.concatenate([nothing, *columns]).astype(np.int64)
    return csr_array((data, numbers, ends), shape=(len(columns), width))
