"""Ask claims twice, with their papers and without them, and choose a model's features by that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset
from claim2source.core.run import Result
from claim2source.datasets.grouping import connected_groups
from claim2source.find.abstention import Design, fit
from claim2source.mining.near_duplicates import same_papers

FOLDS = 5
SCORES = (1, 2, 5, 10)
PENALTIES = (0.1, 1.0, 10.0, 100.0)
# Share of words from which on titles or texts are those of one paper.
_SIMILARITY = 0.9


def papers_of_claims(dataset: Dataset) -> dict[str, frozenset[str]]:
    """Map every claim with a gold to its golds and all near-duplicates of them."""
    pairs = same_papers(dataset.sources, _SIMILARITY, _SIMILARITY)
    ids = [source.id for source in dataset.sources]
    numbers = connected_groups([[key] for key in ids] + [list(pair) for pair in pairs])[: len(ids)]
    group = dict(zip(ids, numbers, strict=True))
    members: dict[int, set[str]] = {}
    for source in ids:
        members.setdefault(group[source], set()).add(source)
    return {
        claim.id: frozenset().union(*(members.get(group.get(g, -1), {g}) for g in claim.golds))
        for claim in dataset.claims
        if claim.golds
    }


@dataclass(frozen=True, eq=False)
class PairedResults:
    """Hold results by stage for claims, each once with and once without its papers (`absent`).

    `present` tells whether the papers are there, `right` whether the last stage's first source is
    one of them, `groups` number the groups of gold papers: [2 x claims], those with papers first.
    """

    claim_ids: tuple[str, ...]
    stages: Mapping[str, Result]
    absent: Mapping[str, Result]
    present: np.ndarray
    right: np.ndarray
    groups: np.ndarray

    @classmethod
    def of(
        cls, claims: Sequence[Claim], stages: Mapping[str, Result], absent: Mapping[str, Result]
    ) -> Self:
        """Compare the last stage's first sources with the golds of the claims."""
        last, missing = list(stages.values())[-1].run, np.zeros(len(claims), bool)
        right = np.array([bool({*last.sources(claim.id, 1)} & {*claim.golds}) for claim in claims])
        groups = np.array(connected_groups(claim.golds for claim in claims))
        return cls(
            tuple(claim.id for claim in claims),
            stages,
            absent,
            np.concatenate([~missing, missing]),
            np.concatenate([right, missing]),
            np.tile(groups, 2),
        )

    def features(self, design: Design) -> np.ndarray:
        """Describe all claims twice, [2 x claims, features]."""
        parts = (design.features(self.claim_ids, stages) for stages in (self.stages, self.absent))
        return np.concatenate(list(parts))


def choose_design(paired: PairedResults, seed: int = 13) -> tuple[Design, float]:
    """Choose the number of scores and the penalty on held-out papers.

    The papers are dealt to five folds; of all settings the one with the smallest log loss on
    the folds it was not fitted on is taken. Raises `UserError` with fewer papers than folds.
    """
    present = paired.present
    papers = np.unique(paired.groups)
    if len(papers) < FOLDS:
        raise UserError(f"abstention is fitted on {FOLDS} papers at least; there are {len(papers)}")
    dealt = np.random.default_rng(seed).permutation(len(papers)) % FOLDS
    fold = dealt[np.searchsorted(papers, paired.groups)]
    losses: dict[tuple[Design, float], float] = {}
    for scores in SCORES:
        design = Design(tuple(paired.stages), scores)
        features = paired.features(design)
        for penalty in PENALTIES:
            shares = np.empty(len(present))
            for number in range(FOLDS):
                rest = fold != number
                model = fit(design, features[rest], present[rest], penalty)
                shares[~rest] = model.probabilities(features[~rest])
            sure = np.clip(np.where(present, shares, 1 - shares), 1e-12, None)
            losses[design, penalty] = round(float(-np.log(sure).mean()), 12)
    return min(losses, key=lambda setting: losses[setting])
