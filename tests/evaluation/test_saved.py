"""Reports read back: names told apart, costs, whole runs, and runs of another split."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.core.records import Claim, Dataset, Qrels
from claim2source.core.run import Run
from claim2source.core.tables import COST_COLUMNS, cost_cells
from claim2source.evaluation.saved import (
    common_data,
    judged_run,
    read_reports,
    runs_of,
    whole_run,
)
from claim2source.io.trec import write_trec_run


def save(folder: Path, checkpoint: str = "m/model", runs: tuple[str, ...] = ("en", "de")) -> Path:
    row = {"mrr@5": 0.5, "queries": 2}
    report = {
        "checkpoint": checkpoint,
        "dataset": "d",
        "split": "dev",
        "rendering": {"claims": "bilingual", "sources": "metadata"},
        "cost": {"seconds": 1},
        "languages": {"en": row, "de": row},
        "macro": row,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report))
    for lang in runs:
        run = Run.from_lists({f"{lang}1": [("a", 1.0)], f"{lang}2": [("b", 1.0)]})
        write_trec_run(run, folder / "runs" / f"{lang}.trec")
    return folder


def test_names_are_told_apart(tmp_path: Path) -> None:
    one, two, other = save(tmp_path / "x/one"), save(tmp_path / "x/two"), save(tmp_path / "y/one")
    assert [s.name for s in read_reports([one])] == ["model"]
    assert [s.name for s in read_reports([one, two])] == ["one/model", "two/model"]
    names = [s.name for s in read_reports([one, other, two])]
    assert names == [f"{one}/model", f"{other}/model", "two/model"]
    assert len(read_reports([one, tmp_path / "x" / ".." / "x" / "one"])) == 1


def test_a_report_is_a_system(tmp_path: Path) -> None:
    (system,) = read_reports([save(tmp_path)])
    assert (system.model, system.claims, system.style) == ("m/model", "bilingual", "S0C0")
    assert system.queries == {"en": 2, "de": 2}
    assert set(runs_of(system)) == {"en", "de"}
    assert set(whole_run(system).claim_ids) == {"en1", "en2", "de1", "de2"}


def test_a_missing_run_and_a_report_without_scores(tmp_path: Path) -> None:
    (system,) = read_reports([save(tmp_path / "a", runs=("en",))])
    with pytest.raises(InputError, match="no runs/.../de.trec"):
        whole_run(system)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "report.json").write_text('{"checkpoint": "m"}')
    assert read_reports([tmp_path / "b"]) == []


def test_a_run_of_another_split_is_refused(tmp_path: Path) -> None:
    (system,) = read_reports([save(tmp_path)])

    def split(judged: str, others: str = "") -> Dataset:
        claims = [Claim(c, "", c[:2]) for c in f"{judged} {others}".split()]
        return Dataset(tuple(claims), (), Qrels({c: {"a": 1} for c in judged.split()}), "dev")

    assert len(judged_run(system, split("en1 en2 de1 de2"))) == 4
    # Claims without a line are claims for which nothing was found.
    judged_run(system, split("en1 en2 en3 de1 de2"))
    # So they are where the run has claims without a gold too, or other languages are left out.
    judged_run(system, split("en1 en3 de1 de2", "en2"))
    assert judged_run(system, split("en1 en2 en3")).claim_ids == ("en1", "en2")
    with pytest.raises(UserError, match="1 claims that dev does not have and lacks 1 that it"):
        judged_run(system, split("en1 en3"))


def test_a_name_and_its_folder_are_one_data_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAIM2SOURCE_DATA", str(tmp_path / "kept"))
    (tmp_path / "kept" / "named25").mkdir(parents=True)
    found = read_reports([save(tmp_path / name) for name in ("a", "b")])
    ways = ["named25", str(tmp_path / "kept" / "named25")]
    both = [replace(s, dataset=way) for s, way in zip(found, ways, strict=True)]
    assert common_data(both) == ("named25", "dev")
    with pytest.raises(UserError, match="dataset: the reports differ"):
        common_data([both[0], replace(found[1], dataset="named26")])


def test_the_data_that_all_reports_are_of(tmp_path: Path) -> None:
    found = read_reports([save(tmp_path / name) for name in ("a", "b", "c", "d")])
    assert common_data(found) == ("d", "dev")
    assert common_data(found, "other", "test") == ("other", "test")
    (tmp_path / "data").mkdir()
    ways = [str(tmp_path / "data"), str(tmp_path / "a" / ".." / "data")]
    one = [replace(s, dataset=way) for s, way in zip(found, ways, strict=False)]
    assert common_data(one) == (ways[0], "dev")
    mixed = [replace(found[0], dataset="demo"), *found[1:]]
    with pytest.raises(UserError, match=r"dataset: the reports differ: 'demo' \(a/model\); 'd' "):
        common_data(mixed)
    assert common_data(mixed, "demo") == ("demo", "dev")
    with pytest.raises(UserError, match="split: the reports differ"):
        common_data([replace(found[0], split="test"), *found])
    assert common_data([replace(found[0], split="test"), *found], split="dev") == ("d", "dev")


def test_intervals_are_read(tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / "report.json"
    report = json.loads(path.read_text())
    bounds = {"mrr@5": {"en": [0.1, 0.9], "macro": [0.2, 0.8]}, "repeats": 10, "seed": 0}
    path.write_text(json.dumps({**report, "intervals": bounds}))
    (system,) = read_reports([tmp_path])
    assert system.intervals == {"mrr@5": {"en": (0.1, 0.9), "macro": (0.2, 0.8)}}
    path.write_text(json.dumps({**report, "intervals": {"mrr@5": {"en": [0.1]}}}))
    with pytest.raises(InputError, match="not a report"):
        read_reports([tmp_path])


def test_cost_of_both_kinds_of_report() -> None:
    assert cost_cells({"seconds": 4.0, "claims": 10, "reused": 3})[:2] == [">4.0", "<2.5"]
    cells = cost_cells({"seconds": 4.0, "items": 10, "peak_memory": 3 * 2**20, "tokens": 5})
    assert dict(zip(COST_COLUMNS, cells, strict=True)) == {
        "seconds": "4.0",
        "items/s": "2.5",
        "peak MB": "3",
        "tokens": "5",
        "parameters": None,
    }
    other = {"seconds": 4.0, "claims": 10, "peak_memory_bytes": 2**20, "parameters": 7}
    assert cost_cells(other) == ["4.0", "2.5", "1", None, "7"]
    assert cost_cells(None) == cost_cells({}) == [None] * 5
