"""Show a grid of text styles as the 2025 paper's table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from claim2source.core.languages import primary_language
from claim2source.core.records import sorted_languages
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Comparison,
    PublishedScore,
    Report,
    SystemReport,
)
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.core.terminal import listed
from claim2source.metrics.metrics import Scores, macro
from claim2source.text.styles import CLAIM_STYLES, SOURCE_STYLES, STYLES

CLAIM, SOURCE = CLAIM_STYLES[0], SOURCE_STYLES[0]  # the texts as they are
PUBLISHED = "2025-styles"
SIGNIFICANT = "*: differs from S0C0 (paired test by gold paper, Holm over the system's cells, 5 %)."
LEGEND = (
    "S0C0 is absolute, the other cells are differences to it. ^: the best cell of its system. "
    f"{SIGNIFICANT}"
)
BY_RULES = "not the papers'"  # in a cell's style, where rules rewrote its texts
# In a cell's settings: the language models that rewrote its texts.
WRITERS = "rewritten_by"
_UNSTYLED = f"{SOURCE}{CLAIM}"
_QUESTION = "?: unreliable, no target; "


def cell_name(retriever: str, claims: str, sources: str) -> str:
    return f"{retriever}.{sources}{claims}"


@dataclass(frozen=True)
class GridCell:
    """Cell's MRR@5 in a language or macro-averaged, and its difference to S0C0.

    `test` is that of the difference, `published` the 2025 paper's cell; None if there is none.
    """

    claims: str
    sources: str
    value: float
    delta: float
    is_best: bool
    test: Comparison | None
    published: PublishedScore | None

    @property
    def name(self) -> str:
        return f"{self.sources}{self.claims}"

    @property
    def differs(self) -> bool:
        return self.test is not None and self.test.verdict in ("better", "worse")


@dataclass(frozen=True, eq=False)
class StyleGrid:
    """Report with a system for each cell: every retriever over every pair of styles."""

    report: Report
    retrievers: tuple[str, ...]
    claims: tuple[str, ...]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, report: Report, languages: Sequence[str] | None = None) -> StyleGrid | None:
        """Return the grid of a report; None if the report has no cells.

        The cell of the original texts may have the retriever's own name. `languages` limits the
        scores.
        """
        cells = _read_cells(report, languages)
        styles = {name.rpartition(".")[2] for name in cells}
        claims = tuple(c for c in CLAIM_STYLES if any(style.endswith(c) for style in styles))
        sources = tuple(s for s in SOURCE_STYLES if any(style.startswith(s) for style in styles))
        retrievers = []
        for name in dict.fromkeys(cell.rpartition(".")[0] for cell in cells):
            wanted = set()
            for c in claims:
                for s in sources:
                    wanted.add(cell_name(name, c, s))
            if wanted <= cells.keys():
                retrievers.append(name)
        if not retrievers:
            return None
        tests = []
        for test in report.tests:
            tested = set()
            for comparison in test.comparisons:
                tested.add(comparison.system)
            if tested <= cells.keys():
                tests.append(test)
        styled = replace(report, systems=cells, tests=tuple(tests))
        return cls(styled, tuple(retrievers), claims, sources)

    @property
    def languages(self) -> tuple[str, ...]:
        """Return the columns to tabulate: the macro average and, of several, each language."""
        distinct = sorted_languages(
            lang for system in self.report.scored for lang in system.languages
        )
        return (MACRO, *distinct) if len(distinct) > 1 else (MACRO,)

    @property
    def note(self) -> str:
        """Name the styles, and the models or the rules that made their texts."""
        styles = []
        for style in (*self.sources, *self.claims):
            styles.append(f"{style} {STYLES[style].what}")
        note = f"Sources S and claims C: {', '.join(styles)}."
        if any(BY_RULES in system.style for system in self.report.systems.values()):
            note += " Texts by rules, which do not tell how a language model would write."
        writers: dict[str, None] = {}
        for system in self.report.systems.values():
            writers |= dict.fromkeys(map(str, system.settings.get(WRITERS, ())))
        if writers:
            note += f" Texts rewritten by {', '.join(writers)}; other models write otherwise."
        return note

    def row(self, retriever: str, language: str = MACRO) -> list[GridCell]:
        """List the cells of a retriever in the papers' order: S0C0, S0C1, ..

        Among equal cells the first is marked as the best.
        """
        pairs = [(claims, sources) for sources in self.sources for claims in self.claims]
        names = []
        for pair in pairs:
            names.append(cell_name(retriever, *pair))
        reports = []
        for name in names:
            reports.append(self.report.systems[name])
        values = []
        for report in reports:
            values.append(float(report.table[language][MAIN_METRIC]))
        best = values.index(max(values))
        # The 2025 paper's cells are of English claims.
        english = "en" if len(self.languages) > 1 else MACRO
        cells = []
        for number, (claims, sources) in enumerate(pairs):
            cell = GridCell(
                claims,
                sources,
                values[number],
                values[number] - values[0],
                number == best,
                self._tests.get((names[number], language)),
                _published(reports[number]) if language == english else None,
            )
            cells.append(cell)
        return cells

    @cached_property
    def _tests(self) -> Mapping[tuple[str, str], Comparison]:
        tests: dict[tuple[str, str], Comparison] = {}
        for test in self.report.tests:
            language = MACRO if test.average == "micro" else test.average
            for comparison in test.comparisons:
                tests[comparison.system, language] = comparison
        return tests


def _read_cells(report: Report, languages: Sequence[str] | None) -> dict[str, SystemReport]:
    """Map the name of every cell with scores to its report, including the retrievers' S0C0."""
    cells: dict[str, SystemReport] = {}
    for name, system in report.systems.items():
        retriever, _, cell = name.rpartition(".")
        is_styled = system.style != _UNSTYLED and system.style.startswith(cell or "-")
        if not system.macro or not is_styled:
            continue
        base_name = cell_name(retriever, CLAIM, SOURCE)
        base = report.systems.get(base_name) or report.systems.get(retriever)
        if base is not None:
            cells[base_name] = _limited(base, languages)
            cells[name] = _limited(system, languages)
    return cells


def _published(report: SystemReport) -> PublishedScore | None:
    return next((score for score in report.published if score.table == PUBLISHED), None)


def _limited(report: SystemReport, languages: Sequence[str] | None) -> SystemReport:
    if not languages:
        return report
    wanted = set()
    for language in languages:
        wanted.add(primary_language(language))
    tables = {}
    for lang, row in report.languages.items():
        if lang in wanted:
            tables[lang] = row
    return replace(report, languages=tables, macro=macro(tables) if tables else {})


def mean_scores(parts: Sequence[Scores]) -> Scores:
    """Average every claim's scores over the versions of its texts.

    Raises ValueError if there are no versions, or if their claims differ.
    """
    if len({part.claim_ids for part in parts}) != 1:
        raise ValueError("versions must have the same claims")
    metrics = parts[0].values
    means = {}
    for metric in metrics:
        means[metric] = np.mean([part[metric] for part in parts], axis=0)
    return Scores(parts[0].claim_ids, means)


def grid_parts(grid: StyleGrid, wide: bool = False) -> list[Part]:
    """Tabulate a grid in the papers' form, for the macro average and each language.

    With `wide`, all cells of a retriever are in one row; else each source style has a table.
    """
    parts: list[Part] = []
    blocks = [grid.sources] if wide else [(source,) for source in grid.sources]
    for language in grid.languages:
        title = "macro average" if language == MACRO else f"{language} claims"
        parts.append(f"{MAIN_METRIC} by style of sources (S) and claims (C), {title}:")
        rows = {}
        for retriever in grid.retrievers:
            rows[retriever] = grid.row(retriever, language)
        parts.append(_best_table(rows))
        for sources in blocks:
            parts.append(_cells_table(rows, sources))
    return [*parts, grid.note, LEGEND, *_published_notes(grid)]


def grid_tables(grid: StyleGrid) -> dict[str, TextTable]:
    """Return the tables of a grid by name: the best cells and all cells, by language."""
    tables = []
    for part in grid_parts(grid, wide=True):
        if isinstance(part, TextTable):
            tables.append(part)
    if not tables:  # no cell has scores
        return {}
    kinds = []
    for lang in grid.languages:
        for kind in ("best", "grid"):
            kinds.append(f"{kind} {lang}")
    return dict(zip(kinds, tables, strict=True))


def _best_table(rows: Mapping[str, Sequence[GridCell]]) -> TextTable:
    columns = ["retriever", "S0C0", "best cell", MAIN_METRIC, "difference", "95 %", "p (Holm)"]
    lines: list[list[Cell]] = []
    for retriever, cells in rows.items():
        best = next(cell for cell in cells if cell.is_best)
        row: list[Cell] = [retriever, cells[0].value, best.name, best.value, f"{best.delta:+.4f}"]
        if best.test is None:
            row += [None, None]
        else:
            row += [f"{best.test.low:+.4f} to {best.test.high:+.4f}", best.test.p_holm]
        lines.append(row)
    return TextTable(columns, lines, numeric=[False, True, False, True, True, True, True])


def _cells_table(rows: Mapping[str, Sequence[GridCell]], sources: Sequence[str]) -> TextTable:
    lines: list[list[str]] = []
    names: list[str] = []
    for retriever, row in rows.items():
        cells = []
        for cell in row:
            if cell.sources in sources:
                cells.append(cell)
        names = []
        for cell in cells:
            names.append(cell.name)
        lines.append([retriever, *map(_ours, cells)])
        if any(cell.published is not None for cell in cells):
            lines.append(["  published", *(_published_text(cell, row[0]) for cell in cells)])
    return TextTable(["retriever", *names], lines, numeric=[False, *[True] * len(names)])


def _ours(cell: GridCell) -> str:
    text = f"{cell.value:.4f}" if cell.name == _UNSTYLED else f"{cell.delta:+.4f}"
    mark = "^" if cell.is_best else ""
    mark += "*" if cell.differs else ""
    return f"{text}{mark:<2}"  # marks have the same width, so that digits align


def _published_text(cell: GridCell, base: GridCell) -> str:
    if cell.published is None or cell.published.published is None:
        return "-  "
    score = cell.published.published
    mark = "?" if cell.published.unreliable else ""
    text = f"{score:.4f}"
    if cell is not base and base.published is not None and base.published.published is not None:
        text = f"{score - base.published.published:+.4f}"
    return f"{text}{mark:<2}"


def _published_notes(grid: StyleGrid) -> list[str]:
    scores = [cell for cell in map(_published, grid.report.systems.values()) if cell is not None]
    if not scores:
        return []
    source = "published: table 2025-styles, full dev split, texts rewritten by Llama-3.3-70B."
    if not all(cell.same_claims for cell in scores):
        source += " Ours are over other claims: the rows are shown, not compared."
    reasons: dict[str, list[str]] = {}
    for cell in scores:
        if cell.unreliable:
            reasons.setdefault(cell.unreliable, []).append(f"{cell.row} {cell.column}")
    if not reasons:
        return [source]
    notes = []
    for reason, cells in reasons.items():
        notes.append(f"{listed(cells)}: {reason}")
    return [source, f"{_QUESTION}{'; '.join(notes)}."]
