"""Read papers, posts, judgements and runs from pandas frames and Hugging Face data sets.

Errors name the table and the row, from 1: `posts:3: text: is empty`. If a column may have several
names, the first one that exists is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from claim2source.core.errors import InputError, Problems, value_text
from claim2source.core.run import Run
from claim2source.data.jsonl import Records, Row, parse_row
from claim2source.data.trec import TOO_LARGE

# Names of the columns in BEIR, ir_measures, PyTerrier and `Run.to_pandas`.
CLAIM_COLUMNS = (
    "query-id",
    "query_id",
    "qid",
    "claim",
)
SOURCE_COLUMNS = (
    "corpus-id",
    "corpus_id",
    "doc_id",
    "docno",
    "docid",
    "source",
)
SCORE_COLUMNS = ("score",)
GRADE_COLUMNS = ("score", "relevance", "label")
_NA_TYPES = ("NAType", "NaTType")  # types of pandas that equal nothing

RankingRow = tuple[int | None, object, object, object]  # row, claim, source, score


def is_table(value: object) -> bool:
    """Whether a value has columns, like frames and data sets of Hugging Face."""
    names = getattr(value, "column_names", None)
    if not names:
        names = getattr(value, "columns", None)
    if names is None:
        return False
    has_items = hasattr(value, "__getitem__")
    return has_items and not isinstance(value, Mapping)


ANY_TABLE = "a pandas frame, a Hugging Face Dataset, a list of dicts or a list of texts"


def _columns(rows: Sequence[Any], name: str) -> dict[str, list[object]]:
    """Convert a list of dicts or texts to columns; texts get the ids `post-1`, .."""
    if isinstance(rows[0], str):
        kind = name.removesuffix("s")
        numbered = enumerate(rows, start=1)
        rows = [{"_id": f"{kind}-{number}", "text": text} for number, text in numbered]

    keys: dict[object, None] = {}
    for row in rows:
        keys |= dict.fromkeys(row)

    columns: dict[str, list[object]] = {}
    for key in keys:
        column_name = str(key)
        columns[column_name] = [row.get(key) for row in rows]
    return columns


def _column_names(data: Any) -> list[str]:
    default = data if isinstance(data, dict) else None
    names = getattr(data, "column_names", default)
    if names is None:
        names = data.columns
    return [str(name) for name in names]


def _table_error(value: object) -> str:
    """Return the reason why a value is not a table."""
    if isinstance(value, Mapping) and hasattr(value, "column_names"):
        return f"has several splits: pass one of {', '.join(map(str, value))}"
    article = "an empty" if isinstance(value, list | tuple) else "a"
    kind = type(value).__name__
    return f"is {article} {kind}; wanted: {ANY_TABLE}"


class Frame:
    """Table, or a list of dicts or texts, with its name in errors.

    `columns` maps other column names to keys. Raises `InputError` if it is not a table, or has a
    column twice.
    """

    def __init__(
        self,
        table: object,
        name: str,
        columns: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        data: Any = table
        if isinstance(table, list | tuple) and table:
            self._check_rows(table)
            data = _columns(table, name)
        elif not is_table(table):
            raise self.wrong(_table_error(table))

        index = getattr(data, "index", None)
        levels = getattr(index, "names", ())
        if any(level is not None for level in levels):
            data = data.reset_index()  # the frame's index may be the id
        if hasattr(data, "with_format"):
            data = data.with_format(None)  # plain values instead of tensors
        self._table = data
        self.names = _column_names(data)

        renamed = columns or {}
        self.columns = [renamed.get(column, column) for column in self.names]
        counts = Counter(self.columns)
        for column, count in counts.items():
            if count > 1:
                raise self.wrong(f"has the column {column} twice")

    def _check_rows(self, rows: Sequence[object]) -> None:
        kinds = {dict if isinstance(row, Mapping) else type(row) for row in rows}
        if kinds in ({dict}, {str}):
            return
        kind_names = sorted(kind.__name__ for kind in kinds)
        listed = " and ".join(kind_names)
        raise self.wrong(f"is a list of {listed}; wanted: {ANY_TABLE}")

    def wrong(self, reason: str) -> InputError:
        return InputError(self.name, reason=reason)

    def column(self, name: str) -> list[object]:
        """Return a column as plain Python values, None if one is missing."""
        position = self.columns.index(name)
        table_name = self.names[position]
        values = self._table[table_name]
        for method in ("to_list", "to_pylist"):
            if hasattr(values, method):
                values = getattr(values, method)()
        return [plain_value(value) for value in values]

    def choose(self, names: Sequence[str]) -> str:
        """Return the first of these names that is a column. Raises `InputError` if none is."""
        for name in names:
            if name in self.columns:
                return name
        wanted = " or ".join(names)
        listed = ", ".join(self.columns) or "none"
        raise self.wrong(f"has no column {wanted}; there are: {listed}")


def plain_value(value: Any) -> object:
    """Return a cell as a plain Python value: None if it is missing, dates as ISO text."""
    if value is None:
        return None
    type_name = type(value).__name__
    if type_name in _NA_TYPES:
        return None
    if isinstance(value, float):
        is_nan = value != value
        return None if is_nan else float(value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    if isinstance(value, date):
        return value.isoformat()[:10]
    if hasattr(value, "tolist"):
        return plain_value(value.tolist())
    return value


class FrameRecords(Records):
    """Read the rows of a table as the records of a BEIR file.

    `fields` maps the keys of a record to the names that their columns may have. A column with one
    of the names in `of_metadata` is treated as metadata.
    """

    def __init__(
        self,
        frame: Frame,
        problems: Problems,
        fields: Mapping[str, Sequence[str]],
        of_metadata: Sequence[str],
    ) -> None:
        super().__init__(Path(frame.name), problems)
        self._frame = frame
        frame.choose(fields["_id"])
        self._column_of: dict[str, str] = {}
        for key, names in fields.items():
            present = [name for name in names if name in frame.columns]
            if present:
                self._column_of[key] = present[0]
        self._of_metadata = [name for name in of_metadata if name in frame.columns]
        self._check_header(tuple(fields), of_metadata)

    def _check_header(
        self,
        fields: tuple[str, ...],
        of_metadata: Sequence[str],
    ) -> None:
        """Complain about unknown columns."""
        read = {
            *self._column_of.values(),
            *self._of_metadata,
            "metadata",
        }
        other_columns = [name for name in self._frame.columns if name not in read]
        metadata = dict.fromkeys(other_columns)
        # The same error in every row is reported once.
        header = dict.fromkeys(self._column_of, "") | metadata | {"metadata": {}}
        row = Row(header, 0, self._complain)
        row.check_keys(fields, of_metadata)

    def _complain(self, field: str, reason: str, kind: str = "", /) -> None:
        self.problems.add(self.path, None, field, reason, kind)

    def records(self) -> Iterator[Row]:
        keys = [*self._column_of, *self._of_metadata]
        names = [*self._column_of.values(), *self._of_metadata]
        if "metadata" in self._frame.columns:
            keys.append("metadata")
            names.append("metadata")
        columns = [self._frame.column(name) for name in names]
        rows = zip(*columns, strict=True)

        for number, cells in enumerate(rows, start=1):
            record = dict(zip(keys, cells, strict=True))
            metadata: dict[str, object] = {}
            for name in self._of_metadata:
                value = record.pop(name)
                if value is not None:
                    metadata[name] = value

            inner = record.get("metadata")
            if metadata and (inner is None or isinstance(inner, dict)):
                own_metadata = inner or {}
                record["metadata"] = {**own_metadata, **metadata}
            row = parse_row(record, self.path, self.problems, number)
            assert row is not None
            yield row


def cell_text(value: object) -> str:
    """Write a cell as in a TSV file; whole numbers of float columns get no decimal point."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if value is None:
        return ""
    return str(value)


def run_from_frame(table: object, name: str = "run") -> Run:
    """Read a run from a table with columns for claim, source and score; ignore other columns.

    Raises `InputError` with row and column for each problem.
    """
    frame = Frame(table, name)
    columns = [
        frame.choose(CLAIM_COLUMNS),
        frame.choose(SOURCE_COLUMNS),
        frame.choose(SCORE_COLUMNS),
    ]
    cells = zip(*(frame.column(column) for column in columns), strict=True)
    numbered = enumerate(cells, start=1)
    rows = ((number, *row) for number, row in numbered)
    return _run(rows, name, columns)  # type: ignore[arg-type]


def run_from_scores(
    scores: Mapping[Any, Mapping[Any, Any]],
    name: str = "run",
) -> Run:
    """Make a run from claim -> source -> score. Raises `InputError`, with a line per problem."""
    rows: list[RankingRow] = []
    for claim, ranked in scores.items():
        for source, score in ranked.items():
            row = (None, claim, source, plain_value(score))
            rows.append(row)
    columns = ("claim", "source", "score")
    claims = list(scores)
    return _run(rows, name, columns, claims)


def _score_error(score: object) -> str:
    """Return the reason why a value cannot be a score; "" if it can."""
    if score is None:
        return "is missing"
    if isinstance(score, bool) or not isinstance(score, int | float):
        return f"{value_text(score)} is not a number"
    is_finite = abs(score) < TOO_LARGE
    if not is_finite:
        return f"{score} is not a finite float32"
    return ""


def _run(
    rows: Iterable[RankingRow],
    name: str,
    columns: Sequence[str],
    claims: Sequence[object] = (),
) -> Run:
    claim_column, source_column, score_column = columns
    problems = Problems()
    id_of_value: dict[object, str | None] = {}

    def as_id(
        row: int | None,
        column: str,
        value: object,
    ) -> str | None:
        is_id = isinstance(value, str | int)
        if is_id and value in id_of_value:
            return id_of_value[value]
        record = Row({}, 0, complain(row))
        checked = record.as_id(column, value)
        if is_id:
            id_of_value[value] = checked
        return checked

    def complain(row: int | None) -> Any:
        return lambda field, reason, kind="": problems.add(name, row, field, reason)

    ranked: dict[str, dict[str, float]] = {}
    for claim in claims:
        claim_id = as_id(None, claim_column, claim)
        if claim_id is not None:
            ranked[claim_id] = {}

    for number, claim, source, score in rows:
        claim_id = as_id(number, claim_column, claim)
        source_id = as_id(number, source_column, source)
        reason = _score_error(score)
        if reason:
            pair = f"(claim {claim!r}, source {source!r})"
            problems.add(name, number, score_column, f"{reason} {pair}")
        elif claim_id is not None and source_id is not None:
            value = float(score)  # type: ignore[arg-type]
            scores = ranked.setdefault(claim_id, {})
            best_before = scores.get(source_id, value)
            scores[source_id] = max(value, best_before)

    problems.raise_if_any()
    lists: dict[str, list[tuple[str, float]]] = {}
    for key, scores in ranked.items():
        lists[key] = list(scores.items())
    return Run.from_lists(lists)
