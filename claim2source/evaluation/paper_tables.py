"""What `eval/paper_tables.py` does: the papers' tables with ours beside them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from claim2source.config import require, several
from claim2source.errors import ConfigError, UserError
from claim2source.evaluation.metrics import cutoff, evaluate
from claim2source.evaluation.published import MACRO, Column, Row, Table, load_published
from claim2source.evaluation.saved import SavedSystem, read_reports, runs_of
from claim2source.evaluation.significance import bootstrap_intervals, gold_groups
from claim2source.evaluation.tables import markdown_table, plain_table
from claim2source.files import write_text
from claim2source.records import Qrels
from claim2source.run_files import read_qrels

_WIDEST = 10  # columns beside each other in a terminal
_UNKNOWN = "unknown"
CSV_COLUMNS = (
    "table", "row", "column", "metric", "language", "unit", "published", "unreliable", "ours",
    "difference", "low", "high", "inside", "same_claims", "report",
)  # fmt: skip


@dataclass(frozen=True)
class PaperTablesConfig:
    """Settings of `eval/paper_tables.py`.

    Args:
        out: file to write; none: the terminal.
        format: `text`, `markdown`, or `csv` with one line a cell.
        repeats: bootstrap draws of an interval.
        seed: of the draws.
    """

    reports: list[Path] | None = several(
        Path, repeats=True, help="folders that eval/checkpoint.py or eval/hybrid.py wrote"
    )
    qrels: list[Path] | None = several(
        Path, repeats=True, help="judgements for the runs in these folders: gives intervals"
    )
    rows: list[str] | None = several(
        str, repeats=True, help="what names do not tell: 'GritLM-F=NAME' puts system NAME in a row"
    )
    tables: list[str] | None = several(
        str, help="only these tables or papers, such as 2025-styles or 2026; none: all"
    )
    format: Literal["text", "markdown", "csv"] = "text"
    out: Path | None = None
    repeats: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        require(self.repeats >= 1, "repeats", self.repeats, "1 or more")
        for named in self.rows or ():
            require("=" in named, "rows", named, "ROW=SYSTEM, such as GritLM-F=epoch-2")


@dataclass(frozen=True)
class Ours:
    """Our number for a published cell, in the paper's unit.

    `low` and `high` bound it (95 %, by gold paper; None without runs and judgements). `same`
    tells whether it is over as many claims as the paper's; else it is shown but not compared.
    """

    value: float
    low: float | None
    high: float | None
    same: bool
    system: SavedSystem

    def inside(self, published: float | None) -> str:
        """Is the published number within our interval: yes, no or unknown."""
        if self.low is None or self.high is None or published is None or not self.same:
            return _UNKNOWN
        return "yes" if self.low <= published <= self.high else "no"


Cells = dict[tuple[str, str], Ours]


def paper_tables(config: PaperTablesConfig) -> str:
    """Render the tables; writes `config.out` and returns what a terminal shows."""
    tables = _chosen(load_published(), config.tables)
    systems = read_reports(config.reports or [])
    scorer = _Scorer(_judgements(config.qrels or []), config.repeats, config.seed)
    named = _named_rows(config.rows or [], tables, systems)
    cells = {table.id: fill(table, systems, named, scorer) for table in tables}
    if config.format == "csv":
        text = as_csv(tables, cells)
    else:
        used = {id(ours.system) for found in cells.values() for ours in found.values()}
        text = _as_text(tables, cells, config.format == "markdown")
        text += _unplaced([s for s in systems if id(s) not in used], scorer.notes)
    if config.out is None:
        return text.rstrip("\n")
    write_text(config.out, text)
    return f"{len(tables)} tables in {config.out}"


def _chosen(tables: Sequence[Table], wanted: Sequence[str] | None) -> list[Table]:
    for name in wanted or ():
        if not any(name in (table.id, table.paper) for table in tables):
            allowed = [*dict.fromkeys(t.paper for t in tables), *(t.id for t in tables)]
            raise ConfigError("tables", name, ", ".join(allowed))
    return [t for t in tables if not wanted or {t.id, t.paper} & set(wanted)]


def _judgements(paths: Iterable[Path]) -> Qrels:
    grades: dict[str, Mapping[str, int]] = {}
    for path in paths:
        for claim, judged in read_qrels(path).grades.items():
            if grades.setdefault(claim, judged) != judged:
                raise UserError(f"{path}: {claim!r} is judged otherwise in an earlier file")
    return Qrels(grades)


def _named_rows(
    given: Sequence[str], tables: Sequence[Table], systems: Sequence[SavedSystem]
) -> dict[str, str]:
    """Published row -> our system's name, as `--rows` says."""
    named = dict(pair.split("=", 1) for pair in given)
    rows = {row.name for table in tables for row in table.rows}
    for row, system in named.items():
        require(row in rows, "rows", row, "a row of the tables shown")
        known = sorted(s.name for s in systems)
        require(system in known, "rows", system, f"a system of --reports: {', '.join(known)}")
    return named


def fill(
    table: Table, systems: Sequence[SavedSystem], named: Mapping[str, str], scorer: _Scorer
) -> Cells:
    """(row, column) -> ours, for every cell that a report has; the first report that fits."""
    cells: Cells = {}
    for row in table.rows:
        for column in table.columns:
            for system in systems:
                if (
                    column.metric
                    and _is_row(row, system, named)
                    and _is_cell(table, column, system)
                ):
                    found = scorer.score(column, system, _same_claims(column, system))
                    if found is not None:
                        cells[row.name, column.name] = found
                        break
    return cells


def _is_row(row: Row, system: SavedSystem, named: Mapping[str, str]) -> bool:
    if row.name in named:
        return system.name == named[row.name]
    kind, _, model = system.model.rpartition(":")
    mine = kind, Path(model).name.casefold()
    models = (name.rpartition(":") for name in row.models)
    return any((k, Path(name).name.casefold()) == mine for k, _, name in models)


def _is_cell(table: Table, column: Column, system: SavedSystem) -> bool:
    if column.splits and system.split not in column.splits or column.style != system.style:
        return False
    # English claims are the same text in every representation.
    if column.claims and column.language != "en" and column.claims != system.claims:
        return False
    if column.sources and system.sources and column.sources != system.sources:
        return False
    named = any(name in Path(system.dataset).name.casefold() for name in table.names)
    return named or bool(column.queries) and _same_claims(column, system)


def _same_claims(column: Column, system: SavedSystem) -> bool:
    if column.queries is None:
        return True
    wanted = dict(column.queries)
    if column.language != MACRO:
        wanted = {lang: n for lang, n in wanted.items() if lang == column.language}
    return all(system.queries.get(lang) == n for lang, n in wanted.items())


class _Scorer:
    """Our number for a column, with its interval where the runs are judged."""

    def __init__(self, qrels: Qrels, repeats: int, seed: int) -> None:
        self.qrels, self.repeats, self.seed = qrels, repeats, seed
        self.notes: dict[str, None] = {}
        self._intervals: dict[tuple[int, str, str], tuple[float, float] | None] = {}

    def score(self, column: Column, system: SavedSystem, same: bool) -> Ours | None:
        """None when the report does not hold what the column needs."""
        metric, factor = str(column.metric), column.factor
        if metric == "seconds":
            value = system.cost.get("seconds")
            return None if value is None else Ours(float(value), None, None, same, system)
        row = system.macro if column.language == MACRO else system.languages.get(column.language)
        if row is None or metric not in row:
            return None
        key = id(system), column.language, metric
        if key not in self._intervals:
            self._intervals[key] = self._interval(column.language, metric, system)
        low, high = self._intervals[key] or (None, None)
        return Ours(
            factor * row[metric],
            None if low is None else factor * low,
            None if high is None else factor * high,
            same,
            system,
        )

    def _interval(
        self, language: str, metric: str, system: SavedSystem
    ) -> tuple[float, float] | None:
        languages = list(system.languages) if language == MACRO else [language]
        if not len(self.qrels) or any(lang not in system.runs for lang in languages):
            return None
        try:
            cutoff(metric)
        except ConfigError:
            return None  # not a ranking's metric
        runs = runs_of(system)
        values: list[np.ndarray] = []
        claims: list[str] = []
        for lang in languages:
            judged = [c for c in runs[lang].claim_ids if self.qrels.golds(c)]
            # A claim for which nothing was found has no line in a run file: it scores 0.
            absent = system.queries[lang] - len(judged)
            if not judged or absent < 0:
                self.notes[f"{system.name}: the judgements are not those of its {lang} run"] = None
                return None
            found = evaluate(runs[lang], self.qrels, [metric], judged)[metric]
            values.append(np.concatenate([found, np.zeros(absent)]))
            claims += [*judged, *(f"\0{lang}{i}" for i in range(absent))]
        expected = system.macro if language == MACRO else system.languages[language]
        if abs(float(np.mean([v.mean() for v in values])) - expected[metric]) > 1e-6:
            self.notes[f"{system.name}: its runs do not give its report's {metric}"] = None
            return None
        strata = np.repeat(np.arange(len(values)), [len(v) for v in values])
        low, high = bootstrap_intervals(
            np.concatenate(values)[None], gold_groups(self.qrels, claims), strata,
            self.repeats, self.seed,
        )[0]  # fmt: skip
        return float(low), float(high)


def _as_text(tables: Sequence[Table], cells: Mapping[str, Cells], markdown: bool) -> str:
    """Every table with its notes; wide ones in blocks for a terminal."""
    parts = []
    for table in tables:
        heading = f"{table.paper}: {table.title}" + f" [{table.id}]"
        parts.append(f"## {heading}" if markdown else f"{heading}\n{'=' * len(heading)}")
        parts.append(f"Source: {table.source}.")
        step = len(table.columns) if markdown else _WIDEST
        for start in range(0, len(table.columns), step):
            columns = table.columns[start : start + step]
            rows = _padded(
                [line for row in table.rows for line in _lines(table, row, columns, cells)]
            )
            numeric = [False, *(_is_numeric(table, column) for column in columns)]
            names = ["", *(c.name if c.unit != "s" else f"{c.name} (s)" for c in columns)]
            draw = markdown_table if markdown else plain_table
            parts.append(draw(names, rows, numeric=numeric))
        parts += _notes(table, cells[table.id])
    return "\n\n".join(parts) + "\n"


def _is_numeric(table: Table, column: Column) -> bool:
    place = table.columns.index(column)
    return all(not isinstance(row.values[place], str) for row in table.rows)


def _padded(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Blanks behind cells without a mark in columns that have marks, so that digits align."""
    marked = [any(cell.endswith("]") for cell in column) for column in zip(*rows, strict=True)]
    return [
        [f"{c}   " if m and not c.endswith("]") else c for c, m in zip(row, marked, strict=True)]
        for row in rows
    ]


def _lines(
    table: Table, row: Row, columns: Sequence[Column], cells: Mapping[str, Cells]
) -> list[list[str]]:
    """A row as printed, with its marks; ours below; where there are any, the differences."""
    printed = []
    for column in columns:
        flag = table.flag_of(row.name, column.name)
        mark = "" if flag is None else f"[{chr(97 + flag)}]"
        printed.append(column.text(table.value(row.name, column.name)) + mark)
    lines = [[row.name, *printed]]
    if not any(column.metric for column in columns):
        return lines
    found = [cells[table.id].get((row.name, column.name)) for column in columns]
    ours, differences, inside = [], [], []
    for column, cell in zip(columns, found, strict=True):
        published = table.absolute(row.name, column.name)
        ours.append(_our_text(table, row, column, cells[table.id]))
        if cell is None or not cell.same or published is None:
            differences.append("-")
            inside.append("-")
        else:
            differences.append(f"{cell.value - published:+.{column.digits}f}")
            inside.append(cell.inside(published))
    lines.append(["  ours", *ours])
    if any(found):
        lines += [["  difference", *differences], ["  inside interval", *inside]]
    return lines


def _our_text(table: Table, row: Row, column: Column, cells: Cells) -> str:
    """Our number as the paper would print it: a difference where it prints one."""
    cell = cells.get((row.name, column.name))
    if cell is None:
        return "-"
    value: float | None = cell.value
    if table.relative_to not in (None, column.name):
        base = cells.get((row.name, str(table.relative_to)))
        value = cell.value - base.value if base else None
    return column.text(value) + ("" if cell.same else "*")


def _notes(table: Table, cells: Cells) -> list[str]:
    lines = [f"[{chr(97 + i)}] unreliable: {flag.reason}." for i, flag in enumerate(table.flags)]
    if table.note:
        lines.append(f"Note: {table.note}")
    other = {
        f"{ours.system.name}: {ours.system.queries}"
        for ours in cells.values()
        if not ours.same
    }  # fmt: skip
    if other:
        lines.append(
            f"* over other claims than the paper's, so not compared ({'; '.join(sorted(other))})."
        )
    names = {row: ours.system for (row, _), ours in cells.items()}
    lines += [f"Ours in {row!r}: {s.name} of {s.folder}" for row, s in names.items()]
    return ["\n".join(lines)] if lines else []


def _unplaced(systems: Sequence[SavedSystem], notes: Iterable[str]) -> str:
    lines = [
        f"In no table: {s.name} of {s.folder} ({s.model}, {s.dataset}, {s.split})" for s in systems
    ]
    lines += [f"No interval: {note}" for note in notes]
    return "\n" + "\n".join(lines) + "\n" if lines else ""


def as_csv(tables: Sequence[Table], cells: Mapping[str, Cells]) -> str:
    """One line a cell; scores of ours and differences are absolute, in the paper's unit."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for table in tables:
        for row in table.rows:
            for column in table.columns:
                writer.writerow(_csv_row(table, row, column, cells[table.id]))
    return out.getvalue()


def _csv_row(table: Table, row: Row, column: Column, cells: Cells) -> list[Any]:
    value = table.value(row.name, column.name)
    flag = table.flag_of(row.name, column.name)
    line: list[Any] = [
        table.id, row.name, column.name, column.metric or "", column.language, column.unit,
        "" if value is None else column.text(value),
        "" if flag is None else table.flags[flag].reason,
    ]  # fmt: skip
    cell = cells.get((row.name, column.name))
    if cell is None:
        return [*line, *[""] * 7]
    published = table.absolute(row.name, column.name)
    known = published is not None and cell.same
    numbers = [cell.value, cell.value - published if known and published is not None else None,
               cell.low, cell.high]  # fmt: skip
    texts = ["" if n is None else f"{n:.6f}" for n in numbers]
    return [*line, *texts, cell.inside(published), "yes" if cell.same else "no",
            str(cell.system.folder)]  # fmt: skip
