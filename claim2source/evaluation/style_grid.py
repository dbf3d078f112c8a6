"""Show a grid of text styles: the 2025 paper's table, CSV, JSON and heat maps."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

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
from claim2source.evaluation.families import family_parts
from claim2source.metrics.metrics import Scores, macro
from claim2source.text.styles import CLAIM_STYLES, SOURCE_STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CLAIM, SOURCE = CLAIM_STYLES[0], SOURCE_STYLES[0]  # the texts as they are
PUBLISHED = "2025-styles"
CSV_COLUMNS = (
    "retriever",
    "claims",
    "sources",
    "language",
    MAIN_METRIC,
    "delta",
    "low",
    "high",
    "p_holm",
    "best",
    "published",
    "published_delta",
    "unreliable",
)
LEGEND = (
    "S0C0 is absolute, the other cells are differences to it. ^: the best cell of its row. "
    "*: differs from S0C0 (paired test by gold paper, Holm over the row, 5 %)."
)
_PLAIN = f"{SOURCE}{CLAIM}"
_QUESTION = "?: unreliable, no target; "


def cell_name(retriever: str, claims: str, sources: str) -> str:
    """Name a cell as a report does: MiniLM.S0C1."""
    return f"{retriever}.{sources}{claims}"


@dataclass(frozen=True, eq=False)
class StyleGrid:
    """Hold a report whose systems are cells: every retriever over every pair of styles."""

    report: Report
    retrievers: tuple[str, ...]
    claims: tuple[str, ...]
    sources: tuple[str, ...]

    @classmethod
    def of(cls, report: Report, languages: Sequence[str] | None = None) -> StyleGrid | None:
        """Read a grid back from the report that holds its cells; None where it holds none.

        The texts as they are may stand there under the retriever's own name. `languages` limits
        the scores.
        """
        cells: dict[str, SystemReport] = {}
        for name, one in report.systems.items():
            retriever, _, cell = name.rpartition(".")
            if not one.macro or one.style == _PLAIN or not one.style.startswith(cell or "-"):
                continue
            plain = cell_name(retriever, CLAIM, SOURCE)
            base = report.systems.get(plain) or report.systems.get(retriever)
            if base is not None:
                cells |= {plain: _limited(base, languages), name: _limited(one, languages)}
        styles = {name.rpartition(".")[2] for name in cells}
        claims = tuple(c for c in CLAIM_STYLES if any(s.endswith(c) for s in styles))
        sources = tuple(s for s in SOURCE_STYLES if any(one.startswith(s) for one in styles))
        retrievers = tuple(
            name
            for name in dict.fromkeys(name.rpartition(".")[0] for name in cells)
            if all(cell_name(name, c, s) in cells for c in claims for s in sources)
        )
        found = cls(replace(report, systems=cells), retrievers, claims, sources)
        return found if retrievers else None

    @property
    def languages(self) -> tuple[str, ...]:
        """Return the columns to tabulate: the macro average and, of several, each language."""
        found = sorted_languages(lang for one in self.report.scored for lang in one.languages)
        return (MACRO, *found) if len(found) > 1 else (MACRO,)

    def cells(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of claim and source style in the papers' order: S0C0, S0C1, .."""
        return ((claims, sources) for sources in self.sources for claims in self.claims)

    def cell(self, retriever: str, claims: str, sources: str) -> SystemReport:
        """Return the report of a cell."""
        return self.report.systems[cell_name(retriever, claims, sources)]

    def value(self, retriever: str, claims: str, sources: str, language: str = MACRO) -> float:
        """Return the MRR@5 of a cell."""
        return float(self.cell(retriever, claims, sources).table[language][MAIN_METRIC])

    def delta(self, retriever: str, claims: str, sources: str, language: str = MACRO) -> float:
        """Return the difference of a cell to the texts as they are."""
        base = self.value(retriever, CLAIM, SOURCE, language)
        return self.value(retriever, claims, sources, language) - base

    def best(self, retriever: str, language: str = MACRO) -> tuple[str, str]:
        """Return the best pair of styles, of equal ones the first."""

        def value(cell: tuple[str, str]) -> float:
            return self.value(retriever, cell[0], cell[1], language)

        return max(self.cells(), key=value)

    @cached_property
    def _tests(self) -> Mapping[tuple[str, str], Comparison]:
        return {
            (one.system, MACRO if test.average == "micro" else test.average): one
            for test in self.report.tests
            for one in test.comparisons
        }

    def test(
        self, retriever: str, claims: str, sources: str, language: str = MACRO
    ) -> Comparison | None:
        """Return the test of a cell against the texts as they are; None where there is none."""
        return self._tests.get((cell_name(retriever, claims, sources), language))

    @cached_property
    def _published(self) -> Mapping[str, PublishedScore]:
        return {
            name: one
            for name, system in self.report.systems.items()
            for one in system.published
            if one.table == PUBLISHED
        }

    def published(
        self, retriever: str, claims: str, sources: str, language: str = MACRO
    ) -> PublishedScore | None:
        """Return the 2025 paper's cell, of English claims; None where it has no such row."""
        english = ("en",) if len(self.languages) > 1 else (MACRO,)
        if language not in english:
            return None
        return self._published.get(cell_name(retriever, claims, sources))

    def plain(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return retriever -> claim style -> source style -> macro MRR@5."""
        return {
            retriever: {
                claims: {
                    sources: self.value(retriever, claims, sources) for sources in self.sources
                }
                for claims in self.claims
            }
            for retriever in self.retrievers
        }


def _limited(report: SystemReport, languages: Sequence[str] | None) -> SystemReport:
    if not languages:
        return report
    kept = {lang: row for lang, row in report.languages.items() if lang in languages}
    return replace(report, languages=kept, macro=macro(kept) if kept else {})


def mean_scores(parts: Sequence[Scores]) -> Scores:
    """Average every claim's scores over the versions of its texts.

    Raises ValueError without versions, and where their claims differ.
    """
    if len({one.claim_ids for one in parts}) != 1:
        raise ValueError("versions must have the same claims")
    metrics = parts[0].values
    means = {metric: np.mean([one[metric] for one in parts], axis=0) for metric in metrics}
    return Scores(parts[0].claim_ids, means)


def grid_parts(grid: StyleGrid, wide: bool = False) -> list[Part]:
    """Tabulate a grid in the papers' form, for the macro average and each language.

    `wide` has all cells of a retriever in one row; else there is a table for each source style.
    """
    parts: list[Part] = []
    for language in grid.languages:
        named = "macro average" if language == MACRO else f"{language} claims"
        parts.append(f"{MAIN_METRIC} by style of sources (S) and claims (C), {named}:")
        parts.append(_best_table(grid, language))
        blocks = [grid.sources] if wide else [(sources,) for sources in grid.sources]
        for block in blocks:
            cells = [(claims, sources) for sources in block for claims in grid.claims]
            columns = ["retriever", *(f"{sources}{claims}" for claims, sources in cells)]
            rows = list(_rows(grid, language, cells))
            parts.append(TextTable(columns, rows, numeric=[False, *[True] * len(cells)]))
    return [*parts, LEGEND, *_published_notes(grid)] if grid.retrievers else []


def grid_tables(grid: StyleGrid) -> dict[str, TextTable]:
    """Name the tables of a grid, those of the best cells and of all."""
    found = [part for part in grid_parts(grid, wide=True) if isinstance(part, TextTable)]
    kinds = [f"{kind} {lang}" for lang in grid.languages for kind in ("best", "grid")]
    # Where no cell has scores there is no table of them.
    return dict(zip(kinds if found else [], found, strict=True))


def comparison_parts(grid: StyleGrid) -> list[Part]:
    """Describe the paired tests of every cell against the texts as they are."""
    return [part for test in grid.report.tests for part in family_parts(test, MAIN_METRIC)]


def _best_table(grid: StyleGrid, language: str) -> TextTable:
    columns = ["retriever", "S0C0", "best cell", MAIN_METRIC, "difference", "95 %", "p (Holm)"]
    rows: list[list[Cell]] = []
    for retriever in grid.retrievers:
        claims, sources = grid.best(retriever, language)
        test = grid.test(retriever, claims, sources, language)
        rows.append(
            [
                retriever,
                grid.value(retriever, CLAIM, SOURCE, language),
                f"{sources}{claims}",
                grid.value(retriever, claims, sources, language),
                f"{grid.delta(retriever, claims, sources, language):+.4f}",
                f"{test.low:+.4f} to {test.high:+.4f}" if test else None,
                test.p_holm if test else None,
            ]
        )
    return TextTable(columns, rows, numeric=[False, True, False, True, True, True, True])


def _rows(grid: StyleGrid, language: str, cells: Sequence[tuple[str, str]]) -> Iterator[list[str]]:
    """Yield a row of texts for every retriever, and one of published cells where there are any."""
    for retriever in grid.retrievers:
        yield [retriever, *(_ours(grid, retriever, *cell, language) for cell in cells)]
        known = [_theirs(grid, retriever, *cell, language) for cell in cells]
        if any(known):
            yield ["  published", *(text or "-  " for text in known)]


def _ours(grid: StyleGrid, retriever: str, claims: str, sources: str, language: str) -> str:
    cell = (claims, sources)
    if cell == (CLAIM, SOURCE):
        text = f"{grid.value(retriever, *cell, language):.4f}"
    else:
        text = f"{grid.delta(retriever, *cell, language):+.4f}"
    test = grid.test(retriever, *cell, language)
    mark = "^" if grid.best(retriever, language) == cell else ""
    mark += "*" if test is not None and test.verdict in ("better", "worse") else ""
    return f"{text}{mark:<2}"  # marks are as wide everywhere, so that digits align


def _theirs(
    grid: StyleGrid, retriever: str, claims: str, sources: str, language: str
) -> str | None:
    found = grid.published(retriever, claims, sources, language)
    if found is None:
        return None
    mark = "?" if found.unreliable else ""
    delta = published_delta(grid, retriever, claims, sources, language)
    text = f"{found.published:.4f}" if delta is None else f"{delta:+.4f}"
    return f"{text}{mark:<2}"


def published_delta(
    grid: StyleGrid, retriever: str, claims: str, sources: str, language: str = MACRO
) -> float | None:
    """Return the published difference to S0C0; None for S0C0 itself and where one is missing."""
    cells = [grid.published(retriever, *c, language) for c in ((claims, sources), (CLAIM, SOURCE))]
    values = [cell.published for cell in cells if cell and cell.published is not None]
    if len(values) < 2 or (claims, sources) == (CLAIM, SOURCE):
        return None
    return values[0] - values[1]


def _published_notes(grid: StyleGrid) -> list[str]:
    """Say where published cells come from, and why some are marked."""
    shown = list(grid._published.values())
    if not shown:
        return []
    source = "published: table 2025-styles, full dev split, texts rewritten by Llama-3.3-70B."
    if not all(one.same_claims for one in shown):
        source += " Ours are over other claims: the rows are shown, not compared."
    reasons: dict[str, list[str]] = {}
    for one in shown:
        if one.unreliable:
            reasons.setdefault(one.unreliable, []).append(f"{one.row} {one.column}")
    notes = [f"{_few(cells)}: {why}" for why, cells in reasons.items()]
    return [source, *([f"{_QUESTION}{'; '.join(notes)}."] if notes else [])]


def _few(cells: Sequence[str]) -> str:
    return ", ".join(cells[:3]) + (f" and {len(cells) - 3} more" if len(cells) > 3 else "")


def as_csv(grid: StyleGrid) -> str:
    """Write one line for each retriever, cell and language."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for retriever in grid.retrievers:
        for language in grid.languages:
            for cell in grid.cells():
                test = grid.test(retriever, *cell, language)
                found = grid.published(retriever, *cell, language)
                bounds = (test.low, test.high, test.p_holm) if test else (None, None, None)
                numbers = (
                    grid.value(retriever, *cell, language),
                    grid.delta(retriever, *cell, language),
                    *bounds,
                )
                best = "yes" if grid.best(retriever, language) == cell else "no"
                theirs = (
                    found.published if found else None,
                    published_delta(grid, retriever, *cell, language),
                )
                why = found.unreliable if found else ""
                writer.writerow(
                    [retriever, *cell, language, *_texts(numbers), best, *_texts(theirs), why]
                )
    return out.getvalue()


def table_csv(table: TextTable) -> str:
    """Write a table as CSV; what is not known is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([table.columns, *table.rows])
    return out.getvalue()


def _texts(numbers: Iterable[float | None]) -> list[str]:
    return ["" if number is None else f"{number:.6f}" for number in numbers]


def draw(grid: StyleGrid, language: str = MACRO, title: str = "") -> Figure:
    """Plot a heat map for each retriever: claim styles down, source styles across.

    Colours are differences to the texts as they are, on one scale for all; the numbers are
    MRR@5, and the best cell is framed.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    wide = min(len(grid.retrievers), 4)
    down = -(-len(grid.retrievers) // wide)
    size = (1.2 + wide * (0.8 + 0.62 * len(grid.sources)), down * (0.9 + 0.42 * len(grid.claims)))
    figure = Figure(figsize=(max(size[0], 4.0), size[1] + 0.6), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(down, wide, squeeze=False)
    deltas = {
        retriever: [
            [grid.delta(retriever, claims, sources, language) for sources in grid.sources]
            for claims in grid.claims
        ]
        for retriever in grid.retrievers
    }
    most = max((abs(d) for rows in deltas.values() for row in rows for d in row), default=0) or 0.01
    images = []
    for axes, retriever in zip(panels.flat, grid.retrievers, strict=False):
        image = axes.imshow(deltas[retriever], cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
        images.append(image)
        axes.set_title(retriever, fontsize=9, parse_math=False)
        axes.set_xticks(range(len(grid.sources)), grid.sources, fontsize=8)
        axes.set_yticks(range(len(grid.claims)), grid.claims, fontsize=8)
        _write_values(axes, grid, retriever, language, deltas[retriever], most)
        claims, sources = grid.best(retriever, language)
        corner = grid.sources.index(sources) - 0.5, grid.claims.index(claims) - 0.5
        axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor="black", linewidth=2))
    for axes in list(panels.flat)[len(grid.retrievers) :]:
        axes.set_axis_off()
    figure.colorbar(images[0], ax=panels, label="difference to S0C0", shrink=0.8)
    figure.suptitle(title or f"{MAIN_METRIC}, {language}", fontsize=10, parse_math=False)
    return figure


def _write_values(
    axes: Axes,
    grid: StyleGrid,
    retriever: str,
    language: str,
    deltas: Sequence[Sequence[float]],
    most: float,
) -> None:
    for y, claims in enumerate(grid.claims):
        for x, sources in enumerate(grid.sources):
            dark = abs(deltas[y][x]) > 0.6 * most
            axes.text(
                x,
                y,
                f"{grid.value(retriever, claims, sources, language):.3f}",
                ha="center",
                va="center",
                fontsize=7,
                color="white" if dark else "black",
            )
