"""Reading reports: distinct names, costs, whole runs, and runs of another split."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.config import read_config
from claim2source.core.costs import SystemCost
from claim2source.core.errors import InputError, UserError
from claim2source.core.records import Claim, Dataset, Qrels
from claim2source.core.report import (
    Choice,
    Comparison,
    FamilyResult,
    Intervals,
    Provenance,
    Report,
    SystemReport,
    TrainingReport,
)
from claim2source.core.run import Run
from claim2source.data.trec import write_trec_run
from claim2source.evaluation.reports import (
    common_data,
    distinct_ends,
    judged_run,
    read_reports,
)
from claim2source.evaluation.table import EvaluateConfig
from tests.refusals import refused
from tests.report_files import write_report


def save(folder: Path, model: str = "m/model", runs: tuple[str, ...] = ("en", "de")) -> Path:
    row = {"mrr@5": 0.5, "queries": 2}
    system = SystemReport(
        Path(model).name,
        model,
        Path(model).name,
        claims="bilingual",
        sources="metadata",
        languages={"en": row, "de": row},
        macro=row,
        intervals=Intervals({"mrr@5": {"en": (0.1, 0.9), "macro": (0.2, 0.8)}}, 10, 0, 2),
        cost=SystemCost(seconds=1.0),
        runs="runs",
    )
    Report("d", "dev", {system.name: system}).write(folder)
    for lang in runs:
        run = Run.from_lists({f"{lang}1": [("a", 1.0)], f"{lang}2": [("b", 1.0)]})
        write_trec_run(run, folder / "runs" / f"{lang}.trec")
    return folder


def split(judged: str, unjudged: str = "") -> Dataset:
    claims = [Claim(c, "", c[:2]) for c in f"{judged} {unjudged}".split()]
    return Dataset(tuple(claims), (), Qrels({c: {"a": 1} for c in judged.split()}), "dev")


OUTSIDE = ["..", "a/../../b", "/etc", "..\\..", "C:\\x", "C:x", "\\\\host\\share", "//h/s", "a\0b"]


def test_a_report_reads_nothing_outside_its_folder(tmp_path: Path) -> None:
    record = json.loads((save(tmp_path / "own") / "report.json").read_text())
    save(tmp_path / "outside")
    system = record["systems"]["model"]
    training = {"history": [], "choose": "val", "chosen_epoch": 1}
    for text in OUTSIDE:
        changed: list[dict[str, Any]] = [
            {"systems": {text: {**system, "name": text}}},
            {"systems": {"model": {**system, "name": text}}},
            {"systems": {"model": {**system, "runs": text}}},
            {"systems": {"model": {**system, "runs": f"runs/{text}"}}} if text[0] == "." else {},
            {"systems": {"model": {**system, "languages": {text: system["macro"]}}}},
            {"training": {**training, "chosen_checkpoint": text}},
        ]
        for keys in filter(None, changed):
            (tmp_path / "own" / "report.json").write_text(json.dumps({**record, **keys}))
            with refused(InputError, tmp_path / "own" / "report.json") as it:
                read_reports([tmp_path / "own"])
            # Another refusal would be of a field that is missing or unknown.
            assert "\n" not in str(it.value) and "folder" in str(it.value)


def test_names_of_models_and_links_within_a_report_are_read(tmp_path: Path) -> None:
    record = json.loads((save(tmp_path / "own") / "report.json").read_text())
    system = record["systems"]["model"]
    for name in ("org/model", "BM25: k1 1.2", "a..b", "50\\50", "..."):
        changed = {**record, "systems": {name: {**system, "name": name}}}
        (tmp_path / "own" / "report.json").write_text(json.dumps(changed))
        (read,) = read_reports([tmp_path / "own"])
        assert read.name == name and set(read.runs) == {"en", "de"}
    # The folder itself may be a link, and links within it are followed, but none that leads out.
    (tmp_path / "link").symlink_to(tmp_path / "own")
    runs = tmp_path / "own" / "runs"
    (runs / "en.trec").rename(tmp_path / "own" / "en.trec")
    (runs / "en.trec").symlink_to(tmp_path / "own" / "en.trec")
    assert set(read_reports([tmp_path / "link"])[0].runs) == {"en", "de"}
    (tmp_path / "own" / "en.trec").rename(tmp_path / "secret.trec")
    (runs / "en.trec").unlink()
    (runs / "en.trec").symlink_to(tmp_path / "secret.trec")
    with refused(InputError, runs / "en.trec"):
        judged_run(read_reports([tmp_path / "own"])[0], split("en1 de1"))


def test_names_are_told_apart(tmp_path: Path) -> None:
    pair, two, other = save(tmp_path / "x/one"), save(tmp_path / "x/two"), save(tmp_path / "y/one")
    assert [s.name for s in read_reports([pair])] == ["model"]
    assert [s.name for s in read_reports([pair, two])] == ["one/model", "two/model"]
    names = [s.name for s in read_reports([pair, other, two])]
    assert names == ["x/one/model", "y/one/model", "x/two/model"]
    names = [s.name for s in read_reports([pair, other])]
    assert names == ["x/model", "y/model"]  # never the path of the folder on this machine
    assert len(read_reports([pair, tmp_path / "x" / ".." / "x" / "one"])) == 1
    # A system called as another is called now stays another.
    third = save(tmp_path / "third")
    report = Report.read(third)
    system = replace(report.systems["model"], name="one/model")
    replace(report, systems={"one/model": system}).write(third)
    assert len({s.name for s in read_reports([pair, two, third])}) == 3
    for folders, ends in [
        (["/a/x/run", "/b/x/run"], ["a", "b"]),
        (["/a/run", "/run"], ["a", "/"]),
        (["/x/a", "/x/a/a"], ["x", "a"]),
    ]:
        assert distinct_ends([Path(folder) for folder in folders]) == ends


def test_a_report_is_a_system(tmp_path: Path) -> None:
    (system,) = read_reports([save(tmp_path / "whole")])
    row = system.report
    assert (row.model, row.claims, row.style) == ("m/model", "bilingual", "S0C0")
    assert row.queries == {"en": 2, "de": 2}
    assert set(system.runs) == {"en", "de"}
    assert set(judged_run(system, split("en1 de1")).claim_ids) == {"en1", "en2", "de1", "de2"}
    assert row.interval("mrr@5") == (0.2, 0.8)
    assert row.interval("mrr@5", "de") is None and row.interval("mrr@1", "en") is None
    (system,) = read_reports([save(tmp_path / "a", runs=("en",))])
    with refused(InputError, "de.trec"):
        judged_run(system, split("en1 de1"))
    Report("d", "dev", {"m": SystemReport("m", "m", "m")}).write(tmp_path / "b")
    assert read_reports([tmp_path / "b"]) == []


def refused_report(folder: Path, program: str, **settings: Any) -> str:
    """Write the report of a training, or an export, and return the reason why it is refused."""
    training = None
    if program != "train/merge.py":
        training = TrainingReport((), "best", 1, "checkpoints/epoch-1", settings=settings)
    system = {"languages": {"en": {"mrr@5": 0.5, "queries": 2}}, "macro": {"mrr@5": 0.5}}
    provenance = Provenance(program)
    options = {"training": training, "provenance": provenance, "chosen": "chosen"}
    write_report(folder, {"chosen": system}, "demo", "dev", **options)
    (loaded,) = read_reports([folder])
    with pytest.raises(InputError) as error:
        judged_run(loaded, split("en1 en2"))
    (problem,) = error.value.problems
    assert problem.file == str(folder)
    return problem.reason


@pytest.mark.parametrize("program", ["train/finetune.py", "train/merge.py"])
def test_a_trainings_report_names_the_command_that_evaluates_it(
    program: str, tmp_path: Path
) -> None:
    folder = tmp_path / "my run"
    command = refused_report(folder, program).partition("evaluate it: ")[2]
    words = shlex.split(command)
    first = words.index("--checkpoint")
    config = read_config(EvaluateConfig, words[first:], program="t", description="t")
    assert words[0] in ("claim2source", "python") and Path(words[first - 1]).stem == "evaluate"
    assert config.checkpoint == [str(folder)]
    assert (config.dataset, config.split) == ("demo", "dev")
    # What `after` made is named instead.
    write_report(folder / "evaluation", {"BM25": {}})
    reason = refused_report(folder, program)
    assert str(folder / "evaluation") in reason and "--checkpoint" not in reason


def test_a_trained_rerankers_report_names_its_stage(tmp_path: Path) -> None:
    settings = {"first": {"depth": 100}, "model": {"kind": "yes_no"}}
    reason = refused_report(tmp_path, "train/finetune_reranker.py", **settings)
    assert f"{{rerank: yes_no, model: {tmp_path}}}" in reason
    assert "--dataset demo --split dev" in reason


def test_a_run_of_another_split_is_refused(tmp_path: Path) -> None:
    (system,) = read_reports([save(tmp_path)])
    assert len(judged_run(system, split("en1 en2 de1 de2"))) == 4
    # Claims without a line are claims for which nothing was found.
    judged_run(system, split("en1 en2 en3 de1 de2"))
    # So they are where the run has claims without a gold too, or other languages are left out.
    judged_run(system, split("en1 en3 de1 de2", "en2"))
    assert judged_run(system, split("en1 en2 en3")).claim_ids == ("en1", "en2")
    with pytest.raises(UserError, match="model: .* 1 claims .* lacks 1 "):
        judged_run(system, split("en1 en3"))


def test_the_data_that_all_reports_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded_systems = read_reports([save(tmp_path / name) for name in ("a", "b", "c", "d")])
    assert common_data(loaded_systems) == ("d", "dev")
    assert common_data(loaded_systems, "other", "test") == ("other", "test")
    (tmp_path / "data").mkdir()
    data = [str(tmp_path / "data"), str(tmp_path / "a" / ".." / "data")]
    pair = [replace(s, dataset=path) for s, path in zip(loaded_systems, data, strict=False)]
    assert common_data(pair) == (data[0], "dev")
    monkeypatch.setenv("CLAIM2SOURCE_DATA", str(tmp_path))  # a name and its folder
    assert common_data([replace(pair[0], dataset="data"), pair[1]]) == ("data", "dev")
    mixed_systems = [replace(loaded_systems[0], dataset="demo"), *loaded_systems[1:]]
    with refused(UserError, "dataset: ", "'demo' (a/model); 'd' "):
        common_data(mixed_systems)
    assert common_data(mixed_systems, "demo") == ("demo", "dev")
    with refused(UserError, "split: ", "--split"):
        common_data([replace(loaded_systems[0], split="test"), *loaded_systems])
    assert common_data(
        [replace(loaded_systems[0], split="test"), *loaded_systems], split="dev"
    ) == ("d", "dev")


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda raw: raw.pop("version"), "version: "),
        (lambda raw: raw.update(version=2), "version: 2; "),
        (lambda raw: raw["systems"]["model"].update(other=1), "systems.model.other: "),
        (lambda raw: raw["systems"]["model"].pop("system"), "systems.model.system: "),
        (lambda raw: raw["systems"]["model"]["cost"].update(seconds="1"), "cost.seconds: "),
    ],
)
def test_a_report_is_read_strictly(tmp_path: Path, edit: Any, field: str) -> None:
    path = save(tmp_path) / "report.json"
    raw = json.loads(path.read_text())
    edit(raw)
    path.write_text(json.dumps(raw))
    with refused(InputError, path, field):
        Report.read(tmp_path)
    for text in ("", "[]", "[" * 100_000):
        path.write_text(text)
        with refused(InputError, path, "JSON"):
            Report.read(tmp_path)


def test_what_an_older_merge_chose_is_of_the_chosen_system(tmp_path: Path) -> None:
    report = Report.read(save(tmp_path))
    choice = Choice("scale", {"scale": 0.5}, 0.6, "val", 30)
    rows = {"model": replace(report.systems["model"], choices=(choice,))}
    report = replace(report, systems=rows, chosen="model")
    raw = report.to_json()
    raw["choices"] = raw["systems"]["model"].pop("choices")
    (tmp_path / "report.json").write_text(json.dumps(raw))
    assert Report.read(tmp_path) == report


def test_headline_scores_stand_at_the_top_and_are_read_back(tmp_path: Path) -> None:
    report = Report("d", "dev", {}, headline={"map": 0.5, "macro_f1": None})
    report.write(tmp_path)
    raw = json.loads((tmp_path / "report.json").read_text())
    assert (raw["map"], raw["macro_f1"]) == (0.5, None) and raw["headline"] == ["map", "macro_f1"]
    assert Report.read(tmp_path) == report
    # Without any, a report is as it was; a number that nothing names is still refused.
    assert "headline" not in Report("d", "dev", {}).to_json()
    for wrong in ({**raw, "more": 1.0}, {**raw, "headline": ["map"]}, {**raw, "headline": "map"}):
        (tmp_path / "report.json").write_text(json.dumps(wrong))
        with refused(InputError, "report.json"):
            Report.read(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("languages.en.recall@5", 3),
        ("languages.en.recall@5", -1),
        ("languages.en.queries", -1),
        ("macro.recall@5", 1.5),
        ("systems.a.macro.mrr@5", -0.1),
        ("systems.a.languages.en.mrr@5", 2),
        ("systems.a.intervals.values.mrr@5.macro", [0.6, 0.2]),
        ("systems.a.intervals.values.mrr@5.macro", [-0.6, 0.2]),
        ("systems.a.cost.seconds", -3.0),
        ("systems.a.failures.late", -2),
        ("tests.0.comparisons.0.p", 2.0),
        ("tests.0.comparisons.0.t_p", -0.5),
        ("tests.0.comparisons.0.difference", 1.5),
        ("tests.0.comparisons.0.low", 0.9),
        ("tests.0.comparisons.0.wins", -1),
        ("tests.0.least_p", 7.0),
    ],
)
def test_what_nothing_could_have_measured_is_refused(
    tmp_path: Path, place: str, value: Any
) -> None:
    row = {"recall@5": 0.5, "mrr@5": 1 + 1e-12, "queries": 3}
    pair = Comparison("a", "b", 0.5, 0.4, 0.1, 0.0, 0.2, 0.5, 1.0, None, None, None, 1, 1, 1, "?")
    family = FamilyResult("f", "macro", 0.05, 10, 10, 0.1, 3, 3, (pair,))
    system = {
        "languages": {"en": row},
        "macro": row,
        "intervals": {"mrr@5": {"macro": (0.2, 0.6)}},
        "cost": {"seconds": 1.0},
        "failures": {"late": 2},
    }
    tables = {"languages": {"en": row}, "macro": row}
    report = write_report(tmp_path, {"a": system}, tests=(family,), **tables)
    assert Report.read(tmp_path) == report
    values = json.loads((tmp_path / "report.json").read_text())
    *groups, last = place.split(".")
    part = values
    for group in groups:
        part = part[int(group)] if isinstance(part, list) else part[group]
    part[last] = value
    (tmp_path / "report.json").write_text(json.dumps(values))
    with pytest.raises(InputError) as error:
        Report.read(tmp_path)
    assert str(error.value.problems[0].field).startswith(place.rpartition(".")[0])
