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
_ROWS = 16
_LINES = 4


def summary_parts(
    report: Report,
    folder: Path,
    details: Sequence[Part] = (),
) -> list[Part]:
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
        notes = [_wrap(note) for note in report.notes]
        parts.append("\n".join(notes))
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
            parts.append(title)
            parts += _first(table)
    page = f"claim2source report --reports {folder} --html FILE"
    parts.append(f"all tables: {folder}/report.md; as a page: {page}")
    return parts


def fitting(parts: Iterable[Part]) -> list[Part]:
    """Return the parts without tables that are wider or longer than the screen."""
    return [part for part in parts if isinstance(part, str) or _fits(part)]


def _fits(table: TextTable) -> bool:
    if len(table.rows) > 2 * _ROWS:
        return False
    lines = render([table]).splitlines()
    widest = max(map(len, lines))
    return widest <= WIDTH


def _scores(report: Report) -> TextTable | None:
    # Cells of other styles have a table of their own.
    scored = [s for s in report.scored if s.style == SystemReport.style]
    if not scored:
        scored = report.scored
    if not scored:
        return None
    metrics = list(scored[0].macro)
    main = MAIN_METRIC if MAIN_METRIC in metrics else metrics[0]
    recalls = [metric for metric in metrics if metric.startswith("recall@")]
    deep = recalls[-1:]
    languages = sorted_languages(lang for system in scored for lang in system.languages)
    by_language = languages if 1 < len(languages) <= 4 else ()
    room = 54 - 8 * len(by_language)

    rows: list[list[Cell]] = []
    for system in scored:
        title = system.title
        if title == report.chosen:
            title = f"{title} (chosen)"
        row: list[Cell] = [_short(title, room), _short(system.claims, 10)]
        for language in by_language:
            scores = system.languages.get(language, {})
            row.append(scores.get(main))
        row.append(system.macro[main])
        row.append(system.bounds(MACRO, main))
        for metric in deep:
            row.append(system.macro.get(metric))
        row.append(_seconds(system.cost))
        rows.append(row)

    columns = ["system", "claims", *by_language, f"{main} {MACRO}", "95 %", *deep, "seconds"]
    numeric = [False, False, *[True] * (len(columns) - 2)]
    return TextTable(columns, rows, numeric=numeric)


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
            rows.append(
                [
                    _short(pair.system, 30),
                    _short(pair.baseline, 24),
                    f"{pair.difference:+.4f}",
                    f"{pair.low:+.4f} to {pair.high:+.4f}",
                    pair.p_holm,
                    pair.verdict,
                ]
            )
    if not rows:
        return None
    columns = ["system", "against", "difference", "95 %", "p", "verdict"]
    numeric = [False, False, True, True, True, False]
    return TextTable(columns, rows, numeric=numeric)


def _published(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = []
    for cell in report.published:
        unreliable = "?" if cell.unreliable else ""
        others = "" if cell.same_claims else "*"
        rows.append(
            [
                _short(f"{cell.table}: {cell.row}", 44),
                _short(cell.column, 12),
                f"{cell.published:.{cell.digits}f}{unreliable}",
                f"{cell.ours:.{cell.digits}f}{others}",
                cell.inside,
            ]
        )
    if not rows:
        return None
    columns = ["table and row", "column", "published", "ours", "inside our interval"]
    numeric = [False, False, True, True, False]
    return TextTable(columns, rows, numeric=numeric)


def _places(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = []
    for system in report.systems.values():
        name = _short(system.name, 44)
        for place in system.places:
            rows.append([name, *_place_cells(place)])
    if not rows:
        return None
    columns = ["system", "leaderboard", "language", "ours", "place", "teams", "lead"]
    numeric = [False, False, False, True, True, True, True]
    return TextTable(columns, rows, numeric=numeric)


def _place_cells(place: Place) -> list[Cell]:
    return [
        place.board,
        place.language,
        f"{place.score:.4f}",
        place.text,
        place.teams,
        f"{place.lead:+.4f}",
    ]


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
    training = report.training
    if training is not None and training.choice is not None:
        yield "training", training.choice


def _first(table: TextTable) -> list[Part]:
    rows = table.rows[:_ROWS]
    parts: list[Part] = [table._replace(rows=rows)]
    left = len(table.rows) - _ROWS
    if left > 0:
        parts.append(f".. and {left} more rows")
    return parts


def _list_part(head: str, lines: Sequence[str]) -> list[Part]:
    if not lines:
        return []
    items = []
    for line in lines:
        shortened = textwrap.shorten(line, 2 * WIDTH - 8, placeholder=" ..")
        items.append(f"- {shortened}")
    shown = [head, *map(_wrap, items[:_LINES])]
    left = len(lines) - _LINES
    if left > 0:
        shown.append(f".. and {left} more")
    return ["\n".join(shown)]


def _wrap(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False)


def _short(name: str, limit: int) -> str:
    if len(name) <= limit:
        return name
    return f"{name[: limit - 12]}..{name[-10:]}"
