"""Systems as YAML: one grammar, the shipped files, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.evaluation.plan import RowPlan
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.rows import by_model
from claim2source.llm.config import LLMConfig
from claim2source.search.bm25 import BM25
from claim2source.search.dense import Dense
from claim2source.search.fuse import FusionConfig, Hybrid
from claim2source.search.routes import Routes
from claim2source.systems.read import (
    MOST_LEVELS,
    MOST_NODES,
    make_system,
    read_stage,
    read_staged,
    read_systems,
)
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.system import System
from tests.refusals import refused
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
        assert systems[name].full_label() in rows[name].models, name
    # A variant of ours must not be in the paper's row.
    assert systems["BM25-okapi"].full_label() not in rows["BM25"].models
    newer = read_systems([FOLDER / "papers_2026.yaml"])
    stage1 = {row.name: row for row in tables["2026-stage1"].rows}
    in_table = {"BM25-metadata": "BM25"}
    assert [in_table.get(name, name) for name in newer] == list(stage1)
    for name in newer:
        assert newer[name].full_label() in stage1[in_table.get(name, name)].models, name


def test_a_label_is_one_system_and_stands_in_one_papers_row() -> None:
    """The two papers have the same models over other sources: neither fills the other's rows."""
    systems = read_systems(FILES)

    def key(label: str) -> tuple[str, str]:
        kind, _, model = label.rpartition(":")
        return kind, Path(model).name.casefold()

    # The paper's pipeline, which is a file of its own, is a row of its verifiers.
    assert systems.pop("claim2source_2026").full_label() == systems["Kimi-K2.6"].full_label()
    # The cascade's, in a file of its own, is the baseline's.
    assert systems.pop("Cascade-MiniLM").full_label() == systems["MiniLM"].full_label()
    labels = [key(systems[name].full_label()) for name in systems]
    assert len(set(labels)) == len(labels)
    rows: dict[tuple[str, str], set[str]] = {}
    for table in load_published():
        for row in table.rows:
            for model in row.models:
                rows.setdefault(key(model), set()).add(table.paper)
    # ADMA's BM25 uses lemmas: none of these is in its row.
    assert rows[key("bm25")] == {"2025"} and key("bm25-lemmas") not in labels
    assert all(len(rows[label]) == 1 for label in labels if label in rows)
    assert rows[key("e5-large-v2-metadata")] == {"2026"}


def test_what_is_tuned_or_of_another_bm25_has_no_label_of_the_papers(tmp_path: Path) -> None:
    text = """
A: {retrieve: {bm25: {k1: 1.0}}, label: bm25}
B: {retrieve: {bm25: {k1: fit, b: 0.5}}}
C: {retrieve: {bm25: {k1: 1.0}}, label: bm25-mine}
D: {retrieve: {bm25: {k1: 1.0}}}
Bm25: {retrieve: {bm25: {k1: 1.0}}}
M: {retrieve: {dense: org/m}}
AM: {retrieve: {hybrid: [A, M]}}
AMT: {retrieve: {hybrid: [A, M], alpha: fit}}
BM: {retrieve: {hybrid: [B, M]}}
DM: {retrieve: {hybrid: [D, M]}}
CM: {retrieve: {hybrid: [C, M]}}
"""
    systems = read_systems([write(tmp_path / "s.yaml", text)])
    assert [systems[name].full_label() for name in systems] == [
        *("bm25", "bm25-tuned", "bm25-mine", "D", "bm25-own", "org/m", "hybrid:org/m"),
        *("tuned-hybrid:org/m", "tuned-hybrid:org/m", "D-hybrid:org/m", "bm25-mine-hybrid:org/m"),
    ]


def test_the_papers_settings() -> None:
    systems = read_systems([FOLDER / "papers_2025.yaml"])
    bm25, dense = systems["BM25"].first, {name: systems[name].first for name in DENSE_2025}
    assert bm25.retriever == BM25("whitespace", k1=1.2, b=1.0)
    models = {name: part.main_model for name, part in dense.items() if part.main_model}
    e5, grit, specter = (models[name] for name in ("E5-Large", "GritLM-7B", "Specter"))
    assert (e5.template.claim, e5.template.source) == ("query: ", "passage: ")
    assert (grit.bidirectional, grit.dtype) == (True, "bfloat16")
    assert not grit.template.pool_prefix
    for name, model in models.items():
        assert model.pooling and model.max_length and model.normalize
        hybrid = systems[f"H-{name}"].first
        assert isinstance(hybrid.retriever, Hybrid) and not hybrid.is_fit
        assert hybrid.parts[0] == bm25 and hybrid.main_model == model
        assert hybrid.retriever.fusion == FusionConfig("linear", alpha=0.5, scale="min-max")
    assert {models[name].pooling for name in ("SciNCL", "Specter")} == {"cls"}
    assert not any(systems[name].reason_not_to_run for name in DENSE_2025)
    assert len(specter.revision or "") == 40 and specter.allow_bin == ("allenai/specter",)


def test_all_files_go_together_and_every_model_says_what_to_do() -> None:
    systems = read_systems(FILES)
    names = (
        "as_released attribution cascade entity claim2source_2026 ct25 ct25_tuned hybrid known "
        "learned modern multilingual neighbours offline organisers_2026 ours papers_2025 "
        "papers_2026 rerankers rerankers_ours verifiers"
    )
    assert {path.stem for path in FILES} == set(names.split())
    for name, system in systems.items():
        assert not isinstance(system.first.retriever, Dense) or system.advice, name


BOTH = "A: {retrieve: {bm25: {}}}\nM: {retrieve: {dense: org/m}}\n"
ROUTED = f"{BOTH}R: {{retrieve: A, routes: {{de: M}}}}\n"
KINDS = "bm25, fielded, dense, run"


# A file's text, and the facts that its refusal names besides the file: the line if it is known, the
# system, the key, the value, what is allowed.
WRONG: list[tuple[str, tuple[str, ...]]] = [
    ("A:\n  retrieve: bm25\n  stage: []\n", (":3: stage: ", "stages")),
    ("A: {retrieve: {bm25: {}}}\nA: {retrieve: {bm25: {}}}\n", (":2: A: ",)),
    ("A/B: {retrieve: {bm25: {}}}\n", ("A/B: ", "folder")),
    ("- A\n", ("names",)),
    ("A: {retrieve: {bm52: {}}}", ("A: retrieve: {'bm52': {}} ", KINDS)),
    ("A: {retrieve: {bm25: {}, dense: m}}", ("A: retrieve: ", "exactly one", KINDS)),
    ("A: {retrieve: 3}", ("A: retrieve: 3 ", f"{KINDS}, hybrid")),
    ("A: {retrieve: B}", ("A: retrieve: 'B' ", "{bm25: ..}", "name of a system")),
    (
        "A: {retrieve: {hybrid: [B, {dense: m}]}}",
        ("A: retrieve.hybrid.1: 'B' ", "name of a system"),
    ),
    (f"{BOTH}R: {{retrieve: A, routes: {{de: B}}}}", ("R: routes.de: 'B' ", "name of a system")),
    ("A: {retrieve: B}\nB: {retrieve: A}\n", (": A -> B -> A",)),
    ("A: {retrieve: {hybrid: [A, {dense: m}]}}\n", ("A: ", ": A -> A")),
    (f"{BOTH}H: {{retrieve: {{hybrid: [A, M, A]}}}}", ("H: retrieve.hybrid: ", "two nodes")),
    ("A: {retrieve: {bm25: {}}}\nB: {label: b}", (":2: B: retrieve: ",)),
    (f"{BOTH}H: {{retrieve: {{hybrid: A}}}}", ("H: retrieve.hybrid: 'A' ", "two nodes")),
    (f"{ROUTED}Q: {{retrieve: A, routes: {{fr: R}}}}", ("Q: routes.fr: ", "routes")),
    (f"{ROUTED}H: {{retrieve: {{hybrid: [A, R]}}}}", ("H: retrieve.hybrid: ", "without routes")),
    (f"{BOTH}R: {{retrieve: A, routes: {{de: [M, M]}}}}", ("R: routes.de: ", "different")),
    (f"{BOTH}R: {{retrieve: A, routes: {{de: []}}}}", ("R: routes.de: ", "missing")),
    (f"{BOTH}R: {{retrieve: A, routes: {{default: M}}}}", ("R: routes.default: ", "language")),
    (
        f"{BOTH}H: {{retrieve: {{hybrid: [A, M], alpha: fit, method: rrf}}}}",
        ("H: retrieve.method: 'rrf' ", "`alpha: fit`"),
    ),
    (
        f"S: {{retrieve: {{bm25: {{}}}}, stages: [{{rerank: max_sim}}]}}\n{BOTH}"
        "H: {retrieve: {hybrid: [S, M]}}",
        ("H: retrieve.hybrid.1: 'S' ", "without stages"),
    ),
    ("A: {retrieve: {bm25: {k1: -1}}}", ("A: retrieve.bm25.k1: -1",)),
    ("A: {retrieve: {bm25: {}, sources: title}}", ("A: retrieve.sources: ", "bm25")),
    (
        "A:\n  retrieve:\n    hybrid:\n    - bm25: {}\n    - dense:\n        max_lenght: 9\n",
        (":6: A: retrieve.hybrid.2.dense.max_lenght: ", "max_length"),
    ),
    (
        "B: {retrieve: {bm25: {}}}\nA:\n  retrieve: B\n  stages:\n  - rerank: max_sim\n"
        "  - rerank: max_sim\n    dept: 1\n",
        (":7: A: stages.2.dept: ", " depth?"),
    ),
    ("A:\n  retrieve: {bm25: {}}\n  stages: [{rerank: no}]", (":3: A: stages.1.rerank: 'no'",)),
]
VERSION_0_2 = [
    "A: {bm25: {}}",
    "name: System 0\nbm25: {boost: 1.1}\n",
    "rerank: {by: cosine}\nstance: {by: llm}\n",
    "A:\n  model: {name: m}\n  tune: true\n",
    "A: {hybrid: {sparse: B, dense: C}}",
    "A: {stages: [{retrieve: bm25}]}",
    "stages: [{retrieve: bm25}]",
    "A: {routes: {default: B}}",
]


@pytest.mark.parametrize(
    ("text", "facts"), [*WRONG, *((text, ("0.2", "1.0.0")) for text in VERSION_0_2)]
)
def test_what_is_wrong_is_one_line_with_file_name_key_and_what_is_allowed(
    tmp_path: Path, text: str, facts: tuple[str, ...]
) -> None:
    with refused(UserError, "s.yaml", *facts) as error:
        read_systems([write(tmp_path / "s.yaml", text)])
    assert len(error.value.lines) == 1 and "\n" not in str(error.value)


def test_a_file_that_is_called_as_a_key_is_named_too(tmp_path: Path) -> None:
    file = write(tmp_path / "retrieve.yaml", "retrieve: {nosuch: 1}")
    with refused(UserError, f"{file}:1: retrieve: retrieve: ", "exactly one of bm25"):
        read_systems([file])


def test_one_name_is_one_system_in_all_files(tmp_path: Path) -> None:
    first = write(tmp_path / "one.yaml", "A: {retrieve: {bm25: {k1: 1.0}}}\n")
    two = "A: {retrieve: {bm25: {k1: 1.0}}}\nB: {retrieve: {bm25: {k1: 2.0}}}\n"
    repeated_file = write(tmp_path / "same.yaml", two)
    conflicting = write(tmp_path / "other.yaml", "A: {retrieve: {bm25: {k1: 2.0}}}\n")
    assert list(read_systems([first, repeated_file])) == ["A", "B"]
    with refused(UserError, "other.yaml: A: "):
        read_systems([first, conflicting])


def test_systems_of_one_dense_model_are_run_one_after_another() -> None:
    systems = read_systems([FOLDER / "papers_2025.yaml"])
    planned = [RowPlan(system) for system in systems.values()]
    names = [planned[position].system.name for position in by_model(planned)]
    assert sorted(names) == sorted(systems)
    for name in DENSE_2025:
        assert names.index(f"H-{name}") == names.index(name) + 1
    assert by_model([RowPlan(systems[name]) for name in ("H-MPNet", "BM25")]) == [0, 1]


def test_the_texts_of_sources_stand_beside_the_model(tmp_path: Path) -> None:
    text = """
Plain: {retrieve: {dense: m}}
Titles: {retrieve: {dense: m, sources: title}}
Named: {retrieve: Titles}
Both: {retrieve: {hybrid: [{bm25: {}}, {dense: m, sources: title}]}}
"""
    systems = read_systems([write(tmp_path / "s.yaml", text)])
    titles, hybrid = systems["Titles"].first, systems["Both"].first
    sparse, dense = hybrid.parts
    assert dense.retriever == titles.retriever == Dense("m", sources="title")
    assert systems["Named"].first == titles and not sparse.name
    plain = Dense("m", sources="title_abstract")
    assert systems["Plain"].first == Retrieval(plain, name="Plain")


# The house's own example of the grammar.
OURS = """
ours:
  retrieve: {hybrid: [{bm25: {metadata: true}}, {dense: checkpoints/demo}], alpha: fit}
  routes: {de: {dense: checkpoints/german}}
  stages:
    - {rerank: yes_no, model: Qwen/Qwen3-Reranker-8B, depth: 100}
    - {verify: select, depth: 10, llm: {model: google/gemma-4-31B-it}}
"""


def test_a_whole_system_reads_as_it_stands(tmp_path: Path) -> None:
    system = read_systems([write(tmp_path / "s.yaml", OURS)])["ours"]
    assert isinstance(system.first.retriever, Routes) and system.is_fit
    default, german = system.first.parts
    sparse, dense = default.parts
    assert sparse.retriever == BM25(metadata=True) and not sparse.is_fit
    names = [part.main_model.name for part in (dense, german) if part.main_model]
    assert default.retriever.fits and names == ["checkpoints/demo", "checkpoints/german"]
    assert [stage.name for stage in system.stages] == ["rerank yes_no", "verify select"]
    assert system.first_depth(10) == 100


def test_a_name_shares_and_parts_may_as_well_stand_inline(tmp_path: Path) -> None:
    """A system that names another is that one, with its claims, depth and stages before its own."""
    text = """
A: {retrieve: {bm25: {k1: 1.0}}, claims: translated, depth: 7, stages: [{rerank: max_sim}]}
B: {retrieve: A, stages: [{rerank: max_sim, depth: 2}]}
C: {retrieve: A, claims: original}
D: {retrieve: {bm25: {k1: 1.0}}, claims: bilingual, label: d, unsupported: "no", advice: go}
E: {retrieve: {hybrid: [D, {dense: m, claims: translated}], scale: z-score, alpha: 0.3}}
F: {retrieve: {hybrid: [{bm25: {k1: 1.0}, claims: bilingual}, {dense: m}]}}
"""
    systems = read_systems([write(tmp_path / "s.yaml", text)])
    a, b, c, e, f = (systems[name] for name in "ABCEF")
    assert (b.first, b.claims, b.depth) == (a.first, "translated", 7)
    assert b.stages == (*a.stages, read_stage({"rerank": "max_sim", "depth": 2}))
    assert (c.claims, c.stages, c.full_label()) == ("original", a.stages, a.full_label())
    shared, dense = e.first.parts
    assert (shared.claims, shared.label, shared.advice) == ("bilingual", "d", "go")
    assert e.reason_not_to_run == "no" and dense.claims == "translated"
    assert e.first.retriever.fusion == FusionConfig(alpha=0.3, scale="z-score")
    assert f.first.parts[0] == Retrieval(BM25(k1=1.0), claims="bilingual")


def models(system: System) -> dict[str, list[str | None]]:
    """The dense model of each language's candidates."""
    assert isinstance(system.first.retriever, Routes)
    return {
        language: [part.main_model.name if part.main_model else None for part in parts]
        for language, parts in system.first.retriever.routes.items()
    }


def test_a_folder_named_checkpoint_can_be_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("D: {retrieve: {dense: checkpoint}}\n")
    system = read_systems([tmp_path / "s.yaml"])["D"]
    assert system.reason_not_to_run is not None
    assert system.on_checkpoint("checkpoint").reason_not_to_run is None


def test_a_first_stage_is_routed_and_takes_checkpoints(tmp_path: Path) -> None:
    text = (
        "retrieve: {hybrid: [{bm25: {}}, {dense: A}]}\ndepth: 30\n"
        "routes: {de: {hybrid: [{bm25: {}}, {dense: B}]}}\nstages: [{rerank: max_sim, depth: 10}]\n"
    )
    routed = read_systems([write(tmp_path / "routed.yaml", text)])["routed"]
    assert (routed.name, routed.depth) == ("routed", 30)
    assert models(routed) == {"default": ["A"], "de": ["B"]}
    swapped = models(routed.on_checkpoint("C", {"fr": "D"}))
    assert swapped == {"default": ["C"], "de": ["C"], "fr": ["D"]}
    winner = read_systems([FOLDER / "claim2source_2026.yaml"], FILES)["claim2source_2026"]
    assert winner.claims == "bilingual" and winner.depth == 100
    released = {"default": ["GritLM/GritLM-7B"], "de": ["checkpoints/gritlm_f_paper"]}
    assert models(winner) == released
    kinds = [(stage.name, stage.depth) for stage in winner.stages]
    assert kinds == [("rerank yes_no", 100), ("verify select", 10)]
    assert models(winner.on_checkpoint("C", {"de": "B"})) == {"default": ["C"], "de": ["B"]}
    ours = read_systems([FOLDER / "ours.yaml"])["ours"].on_checkpoint("C").first.main_model
    assert ours is not None and ours.name == "C"


def test_a_list_of_first_stages_is_for_val_to_choose_from(tmp_path: Path) -> None:
    text = (
        "retrieve: {dense: A}\nstages: [{rerank: max_sim, depth: 10}]\n"
        "routes: {de: [{dense: A}, {dense: B}, {bm25: {}}], fr: {dense: B}}\n"
    )
    system = read_systems([write(tmp_path / "routed.yaml", text)])["routed"]
    assert models(system) == {"default": ["A"], "de": ["A", "B", None], "fr": ["B"]}
    assert len(system.first.parts) == 3  # no second index of the same model
    with refused(ConfigError, "checkpoint: 'C' ", " de "):
        system.on_checkpoint("C")


BASE = "S0: {retrieve: {bm25: {}}}"


@pytest.mark.parametrize("backwards", [False, True])
def test_a_chain_of_a_thousand_names_is_one_system(tmp_path: Path, backwards: bool) -> None:
    lines = [BASE, *(f"S{n}: {{retrieve: S{n - 1}}}" for n in range(1, 1000))]
    lines = lines[::-1] if backwards else lines
    systems = read_systems([write(tmp_path / "s.yaml", "\n".join(lines))])
    assert len(systems) == 1000
    assert systems["S999"].first == systems["S0"].first


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize(
    "retrieve",
    [
        "{{hybrid: [S0, S{}]}}",
        # Each twice as large as the one before.
        "{{hybrid: [S{0}, S{0}]}}",
        "[S0, {{hybrid: [S0, S{}]}}]",
    ],
)
def test_nests_of_a_thousand_are_one_line_with_the_limit(
    tmp_path: Path, retrieve: str, backwards: bool
) -> None:
    lines = [BASE, *(f"S{n}: {{retrieve: {retrieve.format(n - 1)}}}" for n in range(1, 1000))]
    lines = lines[::-1] if backwards else lines
    with pytest.raises(UserError) as error:
        read_systems([write(tmp_path / "s.yaml", "\n".join(lines))])
    (line,) = error.value.lines
    assert len(line) < 300
    is_limit = str(MOST_LEVELS) in line and str(MOST_NODES) in line
    assert is_limit or "without routes" in line


def test_a_nest_of_the_limit_is_read_and_walked(tmp_path: Path) -> None:
    nest = [f"S{n}: {{retrieve: {{hybrid: [S0, S{n - 1}]}}}}" for n in range(1, MOST_LEVELS)]
    system = read_systems([write(tmp_path / "s.yaml", "\n".join([BASE, *nest][::-1]))])
    deepest = system[f"S{MOST_LEVELS - 1}"]
    assert len([*deepest.first.walk()]) == 2 * MOST_LEVELS - 1
    assert repr(deepest) and deepest.settings and deepest.full_label()


@pytest.mark.parametrize("depth", [40, 100, 1000, 5000])
def test_what_is_written_in_one_nest_has_the_limit_too(tmp_path: Path, depth: int) -> None:
    nest = "{hybrid: [{bm25: {}}, " * depth + "{bm25: {}}" + "]}" * depth
    with pytest.raises(UserError) as error:
        read_systems([write(tmp_path / "s.yaml", f"A: {{retrieve: {nest}}}")])
    assert len(error.value.lines) == 1
    values: dict[str, Any] = {"bm25": {}}
    for _ in range(depth):
        values = {"hybrid": [{"bm25": {}}, values]}
    with pytest.raises(UserError) as error:
        make_system("A", {"retrieve": values})
    assert len(error.value.lines) == 1


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_circle_is_named(tmp_path: Path, size: int) -> None:
    lines = [f"S{n}: {{retrieve: S{(n + 1) % size}}}" for n in range(size)]
    with refused(InputError, "s.yaml", " -> S") as error:
        read_systems([write(tmp_path / "s.yaml", "\n".join(lines))])
    assert error.value.problems[0].line == 1 and len(str(error.value)) < 400


def test_a_stage_that_names_no_language_model_takes_the_programs(tmp_path: Path) -> None:
    stages = [
        {"verify": "select", "depth": 3, "llm": {"max_tokens": 77}},
        {"verify": "select", "llm": {"model": "its own"}},
        {"rerank": "max_sim"},
    ]
    path = tmp_path / "checked.yaml"
    path.write_text(yaml.safe_dump({"retrieve": {"bm25": {}}, "stages": stages}), encoding="utf-8")
    given = LLMConfig(model="m", url="http://127.0.0.1:9/v1", concurrency=1, max_tokens=5)
    system = read_staged(path, llm=given)
    first, second, _ = (item.stage for item in system.stages)
    assert first.llm == replace(given, max_tokens=77) and first.depth == 3
    assert second.llm == LLMConfig(model="its own")
    assert system.stages[0].entry["llm"]["model"] == "m", "a variation of the stage has it too"
    with refused(UserError, "llm.model"):
        read_staged(path)
