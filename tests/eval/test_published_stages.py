"""The 2026 paper's stages: one description of each system, in its row of tables 3 to 5."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from claim2source.evaluation.plan import plan_rows
from claim2source.evaluation.published.tables import load_published
from claim2source.models import ModelConfig
from claim2source.search.dense import Dense
from claim2source.search.routes import Routes
from claim2source.stages.http import Http
from claim2source.stages.yes_no import YesNo
from claim2source.systems.read import SYSTEMS_FOLDER, read_systems
from claim2source.systems.system import System

NAMES = ("papers_2026", "rerankers", "rerankers_ours", "verifiers")
FILES = [SYSTEMS_FOLDER / f"{name}.yaml" for name in NAMES]
TABLES = {table.id: table for table in load_published()}
RERANKERS = (
    "Nemotron",
    "BGE",
    "Jina",
    "Qwen3-0.6B",
    "Qwen3-8B",
    "Qwen3-8B-IT",
)
VERIFIERS = ("Gemma-4", "MiniMax-M2.5", "Kimi-K2.6")
ROWS = {
    "2026-chosen": {"GritLM-(F)": "FirstStage-2026"},
    "2026-stage2": {
        "none, GritLM-(F)": "FirstStage-2026",
        **{name: name for name in RERANKERS},
    },
    "2026-stage3": {
        "none, GritLM-(F)+Qwen3-8B-IT": "Qwen3-8B-IT",
        **{name: name for name in VERIFIERS},
    },
    "2026-test": {"Claim2Source": "Kimi-K2.6"},
}


def test_every_row_of_the_stages_is_one_shipped_system() -> None:
    systems = read_systems(FILES)
    for table, rows in ROWS.items():
        names = {row.name for row in TABLES[table].rows}
        assert names == set(rows)
        for row, name in rows.items():
            models = TABLES[table].row(row).models
            found = [key for key, system in systems.items() if system.full_label() in models]
            assert found == [name], row
    # The re-ranked order is a row of its own in reports of verifiers.
    it = TABLES["2026-stage2"].row("Qwen3-8B-IT").models
    chosen = TABLES["2026-chosen"].rows[0].models
    for name in ROWS["2026-stage3"].values():
        system = systems[name]
        assert system.full_label(1) in it
        assert system.full_label(0) in chosen


def test_the_submission_is_the_verifiers_file_kimi() -> None:
    systems = read_systems(FILES)
    file = SYSTEMS_FOLDER / "claim2source_2026.yaml"
    submitted = read_systems([file], FILES)
    winner = submitted["claim2source_2026"]
    kimi = systems["Kimi-K2.6"]
    assert winner.stages == kimi.stages
    assert winner.claims == kimi.claims
    assert kimi.claims == "bilingual"
    assert winner.full_label() == kimi.full_label()
    keys = asdict(kimi.stages[1].stage)
    assert keys["sources"] == "released"
    assert keys["llm"]["max_tokens"] == 4096
    assert keys["depth"] == 10
    ours = systems["Kimi-K2.6-ours"].stages[1].stage
    assert asdict(ours)["sources"] == "metadata"


def test_another_setting_checkpoint_or_label_is_in_no_row() -> None:
    systems = read_systems(FILES)
    rows = set()
    for table in ROWS:
        for row in TABLES[table].rows:
            rows.update(row.models)
    kimi = systems["Kimi-K2.6"]

    def varied(key: str, value: object) -> System:
        read_as = Dense(ModelConfig())
        values = {key: [value]}
        planned = plan_rows({"K": kimi}, {}, [], read_as, vary=values)
        return planned[1].system

    deeper = varied("stages.2.depth", 20)
    assert deeper.full_label() not in rows
    original = varied("stages.1.claims", "original")
    assert original.full_label() not in rows
    shorter = varied("retrieve.sources", "title_abstract")
    assert shorter.full_label() not in rows
    # Settings of how a stage runs do not change the system.
    elsewhere = varied("stages.2.llm.url", "http://gpu:1/v1")
    assert elsewhere.full_label() in rows
    other = kimi.on_checkpoint("C", {"de": "B"})
    assert other.full_label() not in rows
    labelled = replace(kimi, label="mine")
    assert labelled.full_label() == "mine"
    # A system with stages differs from its first stage.
    first = replace(systems["E5"].first, label=None)
    dense = System("E5", first, systems["BGE"].stages)
    assert dense.full_label() != "intfloat/e5-large-v2"
    assert dense.full_label(0) == "intfloat/e5-large-v2"


def test_every_empty_cell_of_a_table_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for table in TABLES.values():
        empty = any(None in row.values for row in table.rows)
        assert bool(table.empty) is empty, table.id


def test_a_model_is_read_in_one_way_by_all_systems_of_a_paper() -> None:
    """Two entries of one model differ in what their files are there to compare, and no more."""
    others = ("as_released", "cascade")
    files = sorted(SYSTEMS_FOLDER.glob("*.yaml"))
    systems = read_systems([file for file in files if file.stem not in others])
    models: dict[str, set[str]] = {}
    for system in systems.values():
        for model in system.dense_models:
            readings = models.setdefault(model.name, set())
            readings.add(repr(model))
    assert len(models) > 10
    assert all(len(readings) == 1 for readings in models.values())
    # The re-rankers and verifiers of the papers' files: one description of each model and task.
    stages: dict[object, set[str]] = {}
    for name, system in systems.items():
        if name.endswith("-ours") or name in ("ours", "Qwen3-8B"):
            continue
        for part in system.stages:
            kind = part.name
            stage = part.stage
            model = getattr(stage, "model", None)
            if not model:
                llm = getattr(stage, "llm", None)
                model = getattr(llm, "model", None)
            if model is None:
                continue
            if not kind.endswith("attribution"):  # six fusions, one model
                readings = stages.setdefault((kind, model), set())
                readings.add(repr(stage))
    assert all(len(readings) == 1 for readings in stages.values()), stages


def test_the_papers_rerankers_are_there_as_released() -> None:
    systems = read_systems(FILES)
    for name in RERANKERS:
        system = systems[name]
        stage = system.stages[0].stage
        assert stage.depth == 100, name
        assert stage.claims == "translated", name
        assert stage.mix == 0, name
        first = system.first.retriever
        assert isinstance(first, Routes)
        routes = {}
        for lang, parts in first.routes.items():
            routes[lang] = [part.name for part in parts]
        assert routes == {"default": ["GritLM"], "de": ["GritLM-F"]}
        assert stage.sources == "released"
        if isinstance(stage, Http):
            assert stage.documents <= 64
        if isinstance(stage, YesNo):
            assert stage.max_length == 8192
            is_large = "8B" in name
            assert (stage.template == "escaped") == is_large
