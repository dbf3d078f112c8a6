"""Which tests the table of baselines declares."""

from __future__ import annotations

from claim2source.core.report import SystemReport
from claim2source.pipeline.baselines import declared_families, untested_hybrids
from claim2source.systems.read import read_systems
from tests.shared_data import REPOSITORY


def test_dense_systems_meet_the_bm25_over_like_sources() -> None:
    files = sorted((REPOSITORY / "configs" / "systems").glob("*.yaml"))
    systems = read_systems(files)

    def cell(name: str, sources: str) -> SystemReport:
        return SystemReport(name, name, name, sources=sources, macro={"mrr@5": 1.0})

    def base(*names: str) -> dict[str, str]:
        rich = {"BM25-metadata", "BM25-tuned", "E5", "mE5-small"}
        reports = {
            f"{name}.original": cell(name, "metadata" if name in rich else "title_abstract")
            for name in names
        }
        return {
            s.split(".")[0]: b.split(".")[0]
            for f in declared_families(reports, systems)
            for s, b in f.pairs
            if f.name.startswith(("Dense", "Hybrids"))
        }

    assert base("BM25-okapi", "BM25", "BM25-tuned", "BM25-metadata", "E5", "MiniLM") == {
        "E5": "BM25-metadata",
        "MiniLM": "BM25-okapi",
    }
    assert base("BM25", "BM25-tuned", "mE5-small") == {"mE5-small": "BM25-tuned"}
    assert base("BM25", "mE5-small") == {"mE5-small": "BM25"}
    assert base("H-MiniLM", "BM25") == {}


def test_bm25s_meet_the_papers_and_hybrids_without_their_part_are_named() -> None:
    systems = read_systems(sorted((REPOSITORY / "configs" / "systems").glob("*.yaml")))

    def cells(*names: str) -> dict[str, SystemReport]:
        return {
            name: SystemReport(name, name, name.split(".")[0], macro={"mrr@5": 1.0})
            for name in names
        }

    ran = cells(
        "BM25-okapi.original",
        "BM25.original",
        "BM25-tuned.original",
        "BM25-terms.translated",
        "H-MiniLM.original",
        "H-MiniLM.translated",
        "H-MPNet.original",
        "MPNet.original",
    )
    families = {family.name: family.pairs for family in declared_families(ran, systems)}
    # Never another form's BM25, nor the first that ran: the papers' own.
    assert families["Other BM25s against the papers'"] == (
        ("BM25-okapi.original", "BM25.original"),
        ("BM25-tuned.original", "BM25.original"),
    )
    assert families["Other claim forms against original claims"] == (
        ("H-MiniLM.translated", "H-MiniLM.original"),
    )
    assert untested_hybrids(ran, systems) == [
        "Not tested, their dense part not being among --systems: H-MiniLM (MiniLM)."
    ]
    assert untested_hybrids(cells("MPNet.original", "H-MPNet.original"), systems) == []
