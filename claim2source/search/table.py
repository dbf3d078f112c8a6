"""Read the papers of an index by terms and by ids, or iterate over them.

The best sums of scores of words and names are found without ranking all papers by the sum.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Source
from claim2source.core.run import Cost, Result, Run
from claim2source.core.stage import Claims, as_claims
from claim2source.core.terminal import one_line
from claim2source.data.doi import plain_doi
from claim2source.data.papers import Paper
from claim2source.data.retractions import NOTICE, add_notice
from claim2source.search.files import IndexFiles
from claim2source.search.lance import (
    ADVICE,
    Hits,
    connection,
    filtered,
    id_filter,
    named_errors,
    numbers,
)
from claim2source.search.manifest import K1, IndexManifest
from claim2source.search.rows import (
    EVERYWHERE,
    KEYS,
    PAPER,
    SENTENCES,
    Rows,
    Where,
    paper_columns,
    read_half_vectors,
    read_rows,
    to_paper,
)
from claim2source.search.topk import candidate_pool

if TYPE_CHECKING:
    import pyarrow

# Version of a table without papers.
NEW = 1
# Ids of rows that are cached.
_MOST_IDS = 200_000
# Papers after which a writer holds the hashes of all ids, so that it need not look them up: 65 MB
# for a million.
_MANY = 16_384
# Rows and their scores, best first: the best rows of all, or given rows.
Ranked = tuple[np.ndarray, np.ndarray]
Ranking = Callable[[int, np.ndarray | None], Ranked]
# Rows of each ranking that are read at first, for each one that is wanted; then so many times more.
_FIRST = 8
_MORE = 4
_MOST_REPEATS = 4
Search = Callable[[Sequence[Claim], Where, int], Mapping[str, Hits]]


@dataclass(frozen=True, eq=False)
class SearchResults:
    """Results for claims by terms, by vectors and fused; and the claims' vectors.

    `texts` are the vectors of further texts that were encoded with the claims. `alphas` are the
    default weights of terms for claims in another language than the papers', without a translation.
    `unencoded` is the reason why nothing was ranked by vectors, or "".
    """

    lexical: Result
    dense: Result
    fused: Result
    vectors: Mapping[str, np.ndarray]
    texts: Mapping[str, np.ndarray] = field(default_factory=dict)
    alphas: Mapping[str, float] = field(default_factory=dict)
    unencoded: str = ""

    def __repr__(self) -> str:
        run = self.fused.run
        return one_line(self, claims=len(run.claim_ids), rows=len(run))


class SearchPart:
    """Rank papers of an index by one of its two searches, as an `Index`."""

    def __init__(self, search: Search, where: Where) -> None:
        self._search = search
        self._where = where

    def search(self, claims: Claims, k: int = 100) -> Result:
        started = time.perf_counter()
        posts = as_claims(claims)
        most_excluded = max((len(claim.excluded) for claim in posts), default=0)
        deeper = k + most_excluded
        results = self._search(posts, self._where, deeper)
        lists: dict[str, Hits] = {}
        for claim in posts:
            hits = results[claim.id]
            allowed = [hit for hit in hits if hit[0] not in claim.excluded]
            lists[claim.id] = allowed[:k]
        pool = candidate_pool(posts)
        run = Run.from_lists(lists, pool=pool)
        seconds = time.perf_counter() - started
        cost = Cost(seconds, len(posts))
        return Result(run, cost=cost)


@dataclass(frozen=True)
class Stats:
    """Counts of an index's papers, of those written since the last build, and its bytes on disk."""

    papers: int
    unbuilt: int
    size: int


class PaperTable:
    """Table of papers that can be read and searched by terms and ids."""

    files: IndexFiles
    manifest: IndexManifest
    exact_below: int
    location: str
    _table: Any
    # Row numbers of papers that a search of this version listed, to read them without look-up.
    _row_numbers: dict[str, int]
    # Ids of listed rows: LanceDB never reuses a row's number.
    _ids: dict[int, str]
    # For several indexes: their names, those that could not be read last, and engines of those
    # whose scores are not comparable.
    names: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    others: tuple[Any, ...] = ()
    # Hashes of all ids, for a writer of many papers; None: unknown.
    _known: set[int] | None = None
    _written = 0

    @property
    def version(self) -> int:
        """Return the version of the state that is searched; answers depend on it."""
        with self._with_named_errors():
            return int(self._table.version)

    def _with_named_errors(self) -> AbstractContextManager[None]:
        return named_errors(self.location)

    def _damaged(self, reason: str) -> InputError:
        papers = f"{self.manifest.papers} papers at the last build"
        return InputError(self.location, reason=f"damaged ({papers}): {reason}; {ADVICE}")

    def sample(self, papers: int, count: int) -> list[Paper]:
        """Return a fixed sample of the papers."""
        if not papers:
            return []
        rows = self._draw(papers, count, PAPER)
        return [to_paper(row) for row in rows.to_pylist()]

    def _draw(self, papers: int, count: int, columns: list[str]) -> pyarrow.Table:
        generator = np.random.default_rng(0)
        size = min(count, papers)
        drawn = generator.choice(papers, size, False)
        rows = sorted(drawn.tolist())
        with self._with_named_errors():
            query = self._table.take_offsets(rows)
            return query.select(columns).to_arrow()

    def _index_names(self) -> dict[str, str]:
        names: dict[str, str] = {}
        for index in self._table.list_indices():
            column = index.columns[0]
            names[column] = index.name
        return names

    def _hits(self, rows: np.ndarray, scores: np.ndarray) -> Hits:
        """Return the ids of the papers in rows with these numbers."""
        listed: list[int] = rows.tolist()
        # Another thread may also read them.
        if len(self._ids) > _MOST_IDS:
            self._ids = {}
        ids = self._ids
        new = [row for row in listed if row not in ids]
        if new:
            with self._with_named_errors():
                query = self._table.take_row_ids(new).select(["id"])
                table = query.with_row_id().to_arrow()
            row_ids = table["_rowid"].to_pylist()
            paper_ids = table["id"].to_pylist()
            ids.update(zip(row_ids, paper_ids, strict=True))
        if not all(row in ids for row in listed):
            raise self._damaged("its search index lists a missing paper")
        hits: Hits = []
        for row, score in zip(listed, scores.tolist(), strict=True):
            key = ids[row]
            self._row_numbers[key] = row
            hits.append((key, score))
        return hits

    def lexical(
        self,
        terms: Sequence[str],
        k: int,
        where: Where = EVERYWHERE,
        names: Sequence[str] = (),
        weight: float | None = None,
    ) -> Hits:
        """Find the best `k` papers with one of the terms, by BM25.

        `names` are searched for among authors and venues, with this `weight`; None: the weight
        that was chosen on the index's papers.
        """
        if weight is None:
            weight = self.manifest.names
        if k < 1 or where.ids == ():
            return []

        def read(part: WeighedWords, depth: int, rows: np.ndarray | None) -> Ranked:
            return self._ranked_by_words(part, where, depth, rows)

        return self._lexical(terms, names, weight, k, read)

    def ids_by_weight(
        self, terms: Sequence[str], names: Sequence[str], weights: Sequence[float]
    ) -> list[list[str]]:
        """List the best 50 papers by terms and names, for each weight of the names.

        A weight only scales scores, so each ranking is read once for all of them.
        """
        known: dict[tuple[str, tuple[str, ...], int], Ranked] = {}

        def read(part: WeighedWords, depth: int, rows: np.ndarray | None) -> Ranked:
            if rows is not None:  # each weight has its own
                return self._ranked_by_words(part, EVERYWHERE, depth, rows)
            key = part.column, tuple(part.words), depth
            if key not in known:
                known[key] = self._ranked_by_words(part, EVERYWHERE, depth, None)
            return known[key]

        ids: list[list[str]] = []
        for weight in weights:
            hits = self._lexical(terms, names, weight, 50, read)
            ids.append([key for key, _ in hits])
        return ids

    def _lexical(
        self,
        terms: Sequence[str],
        names: Sequence[str],
        weight: float,
        k: int,
        read: Callable[[WeighedWords, int, np.ndarray | None], Ranked],
    ) -> Hits:
        """Find the best `k` papers with one of the terms or names; `read` gives BM25's scores."""
        parts = weighed_words(terms, names, weight)
        if not parts:
            return []

        def ranking(part: WeighedWords) -> Ranking:
            def rank(depth: int, rows: np.ndarray | None) -> Ranked:
                row_ids, listed_scores = read(part, depth, rows)
                scores = part.weight * listed_scores / (K1 + 1)
                return row_ids, scores

            return rank

        rankings = [ranking(part) for part in parts]
        if len(rankings) == 1:
            rows, scores = rankings[0](k, None)
        else:
            rows, scores = best_sums(rankings, k)
        return self._hits(rows, scores)

    def _ranked_by_words(
        self, part: WeighedWords, where: Where, k: int, rows: np.ndarray | None
    ) -> Ranked:
        table = self._by_words(part.column, part.words, where, k, rows)
        return table["_rowid"].to_numpy(), numbers(table, "_score")

    def _by_words(
        self,
        column: str,
        words: Sequence[str],
        where: Where,
        k: int,
        rows: np.ndarray | None = None,
    ) -> pyarrow.Table:
        """Find the best `k` rows with one of the words, or score some rows."""
        from lancedb.query import MatchQuery

        with self._with_named_errors():
            match = MatchQuery(" ".join(words), column)
            query = self._table.search(match).limit(k)
            query = query.select(["_score"])
            query = query.with_row_id(True)
            return filtered(query, where, rows).to_arrow()

    def count_words(self, column: str) -> tuple[int, int]:
        """Count the papers with words in a column of terms, and their words."""
        import pyarrow.compute as pc

        papers = 0
        words = 0
        with self._with_named_errors():
            query = self._table.search().select([column])
            query = query.limit(None)
            for batch in query.to_batches(65_536):
                has_words = pc.not_equal(batch[column], "")
                texts = batch[column].filter(has_words)
                papers += len(texts)
                spaces = pc.sum(pc.count_substring(texts, " "))
                words += len(texts)
                words += spaces.as_py() or 0
        return papers, words

    def count_papers(self, column: str, word: str) -> int:
        """Count the papers that have a word in a column of terms."""
        with self._with_named_errors():
            papers = self._table.count_rows()
        if not papers:
            return 0
        table = self._by_words(column, [word], EVERYWHERE, papers)
        return len(table)

    def read_fields(self, ids: Sequence[str], fields: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Read some fields of papers, by id."""
        rows = self._read_rows(ids, ["id", *fields])
        return {row["id"]: row for row in rows}

    def _joined(self, first: Result, second: Result) -> tuple[Result, Result]:
        """Return both rankings with one key for each paper."""
        return first, second

    def home(self, key: str) -> tuple[str, PaperTable, str]:
        """Return the name of a paper's index ("" for a single one), its table and the id there."""
        return "", self, key

    def fetch(self, ids: Sequence[str]) -> dict[str, Paper]:
        rows = self._read_rows(ids, PAPER)
        return {row["id"]: to_paper(row) for row in rows}

    def fetch_with_sentences(
        self, ids: Sequence[str]
    ) -> tuple[dict[str, Paper], dict[str, np.ndarray]]:
        """Read papers by id, and their sentences' stored vectors [sentences, d]."""
        if not self.manifest.sentences:
            return self.fetch(ids), {}
        width = self.manifest.dimensions
        papers: dict[str, Paper] = {}
        vectors: dict[str, np.ndarray] = {}
        columns = [*PAPER, SENTENCES]
        for row in self._read_rows(ids, columns):
            key = row["id"]
            papers[key] = to_paper(row)
            vectors[key] = read_half_vectors(row[SENTENCES], width)
        return papers, vectors

    def stamps(self, ids: Sequence[str]) -> dict[str, str]:
        rows = self._read_rows(ids, ("id", "stamp"))
        return {row["id"]: row["stamp"] for row in rows}

    def _renewed(self) -> bool:
        """Whether a newer version was opened, after a version could not be read."""
        return False

    def _read_rows(self, ids: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
        try:
            return self._rows_by_id(ids, columns)
        except InputError:
            if not self._renewed():
                raise
            return self._rows_by_id(ids, columns)

    def _rows_by_id(self, ids: Sequence[str], columns: Sequence[str]) -> list[dict[str, Any]]:
        if self._known is not None:
            ids = [key for key in ids if hash(key) in self._known]
        if not ids:
            return []
        row_numbers = self._row_numbers
        with self._with_named_errors():
            if all(key in row_numbers for key in ids):
                numbers = sorted({row_numbers[key] for key in ids})
                query = self._table.take_row_ids(numbers)
                query = query.select(list(columns))
            else:
                has_id = id_filter(ids)
                query = self._table.search().where(has_id)
                query = query.select(list(columns))
                query = query.limit(None)
            table = query.to_arrow()
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows

    def _note_ids(self, ids: Sequence[str]) -> None:
        """Record ids before they are written, because a write may fail after writing them."""
        self._written += len(ids)
        if self._known is None and self._written > _MANY:
            with self._with_named_errors():
                query = self._table.search().select(["id"])
                query = query.limit(None)
                known: set[int] = set()
                for batch in query.to_batches(65_536):
                    known.update(map(hash, batch["id"].to_pylist()))
                self._known = known
        if self._known is not None:
            self._known.update(map(hash, ids))

    def rows(self, size: int = 2048) -> Iterator[Rows]:
        """Yield all stored papers of the current version."""
        has_vectors = self.manifest.stored_dimensions > 0
        columns = paper_columns(self.manifest.sentences > 0, has_vectors)
        with self._with_named_errors():
            query = self._table.search().select(columns)
            batches = query.limit(None).to_batches(size)
            yield from map(read_rows, batches)

    @property
    def has_keys(self) -> bool:
        """Whether papers can be found by the keys of their identities."""
        return KEYS in self._table.schema.names

    def headings(self, version: int, keys: Collection[int] | None = None) -> Iterator[Paper]:
        """Yield the papers of a version without their abstracts; with `keys` only their papers."""
        columns = [
            "id",
            "title",
            "authors",
            "date",
            "doi",
            "url",
        ]
        with self._with_named_errors():
            database = connection(self.files)
            table = database.open_table(self.manifest.table)
            table.checkout(version)
            query = table.search().select(columns)
            query = query.limit(None)
            if keys is not None:
                sorted_keys = sorted(keys)
                listed = ", ".join(map(str, sorted_keys))
                query = query.where(f"array_has_any({KEYS}, [{listed}])")
            for batch in query.to_batches(8_192):
                for row in batch.to_pylist():
                    names = tuple(row["authors"])
                    source = Source(
                        row["id"],
                        row["title"],
                        authors=names,
                        date=row["date"],
                    )
                    yield Paper(source, row["doi"], row["url"])

    def notices(self) -> dict[str, str]:
        """Map DOIs to the state of the papers according to indexed notices."""
        with self._with_named_errors():
            query = self._table.search().where(f"retracted LIKE '%{NOTICE}%'")
            query = query.select(["doi", "retracted"])
            table = query.limit(None).to_arrow()
        notices: dict[str, str] = {}
        for row in table.to_pylist():
            doi = plain_doi(row["doi"]) or row["doi"]
            add_notice(notices, row["retracted"], doi)
        return notices

    def retracted(self, ids: Sequence[str]) -> dict[str, str]:
        """Map papers with a notice of retraction or correction to that notice."""
        notices: dict[str, str] = {}
        for row in self._read_rows(ids, ("id", "retracted")):
            notice = row["retracted"]
            if notice:
                key = row["id"]
                notices[key] = notice
        return notices


class WeighedWords(NamedTuple):
    """Words to search for in a column, and their weight."""

    column: str
    words: Sequence[str]
    weight: float


def weighed_words(
    terms: Sequence[str],
    names: Sequence[str],
    names_weight: float,
) -> list[WeighedWords]:
    """Divide a post's words into rankings, whose sum counts each word as often as it occurs.

    Words that count more than `_MOST_REPEATS` times are a ranking more: LanceDB looks for each
    repetition anew.
    """
    parts: list[WeighedWords] = []
    counts = Counter(terms)
    words: list[str] = []
    many: dict[int, list[str]] = {}
    for term, count in counts.items():
        if count <= _MOST_REPEATS:
            words += [term] * count
        else:
            words.append(term)
            repeated = many.setdefault(count, [])
            repeated.append(term)
    if words:
        parts.append(WeighedWords("terms", words, 1.0))
    for count, repeated in many.items():
        part = WeighedWords("terms", repeated, count - 1.0)
        parts.append(part)
    if names and names_weight:
        distinct_names = list(dict.fromkeys(names))
        part = WeighedWords("names", distinct_names, names_weight)
        parts.append(part)
    return parts


def row_numbers(table: Any, where: Where = EVERYWHERE) -> np.ndarray:
    """List the numbers of a table's rows that pass a filter."""
    query = table.search().select(["day"])
    query = query.with_row_id(True)
    query = filtered(query, where).limit(None)
    row_ids = query.to_arrow()["_rowid"]
    numbers: np.ndarray = row_ids.to_numpy()
    return numbers


def best_sums(rankings: Sequence[Ranking], k: int) -> Ranked:
    """Find the `k` rows with the best sums of scores, which are 0 or more; ties by row.

    A ranking returns its best rows, or fewer if no others score above 0, and the scores of given
    rows. Rankings are read until no other row can have a better sum than the kth (Fagin, Lotem and
    Naor 2003).
    """
    depth = _FIRST * k
    while True:
        lists = [ranking(depth, None) for ranking in rankings]
        lasts = [_last_score(scores, depth) for _, scores in lists]
        rows, scores = _score_table(lists, lasts)
        sums = np.nansum(scores, axis=0)
        floor = 0.0
        if len(sums) >= k:
            negative_sums = np.partition(-sums, k - 1)
            floor = -negative_sums[k - 1]
        if sum(lasts) <= floor or not any(lasts):
            break
        depth *= _MORE
    # In a ranking that does not list a row, the row's score is at most that of the last listed one.
    unknown = np.isnan(scores)
    most_added = np.array(lasts) @ unknown
    highest = sums + most_added
    needed = floor * (1 - 1e-6)
    possible = highest >= needed
    for number, ranking in enumerate(rankings):
        missing = rows[possible & unknown[number]]
        if missing.size:
            listed, values = ranking(len(missing), missing)
            places = np.searchsorted(rows, listed)
            sums[places] += values
    best = np.lexsort((rows, -sums))[:k]
    return rows[best], sums[best]


def _last_score(scores: np.ndarray, depth: int) -> float:
    """Return the maximal score of rows beyond a ranking's first `depth`."""
    if len(scores) < depth:
        return 0.0
    return scores[-1]


def _score_table(lists: Sequence[Ranked], lasts: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """List the rows of all rankings, and their scores [rankings, rows]; NaN if unknown."""
    all_rows = [listed for listed, _ in lists]
    rows = np.unique(np.concatenate(all_rows))
    shape = (len(lists), len(rows))
    scores = np.full(shape, np.nan)
    for number, (listed, values) in enumerate(lists):
        places = np.searchsorted(rows, listed)
        scores[number, places] = values
        if not lasts[number]:
            scores[number] = np.nan_to_num(scores[number])
    return rows, scores
