"""Re-rank by a learned fusion: a few raw similarities, each with a fitted weight.

`train/fusion.py` fits the weights and writes them to a JSON file. A score must be comparable
between pools, so nothing is normalised by claim or by list: cosines are used unchanged,
BM25 in units of its pool's rarest term, and each view is divided by one constant, its spread
among the candidates of a training claim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np

from claim2source.core.config import Between, require
from claim2source.core.errors import InputError, UserError
from claim2source.core.files import content_hash, file_hash, write_json
from claim2source.core.records import Claim, Source
from claim2source.core.run import Result, Run
from claim2source.core.validate import read_json, validated
from claim2source.models.trained_on import TrainedOn
from claim2source.search.bm25 import FORMATS
from claim2source.stages.pairs import DEEPEST, Ranking, WithRuntime, ranked_by
from claim2source.stages.similarities import Scorer, ViewConfig


@dataclass(frozen=True)
class LearnedView:
    """View of a learned fusion: its settings, its encoder's hash, its weight.

    `encoder` is the hash of all that its vectors depend on ("" without an encoder); `scale` is the
    divisor of scores.
    """

    name: str
    view: ViewConfig
    encoder: str
    scale: float
    weight: float

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError("scale must be greater than 0")
        if self.view.is_similarity and self.weight < 0:
            raise ValueError("the weight of a similarity must not be negative")
        if self.view.score == "posts" and self.view.posts is None:
            raise ValueError("a view with score posts must name the posts")


@dataclass(frozen=True)
class FittingData:
    """Training data of a fusion: claims with a gold among `depth` candidates, their papers.

    `candidates` is the system that returned them; `held_out` describes the claims on which trained
    models were scored. `texts` are the hashes of the claims, in base64, as in
    `trained_on.json`: no other setting of a system is chosen on these claims.
    """

    dataset: str
    split: str
    claims: int
    papers: int
    data_sha256: str
    candidates: str
    depth: int
    penalty: float
    held_out: str = ""
    texts: str = ""

    def __post_init__(self) -> None:
        TrainedOn.from_text(self.texts)  # raises ValueError

    @property
    def trained_on(self) -> TrainedOn:
        """Return the claims that the weights were fitted on; none if they are not recorded."""
        return TrainedOn.from_text(self.texts)


@dataclass(frozen=True)
class LearnedFusion:
    """Fitted fusion of views, the sum of weight * score / scale, in a small JSON file."""

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    views: tuple[LearnedView, ...]
    fitted: FittingData
    ranker: Literal["linear"] = "linear"
    format: Literal[1] = 1

    def __post_init__(self) -> None:
        names = [view.name for view in self.views]
        if not 0 < len(set(names)) == len(names):
            raise ValueError("views must have distinct names")

    def scores(self, columns: Sequence[np.ndarray]) -> np.ndarray:
        """Fuse the raw scores of one claim's candidates, an array [n] for each view, into [n].

        An unknown score is replaced by the mean of the claim's known ones.
        """
        scaled: list[np.ndarray] = []
        for column, view in zip(columns, self.views, strict=True):
            scaled.append(filled(column) / view.scale)
        weights = np.array([view.weight for view in self.views])
        totals: np.ndarray = np.stack(scaled, 1) @ weights
        return totals

    def write(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a written fusion. Raises `InputError` with the field that is wrong."""
        if not path.exists():
            raise InputError(path, reason="no such file; train/fusion.py writes it")
        return validated(cls, json.dumps(read_json(path)), path)


def filled(scores: np.ndarray) -> np.ndarray:
    """Replace NaN by the mean of a claim's known scores; by 0 if none is known."""
    missing = np.isnan(scores)
    if not missing.any():
        return scores
    if missing.all():
        mean = 0.0
    else:
        mean = scores[~missing].mean()
    return np.where(missing, mean, scores)


@dataclass(frozen=True, kw_only=True)
class Learned(WithRuntime):
    """Re-rank by the fitted weights of several similarities.

    Args:
        file: the JSON file that `train/fusion.py` wrote.
        depth: number of first sources to score, up to 2,000; the others keep their order below.
        models: view -> folder of its encoder, if it has moved since the fusion was fitted; another
            encoder is refused.
    """

    file: str
    depth: Annotated[int, Between(1, DEEPEST)] = 100
    models: dict[str, str] = field(default_factory=dict)

    def check(self) -> None:
        require(bool(self.file.strip()), "file", self.file, "a file of train/fusion.py")

    @cached_property
    def fusion(self) -> LearnedFusion:
        return LearnedFusion.read(Path(self.file))

    @property
    def read_content(self) -> str:
        """Hash what it reads when it ranks: its file, and the known posts of its views."""
        posts: list[str] = []
        for fitted in self.fusion.views:
            for known in (fitted.view.posts, fitted.view.bm25.posts):
                if known is not None:
                    posts.append(known.content)
        return content_hash([file_hash(self.file), posts])

    @cached_property
    def _scorer(self) -> Scorer:
        return Scorer((), self.runtime)

    @property
    def identity(self) -> Mapping[str, object]:
        """Identify the fitted fusion, and the pool of its term statistics if it was set."""
        identity = asdict(self.fusion)
        del identity["fitted"]["texts"]  # no score depends on them
        for fitted, written in zip(self.fusion.views, identity["views"], strict=True):
            posts = written["view"].pop("posts")
            if posts is not None and fitted.view.posts is not None:
                written["posts"] = fitted.view.posts.content
            indexed = fitted.view.bm25.posts
            del written["view"]["bm25"]["posts"]
            if indexed is not None:
                written["indexed_posts"] = indexed.content
        if self.counts_terms:
            identity["analysis"] = FORMATS["terms"]
        pool = self.__dict__.get("_pool")
        if pool is not None:
            identity["pool"] = pool
        return identity

    @property
    def counts_terms(self) -> bool:
        """Whether its scores depend on term frequencies in the pool."""
        return any(view.view.score == "bm25" for view in self.fusion.views)

    def with_corpus_stats(self, pool: Sequence[Source]) -> Self:
        """Return the same stage with the term statistics of this pool.

        Sources to score must be in the pool. All models are kept in memory for repeated calls.
        """
        copy = replace(self)
        copy.__dict__["_runtime"] = self.runtime
        copy.__dict__["_pool_scorer"] = Scorer(pool, self.runtime, several=True)
        copy.__dict__["_pool"] = content_hash([asdict(source) for source in pool])
        return copy

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Re-rank the first `depth` sources of every claim; equal scores keep their order.

        Raises `UserError` if an encoder is not the one used to fit the fusion.
        """
        scorer: Scorer | None = self.__dict__.get("_pool_scorer")
        if scorer is None:
            scorer = self._scorer.for_sources(sources)
        names = [view.name for view in self.fusion.views]
        for name, model in self.models.items():
            require(name in names, f"models.{name}", model, f"views: {', '.join(names)}")

        candidates = [run.sources(claim.id, self.depth) for claim in claims]
        columns: list[list[np.ndarray]] = []
        for fitted in self.fusion.views:
            view = self._placed_view(fitted)
            if scorer.key(view) != fitted.encoder:
                raise self._other_encoder(fitted.name, view)
            columns.append(scorer.scores(view, claims, candidates))

        ranked: dict[str, Ranking] = {}
        notes: dict[str, str] = {}
        for claim, ids, *scores in zip(claims, candidates, *columns, strict=True):
            before = run.scored(claim.id)
            ranked[claim.id] = ranked_by(before, self.fusion.scores(scores))
            notes[claim.id] = f"{len(ids)} of {len(before)} sources re-ranked"
        return Result(Run.from_lists(ranked, pool=run.pool), notes)

    def _placed_view(self, fitted: LearnedView) -> ViewConfig:
        """Return a view's settings with its encoder at the place in `models`."""
        view = fitted.view
        place = self.models.get(fitted.name)
        if place is None or view.model is None:
            return view
        return replace(view, model=replace(view.model, name=place))

    def _other_encoder(self, name: str, view: ViewConfig) -> UserError:
        model = "" if view.model is None else view.model.name
        return UserError(
            f"{self.file}: view {name!r} was fitted with another encoder than {model}: "
            "weights or settings differ; fit the fusion again (train/fusion.py), "
            "or set the encoder's folder in `models`"
        )
