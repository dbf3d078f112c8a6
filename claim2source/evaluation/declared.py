"""Declare the families of tests over the rows of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from claim2source.evaluation.plan import RowPlan
from claim2source.evaluation.rows import SystemRow
from claim2source.metrics.families import Family
from claim2source.search.bm25 import BM25
from claim2source.search.fuse import Hybrid
from claim2source.systems.own import Own
from claim2source.systems.retrieval import PAPERS_LABEL

# The name of a family, and a system with its baseline.
_Test = tuple[str, tuple[str, str]]


def declared_families(rows: Sequence[SystemRow]) -> tuple[list[Family], list[str]]:
    """Declare the tests of all rows with scores; also note the hybrids that are not tested.

    Over one claim form: first stages against BM25, hybrids against both of their parts, other
    BM25s against the papers', every epoch against step 0, each stage against the one before, and
    each variation against the system as it is. A system's other forms are tested against the
    original claims, or against its first form without these. Simulated stages, and stages after
    them, are not tested.
    """
    rows = [row for row in rows if row.whole.report.macro]
    pairs: dict[str, list[tuple[str, str]]] = {}
    untested: list[str] = []
    for row in rows:
        for family, pair in _declare_tests(row, rows, untested):
            own = pairs.setdefault(family, [])
            if pair not in own and pair[0] != pair[1]:
                own.append(pair)
    families = []
    for name, tests in pairs.items():
        if tests:
            families.append(Family(name, tuple(tests)))
    if not untested:
        return families, []
    listed = ", ".join(dict.fromkeys(untested))
    return families, [f"Not tested, because their dense part is not evaluated: {listed}."]


def _declare_tests(
    row: SystemRow,
    rows: Sequence[SystemRow],
    untested: list[str],
) -> Iterator[_Test]:
    yield from _stage_tests(row)
    if row.name not in row.tested:
        return
    peers = []
    for peer in rows:
        if peer.form == row.form and peer.name in peer.tested:
            peers.append(peer)
    if row.plan.varied is not None:
        base = _row_with_name(peers, row.plan.varied)
        if base is not None:
            yield "One setting at a time", (row.name, base)
        return
    yield from _form_tests(row, rows)
    yield from _epoch_tests(row, peers)
    if not row.plan.system.stages:
        yield from _first_stage_tests(row, peers, untested)


def _stage_tests(row: SystemRow) -> Iterator[_Test]:
    """Test each stage against the one before, and the last one of several against the first."""
    family = "Each stage against the one before"
    for before, after in zip(row.tested, row.tested[1:], strict=False):
        yield family, (after, before)
    if len(row.tested) > 2:
        yield family, (row.tested[-1], row.tested[0])


def _form_tests(row: SystemRow, rows: Sequence[SystemRow]) -> Iterator[_Test]:
    """Test other claim forms against the original claims; without these, against the first form."""
    own = [other for other in rows if other.plan.system.name == row.plan.system.name]
    base = own[0]
    for other in own:
        if other.form == "original":
            base = other
            break
    if base is not row and base.name in base.tested:
        yield "Other claim forms against original claims", (row.name, base.name)


def _epoch_tests(row: SystemRow, peers: Sequence[SystemRow]) -> Iterator[_Test]:
    """Test an epoch against step 0 of its run, behind the same stages."""
    checkpoint = row.plan.checkpoint
    suffix = row.plan.suffix
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


def _first_stage_tests(
    row: SystemRow,
    peers: Sequence[SystemRow],
    untested: list[str],
) -> Iterator[_Test]:
    """Test a system without stages; add a hybrid to `untested` if its dense part is not a row."""
    system = row.plan.system
    first = system.first
    if isinstance(first.retriever, Hybrid):
        sparse_part, dense_part = first.parts
        dense = _row_with_name(peers, dense_part.name)
        if dense is not None:
            yield "Hybrids against their dense part", (row.name, dense)
        else:
            untested.append(f"{system.name} ({dense_part.display_name})")
        sparse = _row_with_name(peers, sparse_part.name)
        if sparse is not None:
            yield "Hybrids against their sparse part", (row.name, sparse)
    elif isinstance(first.retriever, BM25):
        for peer in peers:
            if peer.plan.system.full_label() == PAPERS_LABEL:
                yield "Other BM25s against the papers'", (row.name, peer.name)
                break
    else:
        base = _nearest_bm25(peers, row)
        if base is not None:
            family = "Dense systems against BM25"
            if isinstance(first.retriever, Own):
                family = "Retrievers of one's own against BM25"
            yield family, (row.name, base)


def _row_with_name(rows: Sequence[SystemRow], system: str | None) -> str | None:
    """Return the name of the first row of a system; None if there is none."""
    for row in rows:
        if row.plan.system.name == system:
            return row.name
    return None


def _nearest_bm25(rows: Sequence[SystemRow], row: SystemRow) -> str | None:
    """Return the first BM25 over the same kind of sources, plain before fitted; else any BM25."""
    reads_metadata = row.whole.report.sources != "title_abstract"
    candidates = []
    for number, peer in enumerate(rows):
        first = peer.plan.system.first
        if not isinstance(first.retriever, BM25):
            continue
        if peer.plan.system.stages or peer.plan.varied is not None:
            continue
        reads_others = first.retriever.metadata is not reads_metadata
        candidates.append((reads_others, first.is_fit, number, peer.name))
    return min(candidates)[-1] if candidates else None
