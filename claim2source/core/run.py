"""Define rankings: the columnar `Run`, and the `Result` of a stage with cost and failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source.core.arguments import whole_number
from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Qrels
from claim2source.core.terminal import one_line

if TYPE_CHECKING:
    from pandas import DataFrame

Pool = Mapping[str, frozenset[str]]


@dataclass(frozen=True, eq=False)
class Run:
    """Ranked sources of claims, in trec_eval's order: float32 score, then id, descending.

    Columns: `claim_ids` [n], `offsets` [n + 1] into the rows of each claim, `codes` [rows]
    into `vocabulary` (sorted distinct source ids) and `scores` [rows] float32. A claim without
    results has an empty range. `pool` has the candidates of the claims that are not ranked over
    all sources. Build a run with a `from_...` method, which sorts and checks.

    Example:
        >>> import claim2source as c2s
        >>> run = c2s.Run.from_lists({"c1": [("a", 0.5), ("b", 2.0)]})
        >>> run.sources("c1")
        ['b', 'a']
        >>> run.to_pandas().columns.tolist()
        ['claim', 'source', 'score', 'rank']
    """

    claim_ids: tuple[str, ...]
    offsets: np.ndarray
    codes: np.ndarray
    vocabulary: np.ndarray
    scores: np.ndarray
    pool: Pool | None = None

    @classmethod
    def _sorted(
        cls,
        claim_ids: Sequence[str],
        claim_rows: np.ndarray,
        codes: np.ndarray,
        vocabulary: np.ndarray,
        scores: np.ndarray,
        pool: Pool | None,
    ) -> Run:
        # +0.0 turns -0.0 into 0.0: they are equal and must tie.
        scores = scores.astype(np.float32) + np.float32(0.0)
        is_unknown = np.isnan(scores)
        if is_unknown.any():
            row = int(np.flatnonzero(is_unknown)[0])
            claim_id = claim_ids[claim_rows[row]]
            raise ValueError(f"score of claim {claim_id!r} is not a number")

        last_ids_first = -codes.astype(np.int64)
        order = np.lexsort((last_ids_first, -scores, claim_rows))
        claim_rows = claim_rows[order]
        codes = codes[order]
        scores = scores[order]

        width = max(len(vocabulary), 1)
        pairs = claim_rows.astype(np.int64) * width + codes
        in_order = np.sort(pairs)
        if (in_order[1:] == in_order[:-1]).any():
            values, counts = np.unique(pairs, return_counts=True)
            repeated = int(values[counts > 1][0])
            claim, code = divmod(repeated, len(vocabulary))
            claim_id = claim_ids[claim]
            source = str(vocabulary[code])
            raise ValueError(f"claim {claim_id!r} ranks source {source!r} twice")

        counts = np.bincount(claim_rows, minlength=len(claim_ids))
        ends = np.cumsum(counts)
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        return cls(
            tuple(claim_ids),
            offsets,
            codes.astype(np.int32),
            vocabulary,
            scores,
            pool,
        )

    def without_themselves(self, qrels: Qrels) -> tuple[Run, int]:
        """Remove sources that have their claim's id and are not its gold, and count them.

        This is BEIR's rule: such a source is the claim itself.
        """
        if set(self.claim_ids).isdisjoint(self.vocabulary.tolist()):
            return self, 0

        ids = np.array(self.claim_ids, dtype=object)
        positions = np.searchsorted(self.vocabulary, ids).tolist()
        keep = np.ones(len(self.codes), dtype=bool)
        for claim, code in zip(self.claim_ids, positions, strict=True):
            is_itself = code < len(self.vocabulary) and self.vocabulary[code] == claim
            if is_itself and claim not in qrels.golds(claim):
                rows = self.rows(claim)
                keep[rows] = self.codes[rows] != code

        removed = int((~keep).sum())
        if not removed:
            return self, 0
        return self._with_rows(keep), removed

    @classmethod
    def from_rows(
        cls,
        claims: Sequence[str],
        sources: Sequence[str],
        scores: Sequence[float] | np.ndarray,
        *,
        claim_ids: Sequence[str] | None = None,
        pool: Pool | None = None,
    ) -> Run:
        """Build from three columns of equal length; `claim_ids` adds claims without rows.

        Raises ValueError on columns of different length, a score that is not a number, or a
        source ranked twice for one claim.
        """
        if not len(claims) == len(sources) == len(scores):
            raise ValueError("claims, sources and scores differ in length")

        ids = list(dict.fromkeys([*(claim_ids or ()), *claims]))
        row = {claim: i for i, claim in enumerate(ids)}
        claim_rows = np.array([row[claim] for claim in claims], dtype=np.int64)

        words = sorted(set(sources))
        code = {source: i for i, source in enumerate(words)}
        codes = np.array([code[source] for source in sources], dtype=np.int64)
        vocabulary = np.array(words, dtype=object)
        values = np.asarray(scores, np.float32)
        return cls._sorted(
            ids,
            claim_rows,
            codes,
            vocabulary,
            values,
            pool,
        )

    @classmethod
    def from_lists(
        cls,
        ranked: Mapping[str, Sequence[tuple[str, float]]],
        *,
        pool: Pool | None = None,
    ) -> Run:
        """Build from claim id -> [(source id, score), ...]."""
        rows: list[tuple[str, str, float]] = []
        for claim, pairs in ranked.items():
            rows += [(claim, source, score) for source, score in pairs]
        columns: Iterable[Sequence[Any]] = ((), (), ())
        if rows:
            columns = zip(*rows, strict=True)
        ids = list(ranked)
        return cls.from_rows(*columns, claim_ids=ids, pool=pool)

    @classmethod
    def from_codes(
        cls,
        claim_ids: Sequence[str],
        vocabulary: np.ndarray,
        codes: np.ndarray,
        scores: np.ndarray,
        *,
        pool: Pool | None = None,
    ) -> Run:
        """Build from top-k arrays [claims, k] of positions in sorted distinct ids; -1: no entry.

        Raises ValueError on a claim id that repeats, or a score that is not a number.
        """
        if len(set(claim_ids)) != len(claim_ids):
            raise ValueError("a claim id repeats")
        is_known = codes >= 0
        numbers = np.arange(len(claim_ids))[:, None]
        rows = np.broadcast_to(numbers, codes.shape)[is_known]
        return cls._sorted(
            claim_ids,
            rows,
            codes[is_known],
            vocabulary,
            scores[is_known],
            pool,
        )

    @classmethod
    def from_pandas(cls, frame: DataFrame) -> Run:
        """Build from a table with the columns claim, source and score; others are ignored."""
        names = ("claim", "source", "score")
        there = getattr(frame, "columns", ())
        for name in names:
            if name not in there:
                wanted = ", ".join(names)
                reason = f"has no column {name}; wanted: {wanted}"
                raise InputError("run", reason=reason)
        columns = (frame[name].tolist() for name in names)
        return cls.from_rows(*columns)

    @classmethod
    def from_ir_measures(cls, documents: Iterable[Any]) -> Run:
        """Build from `ir_measures.ScoredDoc`s."""
        rows = [(doc.query_id, doc.doc_id, doc.score) for doc in documents]
        if rows:
            columns = zip(*rows, strict=True)
            return cls.from_rows(*columns)
        return cls.from_rows((), (), ())

    def __repr__(self) -> str:
        return one_line(
            self,
            claims=len(self.claim_ids),
            rows=len(self),
            sources=len(self.vocabulary),
        )

    def __len__(self) -> int:
        return len(self.scores)

    def rows(self, claim_id: str) -> slice:
        """Return the rows of a claim; an empty slice for an unknown claim."""
        number = self._numbers.get(claim_id)
        if number is None:
            return slice(0, 0)
        start = int(self.offsets[number])
        end = int(self.offsets[number + 1])
        return slice(start, end)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {claim: i for i, claim in enumerate(self.claim_ids)}

    def sources(
        self,
        claim_id: str,
        k: int | None = None,
    ) -> list[str]:
        """Return the ids of a claim's first `k` sources, best first."""
        rows = self.rows(claim_id)
        limit = None
        if k is not None:
            limit = whole_number(k, "k", 0)
        codes = self.codes[rows][:limit]
        sources = self.vocabulary[codes]
        return [str(source) for source in sources]

    def scored(self, claim_id: str) -> dict[str, float]:
        """Map a claim's sources to their scores, best first."""
        rows = self.rows(claim_id)
        scores = self.scores[rows].tolist()
        sources = self.sources(claim_id)
        return dict(zip(sources, scores, strict=True))

    def __iter__(self) -> Iterator[tuple[str, str, float]]:
        """Yield rows (claim id, source id, score) in rank order."""
        for claim in self.claim_ids:
            scores = self.scored(claim)
            for source, score in scores.items():
                yield claim, source, score

    def to_pandas(self) -> DataFrame:
        """Convert to a table with the columns claim, source, score and rank (from 1)."""
        from pandas import DataFrame

        ids = np.array(self.claim_ids, dtype=object)
        counts = np.diff(self.offsets)
        columns = {
            "claim": np.repeat(ids, counts),
            "source": self.vocabulary[self.codes],
            "score": self.scores,
            "rank": self.ranks(),
        }
        return DataFrame(columns)

    def to_ir_measures(self) -> Iterator[Any]:
        """Convert to `ir_measures.ScoredDoc`s, in rank order."""
        from ir_measures import ScoredDoc

        return (ScoredDoc(claim, source, score) for claim, source, score in self)

    def ranks(self) -> np.ndarray:
        """Compute the 1-based rank of every row, [rows] int64."""
        counts = np.diff(self.offsets)
        starts = np.repeat(self.offsets[:-1], counts)
        return np.arange(len(self.scores)) - starts + 1

    def top(self, k: int) -> Run:
        """Keep the first `k` rows of every claim."""
        limit = whole_number(k, "k", 0)
        return self._with_rows(self.ranks() <= limit)

    def _with_rows(self, keep: np.ndarray) -> Run:
        offsets = np.concatenate([[0], np.cumsum(keep)])[self.offsets]
        codes = self.codes[keep]
        scores = self.scores[keep]
        return replace(
            self,
            offsets=offsets,
            codes=codes,
            scores=scores,
        )

    def restricted(self, claim_ids: Iterable[str]) -> Run:
        """Keep the rows of these claims, in this order; an unknown claim gets no rows."""
        ids = list(dict.fromkeys(claim_ids))
        numbers = np.array([self._numbers.get(claim, -1) for claim in ids], dtype=np.int64)
        # An unknown claim is the one after the last, which is empty.
        own_counts = np.diff(self.offsets)
        counts = np.append(own_counts, 0)[numbers]
        ends = np.cumsum(counts)
        offsets = np.concatenate([[0], ends]).astype(np.int64)

        begins = self.offsets[numbers] - offsets[:-1]
        positions = np.repeat(begins, counts) + np.arange(offsets[-1])
        codes = self.codes[positions]
        scores = self.scores[positions]
        return Run(
            tuple(ids),
            offsets,
            codes,
            self.vocabulary,
            scores,
            self.pool,
        )

    def rescored(self) -> Run:
        """Replace the scores by strictly decreasing integers, so that there are no ties.

        Other libraries break ties differently.
        """
        counts = np.diff(self.offsets)
        longest = int(counts.max(initial=0))
        scores = (longest + 1 - self.ranks()).astype(np.float32)
        return replace(self, scores=scores)


@dataclass(frozen=True, slots=True)
class Failure:
    """A claim (or pair) on which a stage failed, and the reason."""

    claim_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of a stage: wall seconds, number of items, peak memory in bytes, input tokens.

    `reused` texts had a vector in the store, so seconds and tokens exclude their encoding.
    `joules` is the energy of this machine, None if it does not report it.
    """

    seconds: float = 0.0
    items: int = 0
    peak_memory: int = 0
    tokens: int = 0
    reused: int = 0
    joules: float | None = None

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.seconds + other.seconds,
            self.items + other.items,
            max(self.peak_memory, other.peak_memory),
            self.tokens + other.tokens,
            self.reused + other.reused,
            _joules(self, other),
        )

    def over_same(self, other: Cost) -> Cost:
        """Add the cost of a part that processed the same items, which are counted once."""
        total = self + other
        items = max(self.items, other.items)
        return replace(total, items=items)


def _joules(*costs: Cost) -> float | None:
    """Add up the energy of parts; None if it is unknown for a part that took time."""
    parts: list[float | None] = []
    for cost in costs:
        if cost.seconds or cost.joules is not None:
            parts.append(cost.joules)
    if not parts:
        return None

    total = 0.0
    for joules in parts:
        if joules is None:
            return None
        total += joules
    return total


@dataclass(frozen=True, slots=True)
class Thinking:
    """Count a language model's replies with reasoning, by the thinking setting of their requests.

    `wanted` is the config's setting, `sent` is what the requests contained, such as
    `enable_thinking=false`, or `nothing`. Of all `replies`, `reasoned` contain reasoning.
    """

    model: str
    wanted: bool | None
    sent: str
    replies: int
    reasoned: int

    @property
    def note(self) -> str:
        """Warning if replies reason although thinking is off, or none does although it is on."""
        if self.wanted is False and self.reasoned:
            state = "although thinking is off"
        elif self.wanted is True and self.replies and not self.reasoned:
            state = "although thinking is on"
        else:
            return ""
        some = f"{self.reasoned} of {self.replies} replies contain reasoning"
        return f"{self.model}: {some} {state} (sent: {self.sent})"


def merged_thinking(counts: Iterable[Thinking]) -> tuple[Thinking, ...]:
    """Add up the counts with the same model, setting and sent value."""
    merged: dict[tuple[str, bool | None, str], Thinking] = {}
    for count in counts:
        key = count.model, count.wanted, count.sent
        nothing = replace(count, replies=0, reasoned=0)
        before = merged.get(key, nothing)
        replies = before.replies + count.replies
        reasoned = before.reasoned + count.reasoned
        merged[key] = replace(count, replies=replies, reasoned=reasoned)
    return tuple(merged.values())


@dataclass(frozen=True)
class Result:
    """A stage's run, notes by claim, failures and cost.

    `stored`: whether the run comes from the store; the cost is that of its first computation.
    `details` are a verifier's numbers by claim, such as `asks`, `tokens` and `none`. `settings`
    are those of the stage, for a report; `parts` are the named results that were fused or joined;
    `thinking` records the thinking settings that language models were sent.

    Example:
        >>> import claim2source as c2s
        >>> c2s.Result(c2s.Run.from_lists({"q1": [("p2", 0.5), ("p1", 2.0)]})).sources("q1")
        ['p1', 'p2']
    """

    run: Run
    notes: Mapping[str, str] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    cost: Cost = Cost()
    stored: bool = False
    details: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[tuple[str, Result], ...] = ()
    thinking: tuple[Thinking, ...] = ()

    def __repr__(self) -> str:
        return one_line(
            self,
            claims=len(self.run.claim_ids),
            rows=len(self.run),
            parts=tuple(name for name, _ in self.parts),
            failures=len(self.failures),
            seconds=round(self.cost.seconds, 3),
        )

    def sources(
        self,
        claim_id: str,
        k: int | None = None,
    ) -> list[str]:
        return self.run.sources(claim_id, k)

    def scored(self, claim_id: str) -> dict[str, float]:
        return self.run.scored(claim_id)

    def top(self, k: int) -> Result:
        return replace(self, run=self.run.top(k))

    def failure_counts(self) -> dict[str, int]:
        """Count the failures by reason, most frequent first."""
        counts: dict[str, int] = {}
        for failure in self.failures:
            before = counts.get(failure.reason, 0)
            counts[failure.reason] = before + 1
        by_count = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        return dict(by_count)


def join_results(
    results: Sequence[Result],
    claims: Sequence[Claim],
) -> Result:
    """Join results over different claims into one, in the order of `claims`."""
    rows: list[tuple[str, str, float]] = []
    pool: dict[str, frozenset[str]] = {}
    notes: dict[str, str] = {}
    details: dict[str, Mapping[str, float]] = {}
    failures: list[Failure] = []
    thinking: list[Thinking] = []
    cost = Cost()
    for result in results:
        rows += result.run
        pool |= result.run.pool or {}
        notes |= result.notes
        details |= result.details
        failures += result.failures
        thinking += result.thinking
        cost += result.cost

    columns: Iterable[Sequence[Any]] = ((), (), ())
    if rows:
        columns = zip(*rows, strict=True)
    ids = [claim.id for claim in claims]
    run = Run.from_rows(*columns, claim_ids=ids, pool=pool or None)

    are_stored = bool(results) and all(result.stored for result in results)
    return Result(
        run,
        notes=notes,
        failures=tuple(failures),
        cost=cost,
        stored=are_stored,
        details=details,
        thinking=merged_thinking(thinking),
    )
