"""Show a report on one screen of a terminal; all of it stands in the files that are named."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path

from claim2source.core.records import sorted_languages
from claim2source.core.report import MACRO, MAIN_METRIC, Place, Report, SystemReport
from claim2source.core.tables import Cell, Part, TextTable, render
from claim2source.evaluation.choices import choice_text

WIDTH = 120
# Most rows of a table, and most lines of each list.
_ROWS, _LINES = 16, 4


def summary_parts(report: Report, folder: Path, details: Sequence[Part] = ()) -> list[Part]:
    """Describe a report in 120 columns: scores, notes, tests, published numbers, files.

    `details` are parts that follow the scores; a table that is too wide is left to the files.
    """
    scores = _scores(report)
    parts: list[Part] = [*(_first(scores) if scores is not None else ()), *fitting(details)]
    parts += _list_part("Chosen on claims that nothing is reported on:", _choices(report))
    parts += ["\n".join(_wrap(note) for note in report.notes)] if report.notes else []
    not_run = [f"{row.system} ({row.claims}): {row.reason}; {row.advice}" for row in report.not_run]
    parts += _list_part(f"Not run ({len(report.not_run)}):", not_run)
    if (tests := _tests(report)) is not None:
        parts += [f"Tests of {MAIN_METRIC}, p after Holm within each family:", *_first(tests)]
    if (places := _places(report)) is not None:
        parts += ["Places on official tests:", *_first(places)]
    if (published := _published(report)) is not None:
        parts += ["Published numbers beside ours:", *_first(published)]
    page = f"claim2source report --reports {folder} --html FILE"
    return [*parts, f"all tables: {folder}/report.md; as a page: {page}"]


def fitting(parts: Iterable[Part]) -> list[Part]:
    """Leave out the tables that are wider or longer than the screen."""
    return [
        part
        for part in parts
        if isinstance(part, str)
        or len(part.rows) <= 2 * _ROWS
        and max(map(len, render([part]).splitlines())) <= WIDTH
    ]


def _scores(report: Report) -> TextTable | None:
    # Cells of other styles have a table of their own.
    scored = [s for s in report.scored if s.style == SystemReport.style] or report.scored
    if not scored:
        return None
    main = MAIN_METRIC if MAIN_METRIC in scored[0].macro else next(iter(scored[0].macro))
    languages = sorted_languages(lang for system in scored for lang in system.languages)
    by_language = languages if 1 < len(languages) <= 4 else ()
    deep = [m for m in scored[0].macro if m.startswith("recall@")][-1:]
    rows: list[list[Cell]] = []
    for system in scored:
        title = f"{system.title} (chosen)" if system.title == report.chosen else system.title
        cost = system.cost
        seconds = None if cost is None or not cost.seconds else f"{cost.seconds:.1f}"
        rows.append(
            [
                *(_short(title, 54 - 8 * len(by_language)), _short(system.claims, 10)),
                *(system.languages.get(language, {}).get(main) for language in by_language),
                *(system.macro[main], system.bounds(MACRO, main)),
                *(system.macro.get(metric) for metric in deep),
                f">{seconds}" if cost is not None and cost.reused and seconds else seconds,
            ]
        )
    columns = ["system", "claims", *by_language, f"{main} {MACRO}", "95 %", *deep, "seconds"]
    return TextTable(columns, rows, numeric=[False, False, *[True] * (len(columns) - 2)])


def _tests(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = []
    for family in report.tests:
        # Of several languages the macro average is told; the files have each.
        several = any(
            test.family == family.family and test.average == MACRO for test in report.tests
        )
        own = f"{family.average} claims (a family of its own)"
        if family.family.endswith(own) or family.average == "micro" and several:
            continue
        for pair in family.comparisons:
            bounds = f"{pair.low:+.4f} to {pair.high:+.4f}"
            names = _short(pair.system, 30), _short(pair.baseline, 24)
            rows.append([*names, f"{pair.difference:+.4f}", bounds, pair.p_holm, pair.verdict])
    columns = ["system", "against", "difference", "95 %", "p", "verdict"]
    numeric = [False, False, True, True, True, False]
    return TextTable(columns, rows, numeric=numeric) if rows else None


def _published(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = [
        [
            *(_short(f"{cell.table}: {cell.row}", 44), _short(cell.column, 12)),
            f"{cell.published:.{cell.digits}f}{'?' if cell.unreliable else ''}",
            f"{cell.ours:.{cell.digits}f}{'' if cell.same_claims else '*'}",
            cell.inside,
        ]
        for cell in report.published
    ]
    columns = ["table and row", "column", "published", "ours", "inside our interval"]
    numeric = [False, False, True, True, False]
    return TextTable(columns, rows, numeric=numeric) if rows else None


def _places(report: Report) -> TextTable | None:
    rows: list[list[Cell]] = [
        [_short(system.name, 44), *_place_cells(place)]
        for system in report.systems.values()
        for place in system.places
    ]
    columns = ["system", "leaderboard", "language", "ours", "place", "teams", "lead"]
    numeric = [False, False, False, True, True, True, True]
    return TextTable(columns, rows, numeric=numeric) if rows else None


def _place_cells(place: Place) -> list[Cell]:
    score, lead = f"{place.score:.4f}", f"{place.lead:+.4f}"
    return [place.board, place.language, score, place.text, place.teams, lead]


def _choices(report: Report) -> list[str]:
    choices_of = [(system.name, system.choices) for system in report.scored]
    if report.training is not None and report.training.choice is not None:
        choices_of.append(("training", (report.training.choice,)))
    return [
        f"{name}: {choice_text(choice)} ({choice.metric} {choice.score:.4f} on {choice.claims} "
        f"claims of {choice.split})"
        for name, choices in choices_of
        for choice in choices
    ]


def _first(table: TextTable) -> list[Part]:
    left = len(table.rows) - _ROWS
    remainder = [f".. and {left} more rows"] if left > 0 else []
    return [table._replace(rows=table.rows[:_ROWS]), *remainder]


def _list_part(head: str, lines: Sequence[str]) -> list[Part]:
    if not lines:
        return []
    items = [f"- {textwrap.shorten(line, 2 * WIDTH - 8, placeholder=' ..')}" for line in lines]
    remainder = [f".. and {len(lines) - _LINES} more"] if len(lines) > _LINES else []
    return ["\n".join([head, *map(_wrap, items[:_LINES]), *remainder])]


def _wrap(line: str) -> str:
    return textwrap.fill(line, WIDTH, subsequent_indent="  ", break_long_words=False)


def _short(name: str, limit: int) -> str:
    return name if len(name) <= limit else f"{name[: limit - 12]}..{name[-10:]}"
