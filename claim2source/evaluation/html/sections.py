"""Build the page's sections: a plot, a note and a table each."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from claim2source.core.report import COST_COLUMNS, MACRO, cost_cells
from claim2source.core.tables import Cell, TextTable, text_of
from claim2source.evaluation.compare import ScoredRuns
from claim2source.evaluation.families import family_note, family_table
from claim2source.evaluation.html.plots import heat_map, interval_plot, line_plot, scatter_plot
from claim2source.evaluation.ranks import bucket_changes, changes_table
from claim2source.evaluation.reports import LoadedSystem, distinct_ends
from claim2source.evaluation.slices import breakdown, slices_of

DEPTHS = (1, 2, 5, 10, 20, 50, 100)


@dataclass(frozen=True)
class Compared:
    """Hold what the sections show; `subset`: fewer languages than the reports' costs are of."""

    scored: ScoredRuns
    systems: Mapping[str, LoadedSystem]
    repeats: int
    seed: int
    subset: bool = False


@dataclass(frozen=True)
class Section:
    """Hold a heading with a plot, a note and a table of texts, each where there is one."""

    title: str
    svg: str = ""
    note: str = ""
    table: TextTable | None = None


def sections_of(compared: Compared) -> list[Section]:
    """Build every section; one without plot and table has nothing to show."""
    return [
        _by_language(compared),
        *_tests(compared),
        _learning_curve(compared),
        _recall(compared),
        *_changes(compared),
        _representations(compared),
        _cost(compared),
    ]


def _texts(columns: Sequence[str], rows: Sequence[Sequence[Cell]]) -> TextTable:
    return TextTable(columns, [list(map(text_of, row)) for row in rows])


def _by_language(compared: Compared) -> Section:
    scored = compared.scored
    parts = [part for part in slices_of(scored.dataset.claims) if part.by == "language"]
    table: dict[str, dict[str, tuple[float, float, float]]] = {}
    for row in breakdown(
        scored.scores,
        scored.metric,
        scored.dataset,
        parts,
        repeats=compared.repeats,
        seed=compared.seed,
    ):
        table.setdefault(row.part, {})[row.system] = row.value, row.low, row.high
    order = [*scored.dataset.languages, MACRO, "micro"]
    shown = {part: table[part] for part in order if part in table}
    rows = [
        [
            name,
            *("{:.4f} [{:.4f}, {:.4f}]".format(*found[name]) for found in shown.values()),
            *cost_cells(system.cost),
        ]
        for name, system in compared.systems.items()
    ]
    cells = _texts(["system", *shown, *COST_COLUMNS], rows)
    return Section("Score by language", interval_plot(shown, scored.metric), table=cells)


def _tests(compared: Compared) -> list[Section]:
    """Show the tests against the baseline: the macro average, then each language by itself."""
    costs = {name: system.cost for name, system in compared.systems.items()}
    sections = []
    for test in compared.scored.tests(repeats=compared.repeats, seed=compared.seed):
        metric = f"{compared.scored.metric} ({test.average})"
        note = f"{metric}, {test.groups} papers. {family_note(test)}"
        columns, rows, *_ = family_table(test, costs)
        sections.append(Section(f"Tests: {test.family}", note=note, table=_texts(columns, rows)))
    return sections


def _learning_curve(compared: Compared) -> Section:
    lines: dict[tuple[Path, str, str], list[tuple[float, float]]] = {}
    macro = compared.scored.macro
    for name, system in compared.systems.items():
        # As eval/checkpoint.py names them: the checkpoint, its hybrid, another form of claims.
        epoch = re.fullmatch(r"(H-)?epoch-([0-9]+)(\.[a-z]+)?", system.folder.name)
        if epoch:
            key = (system.folder.resolve().parent, epoch[1] or "", epoch[3] or "")
            lines.setdefault(key, []).append((float(epoch[2]), macro[name]))
    runs = {key: sorted(points) for key, points in lines.items() if len(points) > 1}
    if not runs:
        return Section("Learning curve")
    folders = list(dict.fromkeys(folder for folder, _, _ in runs))
    names = dict(zip(folders, distinct_ends(folders), strict=True))
    curves = {f"{kind}{names[folder]}{form}": p for (folder, kind, form), p in runs.items()}
    metric = f"macro {compared.scored.metric}"
    rows = [[name, f"{x:.0f}", f"{y:.4f}"] for name, points in curves.items() for x, y in points]
    plot = line_plot(curves, "epoch", metric)
    return Section("Learning curve", plot, table=TextTable(["run", "epoch", metric], rows))


def _recall(compared: Compared) -> Section:
    lines = {
        name: [(float(depth), scores.mean(f"recall@{depth}")) for depth in DEPTHS]
        for name, scores in compared.scored.scores.items()
    }
    rows: list[list[Cell]] = [[name, *(y for _, y in points)] for name, points in lines.items()]
    plot = line_plot(lines, "depth", "recall (micro)", log=True)
    return Section("Recall by depth", plot, table=_texts(["system", *map(str, DEPTHS)], rows))


def _changes(compared: Compared) -> list[Section]:
    baseline, sections = compared.scored.baseline, []
    for name, ranks in compared.scored.ranks.items():
        if name != baseline:
            changes = bucket_changes(compared.scored.ranks[baseline], ranks)
            counts = np.array([list(row.values()) for row in changes.values()], dtype=float)
            counts[counts == 0] = np.nan
            title = f"Rank of the gold: from {baseline} (rows) to {name} (columns)"
            plot = heat_map(list(changes), list(changes), counts, 0)
            columns, rows, *_ = changes_table(changes, "rank")
            sections.append(Section(title, plot, "Claims.", _texts(columns, rows)))
    return sections


def _representations(compared: Compared) -> Section:
    """Show the macro score by system and claim form, where there are several of either."""
    systems, macro = compared.systems, compared.scored.macro
    counts = Counter((system.system, system.claims) for system in systems.values())
    # Systems of one name in two folders are two rows.
    cells = {
        (s.system if counts[s.system, s.claims] == 1 else name, s.claims): macro[name]
        for name, s in systems.items()
    }
    title = "Systems and representations"
    if len(cells) < 2:
        return Section(title)
    names, forms = (list(dict.fromkeys(key[i] for key in cells)) for i in (0, 1))
    values = np.array([[cells.get((name, form), np.nan) for form in forms] for name in names])
    rows = [[name, *(cells.get((name, form)) for form in forms)] for name in names]
    return Section(
        f"{title}, macro {compared.scored.metric}",
        heat_map(names, forms, values),
        table=_texts(["system", *forms], rows),
    )


def _cost(compared: Compared) -> Section:
    metric, macro = compared.scored.metric, compared.scored.macro
    points = {
        name: (system.cost.seconds, macro[name])
        for name, system in compared.systems.items()
        if system.cost and system.cost.seconds
    }
    rows = [
        [name, macro[name], *cost_cells(system.cost)] for name, system in compared.systems.items()
    ]
    plot = scatter_plot(points, "seconds", f"macro {metric}") if points else ""
    note = "Costs are of the claims in all languages." if compared.subset else ""
    table = _texts(["system", metric, *COST_COLUMNS], rows)
    return Section("Cost against quality", plot, note, table)
