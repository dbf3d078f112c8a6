"""Build the page's sections: a plot or a shaded table, a note, and numbers on demand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from claim2source.core.costs import SystemCost, cost_cells, cost_columns
from claim2source.core.report import (
    MACRO,
    MAIN_METRIC,
    Choice,
    Report,
    SystemReport,
)
from claim2source.core.tables import Cell, TextTable
from claim2source.evaluation.choices import choices_table, tried_table, val_table
from claim2source.evaluation.compare import MICRO, ScoredRuns
from claim2source.evaluation.groups import GroupsReport
from claim2source.evaluation.html.plots import (
    COLOURS,
    Bar,
    Spot,
    interval_plot,
    line_plot,
    scatter_plot,
)
from claim2source.evaluation.ranks import BUCKETS, NOT_FOUND, bucket_changes
from claim2source.evaluation.reports import LoadedSystem, distinct_ends
from claim2source.evaluation.style_tables import SIGNIFICANT, GridCell, StyleGrid, grid_tables
from claim2source.metrics.families import family_note, family_table
from claim2source.metrics.metrics import twins_in
from claim2source.text.styles import STYLES

DEPTHS = (1, 2, 5, 10, 20, 50, 100)
SHADES = 9  # classes h0 to h9
_MOST_NAMES = 14  # up to so many lines or points all have names
_GRID_NUMBERS = "Under Numbers, S0C0 is absolute and the other cells are differences to it."
_FORMS = {
    "original": "the post as it is",
    "translated": "its English translation",
    "bilingual": "the post, then its translation",
    "paired": "the post and its translation, each with its prompt",
}


@dataclass(frozen=True)
class PageData:
    """Input of the sections.

    `subset`: the only languages that are shown; the costs in the reports are of all languages.
    `reports` are the reports, by name.
    """

    scored: ScoredRuns
    systems: Mapping[str, LoadedSystem]
    repeats: int
    seed: int
    subset: Sequence[str] = ()
    reports: Mapping[str, Report] = field(default_factory=dict)

    @cached_property
    def bars(self) -> dict[str, dict[str, Bar]]:
        """Map `macro`, every language and, if there are several, `micro` to the systems' scores."""
        bars: dict[str, dict[str, Bar]] = {}
        intervals = self.scored.bounds(self.repeats, self.seed)
        for part, bounds in intervals.items():
            bars[part] = {name: Bar(*row) for name, row in bounds.items()}
        return bars

    @property
    def several_languages(self) -> bool:
        """Whether there are several languages, so that the macro average adds information."""
        return MICRO in self.bars


class ShadedTable(NamedTuple):
    """Table whose numbers are shaded by `levels` [rows][columns], 0 to `SHADES`.

    `ranges` [rows][columns] are the ranks of the gold in the two systems `between` that a cell's
    link filters claims by; "" for no link.
    """

    title: str
    table: TextTable
    levels: Sequence[Sequence[int]]
    ranges: Sequence[Sequence[str]]
    between: tuple[str, str] = ("", "")
    summary: str = ""


@dataclass(frozen=True)
class Section:
    """Heading with an optional plot, note and tables.

    `numbers` are tables that are shown on demand, by their headings; `notes` belong to some.
    """

    title: str
    svg: str = ""
    note: str = ""
    numbers: Mapping[str, TextTable] = field(default_factory=dict)
    shaded: Sequence[ShadedTable] = ()
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, TextTable]:
        tables = dict(self.numbers)
        for part in self.shaded:
            tables[part.title] = part.table
        return tables


def report_sections(compared: PageData) -> list[Section]:
    sections = [
        _by_language(compared),
        _tests(compared),
        _learning_curve(compared),
        _choices(compared),
        _recall(compared),
        _changes(compared),
        _twins(compared),
        _representations(compared),
        _style_grids(compared),
        _cost(compared),
        _gaps(compared),
    ]
    return [section for section in sections if section.svg or section.tables]


def groups_section(groups: GroupsReport | None) -> list[Section]:
    """Make the section of who is tied with the first, if the systems were grouped."""
    if groups is None:
        return []
    title = "Who is tied with the first"
    note = " ".join([groups.verdict, groups.method, *groups.notes])
    table = groups.table()
    return [Section(title, note=note, numbers={title: table})]


def published_section(tables: Mapping[str, tuple[TextTable, str]]) -> list[Section]:
    """Make the section of the papers' tables with our scores, if there are any."""
    if not tables:
        return []
    numbers: dict[str, TextTable] = {}
    notes: dict[str, str] = {}
    for name, (table, note) in tables.items():
        numbers[name] = table
        notes[name] = note
    return [Section("Published numbers", numbers=numbers, notes=notes)]


def _by_language(compared: PageData) -> Section:
    bars = compared.bars
    if not compared.several_languages:
        # The macro average equals the only language's score.
        language = list(bars)[1]
        bars = {language: bars[language]}
    rows: list[list[Cell]] = []
    for name in compared.systems:
        row: list[Cell] = [name]
        for values in bars.values():
            score = values[name]
            row.append(f"{score.value:.4f} [{score.low:.4f}, {score.high:.4f}]")
        rows.append(row)
    table = TextTable(["system", *bars], rows)

    title = "Score by language"
    metric = compared.scored.metric
    plotted = {}
    for part, own in bars.items():
        if part != MICRO:
            plotted[part] = own
    plot = interval_plot(plotted, list(compared.systems), metric)
    note = f"{metric} with 95 % intervals, drawn by gold paper."
    if compared.several_languages:
        note += " Macro is the mean over languages, micro the mean over claims."
    note += _forms_note(compared)
    return Section(title, plot, note, {title: table})


def _forms_note(compared: PageData) -> str:
    forms = dict.fromkeys(system.report.claims for system in compared.systems.values())
    explained = []
    for form in forms:
        if form in _FORMS:
            explained.append(f"{form} is {_FORMS[form]}")
    if not explained:
        return ""
    return f" Claim forms: {'; '.join(explained)}."


def _tests(compared: PageData) -> Section:
    scored = compared.scored
    tests = scored.tests(repeats=compared.repeats, seed=compared.seed)
    title = f"Difference from {scored.baseline}"
    if not tests:
        return Section(title)
    only = ""
    if len(tests) == 1:
        (only,) = scored.dataset.languages
    bars: dict[str, dict[str, Bar]] = {}
    numbers: dict[str, TextTable] = {}
    notes: dict[str, str] = {}
    for test in tests:
        own: dict[str, Bar] = {}
        for c in test.comparisons:
            is_significant = c.verdict in ("better", "worse")
            own[c.system] = Bar(c.difference, c.low, c.high, is_significant)
        bars[only or test.average] = own
        heading = f"Tests: {test.family}"
        numbers[heading] = family_table(test)
        notes[heading] = (
            f"{scored.metric} ({test.average}), {test.claims} claims of {test.groups} papers; "
            f"the smallest possible p is {test.least_p:.2g}."
        )
    note = f"Filled: the difference is significant; hollow: it is not. {family_note(tests[0])}"
    if len(tests) > 1:
        note += " Each language is a family of its own."
    if len(scored.runs) > 2:
        note += " The sentence at the top corrects for all pairs of systems, so its p is larger."
    label = f"difference in {scored.metric}"
    plot = interval_plot(bars, list(scored.runs), label, zero=True)
    return Section(title, plot, note, numbers, notes=notes)


def _learning_curve(compared: PageData) -> Section:
    title = "Learning curve"
    metric = f"macro {compared.scored.metric}"
    curves = _learning_curves(compared)
    if not curves:
        return Section(title)
    rows: list[list[Cell]] = []
    for name, points in curves.items():
        for epoch, score in points:
            rows.append([name, f"{epoch:.0f}", f"{score:.4f}"])
    table = TextTable(["run", "epoch", metric], rows)
    plot = line_plot(curves, "epoch", metric)
    return Section(title, plot, numbers={title: table})


def _learning_curves(compared: PageData) -> dict[str, list[tuple[float, float]]]:
    """Map each run with several epochs to its points (epoch, score)."""
    # eval/evaluate.py names rows by a checkpoint (with the run if there are several), the system
    # that uses it, and the claim form. Stages and cells of a grid are not curves.
    pattern = re.compile(r"(.+-)?epoch-([0-9]+)(\+[^.:]+)?(\.[a-z]+)?")
    lines: dict[tuple[Path, str], list[tuple[float, float]]] = {}
    for name, system in compared.systems.items():
        epoch = pattern.fullmatch(system.report.name)
        if epoch is None:
            continue
        folder = system.report_folder.resolve()
        curve = f"{epoch[1] or ''}epochs{epoch[3] or ''}{epoch[4] or ''}"
        points = lines.setdefault((folder, curve), [])
        score = compared.scored.macro[name]
        points.append((float(epoch[2]), score))

    runs: dict[tuple[Path, str], list[tuple[float, float]]] = {}
    for run, points in lines.items():
        if len(points) > 1:
            runs[run] = sorted(points)
    folders = list(dict.fromkeys(folder for folder, _ in runs))
    ends = distinct_ends(folders)
    names = dict(zip(folders, ends, strict=True))
    curves = {}
    for (folder, kind), points in runs.items():
        curves[f"{names[folder]}: {kind}"] = points
    return curves


def _choices(compared: PageData) -> Section:
    systems = {name: system.report for name, system in compared.systems.items()}
    trained: list[tuple[str, Choice]] = []
    for name, report in compared.reports.items():
        training = report.training
        if training is not None and training.choice is not None:
            trained.append((name, training.choice))
    choices = list(trained)
    for name, system in systems.items():
        for choice in system.choices:
            choices.append((name, choice))
    tables = {
        "Scores on val": val_table(systems),
        "Choices": choices_table(choices),
    }
    for name, choice in trained:
        tables[f"Compared: {name}"] = tried_table(choice)
    note = (
        f"{MAIN_METRIC} on claims held out of training: of papers in the training data (seen) and "
        "of others (unseen). Settings were chosen on these claims, not on those of this page."
    )
    numbers = {name: table for name, table in tables.items() if table is not None}
    return Section("Chosen on val", note=note, numbers=numbers)


def _twins(compared: PageData) -> Section:
    scored = compared.scored
    title = "Twins"
    columns = ["system", "golds", "with a twin", "tied", "first rank lost to a twin", "as one"]
    rows: list[list[Cell]] = []
    for name, run in scored.runs.items():
        twins = twins_in(run, scored.dataset)
        if twins is not None:
            rows.append(
                [
                    name,
                    twins.golds,
                    twins.of_golds,
                    twins.ties,
                    twins.lost,
                    twins.as_one[MACRO],
                ]
            )
    note = (
        "Twins are sources with equal title and abstract under another id: their text cannot tell "
        f'them apart. "As one" is macro {MAIN_METRIC} with a gold and its twins as one source.'
    )
    numbers = {}
    if rows:
        numbers[title] = TextTable(columns, rows)
    return Section(title, note=note, numbers=numbers)


def _recall(compared: PageData) -> Section:
    lines: dict[str, list[tuple[float, float]]] = {}
    rows: list[list[Cell]] = []
    for name, scores in compared.scored.scores.items():
        recalls = []
        for depth in DEPTHS:
            recalls.append(scores.mean(f"recall@{depth}"))
        points = zip(map(float, DEPTHS), recalls, strict=True)
        lines[name] = list(points)
        rows.append([name, *recalls])
    macro = compared.scored.macro
    order = sorted(lines, key=lambda name: -macro[name])
    names_all = len(order) <= _MOST_NAMES
    highlighted = None if names_all else order[:COLOURS]
    plot = line_plot(lines, "depth", "recall (micro)", True, highlighted)
    title = "Recall by depth"
    note = "Share of the claims whose gold is among the first sources."
    if not names_all:
        note += f" The {COLOURS} systems with the highest {compared.scored.metric} have names."
    columns = ["system", *map(str, DEPTHS)]
    return Section(title, plot, note, {title: TextTable(columns, rows)})


def _changes(compared: PageData) -> Section:
    baseline = compared.scored.baseline
    ranks = compared.scored.ranks
    note = (
        f"Claims by the rank of their gold: rows are the ranks with {baseline}, columns those with "
        "the other system. A number links to its claims."
    )
    shaded = []
    for name in ranks:
        if name != baseline:
            shaded.append(_changes_from(baseline, name, ranks))
    return Section("Rank of the gold", note=note, shaded=shaded)


def _changes_from(
    baseline: str,
    name: str,
    ranks: Mapping[str, np.ndarray],
) -> ShadedTable:
    """Count claims by the rank of their gold with the baseline and with another system."""
    before = ranks[baseline]
    after = ranks[name]
    limits = {**BUCKETS, NOT_FOUND: (0, 0)}  # the page's script knows an absent gold as rank 0
    spans = {}
    for bucket, (low, high) in limits.items():
        spans[bucket] = f"{low}:{high:.0f}"
    order = list(ranks)
    in_row = order.index(baseline)
    in_column = order.index(name)
    changes = bucket_changes(before, after)
    rows: list[list[Cell]] = []
    links: list[list[str]] = []
    for first, row in changes.items():
        rows.append([first, *row.values()])
        asked = []
        for second, count in row.items():
            link = f"{in_row}:{spans[first]} {in_column}:{spans[second]}"
            asked.append(link if count else "")
        links.append(asked)

    higher = (after < before).sum()
    lower = (after > before).sum()
    same = (after == before).sum()
    summary = f"{name}: {higher} golds rank higher, {lower} lower, {same} the same"
    counts = [list(row.values()) for row in changes.values()]
    levels = shades(np.array(counts, dtype=float), 0.0)
    return ShadedTable(
        title=f"Rank of the gold: from {baseline} (rows) to {name} (columns)",
        table=TextTable(["rank", *changes], rows),
        levels=levels,
        ranges=links,
        between=(baseline, name),
        summary=summary,
    )


def _representations(compared: PageData) -> Section:
    systems = compared.systems
    macro = compared.scored.macro
    counts = Counter((system.report.title, system.report.claims) for system in systems.values())
    cells: dict[tuple[str, str], float] = {}
    for name, system in systems.items():
        title = system.report.title
        form = system.report.claims
        # Systems with the same name in two folders are two rows.
        label = title if counts[title, form] == 1 else name
        cells[label, form] = macro[name]
    names = list(dict.fromkeys(name for name, _ in cells))
    forms = list(dict.fromkeys(form for _, form in cells))
    title = f"Systems and representations, macro {compared.scored.metric}"
    if len(forms) < 2:
        return Section(title)

    rows: list[list[Cell]] = []
    values: list[list[float]] = []
    empty = []
    for name in names:
        known = [cells.get((name, form)) for form in forms]
        rows.append([name, *known])
        values.append([cells.get((name, form), np.nan) for form in forms])
        empty.append([""] * len(forms))
    table = TextTable(["system", *forms], rows)
    scores = np.array(values)
    lowest = float(np.nanmin(scores))
    levels = shades(scores, lowest)
    shaded = ShadedTable(title, table, levels, empty)
    note = _forms_note(compared).strip()
    return Section(title, note=note, shaded=[shaded])


def shades(values: np.ndarray, low: float) -> list[list[int]]:
    """Grade values from `low` to the largest as 0 to `SHADES`; NaN is 0."""
    top = float(np.nanmax(values))
    span = (top - low) or 1.0
    grades = np.nan_to_num(SHADES * (values - low) / span)
    levels: list[list[int]] = []
    for row in np.ceil(grades - 1e-9):
        levels.append([int(grade) for grade in row])
    return levels


def _style_grids(compared: PageData) -> Section:
    grids: dict[str, StyleGrid] = {}
    for name, report in compared.reports.items():
        grid = StyleGrid.of(report, compared.subset)
        if grid is not None:
            grids[name] = grid
    numbers: dict[str, TextTable] = {}
    shaded: list[ShadedTable] = []
    for name, grid in grids.items():
        origin = f", {name}" if len(grids) > 1 else ""
        for kind, table in grid_tables(grid).items():
            numbers[f"Styles{origin}: {kind}"] = table
        for retriever in grid.retrievers:
            shaded.append(_heat_map(grid, retriever, origin))
    notes = dict.fromkeys(grid.note for grid in grids.values())
    note = f"{' '.join(notes)} ^: the best cell of a system. {SIGNIFICANT} {_GRID_NUMBERS}"
    return Section("Text styles", note=note, numbers=numbers, shaded=shaded)


def _heat_map(grid: StyleGrid, retriever: str, origin: str) -> ShadedTable:
    cells = {}
    for cell in grid.row(retriever):
        cells[(cell.claims, cell.sources)] = cell
    rows: list[list[Cell]] = []
    values: list[list[float]] = []
    for claims in grid.claims:
        row = []
        for sources in grid.sources:
            row.append(cells[claims, sources])
        label = f"{claims} {STYLES[claims].what}"
        rows.append([label, *map(_marked, row)])
        values.append([cell.value for cell in row])

    title = f"{retriever}{origin}: macro {MAIN_METRIC} by style"
    columns = [retriever]
    for style in grid.sources:
        columns.append(f"{style} {STYLES[style].what}")
    table = TextTable(columns, rows)
    empty = []
    for _ in grid.claims:
        empty.append([""] * len(grid.sources))
    scores = np.array(values)
    lowest = float(scores.min())
    levels = shades(scores, lowest)
    return ShadedTable(title, table, levels, empty)


def _marked(cell: GridCell) -> str:
    best = "^" * cell.is_best
    differs = "*" * cell.differs
    return f"{cell.value:.4f}{best}{differs}"


def _gaps(compared: PageData) -> Section:
    missing: list[Sequence[Cell]] = []
    columns: Sequence[str] = []
    failed: list[list[Cell]] = []
    notes: dict[str, None] = {}
    for report in compared.reports.values():
        not_run = report.not_run_table()
        if not_run is not None:
            columns = not_run.columns
            missing += not_run.rows
        for system in report.systems.values():
            by_stage = _failures(system)
            for name, failures in by_stage.items():
                for reason, claims in failures.items():
                    failed.append([name, reason, claims])
        notes |= dict.fromkeys(report.notes)
    note_rows = [[note] for note in notes]
    tables = {
        "Not run": TextTable(columns, missing),
        "Failures": TextTable(["system", "why", "claims"], failed),
        "Notes": TextTable(["note"], note_rows),
    }
    numbers = {name: table for name, table in tables.items() if table.rows}
    title = ", ".join(numbers).capitalize()
    return Section(title, numbers=numbers)


def _failures(system: SystemReport) -> dict[str, Mapping[str, int]]:
    failures: dict[str, Mapping[str, int]] = {}
    for stage in system.stages[:-1]:
        failures[f"{system.name}: {stage.name}"] = stage.failures
    failures[system.name] = system.failures
    return failures


def _cost(compared: PageData) -> Section:
    metric = compared.scored.metric
    macro = compared.scored.macro
    title = "Cost against quality"
    costs = {}
    for name, system in compared.systems.items():
        costs[name] = system.report.cost
    spots = _cost_spots(costs, compared.bars[MACRO])
    notes = []
    if len(spots) > _MOST_NAMES:
        notes.append("Systems that no cheaper one beats have names.")
    if any(cost and cost.reused for cost in costs.values()):
        notes.append(
            "Hollow, and >: some vectors were already in the store, so the full cost is higher."
        )
    if compared.subset:
        notes.append("Costs include the claims in all languages.")
    plot = ""
    if len(spots) > 1:
        plot = scatter_plot(spots, "seconds", f"macro {metric}")
    rows: list[list[Cell]] = []
    columns = cost_columns(costs.values())
    for name, cost in costs.items():
        cells = cost_cells(cost, columns)
        rows.append([name, macro[name], *cells])
    table = TextTable(["system", metric, *columns], rows)
    return Section(title, plot, " ".join(notes), {title: table})


def _cost_spots(
    costs: Mapping[str, SystemCost | None],
    bars: Mapping[str, Bar],
) -> dict[str, Spot]:
    """Make points of seconds and score; of many, name those that no cheaper system beats."""
    spots: dict[str, Spot] = {}
    for name, cost in costs.items():
        if cost is not None and cost.seconds:
            bar = bars[name]._replace(filled=not cost.reused)
            spots[name] = Spot(cost.seconds, bar)
    if len(spots) <= _MOST_NAMES:
        return spots
    named: dict[str, Spot] = {}
    for name, spot in spots.items():
        cheaper = []
        for other in spots.values():
            if other.x <= spot.x:
                cheaper.append(other)
        is_beaten = any(other.bar.value > spot.bar.value for other in cheaper)
        named[name] = spot._replace(has_label=not is_beaten)
    return named
