"""Declare the paired tests of an evaluation, fixed by what ran: in families, for Holm."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from claim2source.evaluation.families import Family
from claim2source.pipeline.rows import Row
from claim2source.systems.nodes import PAPERS_LABEL, BM25Node, HybridNode

Pairs = dict[str, list[tuple[str, str]]]


def declared_families(rows: Sequence[Row]) -> tuple[list[Family], list[str]]:
    """Declare the tests of all rows with scores; also list the hybrids that nothing is tested on.

    Over one claim form: first stages against BM25, hybrids against both of their parts, other
    BM25s against the papers', every epoch against step 0, each stage against the one before, and
    each variation against the system as it is. A system's other forms are tested against its
    original claims, or against its own form where it has one. Simulated stages, and what follows
    them, are in no test.
    """
    rows = [row for row in rows if row.stages[row.name].report.macro]
    pairs: Pairs = {}
    untested: list[str] = []
    for row in rows:
        for family, pair in _pairs_of(row, rows, untested):
            known = pairs.setdefault(family, [])
            known += [pair] if pair not in known and pair[0] != pair[1] else []
    families = [Family(name, tuple(found)) for name, found in pairs.items() if found]
    listed = ", ".join(dict.fromkeys(untested))
    notes = [f"Not tested, their dense part not being evaluated: {listed}."] if listed else []
    return families, notes


def _pairs_of(
    row: Row, rows: Sequence[Row], untested: list[str]
) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the tests of one system over one claim form: family, system and baseline."""
    for before, after in zip(row.real, row.real[1:], strict=False):
        yield "Each stage against the one before", (after, before)
    if len(row.real) > 2:
        yield "Each stage against the one before", (row.real[-1], row.real[0])
    if row.name not in row.real:
        return
    same = [one for one in rows if one.form == row.form and one.name in one.real]

    def among(fits: Callable[[Row], bool]) -> str | None:
        return next((one.name for one in same if fits(one)), None)

    planned, first = row.planned, row.planned.system.first
    if planned.varied is not None:
        if base := among(lambda one: one.planned.system.name == planned.varied):
            yield "One setting at a time", (row.name, base)
        return
    own = [one for one in rows if one.planned == planned]
    base_form = next((one for one in own if one.form == "original"), own[0])
    if base_form is not row and base_form.name in base_form.real:
        yield "Other claim forms against original claims", (row.name, base_form.name)
    if (checkpoint := planned.checkpoint) is not None and not checkpoint.is_step_0:
        zero = among(
            lambda one: (
                (other := one.planned.checkpoint) is not None
                and other.is_step_0
                and other.run == checkpoint.run
                and one.planned.on == planned.on
                and one.planned.varied is None
            )
        )
        if zero:
            behind = f", {planned.on[1:]}" if planned.on else ""
            yield f"Every epoch against step 0{behind}", (row.name, zero)
    if planned.system.stages:
        return
    if isinstance(first, HybridNode):
        if part := among(lambda one: one.planned.system.name == first.dense.name):
            yield "Hybrids against their dense part", (row.name, part)
        else:
            untested.append(f"{planned.system.name} ({first.dense.shown})")
        if part := among(lambda one: one.planned.system.name == first.sparse.name):
            yield "Hybrids against their sparse part", (row.name, part)
    elif isinstance(first, BM25Node):
        if papers := among(lambda one: one.planned.system.label_of() == PAPERS_LABEL):
            yield "Other BM25s against the papers'", (row.name, papers)
    elif base := _nearest_bm25(same, row):
        yield "Dense systems against BM25", (row.name, base)


def _nearest_bm25(rows: Sequence[Row], row: Row) -> str | None:
    """Find the first BM25 over like sources, plain before fitted; where there is none, any."""
    rich = row.stages[row.name].report.sources != "title_abstract"
    found = [
        ((first.bm25.metadata is not rich, first.is_fit), place, one.name)
        for place, one in enumerate(rows)
        if isinstance(first := one.planned.system.first, BM25Node)
        and not one.planned.system.stages
        and one.planned.varied is None
    ]
    return min(found)[2] if found else None
