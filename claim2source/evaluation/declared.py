"""Declare the families of tests that are made of the rows of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from claim2source.evaluation.plan import RowPlan
from claim2source.evaluation.rows import Row
from claim2source.metrics.families import Family
from claim2source.systems.nodes import PAPERS_LABEL, BM25Node, HybridNode, OwnNode

# The name of a family, and a system with its baseline.
_Test = tuple[str, tuple[str, str]]


def declared_families(rows: Sequence[Row]) -> tuple[list[Family], list[str]]:
    """Declare the tests of all rows with scores; also list the hybrids that nothing is tested on.

    Over one claim form: first stages against BM25, hybrids against both of their parts, other
    BM25s against the papers', every epoch against step 0, each stage against the one before, and
    each variation against the system as it is. A system's other forms are tested against its
    original claims, or against its own form if it has one. Simulated stages, and what follows
    them, are in no test.
    """
    rows = [row for row in rows if row.stages[row.name].report.macro]
    pairs: dict[str, list[tuple[str, str]]] = {}
    untested: list[str] = []
    for row in rows:
        for family, pair in _declare_tests(row, rows, untested):
            own = pairs.setdefault(family, [])
            if pair not in own and pair[0] != pair[1]:
                own.append(pair)
    families = [Family(name, tuple(tests)) for name, tests in pairs.items() if tests]
    if not untested:
        return families, []
    listed = ", ".join(dict.fromkeys(untested))
    return families, [f"Not tested, their dense part not being evaluated: {listed}."]


def _declare_tests(row: Row, rows: Sequence[Row], untested: list[str]) -> Iterator[_Test]:
    yield from _stage_tests(row)
    if row.name not in row.tested:
        return
    peers = [peer for peer in rows if peer.form == row.form and peer.name in peer.tested]
    if row.plan.varied is not None:
        base = _row_with_name(peers, row.plan.varied)
        if base is not None:
            yield "One setting at a time", (row.name, base)
        return
    yield from _form_tests(row, rows)
    yield from _epoch_tests(row, peers)
    if not row.plan.system.stages:
        yield from _first_stage_tests(row, peers, untested)


def _stage_tests(row: Row) -> Iterator[_Test]:
    """Test each stage against the one before, and the last one of several against the first."""
    family = "Each stage against the one before"
    for before, after in zip(row.tested, row.tested[1:], strict=False):
        yield family, (after, before)
    if len(row.tested) > 2:
        yield family, (row.tested[-1], row.tested[0])


def _form_tests(row: Row, rows: Sequence[Row]) -> Iterator[_Test]:
    """Test other claim forms against the original claims, or the first form without these."""
    own = [other for other in rows if other.plan.system.name == row.plan.system.name]
    base = own[0]
    for other in own:
        if other.form == "original":
            base = other
            break
    if base is not row and base.name in base.tested:
        yield "Other claim forms against original claims", (row.name, base.name)


def _epoch_tests(row: Row, peers: Sequence[Row]) -> Iterator[_Test]:
    """Test an epoch against step 0 of its run, behind the same stages."""
    checkpoint, suffix = row.plan.checkpoint, row.plan.suffix
    if checkpoint is None or checkpoint.is_step_0:
        return
    for peer in peers:
        if _is_step_0(peer.plan, checkpoint.run, suffix):
            stage_note = f", {suffix[1:]}" if suffix else ""
            yield f"Every epoch against step 0{stage_note}", (row.name, peer.name)
            return


def _is_step_0(plan: RowPlan, run: Path | None, suffix: str) -> bool:
    checkpoint = plan.checkpoint
    if checkpoint is None or not checkpoint.is_step_0 or checkpoint.run != run:
        return False
    return plan.suffix == suffix and plan.varied is None


def _first_stage_tests(row: Row, peers: Sequence[Row], untested: list[str]) -> Iterator[_Test]:
    """Test a system without stages; add a hybrid whose dense part is not a row to `untested`."""
    system = row.plan.system
    first = system.first
    if isinstance(first, HybridNode):
        dense = _row_with_name(peers, first.dense.name)
        if dense is not None:
            yield "Hybrids against their dense part", (row.name, dense)
        else:
            untested.append(f"{system.name} ({first.dense.display_name})")
        sparse = _row_with_name(peers, first.sparse.name)
        if sparse is not None:
            yield "Hybrids against their sparse part", (row.name, sparse)
    elif isinstance(first, BM25Node):
        for peer in peers:
            if peer.plan.system.full_label() == PAPERS_LABEL:
                yield "Other BM25s against the papers'", (row.name, peer.name)
                break
    else:
        base = _nearest_bm25(peers, row)
        if base is not None:
            family = "Dense systems against BM25"
            if isinstance(first, OwnNode):
                family = "Retrievers of one's own against BM25"
            yield family, (row.name, base)


def _row_with_name(rows: Sequence[Row], system: str | None) -> str | None:
    """Return the name of the first row of a system; None if there is none."""
    for row in rows:
        if row.plan.system.name == system:
            return row.name
    return None


def _nearest_bm25(rows: Sequence[Row], row: Row) -> str | None:
    """Find the first BM25 over like sources, plain before fitted; failing that, any."""
    reads_metadata = row.stages[row.name].report.sources != "title_abstract"
    candidates = []
    for number, peer in enumerate(rows):
        first = peer.plan.system.first
        if not isinstance(first, BM25Node):
            continue
        if peer.plan.system.stages or peer.plan.varied is not None:
            continue
        reads_others = first.bm25.metadata is not reads_metadata
        candidates.append((reads_others, first.is_fit, number, peer.name))
    return min(candidates)[-1] if candidates else None
