"""Find our scores for the cells of published tables, with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Qrels
from claim2source.core.report import (
    COST_COLUMNS,
    MACRO,
    PublishedScore,
    Report,
    SystemReport,
    cost_cells,
)
from claim2source.core.run import Run
from claim2source.core.tables import Part, TextTable
from claim2source.datasets import folder_of
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.published.tables import Column, Row, Table
from claim2source.evaluation.reports import LoadedSystem, runs_of
from claim2source.io.trec import read_qrels
from claim2source.metrics.metrics import cutoff, evaluate
from claim2source.metrics.significance import bootstrap_intervals


class OurScore(NamedTuple):
    """Hold our score beside a published cell, and the system that it is of."""

    cell: PublishedScore
    system: LoadedSystem


Cells = dict[tuple[str, str], OurScore]
_Bounded = tuple[float, float | None, float | None]  # a mean and the bounds of its interval


def our_scores(
    table: Table, systems: Sequence[LoadedSystem], named: Mapping[str, str], scorer: Scorer
) -> Cells:
    """Map (row, column) to our score, for every cell that a report has one for.

    `named` maps rows to systems' names. Of several reports, those over the paper's own claims come
    first, then those listed first.
    """
    cells: Cells = {}
    for row in table.rows:
        mine = [system for system in systems if _is_row(row, system, named)]
        for column in table.columns if mine else ():
            fitting = [s for s in mine if column.metric and _is_cell(table, column, s)]
            for system in sorted(fitting, key=lambda s: not _same_claims(column, s)):
                same = _same_claims(column, system)
                if (bounded := scorer.score(column, system, same)) is not None:
                    cell = _beside(table, row.name, column, bounded, same)
                    cells[row.name, column.name] = OurScore(cell, system)
                    break
    return cells


def _beside(
    table: Table, row: str, column: Column, bounded: _Bounded, same: bool
) -> PublishedScore:
    """Set our score and its bounds beside a cell; other claims than the paper's: no difference."""
    published = table.absolute(row, column.name)
    ours, low, high = bounded
    inside = "unknown"
    if low is not None and high is not None and published is not None and same:
        inside = "yes" if low <= published <= high else "no"
    return PublishedScore(
        *(table.id, row, column.name, published, table.reasons(row, column.name), ours),
        *(ours - published if same and published is not None else None, low, high, inside, same),
        digits=column.digits,
    )


def with_published(
    report: Report, tables: Sequence[Table], systems: Sequence[LoadedSystem], scorer: Scorer
) -> Report:
    """Set every published score that one of the systems has a number for beside its row."""
    found: dict[str, list[PublishedScore]] = {system.name: [] for system in systems}
    for table in tables:
        for ours in our_scores(table, systems, {}, scorer).values():
            if ours.cell.published is not None:
                found[ours.system.name].append(ours.cell)
    rows = {
        name: replace(row, published=tuple(found[name])) if name in found else row
        for name, row in report.systems.items()
    }
    return replace(report, systems=rows)


def published_parts(systems: Mapping[str, SystemReport]) -> list[Part]:
    """Tabulate published scores and ours, and explain the marks; nothing for none."""
    found = [(system, cell) for system in systems.values() for cell in system.published]
    if not found:
        return []
    scores = ("published", "ours", "difference", "95 %")
    columns = ["table", "row", "column", *scores, "inside", "system", *COST_COLUMNS]
    rows = [
        [
            *(cell.table, cell.row, cell.column),
            f"{cell.published:.{cell.digits}f}{'?' if cell.unreliable else ''}",
            f"{cell.ours:.{cell.digits}f}{'' if cell.same_claims else '*'}",
            None if cell.difference is None else f"{cell.difference:+.{cell.digits}f}",
            None
            if cell.low is None or cell.high is None
            else f"{cell.low:.{cell.digits}f} to {cell.high:.{cell.digits}f}",
            *(cell.inside, system.name, *cost_cells(system.cost)),
        ]
        for system, cell in sorted(found, key=lambda pair: pair[1].table)
    ]
    notes = []
    if any(cell.unreliable for _, cell in found):
        notes.append("?: no target; eval/report.py --published says why.")
    if not all(cell.same_claims for _, cell in found):
        notes.append("*: over other claims than the paper's, so not compared.")
    numeric = [*[False] * 3, *[True] * 4, False, False, *[True] * len(COST_COLUMNS)]
    return ["Published numbers beside ours:", TextTable(columns, rows, numeric=numeric), *notes]


def _is_row(row: Row, system: LoadedSystem, named: Mapping[str, str]) -> bool:
    # The news paper's own figures have the golds injected: rows with this label are like them.
    if system.report.simulated and not system.report.model.endswith("+gold"):
        return False
    if row.name in named:
        return system.name == named[row.name]

    def known(model: str) -> tuple[str, str]:
        if "(" in model:  # composed of several, none of which is a folder's name
            return "", model.casefold()
        kind, _, name = model.rpartition(":")
        return kind, Path(name).name.casefold()

    return known(system.report.model) in map(known, row.models)


def _is_cell(table: Table, column: Column, system: LoadedSystem) -> bool:
    if column.splits and system.split not in column.splits or column.style != system.report.style:
        return False
    # English claims are the same text in every representation.
    if column.claims and column.language != "en" and column.claims != system.report.claims:
        return False
    if column.sources and system.report.sources and column.sources != system.report.sources:
        return False
    named = any(name in Path(system.dataset).name.casefold() for name in table.names)
    return named or bool(column.queries) and _same_claims(column, system)


def _same_claims(column: Column, system: LoadedSystem) -> bool:
    return all(
        system.report.queries.get(lang) == claims
        for lang, claims in (column.queries or {}).items()
        if column.language in (MACRO, lang)
    )


def _is_ranking(metric: str) -> bool:
    try:
        cutoff(metric)
    except ConfigError:
        return False  # such as a verdict's
    return True


def _deep_enough(run: Run, qrels: Qrels, metric: str) -> bool:
    """Tell whether the run's longest list reaches the metric's depth.

    `map` has none: it is known where no list of the full length lacks a gold.
    """
    depth = int(np.diff(run.offsets).max(initial=0))
    if (k := cutoff(metric)) is not None:
        return k <= depth
    full = (c for c in run.claim_ids if len(run.sources(c)) == depth)
    return all(set(qrels.golds(c)) <= set(run.sources(c)) for c in full)


class Scorer:
    """Compute our scores for published columns, with intervals.

    An interval is by the judgements given; without any, the report's own, or one by the judgements
    of the report's data set where that folder exists. A metric that the report does not hold is
    computed from its runs and the judgements, where the runs are deep enough for it. `notes` say
    why intervals are missing.
    """

    def __init__(self, qrels: Qrels, repeats: int, seed: int) -> None:
        self.qrels, self.repeats, self.seed = qrels, repeats, seed
        self.notes: dict[str, None] = {}
        self._scores: dict[tuple[int, str, str], _Bounded | None] = {}
        self._judgements_of: dict[tuple[str, str], Qrels] = {}

    def score(self, column: Column, system: LoadedSystem, same: bool) -> _Bounded | None:
        """Return our score for a column and its bounds, in the paper's unit.

        None where the report does not hold what it needs; no bounds without runs and judgements.
        """
        metric, factor = str(column.metric), column.factor
        if metric == "seconds":
            # They are those of all claims that the system was given.
            fits = same and list(system.report.languages) == [column.language]
            cost = system.report.cost if fits else None
            return None if cost is None else (cost.seconds, None, None)
        key = id(system), column.language, metric
        if key not in self._scores:
            self._scores[key] = self._bounded(column.language, metric, system)
        if (bounded := self._scores[key]) is None:
            return None
        low, high = (None if bound is None else factor * bound for bound in bounded[1:])
        return factor * bounded[0], low, high

    def _bounded(self, language: str, metric: str, system: LoadedSystem) -> _Bounded | None:
        row = system.report.macro if language == MACRO else system.report.languages.get(language)
        if row is None:
            return None
        reported, bounds = row.get(metric), system.interval(metric, language)
        if reported is not None and bounds is not None and not len(self.qrels):
            return reported, *bounds
        computed = self._computed(language, metric, system, row)
        if reported is None or computed is None:
            return computed if reported is None else (reported, None, None)
        return reported, *computed[1:]

    def _computed(
        self, language: str, metric: str, system: LoadedSystem, row: Mapping[str, float]
    ) -> _Bounded | None:
        """Compute mean and interval from the runs; None where runs or judgements are missing."""
        languages = list(system.report.languages) if language == MACRO else [language]
        # A metric that the report holds shows whether runs and judgements are its own.
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
            absent = system.report.queries[lang] - len(judged)
            if not judged or absent < 0:
                self.notes[f"{system.name}: the judgements are not those of its {lang} run"] = None
                return None
            scores = evaluate(runs[lang], qrels, list({metric, proof}), judged)
            values.append(np.concatenate([scores[metric], np.zeros(absent)]))
            proofs.append(float(scores[proof].sum()) / len(values[-1]))
            claims += [*judged, *(f"\0{lang}{i}" for i in range(absent))]
        if abs(float(np.mean(proofs)) - row[proof]) > 1e-6:
            self.notes[f"{system.name}: its runs do not give its report's {proof}"] = None
            return None
        strata = np.repeat(np.arange(len(values)), [len(v) for v in values])
        stacked, groups = np.concatenate(values)[None], gold_groups(qrels, claims)
        low, high = bootstrap_intervals(stacked, groups, strata, self.repeats, self.seed)[0]
        return float(np.mean([v.mean() for v in values])), float(low), float(high)

    def _judgements(self, system: LoadedSystem) -> Qrels:
        """Read those of the report's data set and split; empty where they do not exist."""
        place = system.dataset, system.split
        if place not in self._judgements_of:
            self._judgements_of[place] = Qrels()
            try:
                path = folder_of(system.dataset) / "qrels" / f"{system.split}.tsv"
                self._judgements_of[place] = read_qrels(path)
            except InputError as error:
                self.notes[f"{system.name}: {error}"] = None
        return self._judgements_of[place]
