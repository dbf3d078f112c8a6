"""Our numbers for the cells of published tables, with the intervals that reports hold or give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.core.tables import COST_COLUMNS, cost_cells, text_of
from claim2source.datasets import folder_of
from claim2source.evaluation.metrics import cutoff, evaluate
from claim2source.evaluation.published.tables import MACRO, Column, Row, Table
from claim2source.evaluation.saved import SavedSystem, runs_of
from claim2source.evaluation.significance import bootstrap_intervals, gold_groups
from claim2source.io.trec import read_qrels

_UNKNOWN = "unknown"


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


def fill(
    table: Table, systems: Sequence[SavedSystem], named: Mapping[str, str], scorer: Scorer
) -> Cells:
    """(row, column) -> ours, for every cell that a report has.

    The first report that fits, those over the paper's own claims before those over others.
    """
    cells: Cells = {}
    for row in table.rows:
        mine = [system for system in systems if _is_row(row, system, named)]
        for column in table.columns if mine else ():
            fitting = [s for s in mine if column.metric and _is_cell(table, column, s)]
            for system in sorted(fitting, key=lambda s: not _same_claims(column, s)):
                found = scorer.score(column, system, _same_claims(column, system))
                if found is not None:
                    cells[row.name, column.name] = found
                    break
    return cells


@dataclass(frozen=True)
class Beside:
    """A published cell with ours: scores in the paper's unit, differences made absolute.

    `unreliable` gives the reasons to doubt the published number, `inside` whether it is within
    our interval; where ours is over other claims there is no difference. `cost` is our report's.
    """

    table: str
    row: str
    column: str
    published: float
    unreliable: str
    system: str
    ours: float
    difference: float | None
    low: float | None
    high: float | None
    inside: str
    same_claims: bool
    digits: int
    cost: Mapping[str, Any]


def beside(tables: Sequence[Table], systems: Sequence[SavedSystem], scorer: Scorer) -> list[Beside]:
    """Every published score that one of the systems has a number for."""
    found = []
    for table in tables:
        for (row, name), ours in fill(table, systems, {}, scorer).items():
            published = table.absolute(row, name)
            if published is None:
                continue
            reasons = [table.flags[place].reason for place in table.flags_of(row, name)]
            difference = ours.value - published if ours.same else None
            found.append(
                Beside(
                    table.id,
                    row,
                    name,
                    published,
                    "; ".join(reasons),
                    ours.system.name,
                    ours.value,
                    difference,
                    ours.low,
                    ours.high,
                    ours.inside(published),
                    ours.same,
                    table.column(name).digits,
                    ours.system.cost,
                )
            )
    return found


def beside_text(found: Sequence[Beside], draw: Callable[..., str]) -> list[str]:
    """The numbers as a table drawn by `draw`, with what its marks mean; nothing for none."""
    if not found:
        return []
    columns = [
        "table",
        "row",
        "column",
        "published",
        "ours",
        "difference",
        "95 %",
        "inside",
        "system",
        *COST_COLUMNS,
    ]
    rows = []
    for cell in found:
        bounds = (
            "-"
            if cell.low is None or cell.high is None
            else f"{cell.low:.{cell.digits}f} to {cell.high:.{cell.digits}f}"
        )
        rows.append(
            [
                cell.table,
                cell.row,
                cell.column,
                f"{cell.published:.{cell.digits}f}{'?' if cell.unreliable else ''}",
                f"{cell.ours:.{cell.digits}f}{'' if cell.same_claims else '*'}",
                "-" if cell.difference is None else f"{cell.difference:+.{cell.digits}f}",
                bounds,
                cell.inside,
                cell.system,
                *map(text_of, cost_cells(cell.cost)),
            ]
        )
    notes = []
    if any(cell.unreliable for cell in found):
        notes.append("?: no target; eval/paper_tables.py says why.")
    if not all(cell.same_claims for cell in found):
        notes.append("*: over other claims than the paper's, so not compared.")
    numeric = [*[False] * 3, *[True] * 4, False, False, *[True] * len(COST_COLUMNS)]
    return ["Published numbers beside ours:", draw(columns, rows, numeric=numeric), *notes]


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


def _is_ranking(metric: str) -> bool:
    try:
        cutoff(metric)
    except ConfigError:
        return False  # such as a verdict's
    return True


def _deep_enough(run: Run, qrels: Qrels, metric: str) -> bool:
    """Whether the run's longest list reaches the metric's depth.

    `map` has none: it is known where no list of the full length lacks a gold.
    """
    depth = int(np.diff(run.offsets).max(initial=0))
    if (k := cutoff(metric)) is not None:
        return k <= depth
    full = (c for c in run.claim_ids if len(run.sources(c)) == depth)
    return all(set(qrels.golds(c)) <= set(run.sources(c)) for c in full)


# Mean and the bounds of its interval.
_Scored = tuple[float, float | None, float | None]


class Scorer:
    """Our number for a column, with its interval.

    By the judgements given; without any, the interval of the report, or one by the judgements
    of the report's data set where that folder is still there. A metric that the report does not
    hold is computed from its runs and the judgements, where the runs are deep enough for it.
    """

    def __init__(self, qrels: Qrels, repeats: int, seed: int) -> None:
        self.qrels, self.repeats, self.seed = qrels, repeats, seed
        self.notes: dict[str, None] = {}
        self._scores: dict[tuple[int, str, str], _Scored | None] = {}
        self._found: dict[tuple[str, str], Qrels] = {}

    def score(self, column: Column, system: SavedSystem, same: bool) -> Ours | None:
        """None when the report does not hold what the column needs."""
        metric, factor = str(column.metric), column.factor
        if metric == "seconds":
            value = system.cost.get("seconds")
            return None if value is None else Ours(float(value), None, None, same, system)
        row = system.macro if column.language == MACRO else system.languages.get(column.language)
        if row is None:
            return None
        key = id(system), column.language, metric
        if key not in self._scores:
            told, known = row.get(metric), system.intervals.get(metric, {}).get(column.language)
            if told is not None and known is not None and not len(self.qrels):
                self._scores[key] = told, *known
            else:
                computed = self._computed(column.language, metric, system, row)
                if told is not None:
                    computed = (told, *(computed[1:] if computed else (None, None)))
                self._scores[key] = computed
        scored = self._scores[key]
        if scored is None:
            return None
        value, low, high = scored
        return Ours(
            factor * value,
            None if low is None else factor * low,
            None if high is None else factor * high,
            same,
            system,
        )

    def _computed(
        self, language: str, metric: str, system: SavedSystem, row: Mapping[str, float]
    ) -> _Scored | None:
        """Mean and interval from the runs; None where they or the judgements cannot give them."""
        languages = list(system.languages) if language == MACRO else [language]
        # One that the report holds shows whether runs and judgements are its own.
        proof = metric if metric in row else next(filter(_is_ranking, row), None)
        if proof is None or not _is_ranking(metric):
            return None
        if any(lang not in system.runs for lang in languages):
            return None
        qrels = self.qrels if len(self.qrels) else self._judgements(system)
        if not len(qrels):
            return None
        runs = runs_of(system, languages)
        if metric not in row and not all(_deep_enough(run, qrels, metric) for run in runs.values()):
            return None
        values: list[np.ndarray] = []
        proofs: list[float] = []
        claims: list[str] = []
        for lang in languages:
            judged = [c for c in runs[lang].claim_ids if qrels.golds(c)]
            # A claim for which nothing was found has no line in a run file: it scores 0.
            absent = system.queries[lang] - len(judged)
            if not judged or absent < 0:
                self.notes[f"{system.name}: the judgements are not those of its {lang} run"] = None
                return None
            found = evaluate(runs[lang], qrels, list({metric, proof}), judged)
            values.append(np.concatenate([found[metric], np.zeros(absent)]))
            proofs.append(float(found[proof].sum()) / len(values[-1]))
            claims += [*judged, *(f"\0{lang}{i}" for i in range(absent))]
        if abs(float(np.mean(proofs)) - row[proof]) > 1e-6:
            self.notes[f"{system.name}: its runs do not give its report's {proof}"] = None
            return None
        strata = np.repeat(np.arange(len(values)), [len(v) for v in values])
        low, high = bootstrap_intervals(
            np.concatenate(values)[None],
            gold_groups(qrels, claims),
            strata,
            self.repeats,
            self.seed,
        )[0]
        return float(np.mean([v.mean() for v in values])), float(low), float(high)

    def _judgements(self, system: SavedSystem) -> Qrels:
        """Those of the report's data set and split; none where they are not to be had."""
        place = system.dataset, system.split
        if place not in self._found:
            self._found[place] = Qrels()
            try:
                path = folder_of(system.dataset) / "qrels" / f"{system.split}.tsv"
                self._found[place] = read_qrels(path)
            except InputError as error:
                self.notes[f"{system.name}: {error}"] = None
        return self._found[place]
