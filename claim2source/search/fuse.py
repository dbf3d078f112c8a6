"""Fuse runs: weighted sums of normalised scores (2025 paper, section 4), reciprocal ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import numpy as np

from claim2source.core.arguments import whole_number
from claim2source.core.config import Between, Settings, Share, require
from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.report import Choice, Rule
from claim2source.core.run import Result, Run
from claim2source.core.stage import Claims, Index, Retriever, as_claims

if TYPE_CHECKING:
    from claim2source.search.choose import Weighing

# Names of a hybrid's two parts.
PARTS = ("first", "second")
FUSION_DEPTHS = (100, 1000)
DEEPEST_FUSION = max(FUSION_DEPTHS)
ALPHAS = tuple(round(step / 20, 2) for step in range(1, 20))
# Unscaled, a BM25 score is about twenty times a cosine, so useful weights are small.
UNSCALED_ALPHAS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.08, 0.1, 0.12, 0.15, 0.2, 0.3)
Ranking = TypeVar("Ranking", Run, Result)


@dataclass(frozen=True)
class FusionConfig(Settings):
    """Settings of the fusion of two runs.

    Args:
        method: `linear`: alpha * first + (1 - alpha) * second, each normalised per claim over
            its own list; `rrf`: sum of weight / (rrf_k + rank).
        alpha: weight of the first run (the sparse one in a hybrid), 0 to 1.
        rrf_k: constant of reciprocal rank fusion.
        depth: depth of each list before fusion.
        scale: divisor of a list's scores in linear fusion: `min-max`, their range;
            `z-score`, their standard deviation, which depends less on a single high score;
            `none`, no scaling: a claim's high scores stay high, and alpha also sets the ratio
            of the two kinds of scores.
        missing: score of a source that a list lacks, in linear fusion: `lowest`, the list's lowest
            score; `scored`, the score that the list's system computes for it (0 if BM25 finds no
            term in common), on the list's own scale.
    """

    method: Literal["linear", "rrf"] = "linear"
    alpha: Share = 0.5
    rrf_k: Annotated[int, Between(1, 10**6)] = 60
    depth: Annotated[int, Between(1, 10**6)] = 100
    scale: Literal["min-max", "z-score", "none"] = "min-max"
    missing: Literal["lowest", "scored"] = "lowest"

    def check(self) -> None:
        good = self.method == "linear" or self.missing == "lowest"
        allowed = "lowest with method rrf: it reads ranks"
        require(good, "fusion.missing", self.missing, allowed)


def fuse(
    first: Ranking,
    second: Ranking,
    config: FusionConfig | None = None,
    *,
    k: int | None = None,
    scored: tuple[Ranking, Ranking] | None = None,
    alphas: Mapping[str, float] | None = None,
    **settings: Any,
) -> Ranking:
    """Fuse two runs, or two results, over the union of their lists.

    Settings are those of `FusionConfig`: `fuse(first, second, alpha=0.3)`. `alphas` override its
    `alpha` for single claims, by id. With `k` the lists are at least that deep, and the first `k`
    sources are kept.

    A source missing from one list gets 0 from it: in linear fusion this is the normalised score of
    the list's last source, in reciprocal rank fusion that of an infinitely deep rank. With
    `missing: scored` it gets its own score from `scored`, the results of `score_missing` for the
    first and the second. A list whose scores are all equal normalises to 1.

    Example:
        >>> import claim2source as c2s
        >>> first = c2s.Run.from_lists({"c": [("a", 9.0), ("b", 1.0)]})
        >>> second = c2s.Run.from_lists({"c": [("b", 0.9), ("a", 0.8)]})
        >>> c2s.fuse(first, second, alpha=0.2).sources("c")
        ['b', 'a']
    """
    base = config or FusionConfig()
    config = replace(base, **settings)
    if k is not None:
        wanted = whole_number(k, "k")
        depth = max(config.depth, wanted)
        config = replace(config, depth=depth)
    if isinstance(first, Run) and isinstance(second, Run):
        scored_runs = _runs(scored)
        fusion = Fusion(first, second, config, scored_runs)
        return fusion.run(config.alpha, k, alphas)
    if not isinstance(first, Result) or not isinstance(second, Result):
        raise TypeError("fuse needs two runs or two results")
    scored_runs = _runs(scored)
    fusion = Fusion(first.run, second.run, config, scored_runs)
    run = fusion.run(config.alpha, k, alphas)
    return _fused_result((first, second), scored, run)


def _runs(scored: tuple[Run | Result, Run | Result] | None) -> tuple[Run, Run] | None:
    """Return the results of `score_missing` for both parts as runs."""
    if scored is None:
        return None
    first, second = scored
    first_run = first.run if isinstance(first, Result) else first
    second_run = second.run if isinstance(second, Result) else second
    return first_run, second_run


def _fused_result(
    parts: tuple[Result, Result],
    scored: tuple[Run | Result, Run | Result] | None,
    run: Run,
) -> Result:
    """Merge the costs and failures of two results and of `score_missing`."""
    first, second = parts
    # A claim that one part could not rank is ranked by the other; it fails only if both fail.
    failed = {failure.claim_id for failure in second.failures}
    failures = tuple(failure for failure in first.failures if failure.claim_id in failed)
    results = [*parts]
    for ranking in scored or ():
        if isinstance(ranking, Result):
            results.append(ranking)
    cost = first.cost
    for result in results[1:]:
        cost = cost.over_same(result.cost)
    stored = all(result.stored for result in results)
    return Result(run, failures=failures, cost=cost, stored=stored)


def score_missing(index: Index, claims: Sequence[Claim], own: Run, run: Run) -> Result:
    """Score with `index`, whose ranking is `own`, the sources that only `run` ranks.

    Only these are scored, as candidates of their claims. Sources without a score (BM25: no term
    in common) are left out.
    """
    lacking = []
    for claim in claims:
        ranked = set(own.sources(claim.id))
        others = run.sources(claim.id)
        lacked = tuple(source for source in others if source not in ranked)
        if lacked:
            reduced = replace(claim, candidates=lacked)
            lacking.append(reduced)
    if not lacking:
        return Result(Run.from_lists({}), stored=True)
    longest = max(len(claim.candidates or ()) for claim in lacking)
    return index.search(lacking, longest)


class Fusion:
    """Align and normalise two runs once, to fuse them with several alphas.

    `scored` has the scores of the sources that each lacks (`score_missing`), at least to the depth
    of the fusion.
    """

    def __init__(
        self,
        first: Run,
        second: Run,
        config: FusionConfig,
        scored: tuple[Run, Run] | None = None,
    ) -> None:
        if config.missing == "scored" and scored is None:
            allowed = "lowest: two rankings do not contain the scores of each other's sources"
            raise ConfigError("fusion.missing", config.missing, allowed)
        claim_ids = list(dict.fromkeys([*first.claim_ids, *second.claim_ids]))
        full = [run.restricted(claim_ids) for run in (first, second)]
        runs = [run.top(config.depth) for run in full]
        # Only ranked sources: a run of one claim may have a vocabulary of millions.
        sources = [run.vocabulary[np.unique(run.codes)] for run in runs]
        vocabulary = np.unique(np.concatenate(sources))
        owners = [_owners(run) for run in runs]
        keys: list[np.ndarray] = []
        values: list[np.ndarray] = []
        for number, run in enumerate(runs):
            keys.append(_pair_keys(run, owners[number], vocabulary))
            normalised = _normalised(run, owners[number], config)
            values.append(normalised)

        pairs, row = np.unique(np.concatenate(keys), return_inverse=True)
        divisor = max(len(vocabulary), 1)
        owner, codes = np.divmod(pairs, divisor)
        # Positions within a claim arrange the pairs in the [claims, longest] shape of from_codes.
        counts = np.bincount(owner, minlength=len(claim_ids))
        starts = np.cumsum(counts) - counts
        column = np.arange(len(pairs)) - np.repeat(starts, counts)
        longest = int(counts.max(initial=0))
        shape = (len(claim_ids), longest)

        self._claim_ids = claim_ids
        self._vocabulary = vocabulary
        self._codes = np.full(shape, -1, dtype=np.int64)
        self._codes[owner, column] = codes
        self._values = np.zeros((2, *shape))
        parts = np.split(row.ravel(), [len(keys[0])])
        for number, part in enumerate(parts):
            if scored is not None and config.missing == "scored":
                # Sources that a shallow fusion lacks may be deeper in the same ranking.
                own_scored = scored[number].restricted(claim_ids)
                rankings = (full[number], own_scored)
                scores = _looked_up(pairs, rankings, vocabulary)
                low, spread = _scaling(runs[number], owners[number], config)
                self._values[number, owner, column] = _scaled(scores, owner, low, spread)
            self._values[number, owner[part], column[part]] = values[number]
        first_pool = first.pool or {}
        second_pool = second.pool or {}
        pool = {**first_pool, **second_pool}
        self._pool = pool or None

    def run(
        self,
        alpha: float,
        k: int | None = None,
        alphas: Mapping[str, float] | None = None,
    ) -> Run:
        """Fuse with weight `alpha` for the first run, or a claim's own of `alphas`.

        With `k` only the best `k` sources are kept.
        """
        weights: float | np.ndarray = alpha
        if alphas:
            own = [[alphas.get(claim, alpha)] for claim in self._claim_ids]
            weights = np.array(own)
        first = self._values[0]
        second = self._values[1]
        scores = weights * first + (1.0 - weights) * second
        scores = scores.astype(np.float32)
        codes = self._codes
        if k is not None and 0 < k < scores.shape[1]:
            ranked = np.where(codes >= 0, scores, -np.inf)
            partitioned = np.partition(ranked, -k, axis=1)
            thresholds = partitioned[:, -k, None]
            codes = np.where(ranked >= thresholds, codes, -1)
        run = Run.from_codes(
            self._claim_ids,
            self._vocabulary,
            codes,
            scores,
            pool=self._pool,
        )
        if k is None:
            return run
        return run.top(k)


def _owners(run: Run) -> np.ndarray:
    claims = np.arange(len(run.claim_ids))
    lengths = np.diff(run.offsets)
    return np.repeat(claims, lengths)


def _positions(run: Run, vocabulary: np.ndarray) -> np.ndarray:
    """Return the position of every row's source in a sorted vocabulary, [rows]; -1 if absent."""
    codes, rows = np.unique(run.codes, return_inverse=True)
    sources = run.vocabulary[codes]
    slots = np.searchsorted(vocabulary, sources)
    is_known = slots < len(vocabulary)
    found = vocabulary[slots[is_known]]
    is_known[is_known] = found == sources[is_known]
    known_slots = np.where(is_known, slots, -1)
    positions: np.ndarray = known_slots[rows]
    return positions


def _pair_keys(run: Run, owner: np.ndarray, vocabulary: np.ndarray) -> np.ndarray:
    """Number the pair of claim and source of every row, [rows]."""
    positions = _positions(run, vocabulary)
    first_keys = owner * len(vocabulary)
    return first_keys + positions


def _looked_up(pairs: np.ndarray, runs: Sequence[Run], vocabulary: np.ndarray) -> np.ndarray:
    values = np.zeros(len(pairs))
    for run in runs:
        positions = _positions(run, vocabulary)
        keys = _owners(run) * len(vocabulary) + positions
        places = np.searchsorted(pairs, keys)
        is_known = positions >= 0
        is_inside = places < len(pairs)
        is_hit = is_known & is_inside
        candidates = pairs[places[is_hit]]
        is_hit[is_hit] = candidates == keys[is_hit]
        hits = places[is_hit]
        values[hits] = run.scores[is_hit]
    return values


def _normalised(run: Run, owner: np.ndarray, config: FusionConfig) -> np.ndarray:
    if config.method == "rrf":
        return 1 / (config.rrf_k + run.ranks())
    scores = run.scores.astype(np.float64)
    low, spread = _scaling(run, owner, config)
    return _scaled(scores, owner, low, spread)


def _scaling(run: Run, owner: np.ndarray, config: FusionConfig) -> tuple[np.ndarray, np.ndarray]:
    """Measure each claim's list: its lowest score, and the divisor of its scores, [claims].

    The divisor is 0 if the scores do not differ.
    """
    scores = run.scores.astype(np.float64)
    claims = len(run.claim_ids)
    low = np.full(claims, np.inf)
    high = np.full(claims, -np.inf)
    np.minimum.at(low, owner, scores)
    np.maximum.at(high, owner, scores)
    if config.scale == "none" and config.missing == "scored":
        # Every source has its own score: unscaled scores are summed.
        has_scores = np.isfinite(low)
        return np.where(has_scores, low, 0.0), np.ones(claims)
    if config.scale == "min-max":
        spread = high - low
    elif config.scale == "none":
        spread = np.ones(claims)
    else:
        counts = np.bincount(owner, minlength=claims)
        counts = np.maximum(counts, 1)
        sums = np.bincount(owner, weights=scores, minlength=claims)
        mean = sums / counts
        squares = (scores - mean[owner]) ** 2
        variation = np.bincount(owner, weights=squares, minlength=claims)
        spread = np.sqrt(variation / counts)
    differs = high > low
    divisors = np.where(differs, spread, 0.0)
    return low, divisors


def _scaled(
    scores: np.ndarray,
    owner: np.ndarray,
    low: np.ndarray,
    spread: np.ndarray,
) -> np.ndarray:
    """Scale scores by their claims' lists, [rows]: 1 or 0 if a list's scores do not differ.

    The list's lowest score is subtracted, not the mean: this shifts all of a claim's sources alike,
    and missing ones have 0.
    """
    low = low[owner]
    spread = spread[owner]
    differs = spread > 0
    divisors = np.where(differs, spread, 1.0)
    scaled = (scores - low) / divisors
    reaches_lowest = scores >= low
    shares: np.ndarray = np.where(differs, scaled, reaches_lowest)
    return shares


@dataclass(frozen=True)
class Hybrid:
    """Rank sources by two retrievers and fuse their rankings.

    `fits`: whether `fit` chooses the fusion; lists are then as deep as the deepest fusion.

    Example:
        >>> import claim2source as c2s
        >>> papers = c2s.load("demo", "dev").sources[:20]
        >>> hybrid = c2s.Hybrid(c2s.BM25(), c2s.BM25(stemmer=False)).index(papers)
        >>> hybrid.search("masks", k=3).run.claim_ids
        ('0',)
    """

    first: Retriever
    second: Retriever
    fusion: FusionConfig = FusionConfig()
    fits: bool = False

    def __post_init__(self) -> None:
        for name, part in zip(PARTS, self.parts, strict=True):
            if not hasattr(part, "index"):
                wanted = "a retriever, such as BM25() or Dense(..)"
                raise InputError(name, reason=f"is a {type(part).__name__}; wanted: {wanted}")

    @property
    def parts(self) -> tuple[Any, Any]:
        return self.first, self.second

    def fit(
        self,
        val: Dataset,
        rule: Rule = "one_se",
        weighing: Weighing | None = None,
        note: str = "",
    ) -> tuple[Hybrid, Choice]:
        """Choose the fusion, and its alpha, on val's claims; `weighing` weighs them."""
        index = self.index(val.sources)
        first, second = index.rankings(val.claims, DEEPEST_FUSION)
        first_missing, second_missing = index.score_missing(val.claims, first, second)
        scored = (first_missing.run, second_missing.run)
        fusion, choice = choose_fusion(
            first.run,
            second.run,
            val,
            None,
            note,
            scored,
            weighing,
            rule,
        )
        return replace(self, fusion=fusion), choice

    def index(self, sources: Sequence[Source]) -> HybridIndex:
        """Return the index of these sources: one of each retriever."""
        # The second one first: it may lack its weights.
        second = self.second.index(sources)
        first = self.first.index(sources)
        first_name = part_name(self.first, PARTS[0])
        second_name = part_name(self.second, PARTS[1])
        names = (first_name, second_name)
        # One depth for all choices, so that the lists do not depend on the choice.
        chosen_to = DEEPEST_FUSION if self.fits else 0
        return HybridIndex(first, second, self.fusion, names, chosen_to)


def part_name(part: Retriever, default: str) -> str:
    """Return the name of a part of a hybrid or of routes: its `display_name`, if it has one."""
    return str(getattr(part, "display_name", default))


@dataclass(frozen=True, eq=False)
class HybridIndex:
    """Search two indexes of the same sources and fuse their rankings.

    `names` are those of both in a result's `parts`. With `chosen_to`, the deepest fusion that was
    compared with this one, the lists are that deep, and what is fused is as deep as was chosen: a
    longer ranking goes on with what both lists have below.
    """

    first: Index
    second: Index
    fusion: FusionConfig = FusionConfig()
    names: tuple[str, str] = PARTS
    chosen_to: int = 0

    def rankings(self, claims: Sequence[Claim], depth: int) -> tuple[Result, Result]:
        # The second one first: it may lack its weights.
        second = self.second.search(claims, depth)
        first = self.first.search(claims, depth)
        return first, second

    def score_missing(
        self,
        claims: Sequence[Claim],
        first: Result,
        second: Result,
    ) -> tuple[Result, Result]:
        """Score with each index the sources that only the other ranks."""
        first_missing = score_missing(self.first, claims, first.run, second.run)
        second_missing = score_missing(self.second, claims, second.run, first.run)
        return first_missing, second_missing

    def search(self, claims: Claims, k: int = 100) -> Result:
        """Rank max(`fusion.depth`, `k`) sources by both, fuse, keep the best `k`.

        With `fusion.missing: scored` each also scores what only the other has found; not so what
        lies below a chosen depth.
        """
        claims = as_claims(claims)
        fusion = self.fusion
        k = whole_number(k, "k")
        depth = max(fusion.depth, k, self.chosen_to)
        first, second = self.rankings(claims, depth)
        limit = None if self.chosen_to else k
        scored: tuple[Result, Result] | None = None
        if fusion.missing == "scored":
            deep = max(fusion.depth, limit or 0)
            scored = self.score_missing(claims, first.top(deep), second.top(deep))
        fused = fuse(first, second, fusion, k=limit, scored=scored).top(k)
        if limit is None and k > fusion.depth:
            whole = replace(fusion, missing="lowest")
            deeper = fuse(first, second, whole, k=k).run
            run = _continued(fused.run, deeper, k)
            fused = replace(fused, run=run)
        parts = tuple(zip(self.names, (first, second), strict=True))
        return replace(fused, parts=parts)


def _continued(run: Run, deeper: Run, k: int) -> Run:
    """Lengthen each claim's list to `k` sources by those that only `deeper` ranks, below it."""
    lists: dict[str, list[tuple[str, float]]] = {}
    for claim in deeper.claim_ids:
        ranked = run.scored(claim)
        own = deeper.scored(claim)
        lacking = [source for source in own if source not in ranked]
        rest = lacking[: k - len(ranked)]
        lists[claim] = list(ranked.items())
        if not rest:
            continue
        least = min(ranked.values(), default=0.0)
        lowest = np.float32(least)
        below = np.nextafter(lowest, np.float32(-np.inf))
        highest = float(below)
        first = own[rest[0]]
        for source in rest:
            score = highest - (first - own[source])
            lists[claim].append((source, score))
    return Run.from_lists(lists, pool=run.pool)


@cache
def fusion_grid() -> tuple[FusionConfig, ...]:
    """Make the fusions to choose from; not on import, because pydantic checks their settings."""
    fusions = [
        FusionConfig("linear"),
        FusionConfig("linear", scale="z-score"),
        FusionConfig("linear", scale="none"),
        FusionConfig("rrf", rrf_k=60),
        FusionConfig("rrf", rrf_k=10),
    ]
    grid: list[FusionConfig] = []
    for depth in FUSION_DEPTHS:
        grid += [replace(fusion, depth=depth) for fusion in fusions]
    linear = [fusion for fusion in grid if fusion.method == "linear"]
    # The same with the other system's own score for sources that a list lacks.
    scored = [replace(fusion, missing="scored") for fusion in linear]
    return (*grid, *scored)


def choose_fusion(
    sparse: Run,
    dense: Run,
    data: Dataset,
    grid: Sequence[FusionConfig] | None = None,
    note: str = "",
    scored: tuple[Run, Run] | None = None,
    weighing: Weighing | None = None,
    rule: Rule = "one_se",
) -> tuple[FusionConfig, Choice]:
    """Choose a fusion of two runs, and its alpha, from a grid (none: `fusion_grid`).

    The default is `FusionConfig()`. Any other method, scale, constant or depth is further from
    it than any other alpha. `weighing` has the claims' weights; None: the macro average. By the
    rule `best`, of equal settings the first of the grid is chosen, with the middle one of its best
    alphas. `scored` are both systems' scores of sources that they lack (`score_missing`); without
    them, fusions that need them are left out.
    """
    # The code for choosing is not imported to search.
    from claim2source.search.choose import DEPTH, Preference, choose, weigh

    if weighing is None:
        weighing = weigh(data)
    if grid is None:
        grid = fusion_grid()
    sparse = sparse.restricted(weighing.claim_ids)
    dense = dense.restricted(weighing.claim_ids)
    candidates: dict[FusionConfig, np.ndarray] = {}
    for config in grid:
        if scored is None and config.missing == "scored":
            continue
        fusion = Fusion(sparse, dense, config, scored)
        for alpha in _alphas(config):
            run = fusion.run(alpha, DEPTH)
            values = weighing.of(run)
            setting = replace(config, alpha=alpha)
            candidates[setting] = values
    by = Preference(
        rule,
        _fusion_distance,
        group=lambda config: replace(config, alpha=0.5),
    )
    return choose("fusion", candidates, weighing, by=by, note=note)


def _alphas(config: FusionConfig) -> tuple[float, ...]:
    is_unscaled = config.method == "linear" and config.scale == "none"
    return UNSCALED_ALPHAS if is_unscaled else ALPHAS


def _fusion_distance(config: FusionConfig) -> float:
    """Return a fusion's distance from the default: other settings first, then its alpha."""
    alphas = _alphas(config)
    middle = len(alphas) // 2
    steps = alphas.index(config.alpha) - middle
    default = FusionConfig()
    changed = 0
    for setting in fields(FusionConfig):
        if setting.name == "alpha":
            continue
        own = getattr(config, setting.name)
        if own != getattr(default, setting.name):
            changed += 1
    return changed + abs(steps) / len(alphas)
