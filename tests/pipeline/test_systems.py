"""Baselines as YAML: the shipped files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim2source.pipeline.systems import expanded, label_of, ordered

from claim2source.core.errors import UserError
from claim2source.evaluation.published.tables import load_published
from claim2source.retrieve import FusionConfig, IndexConfig
from claim2source.systems.read import read_systems
from tests.shared_data import REPOSITORY

FOLDER = REPOSITORY / "configs" / "systems"
FILES = sorted(FOLDER.glob("*.yaml"))
DENSE_2025 = ["MiniLM", "MPNet", "SciNCL", "Specter", "E5-Large", "GritLM-7B", "GTR-XL"]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_every_system_of_the_papers_is_there_and_found_by_their_tables() -> None:
    systems = read_systems([FOLDER / "papers_2025.yaml"])
    published = ["BM25", *DENSE_2025, *(f"H-{name}" for name in DENSE_2025)]
    assert set(published) <= set(systems) and len(published) == 15
    tables = {table.id: table for table in load_published()}
    rows = {row.name: row for row in tables["2025-styles"].rows}
    for name in published:
        assert label_of(name, systems) in rows[name].models, name
    # A variant of ours must not stand in the paper's row.
    assert label_of("BM25-okapi", systems) not in rows["BM25"].models
    newer = read_systems([FOLDER / "papers_2026.yaml"])
    stage1 = {row.name: row for row in tables["2026-stage1"].rows}
    in_table = {"BM25-metadata": "BM25"}
    assert [in_table.get(name, name) for name in newer] == list(stage1)
    for name in newer:
        assert label_of(name, newer) in stage1[in_table.get(name, name)].models, name


def test_a_label_is_one_system_and_stands_in_one_papers_row() -> None:
    """The two papers have the same models over other sources: neither fills the other's rows."""
    systems = read_systems(FILES)

    def key(label: str) -> tuple[str, str]:
        kind, _, model = label.rpartition(":")
        return kind, Path(model).name.casefold()

    labels = [key(label_of(name, systems)) for name in systems]
    assert len(set(labels)) == len(labels)
    rows: dict[tuple[str, str], set[str]] = {}
    for table in load_published():
        for row in table.rows:
            for model in row.models:
                rows.setdefault(key(model), set()).add(table.paper)
    # ADMA's BM25 has lemmas: none of these stands in its row.
    assert rows[key("bm25")] == {"2025"} and key("bm25-lemmas") not in labels
    assert all(len(rows[label]) == 1 for label in labels if label in rows)
    assert rows[key("e5-large-v2-metadata")] == {"2026"}


def test_what_is_tuned_or_of_another_bm25_has_no_label_of_the_papers(tmp_path: Path) -> None:
    text = """
A: {bm25: {k1: 1.0}, label: bm25}
B: {bm25: {k1: 1.0}, tune: true}
C: {bm25: {k1: 1.0}, label: bm25-mine}
D: {bm25: {k1: 1.0}}
Bm25: {bm25: {k1: 1.0}}
M: {model: {name: org/m}}
AM: {hybrid: {sparse: A, dense: M}}
AMT: {hybrid: {sparse: A, dense: M}, tune: true}
BM: {hybrid: {sparse: B, dense: M}}
DM: {hybrid: {sparse: D, dense: M}}
CM: {hybrid: {sparse: C, dense: M}}
"""
    systems = read_systems([write(tmp_path / "s.yaml", text)])
    assert [label_of(name, systems) for name in systems] == [
        "bm25",
        "bm25-tuned",
        "bm25-mine",
        "D",
        "bm25-own",
        "org/m",
        "hybrid:org/m",
        "tuned-hybrid:org/m",
        "tuned-hybrid:org/m",
        "D-hybrid:org/m",
        "bm25-mine-hybrid:org/m",
    ]


def test_the_papers_settings() -> None:
    systems = read_systems([FOLDER / "papers_2025.yaml"])
    bm25, e5, grit = (systems[name] for name in ("BM25", "E5-Large", "GritLM-7B"))
    assert bm25.bm25 is not None and e5.model is not None and grit.model is not None
    assert (bm25.bm25.analysis, bm25.bm25.k1, bm25.bm25.b) == ("whitespace", 1.2, 1.0)
    assert (e5.model.template.claim, e5.model.template.source) == ("query: ", "passage: ")
    assert (grit.model.bidirectional, grit.model.dtype) == (True, "bfloat16")
    assert not grit.model.template.pool_prefix
    for name in DENSE_2025:
        model, hybrid = systems[name].model, systems[f"H-{name}"].hybrid
        assert model is not None and model.pooling and model.max_length and model.normalize
        assert hybrid is not None and (hybrid.sparse, hybrid.dense) == ("BM25", name)
        assert hybrid.fusion == FusionConfig("linear", alpha=0.5, scale="min-max")
        assert not systems[f"H-{name}"].tune
    assert {systems[name].model.pooling for name in ("SciNCL", "Specter")} == {"cls"}  # type: ignore[union-attr]
    assert not any(systems[name].unsupported for name in DENSE_2025)
    specter = systems["Specter"].model
    assert specter is not None and len(specter.revision or "") == 40
    assert specter.allow_bin == ("allenai/specter",)


def test_all_files_go_together_and_every_model_says_what_to_do() -> None:
    systems = read_systems(FILES)
    assert {path.stem for path in FILES} == {
        "as_released",
        "attribution",
        "entity",
        "claim2source_2026",
        "ct25",
        "ct25_tuned",
        "learned",
        "modern",
        "offline",
        "ours",
        "papers_2025",
        "papers_2026",
        "rerankers",
        "rerankers_ours",
        "verifiers",
    }
    for name, system in systems.items():
        assert system.model is None or system.advice, name


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A:\n  bm52: {}\n", r":2: bm52: no such key"),
        ("A:\n  tune: true\n", r"A: .*exactly one of bm25, model, hybrid, routes"),
        ("A: {model: {name: org/m}, tune: true}\n", "tune: true .*only bm25 and hybrid"),
        ("A: {bm25: {k1: 1.0}}\nA: {bm25: {k1: 2.0}}\n", ":2: A: is set twice"),
        ("A/B: {bm25: {k1: 1.0}}\n", "fit for a folder"),
        ("- A\n", "must be names"),
        ("H: {hybrid: {sparse: A, dense: B}}\n", "H.hybrid: 'A' is no system"),
        (
            "A: {bm25: {k1: 1.0}}\nG: {hybrid: {sparse: A, dense: A}}\n"
            "H: {hybrid: {sparse: A, dense: G}}\n",
            "H.hybrid: 'G' is no system",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_systems([write(tmp_path / "s.yaml", text)])


def test_one_name_is_one_system_in_all_files(tmp_path: Path) -> None:
    one = write(tmp_path / "one.yaml", "A: {bm25: {k1: 1.0}}\n")
    same = write(tmp_path / "same.yaml", "A: {bm25: {k1: 1.0}}\nB: {bm25: {k1: 2.0}}\n")
    other = write(tmp_path / "other.yaml", "A: {bm25: {k1: 2.0}}\n")
    assert list(read_systems([one, same])) == ["A", "B"]
    with pytest.raises(UserError, match=r"other.yaml: A: is another system"):
        read_systems([one, other])


def test_hybrids_come_behind_their_dense_part() -> None:
    systems = read_systems([FOLDER / "papers_2025.yaml"])
    names = ordered(list(systems), systems)
    assert sorted(names) == sorted(systems)
    for name in DENSE_2025:
        assert names.index(f"H-{name}") == names.index(name) + 1
    assert ordered(["H-MPNet", "BM25"], systems) == ["H-MPNet", "BM25"]


def test_how_vectors_are_searched_stands_beside_the_model(tmp_path: Path) -> None:
    text = """
Plain: {model: {name: m}}
Graph: {model: {name: m}, index: {kind: hnsw, effort: 9}}
First: {stages: [{retrieve: dense, checkpoint: m, index: {kind: hnsw, effort: 9}}]}
Named: {stages: [{retrieve: Graph}]}
Both: {stages: [{retrieve: hybrid, checkpoint: m, index: {kind: hnsw, effort: 9}}]}
"""
    systems = expanded(read_systems([write(tmp_path / "s.yaml", text)]))
    for name in ("Graph", "First", "Named", "dense of Both"):
        assert systems[name].index == IndexConfig("hnsw", effort=9), name
    assert [systems[name].index for name in ("Plain", "Both", "bm25 of Both")] == [None] * 3
    for text, said in (
        ("A: {bm25: {}, index: {kind: hnsw}}", "A: index: .* only a `model` has it"),
        (
            "A: {stages: [{retrieve: bm25, index: {kind: hnsw}}]}",
            r"stages\.0\.index: .*none with bm25",
        ),
        (
            "A: {model: {name: m}, index: {efort: 9}}",
            "s.yaml:1: index.efort.*did you mean index.effort",
        ),
    ):
        with pytest.raises(UserError, match=said):
            read_systems([write(tmp_path / "s.yaml", text)])
