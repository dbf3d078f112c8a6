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
    measured = {"en": (0.1, 0.9), "macro": (0.2, 0.8)}
    name = Path(model).name
    system = SystemReport(
        name,
        model,
        name,
        claims="bilingual",
        sources="metadata",
        languages={"en": row, "de": row},
        macro=row,
        intervals=Intervals({"mrr@5": measured}, 10, 0, 2),
        cost=SystemCost(seconds=1.0),
        runs="runs",
    )
    report = Report("d", "dev", {system.name: system})
    report.write(folder)
    for lang in runs:
        run = Run.from_lists(
            {
                f"{lang}1": [("a", 1.0)],
                f"{lang}2": [("b", 1.0)],
            }
        )
        write_trec_run(run, folder / "runs" / f"{lang}.trec")
    return folder


def split(judged: str, unjudged: str = "") -> Dataset:
    ids = f"{judged} {unjudged}".split()
    claims = tuple(Claim(c, "", c[:2]) for c in ids)
    qrels = Qrels({c: {"a": 1} for c in judged.split()})
    return Dataset(claims, (), qrels, "dev")


OUTSIDE = [
    "..",
    "a/../../b",
    "/etc",
    "..\\..",
    "C:\\x",
    "C:x",
    "\\\\host\\share",
    "//h/s",
    "a\0b",
]


def test_a_report_reads_nothing_outside_its_folder(tmp_path: Path) -> None:
    own = save(tmp_path / "own")
    path = own / "report.json"
    record = json.loads(path.read_text())
    save(tmp_path / "outside")
    system = record["systems"]["model"]
    training = {
        "history": [],
        "choose": "val",
        "chosen_epoch": 1,
    }
    for text in OUTSIDE:
        renamed = {**system, "name": text}
        changed: list[dict[str, Any]] = [
            {"systems": {text: renamed}},
            {"systems": {"model": renamed}},
            {"systems": {"model": {**system, "runs": text}}},
            {"systems": {"model": {**system, "languages": {text: system["macro"]}}}},
            {"training": {**training, "chosen_checkpoint": text}},
        ]
        if text[0] == ".":
            below = {**system, "runs": f"runs/{text}"}
            changed.append({"systems": {"model": below}})
        for keys in changed:
            values = {**record, **keys}
            path.write_text(json.dumps(values))
            with refused(InputError, path) as it:
                read_reports([own])
            # Another refusal would be of a field that is missing or unknown.
            message = str(it.value)
            assert "\n" not in message
            assert "folder" in message


def test_names_of_models_and_links_within_a_report_are_read(tmp_path: Path) -> None:
    own = save(tmp_path / "own")
    path = own / "report.json"
    record = json.loads(path.read_text())
    system = record["systems"]["model"]
    names = (
        "org/model",
        "BM25: k1 1.2",
        "a..b",
        "50\\50",
        "...",
    )
    for name in names:
        renamed = {**system, "name": name}
        changed = {**record, "systems": {name: renamed}}
        path.write_text(json.dumps(changed))
        (read,) = read_reports([own])
        assert read.name == name
        assert set(read.runs) == {"en", "de"}
    # The folder itself may be a link, and links within it are followed, but none that leads out.
    link = tmp_path / "link"
    link.symlink_to(own)
    run = own / "runs" / "en.trec"
    moved = own / "en.trec"
    run.rename(moved)
    run.symlink_to(moved)
    linked = read_reports([link])[0]
    assert set(linked.runs) == {"en", "de"}

    secret = tmp_path / "secret.trec"
    moved.rename(secret)
    run.unlink()
    run.symlink_to(secret)
    with refused(InputError, run):
        leading_out = read_reports([own])[0]
        judged_run(leading_out, split("en1 de1"))


def names_in(*folders: Path) -> list[str]:
    """Return the names of the systems whose reports are in the folders."""
    return [system.name for system in read_reports(list(folders))]


def test_names_are_told_apart(tmp_path: Path) -> None:
    pair = save(tmp_path / "x/one")
    two = save(tmp_path / "x/two")
    other = save(tmp_path / "y/one")
    assert names_in(pair) == ["model"]
    assert names_in(pair, two) == ["one/model", "two/model"]
    names = names_in(pair, other, two)
    assert names == ["x/one/model", "y/one/model", "x/two/model"]
    names = names_in(pair, other)
    assert names == ["x/model", "y/model"]  # never the path of the folder on this machine
    same = tmp_path / "x" / ".." / "x" / "one"
    assert len(names_in(pair, same)) == 1
    # A system called as another is called now stays another.
    third = save(tmp_path / "third")
    report = Report.read(third)
    system = replace(report.systems["model"], name="one/model")
    renamed = replace(report, systems={"one/model": system})
    renamed.write(third)
    names = names_in(pair, two, third)
    assert len(set(names)) == 3

    for folders, ends in [
        (["/a/x/run", "/b/x/run"], ["a", "b"]),
        (["/a/run", "/run"], ["a", "/"]),
        (["/x/a", "/x/a/a"], ["x", "a"]),
    ]:
        paths = [Path(folder) for folder in folders]
        assert distinct_ends(paths) == ends


def test_a_report_is_a_system(tmp_path: Path) -> None:
    whole = save(tmp_path / "whole")
    (system,) = read_reports([whole])
    row = system.report
    assert row.model == "m/model"
    assert row.claims == "bilingual"
    assert row.style == "S0C0"
    assert row.queries == {"en": 2, "de": 2}
    assert set(system.runs) == {"en", "de"}
    run = judged_run(system, split("en1 de1"))
    assert set(run.claim_ids) == {"en1", "en2", "de1", "de2"}
    assert row.interval("mrr@5") == (0.2, 0.8)
    assert row.interval("mrr@5", "de") is None
    assert row.interval("mrr@1", "en") is None

    english = save(tmp_path / "a", runs=("en",))
    (system,) = read_reports([english])
    with refused(InputError, "de.trec"):
        judged_run(system, split("en1 de1"))
    without_runs = SystemReport("m", "m", "m")
    report = Report("d", "dev", {"m": without_runs})
    report.write(tmp_path / "b")
    assert read_reports([tmp_path / "b"]) == []


def refused_report(folder: Path, program: str, **settings: Any) -> str:
    """Write the report of a training, or an export, and return the reason why it is refused."""
    training = None
    if program != "train/merge.py":
        training = TrainingReport(
            (),
            "best",
            1,
            "checkpoints/epoch-1",
            settings=settings,
        )
    english = {"mrr@5": 0.5, "queries": 2}
    system = {
        "languages": {"en": english},
        "macro": {"mrr@5": 0.5},
    }
    options = {
        "training": training,
        "provenance": Provenance(program),
        "chosen": "chosen",
    }
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
    reason = refused_report(folder, program)
    command = reason.partition("evaluate it: ")[2]
    words = shlex.split(command)
    first = words.index("--checkpoint")
    options = words[first:]
    config = read_config(
        EvaluateConfig,
        options,
        program="t",
        description="t",
    )
    script = Path(words[first - 1])
    assert words[0] in ("claim2source", "python")
    assert script.stem == "evaluate"
    assert config.checkpoint == [str(folder)]
    assert config.dataset == "demo"
    assert config.split == "dev"
    # What `after` made is named instead.
    evaluation = folder / "evaluation"
    write_report(evaluation, {"BM25": {}})
    reason = refused_report(folder, program)
    assert str(evaluation) in reason
    assert "--checkpoint" not in reason


def test_a_trained_rerankers_report_names_its_stage(tmp_path: Path) -> None:
    settings = {
        "first": {"depth": 100},
        "model": {"kind": "yes_no"},
    }
    reason = refused_report(tmp_path, "train/finetune_reranker.py", **settings)
    assert f"{{rerank: yes_no, model: {tmp_path}}}" in reason
    assert "--dataset demo --split dev" in reason


def test_a_run_of_another_split_is_refused(tmp_path: Path) -> None:
    (system,) = read_reports([save(tmp_path)])
    whole = judged_run(system, split("en1 en2 de1 de2"))
    assert len(whole) == 4
    # Claims without a line are claims for which nothing was found.
    judged_run(system, split("en1 en2 en3 de1 de2"))
    # So they are where the run has claims without a gold too, or other languages are left out.
    judged_run(system, split("en1 en3 de1 de2", "en2"))
    english = judged_run(system, split("en1 en2 en3"))
    assert english.claim_ids == ("en1", "en2")
    with pytest.raises(UserError, match="model: .* 1 claims .* lacks 1 "):
        judged_run(system, split("en1 en3"))


def test_the_data_that_all_reports_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [save(tmp_path / name) for name in ("a", "b", "c", "d")]
    loaded_systems = read_reports(folders)
    assert common_data(loaded_systems) == ("d", "dev")
    assert common_data(loaded_systems, "other", "test") == ("other", "test")

    folder = tmp_path / "data"
    folder.mkdir()
    same_folder = tmp_path / "a" / ".." / "data"
    first, second, *_ = loaded_systems
    by_path = replace(first, dataset=str(folder))
    by_other_path = replace(second, dataset=str(same_folder))
    pair = [by_path, by_other_path]
    assert common_data(pair) == (str(folder), "dev")
    monkeypatch.setenv("CLAIM2SOURCE_DATA", str(tmp_path))  # a name and its folder
    by_name = replace(by_path, dataset="data")
    assert common_data([by_name, by_other_path]) == ("data", "dev")

    demo = replace(first, dataset="demo")
    mixed_systems = [demo, *loaded_systems[1:]]
    with refused(UserError, "dataset: ", "'demo' (a/model); 'd' "):
        common_data(mixed_systems)
    assert common_data(mixed_systems, "demo") == ("demo", "dev")

    test = replace(first, split="test")
    mixed_splits = [test, *loaded_systems]
    with refused(UserError, "split: ", "--split"):
        common_data(mixed_splits)
    assert common_data(mixed_splits, split="dev") == ("d", "dev")


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (
            lambda raw: raw.pop("version"),
            "version: ",
        ),
        (
            lambda raw: raw.update(version=2),
            "version: 2; ",
        ),
        (
            lambda raw: raw["systems"]["model"].update(other=1),
            "systems.model.other: ",
        ),
        (
            lambda raw: raw["systems"]["model"].pop("system"),
            "systems.model.system: ",
        ),
        (
            lambda raw: raw["systems"]["model"]["cost"].update(seconds="1"),
            "cost.seconds: ",
        ),
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
    chosen = replace(report.systems["model"], choices=(choice,))
    report = replace(report, systems={"model": chosen}, chosen="model")
    raw = report.to_json()
    system = raw["systems"]["model"]
    raw["choices"] = system.pop("choices")
    path = tmp_path / "report.json"
    path.write_text(json.dumps(raw))
    assert Report.read(tmp_path) == report


def test_headline_scores_stand_at_the_top_and_are_read_back(tmp_path: Path) -> None:
    headline = {"map": 0.5, "macro_f1": None}
    report = Report("d", "dev", {}, headline=headline)
    report.write(tmp_path)
    path = tmp_path / "report.json"
    raw = json.loads(path.read_text())
    assert raw["map"] == 0.5
    assert raw["macro_f1"] is None
    assert raw["headline"] == ["map", "macro_f1"]
    assert Report.read(tmp_path) == report
    # Without any, a report is as it was; a number that nothing names is still refused.
    plain = Report("d", "dev", {})
    assert "headline" not in plain.to_json()
    unnamed = {**raw, "more": 1.0}
    one_less = {**raw, "headline": ["map"]}
    no_list = {**raw, "headline": "map"}
    for wrong in (unnamed, one_less, no_list):
        path.write_text(json.dumps(wrong))
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
    tables = {"languages": {"en": row}, "macro": row}
    system = {
        **tables,
        "intervals": {"mrr@5": {"macro": (0.2, 0.6)}},
        "cost": {"seconds": 1.0},
        "failures": {"late": 2},
    }
    report = write_report(tmp_path, {"a": system}, tests=(family,), **tables)
    assert Report.read(tmp_path) == report

    path = tmp_path / "report.json"
    values = json.loads(path.read_text())
    *groups, last = place.split(".")
    part = values
    for group in groups:
        part = part[int(group)] if isinstance(part, list) else part[group]
    part[last] = value
    path.write_text(json.dumps(values))
    with pytest.raises(InputError) as error:
        Report.read(tmp_path)
    field = str(error.value.problems[0].field)
    parent = place.rpartition(".")[0]
    assert field.startswith(parent)
