"""Encode papers of an index without vectors at search time, each of them once."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from claim2source.core.errors import UserError
from claim2source.core.records import Claim
from claim2source.core.run import Cost, Failure, Result, Run
from claim2source.data.papers import Paper
from claim2source.data.store import EmbeddingSpace, Store, text_key
from claim2source.search.bm25 import NO_TERM
from claim2source.search.dense import TextEncoder
from claim2source.search.lance import Hits
from claim2source.search.rows import half
from claim2source.search.topk import candidate_pool

# Most bytes of cached vectors of a process: 170,000 papers of 384 numbers.
_MOST_BYTES = 2**27
# Fewest new vectors that are written to the store in one file, unless it is closed.
_FILE = 1024
# Characters of a model's error that are quoted.
_LONGEST = 200


def unencoded_summary(reasons: Counter[str]) -> str:
    """Describe how many posts' papers could not be encoded, with the reasons."""
    most_common = reasons.most_common(3)
    lines = [f"{reason} ({count})" for reason, count in most_common]
    listed = "; ".join(lines)
    return f"{reasons.total()} posts were ranked only by words: {listed}"


class UnencodedError(Exception):
    """Reason in one line why texts could not be encoded; the search by terms still works."""


@contextmanager
def encoding() -> Iterator[None]:
    """Convert any exception of a model to `UnencodedError`."""
    try:
        yield
    except UserError as error:
        raise UnencodedError(str(error)) from error
    except Exception as error:
        # A GPU without memory, missing files, a model with its own code.
        words = str(error).split()
        line = " ".join(words)
        reason = line[:_LONGEST]
        kind = type(error).__name__
        raise UnencodedError(reason or kind) from error


class PaperVectors:
    """Encode texts of papers, and cache the vectors by text, also in the store if there is one.

    Vectors are rounded to float16, as an index stores them.
    """

    def __init__(self, encoder: TextEncoder, store: Store | None = None) -> None:
        self.encoder = encoder
        source: Any = encoder.source_encoder or encoder
        self._template = source.settings.template
        self._held: OrderedDict[bytes, np.ndarray] = OrderedDict()
        self._new: dict[bytes, np.ndarray] = {}
        self._space: EmbeddingSpace | None = None
        made_by = source.key()
        if store is not None and made_by is not None:
            name = getattr(source, "name", "")
            self._space = store.space(made_by, name, source.dimensions)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, [texts, d] float32."""
        keys: list[bytes] = []
        for text in texts:
            stored_text = self._template.stored_text(text, "source")
            keys.append(text_key(stored_text))

        vectors: dict[bytes, np.ndarray] = {}
        missing: dict[bytes, str] = {}
        for key, text in zip(keys, texts, strict=True):
            if key in self._held:
                self._held.move_to_end(key)
                vectors[key] = self._held[key]
            else:
                missing[key] = text
        made = self._read(missing)
        made |= self._make(missing)
        for key, vector in made.items():
            self._held[key] = vector
        vectors |= made
        while sum_bytes(self._held) > _MOST_BYTES:
            self._held.popitem(last=False)
        in_order = [vectors[key] for key in keys]
        stacked = np.stack(in_order)
        return stacked.astype(np.float32)

    def _read(self, missing: dict[bytes, str]) -> dict[bytes, np.ndarray]:
        """Read the stored vectors, and remove their texts from the missing ones."""
        if self._space is None or not missing:
            return {}
        keys = list(missing)
        absent = set(self._space.missing(keys))
        stored = [key for place, key in enumerate(keys) if place not in absent]
        vectors = half(self._space.get(stored))
        read = dict(zip(stored, vectors, strict=True))
        for key in stored:
            del missing[key]
        return read

    def _make(self, missing: Mapping[bytes, str]) -> dict[bytes, np.ndarray]:
        if not missing:
            return {}
        texts = list(missing.values())
        encoded, _ = self.encoder.encode(
            texts,
            "source",
            store=None,
            progress=None,
        )
        if self._space is not None:
            new = zip(missing, encoded, strict=True)
            self._new.update(new)
            if len(self._new) >= _FILE:
                self.flush()
        rounded = half(encoded)
        return dict(zip(missing, rounded, strict=True))

    def flush(self) -> None:
        """Write new vectors to the store."""
        if self._space is not None and self._new:
            keys = list(self._new)
            vectors = list(self._new.values())
            self._space.put(keys, np.stack(vectors))
        self._new = {}


def sum_bytes(held: Mapping[bytes, np.ndarray]) -> int:
    """Sum the bytes of vectors of one length."""
    if not held:
        return 0
    first = next(iter(held.values()))
    return len(held) * first.nbytes


def rank_first(
    claims: Sequence[Claim],
    listed: Run,
    count: int,
    papers: Mapping[str, Paper],
    vectors: Mapping[str, np.ndarray],
    encode: Callable[[Sequence[Paper]], np.ndarray],
) -> Result:
    """Rank the first `count` papers of each claim's list by their vectors from `encode`.

    `vectors` are the claims' own. A claim without any such paper fails. Raises `UnencodedError`.
    """
    started = time.perf_counter()
    firsts: dict[str, list[str]] = {}
    for claim in claims:
        ids = listed.sources(claim.id, count)
        firsts[claim.id] = [key for key in ids if key in papers]
    row: dict[str, int] = {}
    for ids in firsts.values():
        for key in ids:
            row.setdefault(key, len(row))
    encoded = np.empty((0, 0), np.float32)
    if row:
        with encoding():
            distinct = [papers[key] for key in row]
            encoded = encode(distinct)

    lists: dict[str, Hits] = {}
    failures: list[Failure] = []
    for claim_id, ids in firsts.items():
        hits: Hits = []
        lists[claim_id] = hits
        if not ids:
            failures.append(Failure(claim_id, NO_TERM))
            continue
        rows = [row[key] for key in ids]
        vector = vectors[claim_id].astype(np.float32)
        scores = encoded[rows] @ vector
        # Ties keep the order by terms.
        order = np.argsort(-scores, kind="stable")
        for place in order.tolist():
            score = float(scores[place])
            hits.append((ids[place], score))
    pool = candidate_pool(claims)
    run = Run.from_lists(lists, pool=pool)
    seconds = time.perf_counter() - started
    cost = Cost(seconds, len(claims))
    return Result(run, failures=tuple(failures), cost=cost)


def unranked(claims: Sequence[Claim], reason: str) -> Result:
    """Rank nothing: every claim fails for the same reason."""
    lists: dict[str, Hits] = {claim.id: [] for claim in claims}
    pool = candidate_pool(claims)
    run = Run.from_lists(lists, pool=pool)
    failures = [Failure(claim.id, reason) for claim in claims]
    cost = Cost(0, len(claims))
    return Result(run, failures=tuple(failures), cost=cost)
