"""Estimate the probability that a post's paper is in an index, from the scores of its lists.

The features of a logistic model are the sorted scores of every list (Gisserot-Boukhlef et al.,
2024), the margin of its first paper, and whether two lists agree on it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Literal

import numpy as np

from claim2source.core.errors import InputError
from claim2source.core.records import Claim
from claim2source.core.run import Result, Run
from claim2source.core.validate import validated
from claim2source.find.shapes import NAMES, shape_features
from claim2source.search.engine import Engine
from claim2source.search.fuse import FusionConfig, fuse
from claim2source.search.manifest import MANIFEST, IndexManifest
from claim2source.search.table import SearchResults
from claim2source.text.language import READ

LEXICAL = "lexical"
DENSE = "dense"
FUSED = "fused"
DEEPEST = 100
# Probability from which a paper counts as found, unless another is fitted.
SURE = 0.7


@dataclass(frozen=True)
class Design:
    """Set the features: the first `scores` scores of each of `stages`, margins, agreements.

    `usual` adds the rank of the first score of the stage `of_usual` among these scores of posts of
    other topics. `shape` replaces all by the shape of the lexical and the dense list, which does
    not depend on the collection or the encoder's scale.
    """

    stages: tuple[str, ...]
    scores: int = 5
    of_usual: str = ""
    usual: tuple[float, ...] = ()
    shape: bool = False

    def __post_init__(self) -> None:
        if not 0 < len(set(self.stages)) == len(self.stages):
            raise ValueError("stages must be distinct names")
        if not 1 <= self.scores <= DEEPEST:
            raise ValueError(f"scores must be from 1 to {DEEPEST}")
        if self.usual and self.of_usual not in self.stages:
            raise ValueError("of_usual must be one of the stages")
        if self.shape and self.stages != (LEXICAL, DENSE):
            raise ValueError(f"stages must be {LEXICAL} and {DENSE}, for their shape")

    @property
    def names(self) -> list[str]:
        if self.shape:
            return list(NAMES)

        columns: list[str] = []
        for stage in self.stages:
            for number in range(1, self.scores + 1):
                columns.append(f"{stage}: score {number}")
        columns += [f"{stage}: margin" for stage in self.stages]
        for stage, other_stage in combinations(self.stages, 2):
            columns.append(f"{stage} = {other_stage}")
        if self.usual:
            columns.append("usual")
        return columns

    def features(
        self,
        claim_ids: Sequence[str],
        stages: Mapping[str, Result],
        foreign: Collection[str] = (),
    ) -> np.ndarray:
        """Compute the features of claims from the results of stages, [claims, features] float64.

        Short lists are padded with their last score, empty ones with 0; a list without a shape
        has NaN. `foreign` claims are in another language than the papers.
        """
        if self.shape:
            lexical = stages[LEXICAL].run
            dense = stages[DENSE].run
            return shape_features(claim_ids, lexical, dense, foreign)

        columns: list[np.ndarray] = []
        margins: list[np.ndarray] = []
        for name in self.stages:
            run = stages[name].run
            scores, margin = _sorted_scores(run, claim_ids, self.scores)
            columns += [*scores.T]
            margins.append(margin)
        columns += margins

        for stage, other_stage in combinations(self.stages, 2):
            run = stages[stage].run
            other_run = stages[other_stage].run
            agreements = _agreements(run, other_run, claim_ids)
            columns.append(agreements)

        if self.usual:
            run = stages[self.of_usual].run
            best, _ = _sorted_scores(run, claim_ids, 1)
            usual = np.sort(self.usual)
            above = np.searchsorted(usual, best[:, 0])
            share = (above + 0.5) / (len(self.usual) + 1)
            odds = share / (1 - share)
            columns.append(np.log(odds))
        return np.stack(columns, axis=1)


@dataclass(frozen=True)
class Tenth:
    """Counts of held-out answers with a probability in one tenth, from 0 to 0.1 and so on.

    `share` is their mean probability. Of `answers`, `here` have their paper in the index, and
    `first` have it at rank 1.
    """

    answers: int = 0
    share: float = 0.0
    here: int = 0
    first: int = 0


@dataclass(frozen=True)
class AbstainModel:
    """Fitted logistic model, in a small JSON file.

    `mean`, `scale` and `weights` are by feature of `design`, named in `features`. A probability
    below `threshold` means "not here", one from `sure` up "found". `fitted` describes the fitting
    data for readers of the file, `papers` is the size of the index. `topic` is the model that
    detects posts of other topics. `tenths` are measured on papers that it was not fitted on. A
    `shared` model was fitted on other collections, for posts in `languages` (none: all).
    """

    design: Design
    features: tuple[str, ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    weights: tuple[float, ...]
    bias: float
    threshold: float = 0.5
    fitted: str = ""
    sure: float = SURE
    topic: AbstainModel | None = None
    papers: int = 0
    tenths: tuple[Tenth, ...] = ()
    shared: bool = False
    languages: tuple[str, ...] = ()
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        if len(self.tenths) not in (0, 10):
            raise ValueError("tenths must be ten, or none")
        if list(self.features) != self.design.names:
            raise ValueError("features are not those of the design")
        if not len(self.mean) == len(self.scale) == len(self.weights) == len(self.features):
            raise ValueError("mean, scale and weights must have a number for each feature")
        if not min(self.scale) > 0 or not 0 <= self.threshold <= 1 or self.sure < 0:
            raise ValueError("scale must be greater than 0, and threshold from 0 to 1")

    def probabilities(self, features: np.ndarray) -> np.ndarray:
        """Return the probability by claim that its paper is among the sources, [claims]."""
        centred = features - np.array(self.mean)
        standard = centred / np.array(self.scale)
        weights = np.array(self.weights)
        odds = standard @ weights + self.bias
        shares: np.ndarray = 0.5 * (1 + np.tanh(odds / 2))
        return shares

    def shares(
        self,
        claim_ids: Sequence[str],
        stages: Mapping[str, Result],
        foreign: Collection[str] = (),
    ) -> np.ndarray:
        """Return the probability that each claim's paper is in the pool, [claims].

        It is the probability of the index's topics times that of the paper given the topic; NaN if
        the lists have too few papers for a shape.
        """
        features = self.design.features(claim_ids, stages, foreign)
        probabilities = self.probabilities(features)
        if self.topic is None:
            return probabilities
        return probabilities * self.topic.shares(claim_ids, stages, foreign)

    def measured(self, low: float, high: float) -> Tenth:
        """Sum the tenths whose mean probability is from `low` to below `high`."""
        answers = here = first = 0
        expected = 0.0
        for tenth in self.tenths:
            if tenth.answers and low <= tenth.share < high:
                answers += tenth.answers
                expected += tenth.answers * tenth.share
                here += tenth.here
                first += tenth.first
        return Tenth(answers, expected / max(1, answers), here, first)

    def as_json(self) -> dict[str, object]:
        text = json.dumps(asdict(self))
        values: dict[str, object] = json.loads(text)
        return values


def index_stages(results: SearchResults) -> dict[str, Result]:
    """Return an index's rankings by name, with default fusion weights, to abstention's depth."""
    lexical = results.lexical.top(DEEPEST)
    dense = results.dense.top(DEEPEST)
    fused = fuse(
        lexical,
        dense,
        FusionConfig(),
        k=DEEPEST,
        alphas=results.alphas,
    )
    return {
        LEXICAL: lexical,
        DENSE: dense,
        FUSED: fused,
    }


def candidate_languages(engine: Engine) -> tuple[str, ...]:
    """List the candidate languages of a short post, the papers' first."""
    papers_language = engine.manifest.bm25.language
    distinct = dict.fromkeys((papers_language, *READ))
    return tuple(distinct)


def foreign_ids(claims: Iterable[Claim], engine: Engine) -> frozenset[str]:
    """Return the claims in another language than the index's, without a translation."""
    language = engine.manifest.bm25.language
    ids: list[str] = []
    for claim in claims:
        if claim.lang != language and not claim.translation:
            ids.append(claim.id)
    return frozenset(ids)


def has_own_model(manifest: IndexManifest) -> bool:
    """Whether abstention was fitted to the index itself, not to other collections."""
    model = manifest.abstain
    return model is not None and model.get("shared") is not True


def read_abstention(engine: Engine) -> AbstainModel | None:
    """Read the model of abstention that is fitted to an index; None if there is none.

    Raises `InputError` if the manifest's entry is invalid.
    """
    values = engine.manifest.abstain
    if values is None:
        return None

    path = f"{engine.location}/{MANIFEST}"
    try:
        text = json.dumps(values)
        return validated(AbstainModel, text, path)
    except InputError as error:
        first = error.problems[0]
        remedy = f"fit the verdict again: index --claims DATASET --out {engine.location}"
        reason = f"{first.reason}; {remedy}"
        field = "abstain"
        if first.field:
            field = f"abstain.{first.field}"
        raise InputError(path, field=field, reason=reason) from None


def fit(
    design: Design,
    features: np.ndarray,
    present: np.ndarray,
    penalty: float,
) -> AbstainModel:
    """Fit a logistic model with a ridge penalty to standardised features [claims, features].

    `present` [claims] bool is the target. Raises ValueError if all its values are equal.
    """
    from scipy.optimize import minimize

    target = np.asarray(present, np.float64)
    if not 0 < target.sum() < len(target):
        raise ValueError("a logistic model needs claims with and without their papers")

    mean = features.mean(axis=0)
    spread = features.std(axis=0)
    smallest = 1e-9 * np.maximum(np.abs(mean), 1)
    scale = np.where(spread > smallest, spread, 1.0)
    standard = (features - mean) / scale
    ones = np.ones(len(target))
    inputs = np.column_stack([standard, ones])

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        odds = inputs @ weights
        ridge = penalty * np.append(weights[:-1], 0)  # no penalty on the bias
        value = np.logaddexp(0, odds).sum() - odds @ target + ridge @ weights / 2
        shares = 0.5 * (1 + np.tanh(odds / 2))
        gradient = inputs.T @ (shares - target) + ridge
        return float(value), gradient

    start = np.zeros(inputs.shape[1])
    options = {"maxiter": 5000, "gtol": 1e-7, "ftol": 1e-14}
    solution = minimize(
        loss,
        start,
        jac=True,
        method="L-BFGS-B",
        options=options,
    ).x
    return AbstainModel(
        design=design,
        features=tuple(design.names),
        mean=tuple(mean.tolist()),
        scale=tuple(scale.tolist()),
        weights=tuple(solution[:-1].tolist()),
        bias=float(solution[-1]),
    )


def reliability_tenths(
    shares: np.ndarray,
    present: np.ndarray,
    first: np.ndarray,
) -> tuple[Tenth, ...]:
    """Count answers by tenths of their probability; all arguments are by answer."""
    scaled = np.asarray(shares) * 10
    tenth = np.minimum(scaled.astype(int), 9)
    tenths: list[Tenth] = []
    for number in range(10):
        rows = tenth == number
        mean = 0.0
        if rows.any():
            mean = float(shares[rows].mean())
        answers = int(rows.sum())
        here = int(present[rows].sum())
        at_first_rank = int(first[rows].sum())
        tenths.append(Tenth(answers, mean, here, at_first_rank))
    return tuple(tenths)


def _agreements(
    run: Run,
    other_run: Run,
    claim_ids: Sequence[str],
) -> np.ndarray:
    """Return 1.0 for each claim with the same first source in two runs, else 0.0, [claims]."""
    agreements = np.zeros(len(claim_ids))
    for row, claim in enumerate(claim_ids):
        first = run.sources(claim, 1)
        other_first = other_run.sources(claim, 1)
        agreements[row] = first == other_first
    return agreements


def _sorted_scores(
    run: Run,
    claim_ids: Sequence[str],
    depth: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first scores [claims, depth], and the margins [claims]."""
    scores = np.zeros((len(claim_ids), depth))
    margins = np.zeros(len(claim_ids))
    for row, claim in enumerate(claim_ids):
        # The depth of a list depends on other settings, so no feature may depend on it.
        rows = run.rows(claim)
        listed = run.scores[rows][:DEEPEST].astype(np.float64)
        if not len(listed):
            continue

        places = np.minimum(np.arange(depth), len(listed) - 1)
        scores[row] = listed[places]
        spread = listed[0] - listed[-1]
        if len(listed) == 1:
            margins[row] = 1.0
        elif spread > 0:
            margin = listed[0] - listed[1]
            margins[row] = margin / spread
    return scores, margins
