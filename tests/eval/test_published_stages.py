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
ROWS = {
    "2026-chosen": {"GritLM-(F)": "FirstStage-2026"},
    "2026-stage2": {
        "none, GritLM-(F)": "FirstStage-2026",
        **{n: n for n in ("Nemotron", "BGE", "Jina", "Qwen3-0.6B", "Qwen3-8B", "Qwen3-8B-IT")},
    },
    "2026-stage3": {
        "none, GritLM-(F)+Qwen3-8B-IT": "Qwen3-8B-IT",
        **{name: name for name in ("Gemma-4", "MiniMax-M2.5", "Kimi-K2.6")},
    },
    "2026-test": {"Claim2Source": "Kimi-K2.6"},
}


def test_every_row_of_the_stages_is_one_shipped_system() -> None:
    systems = read_systems(FILES)
    for table, rows in ROWS.items():
        assert {row.name for row in TABLES[table].rows} == set(rows)
        for row, name in rows.items():
            models = TABLES[table].row(row).models
            assert [system for system in systems if systems[system].full_label() in models] == [
                name
            ], row
    # The re-ranked order is a row of its own in reports of verifiers.
    it = TABLES["2026-stage2"].row("Qwen3-8B-IT").models
    assert all(systems[row].full_label(1) in it for row in ROWS["2026-stage3"].values())
    assert all(
        systems[row].full_label(0) in TABLES["2026-chosen"].rows[0].models
        for row in ROWS["2026-stage3"].values()
    )


def test_the_submission_is_the_verifiers_file_kimi() -> None:
    systems = read_systems(FILES)
    winner = read_systems([SYSTEMS_FOLDER / "claim2source_2026.yaml"], FILES)["claim2source_2026"]
    kimi = systems["Kimi-K2.6"]
    assert winner.stages == kimi.stages
    assert winner.claims == kimi.claims == "bilingual"
    assert winner.full_label() == kimi.full_label()
    keys = asdict(kimi.stages[1].stage)
    assert (keys["sources"], keys["llm"]["max_tokens"], keys["depth"]) == ("released", 4096, 10)
    ours = systems["Kimi-K2.6-ours"].stages[1].stage
    assert asdict(ours)["sources"] == "metadata"


def test_another_setting_checkpoint_or_label_is_in_no_row() -> None:
    systems = read_systems(FILES)
    rows = {m for table in ROWS for row in TABLES[table].rows for m in row.models}
    kimi = systems["Kimi-K2.6"]

    def varied(key: str, value: object) -> System:
        read_as = Dense(ModelConfig())
        return plan_rows({"K": kimi}, {}, [], read_as, vary={key: [value]})[1].system

    assert varied("stages.2.depth", 20).full_label() not in rows
    assert varied("stages.1.claims", "original").full_label() not in rows
    assert varied("retrieve.sources", "title_abstract").full_label() not in rows
    # Settings of how a stage runs do not change the system.
    assert varied("stages.2.llm.url", "http://gpu:1/v1").full_label() in rows
    assert kimi.on_checkpoint("C", {"de": "B"}).full_label() not in rows
    assert replace(kimi, label="mine").full_label() == "mine"
    # A system with stages differs from its first stage.
    dense = System("E5", replace(systems["E5"].first, label=None), systems["BGE"].stages)
    assert dense.full_label() != "intfloat/e5-large-v2" == dense.full_label(0)


def test_every_empty_cell_of_a_table_has_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    for table in TABLES.values():
        empty = any(None in row.values for row in table.rows)
        assert bool(table.empty) is empty, table.id


def test_a_model_is_read_in_one_way_by_all_systems_of_a_paper() -> None:
    """Two entries of one model differ in what their files are there to compare, and no more."""
    others = ("as_released", "cascade")
    systems = read_systems(
        [p for p in sorted(SYSTEMS_FOLDER.glob("*.yaml")) if p.stem not in others]
    )
    models: dict[str, set[str]] = {}
    for system in systems.values():
        for model in system.dense_models:
            models.setdefault(model.name, set()).add(repr(model))
    assert len(models) > 10 and all(len(readings) == 1 for readings in models.values())
    # The re-rankers and verifiers of the papers' files: one description of each model and task.
    stages: dict[object, set[str]] = {}
    for name, system in systems.items():
        if not name.endswith("-ours") and name not in ("ours", "Qwen3-8B"):
            for kind, stage in ((stage.name, stage.stage) for stage in system.stages):
                model = getattr(stage, "model", None) or getattr(
                    getattr(stage, "llm", None), "model", None
                )
                if model is not None and not kind.endswith("attribution"):  # six fusions, one model
                    stages.setdefault((kind, model), set()).add(repr(stage))
    assert all(len(readings) == 1 for readings in stages.values()), stages


def test_the_papers_rerankers_are_there_as_released() -> None:
    systems = read_systems(FILES)
    names = ["Nemotron", "BGE", "Jina", "Qwen3-0.6B", "Qwen3-8B", "Qwen3-8B-IT"]
    for name in names:
        stage = systems[name].stages[0].stage
        assert (stage.depth, stage.claims, stage.mix) == (100, "translated", 0), name
        first = systems[name].first.retriever
        assert isinstance(first, Routes)
        routes = {lang: [part.name for part in parts] for lang, parts in first.routes.items()}
        assert routes == {"default": ["GritLM"], "de": ["GritLM-F"]}
        assert stage.sources == "released"
        if isinstance(stage, Http):
            assert stage.documents <= 64
        if isinstance(stage, YesNo):
            assert stage.max_length == 8192
            assert (stage.template == "escaped") == ("8B" in name)
