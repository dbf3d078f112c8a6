"""Declare the paired tests of an evaluation's rows, in families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from claim2source.evaluation.families import Family
from claim2source.pipeline.rows import Row
from claim2source.systems.nodes import PAPERS_LABEL, BM25Node, HybridNode


def declared_families(rows: Sequence[Row]) -> tuple[list[Family], list[str]]:
    """Declare the tests of all rows with scores; also list the hybrids that nothing is tested on.

    Over one claim form: first stages against BM25, hybrids against both of their parts, other
    BM25s against the papers', every epoch against step 0, each stage against the one before, and
    each variation against the system as it is. A system's other forms are tested against its
    original claims, or against its own form where it has one. Simulated stages, and what follows
    them, are in no test.
    """
    rows = [row for row in rows if row.stages[row.name].report.macro]
    pairs: dict[str, list[tuple[str, str]]] = {}
    untested: list[str] = []
    for row in rows:
        for family, pair in _tests_of(row, rows, untested):
            tests_of = pairs.setdefault(family, [])
            tests_of += [pair] if pair not in tests_of and pair[0] != pair[1] else []
    families = [Family(name, tuple(tests)) for name, tests in pairs.items() if tests]
    listed = ", ".join(dict.fromkeys(untested))
    notes = [f"Not tested, their dense part not being evaluated: {listed}."] if listed else []
    return families, notes


def _tests_of(
    row: Row, rows: Sequence[Row], untested: list[str]
) -> Iterator[tuple[str, tuple[str, str]]]:
    for before, after in zip(row.tested, row.tested[1:], strict=False):
        yield "Each stage against the one before", (after, before)
    if len(row.tested) > 2:
        yield "Each stage against the one before", (row.tested[-1], row.tested[0])
    if row.name not in row.tested:
        return
    same_form = [peer for peer in rows if peer.form == row.form and peer.name in peer.tested]

    def among(fits: Callable[[Row], bool]) -> str | None:
        return next((row.name for row in same_form if fits(row)), None)

    plan, first = row.plan, row.plan.system.first
    if plan.varied is not None:
        if base := among(lambda r: r.plan.system.name == plan.varied):
            yield "One setting at a time", (row.name, base)
        return
    own = [row for row in rows if row.plan.system.name == plan.system.name]
    base_form = next((row for row in own if row.form == "original"), own[0])
    if base_form is not row and base_form.name in base_form.tested:
        yield "Other claim forms against original claims", (row.name, base_form.name)
    if (checkpoint := plan.checkpoint) is not None and not checkpoint.is_step_0:
        zero = among(
            lambda r: (
                (candidate := r.plan.checkpoint) is not None
                and candidate.is_step_0
                and candidate.run == checkpoint.run
                and r.plan.suffix == plan.suffix
                and r.plan.varied is None
            )
        )
        if zero:
            stage_note = f", {plan.suffix[1:]}" if plan.suffix else ""
            yield f"Every epoch against step 0{stage_note}", (row.name, zero)
    if plan.system.stages:
        return
    if isinstance(first, HybridNode):
        if part := among(lambda r: r.plan.system.name == first.dense.name):
            yield "Hybrids against their dense part", (row.name, part)
        else:
            untested.append(f"{plan.system.name} ({first.dense.display_name})")
        if part := among(lambda r: r.plan.system.name == first.sparse.name):
            yield "Hybrids against their sparse part", (row.name, part)
    elif isinstance(first, BM25Node):
        if papers := among(lambda r: r.plan.system.label_of() == PAPERS_LABEL):
            yield "Other BM25s against the papers'", (row.name, papers)
    elif base := _nearest_bm25(same_form, row):
        yield "Dense systems against BM25", (row.name, base)


def _nearest_bm25(rows: Sequence[Row], row: Row) -> str | None:
    """Find the first BM25 over like sources, plain before fitted; failing that, any."""
    rich = row.stages[row.name].report.sources != "title_abstract"
    candidates = [
        ((first.bm25.metadata is not rich, first.is_fit), number, row.name)
        for number, row in enumerate(rows)
        if isinstance(first := row.plan.system.first, BM25Node)
        and not row.plan.system.stages
        and row.plan.varied is None
    ]
    return min(candidates)[2] if candidates else None
