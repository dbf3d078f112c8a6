"""Re-rank the first sources of every claim by scores of pairs: shared by all re-rankers."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple, Self

import numpy as np

from claim2source.core.config import Between, Settings, Share
from claim2source.core.progress import Progress
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.data.store import EmbeddingSpace, Store, pair_key, text_key
from claim2source.models.hub import one_line
from claim2source.text.views import (
    ClaimForm,
    Rendering,
    SourceForm,
    missing_translations,
)

if TYPE_CHECKING:
    import torch

DEEPEST = 2000
NOT_A_NUMBER = "the score is not a number"
# Scores are written to the store after so many pairs or seconds, the most that a kill can lose.
_SHARD = 2048
_SECONDS = 30.0
# Pairs that are tokenized at once: enough for batches of similar lengths.
CHUNK = 1024
# Padded tokens of a forward pass: few enough for a CPU's cache, or enough for a GPU.
_CPU_TOKENS = 2048
_GPU_TOKENS = 2**15
# Cost of one more batch, in padded tokens.
_CPU_EXTRA = 16
_GPU_EXTRA = 2048


# A claim's sources with their scores, the best first.
Ranking = list[tuple[str, float]]


class Pair(NamedTuple):
    """Texts of a claim and of a source."""

    claim: str
    source: str


@dataclass(frozen=True, eq=False)
class RawScores:
    """Raw scores of some pairs, float32, by their positions in the request.

    A pair that could not be scored has NaN and, by position, a `reason`. `tokens` counts the tokens
    of new scores, `reused` the scores from the store.
    """

    positions: Sequence[int]
    scores: np.ndarray
    reason: Mapping[int, str] = field(default_factory=dict)
    tokens: int = 0
    reused: int = 0


@dataclass(frozen=True)
class Runtime:
    """Store of scores and device of a re-ranker."""

    store: Store | None = None
    device: str | None = None
    progress: bool = False


class WithRuntime(Settings):
    """Stage dataclass with a store and a device in addition to its settings."""

    @property
    def runtime(self) -> Runtime:
        """Return the store of scores and the device."""
        runtime: Runtime = self.__dict__.get("_runtime") or Runtime()
        return runtime

    def with_runtime(
        self,
        store: Store | None,
        device: str | None,
        progress: bool = False,
    ) -> Self:
        """Return the same stage with a store of scores and a device.

        A stage that already has this runtime is returned itself, with its loaded model.
        """
        runtime = Runtime(store, device, progress)
        if self.__dict__.get("_runtime") == runtime:
            return self
        copy = replace(self)  # type: ignore[type-var]
        copy.__dict__["_runtime"] = runtime
        return copy


@dataclass(frozen=True, kw_only=True)
class Reranker(WithRuntime, ABC):
    """Re-rank the first sources of every claim.

    A re-ranker is a dataclass of this type with `identity`, `label` and `score`.

    Args:
        depth: number of first sources to score, up to 2,000; the others keep their order below.
        claims: the claim form: original, translated, bilingual or paired.
        sources: form of the sources: `metadata` with authors and venue, `title_abstract` without,
            or another of `rendering.sources`.
        mix: weight of the first stage, 0 to 1; both scores are min-max normalised over the
            scored sources. With 0 the run has the raw scores.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 100
    claims: ClaimForm = "translated"
    sources: SourceForm = "metadata"
    mix: Share = 0.0

    @property
    @abstractmethod
    def label(self) -> str:
        """Return the model's name for readers of the store."""

    @cached_property
    @abstractmethod
    def identity(self) -> Mapping[str, object]:
        """Return all that a score depends on besides the two texts, as JSON values."""

    @abstractmethod
    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs in batches, in any order."""

    @property
    def rendering(self) -> Rendering:
        return Rendering(self.claims, self.sources)

    def apply(
        self,
        claims: Sequence[Claim],
        sources: Sequence[Source],
        run: Run,
    ) -> Result:
        """Re-rank the first `depth` sources of every claim.

        Equal scores keep the first stage's order. A source whose pair could not be scored keeps
        its rank and is listed in `failures`.
        """
        candidates = [run.sources(claim.id, self.depth) for claim in claims]
        wanted_ids = {source for ids in candidates for source in ids}
        wanted = [source for source in sources if source.id in wanted_ids]
        source_texts: dict[str, str] = {}
        texts = self.rendering.source_texts(wanted)
        for source, text in zip(wanted, texts, strict=True):
            source_texts[source.id] = text
        claim_texts = self.rendering.claim_texts(claims)

        # Distinct pairs by their numbers, and the numbers of every claim's pairs.
        pairs: dict[Pair, int] = {}
        rows: list[list[int]] = []
        for text, ids in zip(claim_texts, candidates, strict=True):
            row = []
            for source_id in ids:
                pair = Pair(text, source_texts[source_id])
                row.append(pairs.setdefault(pair, len(pairs)))
            rows.append(row)
        scored = self.pair_scores(list(pairs))

        ranked: dict[str, Ranking] = {}
        failures: list[Failure] = []
        notes: dict[str, str] = {}
        untranslated = set(missing_translations(claims, self.rendering.claims))
        for claim, row in zip(claims, rows, strict=True):
            before = run.scored(claim.id)
            ranked[claim.id] = self._rank(before, scored.scores[row])
            for number in row:
                if number in scored.reason:
                    failures.append(Failure(claim.id, scored.reason[number]))
            notes[claim.id] = f"{len(row)} of {len(before)} sources re-ranked"
            if claim.id in untranslated:
                notes[claim.id] += "; no translation: used the original"
        cost = Cost(tokens=scored.tokens, reused=scored.reused)
        run = Run.from_lists(ranked, pool=run.pool)
        return Result(run, notes, tuple(failures), cost)

    def pair_scores(self, pairs: Sequence[Pair]) -> RawScores:
        """Score the distinct pairs that are not in the store, and write their scores to it."""
        if not pairs:
            return RawScores((), np.empty(0, dtype=np.float32))
        store = self.runtime.store
        space = None
        if store is not None:
            space = store.pair_scores(self.identity, self.label)
        table = _ScoreTable(pairs, space)
        todo = table.missing()
        reused = len(pairs) - len(todo)

        reasons: dict[int, str] = {}
        tokens = 0
        name = f"pairs by {self.label}" if self.runtime.progress else None
        with Progress(name, len(pairs), reused) as bar:
            try:
                for batch in self._score_some(pairs, todo):
                    table.add(batch)
                    reasons |= batch.reason
                    tokens += batch.tokens
                    bar.update(len(batch.positions))
            finally:
                # Also scores before an error or an interruption.
                table.flush()

        scores = table.scores
        failed = np.flatnonzero(~np.isfinite(scores)).tolist()
        scores[failed] = np.nan
        causes = {row: reasons.get(row, NOT_A_NUMBER) for row in failed}
        return RawScores(range(len(pairs)), scores, causes, tokens, reused)

    def _score_some(self, pairs: Sequence[Pair], rows: Sequence[int]) -> Iterator[RawScores]:
        """Score the pairs at some positions; batches refer to these positions."""
        if not rows:
            return
        for batch in self.score([pairs[row] for row in rows]):
            positions = [rows[position] for position in batch.positions]
            reasons: dict[int, str] = {}
            for position, reason in batch.reason.items():
                reasons[rows[position]] = reason
            yield RawScores(positions, batch.scores, reasons, batch.tokens)

    def _rank(self, before: Mapping[str, float], scores: np.ndarray) -> Ranking:
        scores = scores.astype(np.float64)
        known = np.flatnonzero(~np.isnan(scores))
        if self.mix and len(known):
            first = first_scores(before, len(scores))
            own = (1 - self.mix) * min_max(scores[known])
            scores[known] = self.mix * min_max(first[known]) + own
        return ranked_by(before, scores)


class _ScoreTable:
    """Scores [pairs] float32, initially NaN, that are read from a store and written to it."""

    def __init__(self, pairs: Sequence[Pair], space: EmbeddingSpace | None) -> None:
        self.scores = np.full(len(pairs), np.nan, dtype=np.float32)
        self._space = space
        self._keys = [] if space is None else _keys(pairs)
        # Rows that are not written yet, and the time of the last write.
        self._new: list[int] = []
        self._since = time.monotonic()

    def missing(self) -> list[int]:
        """Read the stored scores; return the rows without one."""
        rows = range(len(self.scores))
        if self._space is None:
            return list(rows)
        missing = self._space.missing(self._keys)
        stored = sorted(set(rows).difference(missing))
        if stored:
            found = self._space.get([self._keys[row] for row in stored])
            self.scores[stored] = found[:, 0]
        self._since = time.monotonic()
        return missing

    def add(self, batch: RawScores) -> None:
        """Set the scores of a batch; write now and then."""
        self.scores[batch.positions] = batch.scores
        self._new += batch.positions
        is_late = time.monotonic() - self._since >= _SECONDS
        if is_late or len(self._new) >= _SHARD:
            self.flush()

    def flush(self) -> None:
        """Write the new scores."""
        if self._space is not None:
            # A failed pair is scored again next time.
            rows = []
            for row in self._new:
                if np.isfinite(self.scores[row]):
                    rows.append(row)
            keys = [self._keys[row] for row in rows]
            self._space.put(keys, self.scores[rows][:, None])
        self._new = []
        self._since = time.monotonic()


def first_scores(before: Mapping[str, float], count: int) -> np.ndarray:
    """Return the scores of a claim's first sources, [count] float64."""
    scores = list(before.values())
    return np.array(scores[:count], np.float64)


def ranked_by(before: Mapping[str, float], scores: np.ndarray) -> Ranking:
    """Order a claim's sources by new scores [depth] of its first ones.

    Equal scores keep their order, and a source with NaN keeps its rank. The returned scores are
    strictly decreasing, because a run orders equal scores by id.
    """
    ids = list(before)
    known = np.flatnonzero(~np.isnan(scores))
    if not len(known):
        return list(before.items())
    values = scores[known].astype(np.float64)
    order = known[np.argsort(-values, kind="stable")].tolist()
    for row in np.flatnonzero(np.isnan(scores)).tolist():
        order.insert(row, row)
    order += range(len(scores), len(ids))

    value = dict(zip(known.tolist(), values.tolist(), strict=True))
    top = np.float32(max(value.values()))
    ranked: Ranking = []
    last = np.float32(np.inf)
    for rank, row in enumerate(order):
        # A source without a score gets one between its neighbours; deeper sources are below all.
        if row in value:
            score = np.float32(value[row])
        elif rank == 0:
            score = np.nextafter(top, np.float32(np.inf))
        elif row >= len(scores):
            score = last - np.float32(1)
        else:
            score = last
        below = np.nextafter(last, np.float32(-np.inf))
        last = min(score, below)
        ranked.append((ids[row], float(last)))
    return ranked


def standardised(scores: np.ndarray) -> np.ndarray:
    """Subtract the mean and divide by the deviation; if all scores are equal, they become 0.

    An infinite score counts as one above, or below, the finite ones.
    """
    finite = scores[np.isfinite(scores)]
    if 0 < len(finite) < len(scores):
        scores = np.clip(scores, finite.min() - 1, finite.max() + 1)
    spread = 0.0
    if len(scores):
        spread = scores.std()
    if spread > 0:
        centred = scores - scores.mean()
        return centred / spread
    return np.zeros_like(scores)


def min_max(scores: np.ndarray) -> np.ndarray:
    """Normalise to 0..1; if all scores are equal, they become 1."""
    low = scores.min()
    high = scores.max()
    if high > low:
        return (scores - low) / (high - low)
    return np.ones_like(scores)


def _keys(pairs: Sequence[Pair]) -> list[bytes]:
    hashed: dict[str, bytes] = {}
    for pair in pairs:
        for text in pair:
            if text not in hashed:
                hashed[text] = text_key(text)
    return [pair_key(hashed[pair.claim], hashed[pair.source]) for pair in pairs]


def rows_by_claim(pairs: Sequence[Pair]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows.setdefault(pair.claim, []).append(row)
    return rows


def token_budget(device: torch.device, budget: int | None) -> tuple[int, int]:
    """Return the padded tokens of a batch, and the cost of one more batch in such tokens."""
    if device.type == "cpu":
        return budget or _CPU_TOKENS, _CPU_EXTRA
    return budget or _GPU_TOKENS, _GPU_EXTRA


def scored_alone(
    rows: Sequence[int],
    score: Callable[[Sequence[int]], np.ndarray],
    tokens: int = 0,
) -> Iterator[RawScores]:
    """Score a batch with `score`; if it fails or returns NaN, score its parts.

    A pair that also fails alone has NaN and the error.
    """
    try:
        scores = score(rows)
    except RuntimeError as error:  # torch's, including out of memory
        if len(rows) == 1:
            nothing = np.full(1, np.nan, dtype=np.float32)
            reason = one_line(error)[:200]
            yield RawScores(rows, nothing, {rows[0]: reason}, tokens)
            return
        half = len(rows) // 2
        yield from scored_alone(rows[:half], score, tokens)
        yield from scored_alone(rows[half:], score)
        return
    is_finite = np.isfinite(scores)
    if len(rows) > 1 and not is_finite.all():
        finite = np.flatnonzero(is_finite).tolist()
        positions = [rows[place] for place in finite]
        yield RawScores(positions, scores[finite], tokens=tokens)
        for place in np.flatnonzero(~is_finite).tolist():
            yield from scored_alone([rows[place]], score)
        return
    yield RawScores(rows, scores, tokens=tokens)
