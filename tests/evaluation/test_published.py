"""The papers' numbers: every file can be read, and agrees with its own sums."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from claim2source.core.errors import InputError
from claim2source.core.report import PublishedScore, Report, SystemReport
from claim2source.evaluation.published.scores import with_published
from claim2source.evaluation.published.tables import Column, Table, load_published
from claim2source.metrics.metrics import cutoff
from tests.refusals import refused

TABLES = {table.id: table for table in load_published()}
STYLES = TABLES["2025-styles"]
DENSE = [
    "MiniLM",
    "MPNet",
    "SciNCL",
    "Specter",
    "E5-Large",
    "GritLM-7B",
    "GTR-XL",
]
HYBRIDS = [f"H-{name}" for name in DENSE]


def cell(table: str, row: str, column: str) -> float:
    value = TABLES[table].value(row, column)
    assert isinstance(value, float)
    return value


def test_every_paper_is_there_with_our_metrics_and_flags_that_cover_something() -> None:
    papers = {table.paper for table in TABLES.values()}
    assert papers == {"2023", "2024", "2025", "2026"}
    for table in TABLES.values():
        assert table.source
        assert table.title
        assert table.rows
        assert table.columns
        names = {row.name for row in table.rows}
        assert len(names) == len(table.rows)
        for column in table.columns:
            if column.metric not in (None, "seconds", "macro_f1", "strict_macro_f1"):
                cutoff(str(column.metric))
        for flag in table.flags:
            assert len(flag.reason) > 20
            cells = []
            for row in table.rows:
                for column in table.columns:
                    if flag.covers(row.name, column.name):
                        cells.append(table.value(row.name, column.name))
            assert any(value is not None for value in cells), (table.id, flag)


def beside_papers(systems: dict[str, SystemReport]) -> dict[str, tuple[PublishedScore, ...]]:
    """The papers' scores of each system of a report."""
    report = Report("ct26", "dev", systems)
    beside = with_published(report, systems.values()).systems
    return {name: system.published for name, system in beside.items()}


def test_a_stage_has_the_published_score_of_its_own_row() -> None:
    """A row of a report is one stage of a system, or all of it."""
    rows = {"first stage": "none, GritLM-(F)", "": "Qwen3-8B-IT"}
    table = TABLES["2026-stage2"]
    systems = {}
    for i, (stage, row) in enumerate(rows.items()):
        name = f"s{i}"
        model, *_ = table.row(row).models
        scores = {"mrr@5": 0.5 + i, "queries": 9}
        systems[name] = SystemReport(
            name=name,
            system="s",
            claims="bilingual",
            stage=stage,
            model=model,
            languages={"de": scores},
            macro=scores,
        )
    published = beside_papers(systems)
    for name, row in zip(systems, rows.values(), strict=True):
        in_table = [c for c in published[name] if c.table == table.id]
        cells = [c for c in in_table if c.column != "delta"]
        places = {(c.row, c.column) for c in cells}
        assert places == {(row, "DE"), (row, "AVG")}
        ours = {c.ours for c in cells}
        assert ours == {systems[name].macro["mrr@5"]}
        (german,) = [c for c in cells if c.column == "DE"]
        assert german.published == table.value(row, "DE")


def test_a_difference_stands_beside_that_of_the_paper() -> None:
    """Deltas of tables 3 and 4: ours less our own baseline, of the same system if it has one."""
    stages = {
        "first": "none, GritLM-(F)",
        "second": "Qwen3-8B-IT",
        "": "Kimi-K2.6",
    }
    means = {"first": 0.60, "second": 0.71, "": 0.74}
    systems = {}
    for system, shift in (("other", 0.1), ("mine", 0.0)):
        for stage, row in stages.items():
            table_id = "2026-stage3" if stage == "" else "2026-stage2"
            table = TABLES[table_id]
            mean = means[stage] + shift
            scores = {"mrr@5": mean, "queries": 9}
            name = f"{system}: {stage}"
            systems[name] = SystemReport(
                name=name,
                model=table.row(row).models[0],
                system=system,
                claims="bilingual",
                stage=stage,
                languages={"de": scores},
                macro=scores,
            )
    macro = {"mrr@5": 0.72, "queries": 9}
    systems["mine: second"] = replace(systems["mine: second"], macro=macro)
    found = {}
    for name, cells in beside_papers(systems).items():
        for cell in cells:
            if cell.column == "delta":
                found[name, cell.table, cell.row] = cell
    second = found["other: second", "2026-stage2", "Qwen3-8B-IT"]
    third = found["other: ", "2026-stage3", "Kimi-K2.6"]
    assert second.ours == pytest.approx(0.11)
    assert second.published == 0.1025
    assert third.ours == pytest.approx(0.03)
    assert third.published == 0.0229
    # Another report's or system's baseline is used only if the own one is absent.
    alone = {name: systems[name] for name in ("mine: ", "mine: second", "other: second")}
    published = beside_papers(alone)["mine: "]
    (cell,) = [cell for cell in published if cell.column == "delta"]
    assert cell.ours == pytest.approx(0.02)
    assert cell.low is None
    only = {"mine: ": systems["mine: "]}
    published = beside_papers(only)["mine: "]
    columns = {cell.column for cell in published}
    assert "delta" not in columns


def test_printed_differences_are_those_of_the_rows() -> None:
    for name in ("2026-stage2", "2026-stage3"):
        table = TABLES[name]
        (delta,) = [column for column in table.columns if column.minus]
        for row in table.rows:
            if row.name != delta.minus:
                ours = cell(name, row.name, "AVG")
                baseline = cell(name, str(delta.minus), "AVG")
                printed = cell(name, row.name, "delta")
                assert printed == pytest.approx(ours - baseline, abs=1.01e-4)


# --- 2025 ---------------------------------------------------------------------------------


def test_the_style_grid_has_300_runs_and_the_best_cells_are_its() -> None:
    rows = [row.name for row in STYLES.rows]
    assert rows == ["BM25", *DENSE, *HYBRIDS]
    columns = [column.name for column in STYLES.columns]
    assert columns == [f"S{s}C{c}" for s in range(4) for c in range(5)]
    values = [value for row in STYLES.rows for value in row.values]
    assert sum(value is not None for value in values) == 300
    for row in TABLES["2025-best"].rows:
        name, best = row.values
        scores = {}
        for column in columns:
            scores[column] = STYLES.absolute(row.name, column)
        highest = max(scores, key=lambda key: scores[key] or 0)
        assert highest == name
        assert scores[str(name)] == pytest.approx(best, abs=1e-9), row.name


@pytest.mark.parametrize(
    ("table", "rows", "said"),
    [
        # White-space BM25 in both papers, and whatever is measured against it or fused with it.
        ("2025-styles", ["BM25"], "white-space"),
        ("2025-styles", HYBRIDS, "weak white-space BM25"),
        ("2026-stage1", ["BM25"], "white-space"),
        # The query template of the released code.
        ("2026-stage1", ["GritLM"], "pools the instruction"),
        ("2026-chosen", ["GritLM-(F)"], "pools the instruction"),
        ("2026-stage2", ["none, GritLM-(F)"], "pools the instruction"),
        # The wrapper of the 8B re-ranker, and what is built on its order.
        ("2026-stage2", ["Qwen3-8B", "Qwen3-8B-IT"], "HTML-escaped"),
        ("2026-stage3", ["Gemma-4", "MiniMax-M2.5", "Kimi-K2.6"], "defect of its wrapper"),
        ("2026-test", ["Claim2Source"], "defect of its wrapper"),
    ],
)
def test_every_number_of_a_doubtful_system_is_flagged(
    table: str, rows: list[str], said: str
) -> None:
    found = TABLES[table]
    for row in rows:
        for column in found.columns:
            flags = found.cell_flags(row, column.name)
            reasons = [found.flags[flag].reason for flag in flags]
            assert any(said in reason for reason in reasons), (row, column.name)


# --- 2026 ---------------------------------------------------------------------------------


def test_averages_are_the_mean_of_the_languages() -> None:
    forms = {"2026-stage1": ("Orig ", "Transl ", "Biling ")}
    for table in (
        "2026-stage1",
        "2026-stage2",
        "2026-stage3",
        "2026-chosen",
        "2026-test",
    ):
        for row in TABLES[table].rows:
            for form in forms.get(table, ("",)):
                parts = [cell(table, row.name, f"{form}{lang}") for lang in ("EN", "DE", "FR")]
                mean = np.mean(parts)
                average = cell(table, row.name, f"{form}AVG")
                assert average == pytest.approx(mean, abs=0.00007)
                assert not form or parts[0] == cell(table, row.name, "Orig EN")


# --- 2023 and 2024 ------------------------------------------------------------------------


# --- reading ------------------------------------------------------------------------------


def write_table(folder: Path, **changes: Any) -> Path:
    table: dict[str, Any] = {
        "id": "t",
        "title": "T",
        "source": "S",
        "metric": "mrr@5",
        "columns": {"A": {}, "B": {"language": "de", "digits": 2}},
        "rows": {"one": {"values": [0.5, None], "models": ["m"]}},
    }
    table |= changes
    data = {
        "paper": "p",
        "names": ["n"],
        "tables": [table],
    }
    text = yaml.safe_dump(data)
    (folder / "a.yaml").write_text(text, encoding="utf-8")
    return folder


def test_a_table_is_read_and_printed_as_the_paper_does(tmp_path: Path) -> None:
    (table,) = load_published(write_table(tmp_path))
    assert isinstance(table, Table)
    assert table.columns == (
        Column("A", "mrr@5"),
        Column("B", "mrr@5", language="de", digits=2),
    )
    assert table.value("one", "B") is None
    assert table.row("one").models == ("m",)
    for row, column in (("one", "C"), ("two", "A")):
        with pytest.raises(KeyError):
            table.value(row, column)

    two = tmp_path / "two"
    two.mkdir()
    write_table(two)
    same = (tmp_path / "a.yaml").read_bytes()
    (two / "b.yaml").write_bytes(same)
    with refused(InputError, "b.yaml: t: "):
        load_published(two)
    first, second, *_ = STYLES.columns
    assert first.text(0.5575) == "0.5575"
    assert second.text(0.0225) == "+0.0225"
    percent = Column("A", digits=1, unit="%")
    assert percent.text(75.0) == "75.0"


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"rows": {"one": {"values": [0.5]}}}, ("rows.one: 1 ", " 2 ")),
        ({"colour": "red"}, ("t.colour: ",)),
        ({"unreliable": [{"rows": ["two"], "reason": "r"}]}, ("unreliable: ", "'two'")),
        ({"relative_to": "C"}, ("relative_to: ", "'C'")),
    ],
)
def test_a_wrong_table_is_refused(
    tmp_path: Path, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    with refused(InputError, "a.yaml", *facts):
        load_published(write_table(tmp_path, **changes))
