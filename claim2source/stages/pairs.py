"""Rank the first sources of every claim anew by scores of pairs: shared by all re-rankers."""

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
# Scores are written to the store after so many pairs or seconds: a killed run loses no more.
_SHARD, _SECONDS = 2048, 30.0
# Pairs that are tokenized at once: enough that lengths within a batch are alike.
CHUNK = 1024
# Padded tokens of a forward pass: few enough for a CPU's cache, enough for a GPU.
_CPU_TOKENS, _GPU_TOKENS = 2048, 2**15
# Cost of one more batch, in padded tokens.
_CPU_EXTRA, _GPU_EXTRA = 16, 2048


class Pair(NamedTuple):
    """The texts of a claim and of a source."""

    claim: str
    source: str


@dataclass(frozen=True, eq=False)
class RawScores:
    """Raw scores of some pairs, float32, by their positions in the request.

    A pair that could not be scored has NaN, and its reason in `why`, by position. `tokens` are
    those read now, `reused` counts the scores that were in the store.
    """

    positions: Sequence[int]
    scores: np.ndarray
    reason: Mapping[int, str] = field(default_factory=dict)
    tokens: int = 0
    reused: int = 0


@dataclass(frozen=True)
class Runtime:
    """Set a re-ranker's store of scores, and its device."""

    store: Store | None = None
    device: str | None = None
    progress: bool = False


class WithRuntime(Settings):
    """Store and the device of a stage, a dataclass, beside its settings."""

    @property
    def runtime(self) -> Runtime:
        """Return where scores are kept and computed."""
        runtime: Runtime = self.__dict__.get("_runtime") or Runtime()
        return runtime

    def with_runtime(self, store: Store | None, device: str | None, progress: bool = False) -> Self:
        """Return the same stage, which keeps its scores in a store and runs on a device.

        One that has this runtime already is returned itself, with the model that it has loaded.
        """
        runtime = Runtime(store, device, progress)
        if self.__dict__.get("_runtime") == runtime:
            return self
        copy = replace(self)  # type: ignore[type-var]
        copy.__dict__["_runtime"] = runtime
        return copy


@dataclass(frozen=True, kw_only=True)
class Reranker(WithRuntime, ABC):
    """Rank the first sources of every claim anew.

    A re-ranker is a dataclass of this type with `identity`, `label` and `score`.

    Args:
        depth: how many of the first sources are scored, up to 2,000; what is beyond keeps its
            place below them.
        claims: the claim form that is scored: original, translated, bilingual or paired.
        sources: how sources are written: `metadata` with authors and venue, `title_abstract`
            without, or another of `rendering.sources`.
        mix: weight of the first stage, 0 to 1, both scores being min-max normalised over the
            sources that are scored; 0 leaves the raw scores in the run.
    """

    depth: Annotated[int, Between(1, DEEPEST)] = 100
    claims: ClaimForm = "translated"
    sources: SourceForm = "metadata"
    mix: Share = 0.0

    @property
    @abstractmethod
    def label(self) -> str:
        """Name the model, for readers of the store."""

    @cached_property
    @abstractmethod
    def identity(self) -> Mapping[str, object]:
        """Describe all but the two texts that a score depends on, as JSON values."""

    @abstractmethod
    def score(self, pairs: Sequence[Pair]) -> Iterator[RawScores]:
        """Score pairs, in any order, a batch at a time."""

    @property
    def rendering(self) -> Rendering:
        return Rendering(self.claims, self.sources)

    def apply(self, claims: Sequence[Claim], sources: Sequence[Source], run: Run) -> Result:
        """Rank the first `depth` sources of every claim anew.

        Equal scores keep the first stage's order. A source whose pair could not be scored keeps
        its rank, and is counted in `failures`.
        """
        candidates = [run.sources(claim.id, self.depth) for claim in claims]
        wanted_ids = {source for ids in candidates for source in ids}
        wanted = [source for source in sources if source.id in wanted_ids]
        texts = dict(
            zip([source.id for source in wanted], self.rendering.source_texts(wanted), strict=True)
        )
        pairs: dict[Pair, int] = {}
        rows = [
            [pairs.setdefault(Pair(text, texts[source]), len(pairs)) for source in ids]
            for text, ids in zip(self.rendering.claim_texts(claims), candidates, strict=True)
        ]
        scored = self.pair_scores(list(pairs))
        ranked, failures, notes = {}, [], {}
        untranslated = set(missing_translations(claims, self.rendering.claims))
        for claim, row in zip(claims, rows, strict=True):
            before = run.scored(claim.id)
            ranked[claim.id] = self._rank(before, scored.scores[row])
            failures += [
                Failure(claim.id, scored.reason[pair]) for pair in row if pair in scored.reason
            ]
            notes[claim.id] = f"{len(row)} of {len(before)} sources re-ranked"
            if claim.id in untranslated:
                notes[claim.id] += "; no translation: read as posted"
        cost = Cost(tokens=scored.tokens, reused=scored.reused)
        return Result(Run.from_lists(ranked, pool=run.pool), notes, tuple(failures), cost)

    def pair_scores(self, pairs: Sequence[Pair]) -> RawScores:
        """Score distinct pairs, those that the store has not; new scores are written to it."""
        scores = np.full(len(pairs), np.nan, dtype=np.float32)
        if not pairs:
            return RawScores((), scores)
        store = self.runtime.store
        space = store.pair_scores(self.identity, self.label) if store is not None else None
        keys = _keys(pairs) if space is not None else []
        todo = space.missing(keys) if space is not None else list(range(len(pairs)))
        if space is not None:
            stored_rows = sorted(set(range(len(pairs))).difference(todo))
            if stored_rows:
                scores[stored_rows] = space.get([keys[row] for row in stored_rows])[:, 0]
        cause: dict[int, str] = {}
        tokens, new, started = 0, [], time.monotonic()
        name = f"pairs by {self.label}" if self.runtime.progress else None
        with Progress(name, len(pairs), len(pairs) - len(todo)) as bar:
            try:
                for batch in self.score([pairs[row] for row in todo]) if todo else ():
                    rows = [todo[row] for row in batch.positions]
                    scores[rows] = batch.scores
                    cause |= {todo[row]: reason for row, reason in batch.reason.items()}
                    tokens += batch.tokens
                    new += rows
                    bar.update(len(rows))
                    late = time.monotonic() - started >= _SECONDS
                    if space is not None and (late or len(new) >= _SHARD):
                        _store_finite_scores(space, keys, scores, new)
                        new, started = [], time.monotonic()
            finally:
                # Also what was scored before an error or a key press.
                if space is not None:
                    _store_finite_scores(space, keys, scores, new)
        failed = np.flatnonzero(~np.isfinite(scores)).tolist()
        scores[failed] = np.nan
        cause = {row: cause.get(row, NOT_A_NUMBER) for row in failed}
        return RawScores(range(len(pairs)), scores, cause, tokens, len(pairs) - len(todo))

    def _rank(self, before: Mapping[str, float], scores: np.ndarray) -> list[tuple[str, float]]:
        scores = scores.astype(np.float64)
        good = np.flatnonzero(~np.isnan(scores))
        if self.mix and len(good):
            first = np.array(list(before.values())[: len(scores)], dtype=np.float64)
            own = (1 - self.mix) * min_max(scores[good])
            scores[good] = self.mix * min_max(first[good]) + own
        return ranked_by(before, scores)


def ranked_by(before: Mapping[str, float], scores: np.ndarray) -> list[tuple[str, float]]:
    """Order a claim's sources by new scores [depth] of its first ones.

    Equal scores keep their order, and so does a source whose score is NaN keep its rank. All
    scores strictly decrease: a run would order equal ones by the sources' ids.
    """
    ids = list(before)
    good = np.flatnonzero(~np.isnan(scores))
    if not len(good):
        return list(before.items())
    finite = scores[good].astype(np.float64)
    order = good[np.argsort(-finite, kind="stable")].tolist()
    value = dict(zip(good.tolist(), finite.tolist(), strict=True))
    for row in np.flatnonzero(np.isnan(scores)).tolist():
        order.insert(row, row)
    order += range(len(scores), len(ids))
    ranked, last = [], np.float32(np.inf)
    top = np.float32(max(value.values()))
    for rank, row in enumerate(order):
        # A source without a score lies between its neighbours, those beyond below all.
        below = last - np.float32(1) if row >= len(scores) else last
        score = np.float32(value.get(row, below))
        if rank == 0 and row not in value:
            score = np.nextafter(top, np.float32(np.inf))
        last = min(score, np.nextafter(last, np.float32(-np.inf)))
        ranked.append((ids[row], float(last)))
    return ranked


def min_max(scores: np.ndarray) -> np.ndarray:
    """Normalise to 0..1; scores that are all equal become 1."""
    low, high = scores.min(), scores.max()
    return (scores - low) / (high - low) if high > low else np.ones_like(scores)


def _keys(pairs: Sequence[Pair]) -> list[bytes]:
    hashed = {text: text_key(text) for text in {text for pair in pairs for text in pair}}
    return [pair_key(hashed[pair.claim], hashed[pair.source]) for pair in pairs]


def _store_finite_scores(
    space: EmbeddingSpace, keys: Sequence[bytes], scores: np.ndarray, fresh: Sequence[int]
) -> None:
    # A pair that failed is scored again next time.
    good = [row for row in fresh if np.isfinite(scores[row])]
    space.put([keys[row] for row in good], scores[good][:, None])


def rows_by_claim(pairs: Sequence[Pair]) -> dict[str, list[int]]:
    rows: dict[str, list[int]] = {}
    for row, pair in enumerate(pairs):
        rows.setdefault(pair.claim, []).append(row)
    return rows


def token_budget(device: torch.device, budget: int | None) -> tuple[int, int]:
    """Return the padded tokens of a batch, and the cost of one more batch in such tokens."""
    on_cpu = device.type == "cpu"
    return budget or (_CPU_TOKENS if on_cpu else _GPU_TOKENS), _CPU_EXTRA if on_cpu else _GPU_EXTRA


def scored_alone(
    rows: Sequence[int], score: Callable[[Sequence[int]], np.ndarray], tokens: int = 0
) -> Iterator[RawScores]:
    """Score a batch with `score`; if it fails, or gives no number, score its parts.

    A pair that fails alone has NaN and the error.
    """
    try:
        scores = score(rows)
    except RuntimeError as error:  # torch's, out of memory among them
        if len(rows) == 1:
            nothing = np.full(1, np.nan, dtype=np.float32)
            yield RawScores(rows, nothing, {rows[0]: one_line(error)[:200]}, tokens)
            return
        half = len(rows) // 2
        yield from scored_alone(rows[:half], score, tokens)
        yield from scored_alone(rows[half:], score)
        return
    bad = np.flatnonzero(~np.isfinite(scores)).tolist()
    if bad and len(rows) > 1:
        good = np.flatnonzero(np.isfinite(scores)).tolist()
        yield RawScores([rows[row] for row in good], scores[good], tokens=tokens)
        for row in bad:
            yield from scored_alone([rows[row]], score)
        return
    yield RawScores(rows, scores, tokens=tokens)
