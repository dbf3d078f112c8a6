"""Show a report on one screen of a terminal; it names the files that have everything."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from claim2source.core.costs import SystemCost
from claim2source.core.records import sorted_languages
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Choice,
    Place,
    Report,
    SystemReport,
)
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.evaluation.choices import choice_text

WIDTH = 120
# Most rows of a table, and most lines of each list.
_ROWS, _LINES = 16, 4


def summary_parts(report: Report, folder: Path, details: Sequence[Part] = ()) -> list[Part]:
    """Describe a report in 120 columns: scores, notes, tests, published numbers, files.

    `details` are parts after the scores; tables that are too wide are only in the files.
    """
    parts: list[Part] = []
    scores = _scores(report)
    if scores is not None:
        parts += _first(scores)
    parts += fitting(details)
    parts += _list_part("Chosen on claims that are not reported on:", _choices(report))
    if report.notes:
        parts.append("\n".join(_wrap(note) for note in report.notes))
    not_run = []
    for row in report.not_run:
        not_run.append(f"{row.system} ({row.claims}): {row.reason}; {row.advice}")
    parts += _list_part(f"Not run ({len(report.not_run)}):", not_run)
    tables = {
        f"Tests of {MAIN_METRIC}, p after Holm within each family:": _tests(report),
        "Places on official tests:": _places(report),
        "Published numbers next to ours:": _published(report),
    }
    for title, table in tables.items():
        if table is not None:
            parts += [title, *_first(table)]
    page = f"claim2source report --reports {folder} --html FILE"
    return [*parts, f"all tables: {folder}/report.md; as a page: {page}"]


def fitting(parts: Iterable[Part]) -> list[Part]:
    """Return the parts without tables that are wider or longer than the screen."""
    return [part for part in parts if isinstance(part, str) or _fits(part)]


def _fits(table: TextTable) -> bool:
    if len(table.rows) > 2 * _ROWS:
        return False
    return max(map(len, render([table]).splitlines())) <= WIDTH


def _scores(report: Report) -> TextTable | None:
    # Cells of other styles have a table of their own.
    scored = [s for s in report.scored if s.style == SystemReport.style] or report.scored
    if not scored:
        return None
    metrics = list(scored[0].macro)
    main = MAIN_METRIC if MAIN_METRIC in metrics else metrics[0]
    deep = [metric for metric in metrics if metric.startswith("recall@")][-1:]
    languages = sorted_languages(lang for system in scored for lang in system.languages)
    by_language = languages if 1 < len(languages) <= 4 else ()
    rows: list[list[Cell]] = []
    for system in scored:
        title = f"{system.title} (chosen)" if system.title == report.chosen else system.title
        row: list[Cell] = [_short(title, 54 - 8 * len(by_language)), _short(system.claims, 10)]
        for language in by_language:
            row.append(system.languages.get(language, {}).get(main))
        row += [system.macro[main], system.bounds(MACRO, main)]
        for metric in deep:
            row.append(system.macro.get(metric))
        rows.append([*row, _seconds(system.cost)])
    columns = ["system", "claims", *by_language, f"{main} {MACRO}", "95 %", *deep, "seconds"]
    return TextTable(columns, rows, numeric=[False, False, *[True] * (len(columns) - 2)])


def _seconds(cost: SystemCost | None) -> str | None:
    """Format the seconds of a cost; the prefix `>` means that some work was done before."""
    if cost is None or not cost.seconds:
        return None
    prefix = ">" if cost.reused else ""
    return f"{prefix}{cost.seconds:.1f}"


def _tests(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = []
    # With several languages only the macro average is shown; the files have each.
    with_macro = set()
    for test in report.tests:
        if test.average == MACRO:
            with_macro.add(test.family)
    for family in report.tests:
        if family.average == "micro" and family.family in with_macro:
            continue
        if family.family.endswith(f"{family.average} claims (a family of its own)"):
            continue
        for pair in family.comparisons:
            bounds = f"{pair.low:+.4f} to {pair.high:+.4f}"
            names = _short(pair.system, 30), _short(pair.baseline, 24)
            rows.append([*names, f"{pair.difference:+.4f}", bounds, pair.p_holm, pair.verdict])
    columns = ["system", "against", "difference", "95 %", "p", "verdict"]
    numeric = [False, False, True, True, True, False]
    return TextTable(columns, rows, numeric=numeric) if rows else None


def _published(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = []
    for cell in report.published:
        name = _short(f"{cell.table}: {cell.row}", 44)
        column = _short(cell.column, 12)
        unreliable = "?" if cell.unreliable else ""
        others = "" if cell.same_claims else "*"
        published = f"{cell.published:.{cell.digits}f}{unreliable}"
        rows.append([name, column, published, f"{cell.ours:.{cell.digits}f}{others}", cell.inside])
    columns = ["table and row", "column", "published", "ours", "inside our interval"]
    numeric = [False, False, True, True, False]
    return TextTable(columns, rows, numeric=numeric) if rows else None


def _places(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = []
    for system in report.systems.values():
        for place in system.places:
            rows.append([_short(system.name, 44), *_place_cells(place)])
    columns = ["system", "leaderboard", "language", "ours", "place", "teams", "lead"]
    numeric = [False, False, False, True, True, True, True]
    return TextTable(columns, rows, numeric=numeric) if rows else None


def _place_cells(place: Place) -> list[Cell]:
    score = f"{place.score:.4f}"
    lead = f"{place.lead:+.4f}"
    return [place.board, place.language, score, place.text, place.teams, lead]


def _choices(report: Report) -> list[str]:
    lines = []
    for name, choice in _named_choices(report):
        score = f"{choice.metric} {choice.score:.4f} on {choice.claims} claims of {choice.split}"
        lines.append(f"{name}: {choice_text(choice)} ({score})")
    return lines


def _named_choices(report: Report) -> Iterator[tuple[str, Choice]]:
    for system in report.scored:
        for choice in system.choices:
            yield system.name, choice
    if report.training is not None and report.training.choice is not None:
        yield "training", report.training.choice


def _first(table: TextTable) -> list[Part]:
    left = len(table.rows) - _ROWS
    remainder = [f".. and {left} more rows"] if left > 0 else []
    return [table._replace(rows=table.rows[:_ROWS]), *remainder]


def _list_part(head: str, lines: Sequence[str]) -> list[Part]:
    if not lines:
        return []
    items = []
    for line in lines:
        items.append(f"- {textwrap.shorten(line, 2 * WIDTH - 8, placeholder=' ..')}")
    remainder = [f".. and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
    return ["\n".join([head, *map(_wrap, items[:_LINES]), *remainder])]


def _wrap(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False)


def _short(name: str, limit: int) -> str:
    return name if len(name) <= limit else f"{name[: limit - 12]}..{name[-10:]}"
