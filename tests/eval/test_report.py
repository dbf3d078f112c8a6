"""`eval/report.py --html`: one file, no network, hostile text shown as text, claims to filter."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.eval.report import main

from claim2source.core.errors import UserError, run_program
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import FILE, Choice, Report, SystemReport, TrainingReport, Trial
from claim2source.core.run import Run
from claim2source.data.beir import write_beir
from claim2source.data.trec import write_trec_run
from claim2source.evaluation.compare import ScoredRuns
from claim2source.evaluation.evaluate import evaluate as evaluate_result
from claim2source.evaluation.html import page as report
from claim2source.evaluation.html import sections
from claim2source.evaluation.reports import LoadedSystem
from claim2source.metrics.metrics import Scores
from tests.refusals import refused
from tests.report_files import write_report

EVIL = '<script>document.title="owned"</script><img src=x onerror="document.title=1">'
NAME = "a$b<i>&amp;"


def data() -> Dataset:
    claims = [
        Claim("c1", f"post {EVIL} \u202e{'w' * 400}", "en", golds=("p1",)),
        Claim("c2", "beide finden es", "de", f"translated {EVIL}", ("p2",)),
        Claim("c3", "keiner findet es", "de", golds=("p3",)),
        Claim("c4", "only the second", "en", golds=("p3",)),
    ]
    sources = (
        Source("p1", f"Title {EVIL}"),
        Source("p2", "Second"),
        Source("p3", "", "Body"),
    )
    qrels = Qrels({c.id: {c.golds[0]: 1} for c in claims})
    return Dataset(tuple(claims), sources, qrels, "dev")


def ranked(*lists: str) -> dict[str, list[tuple[str, float]]]:
    """The sources of c1, c2 and so on, best first."""
    found = {}
    for i, ranking in enumerate(lists, 1):
        sources = ranking.split()
        found[f"c{i}"] = [(s, -float(rank)) for rank, s in enumerate(sources)]
    return found


RUNS = {
    "epoch-0": ranked("p1 p2", "p2", "p1", "p1 p3"),
    "epoch-1": ranked("p2", "p2", "p1", "p3 gone"),
}


def save(root: Path) -> tuple[Path, Path]:
    dataset = data()
    folder = root / "data"
    write_beir([dataset], folder)
    out = root / "run"
    forms = ("original", "bilingual")
    ids_by_language = {"en": ["c1", "c4"], "de": ["c2", "c3"]}
    reports = {}
    for i, (name, lists) in enumerate(RUNS.items()):
        run = Run.from_lists(lists)
        result = evaluate_result(run, dataset, repeats=0)
        reports[name] = {
            "model": NAME,
            "system": NAME,
            "claims": forms[i],
            "sources": "metadata",
            "cost": {"seconds": 2.0 + i, "claims": 4},
            "languages": result.languages,
            "macro": result.macro,
            "runs": f"{name}/runs",
        }
        for lang, ids in ids_by_language.items():
            part = run.restricted(ids)
            write_trec_run(part, out / name / "runs" / f"{lang}.trec")
    write_report(out, reports)
    return folder, out


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    folder, reports = save(root)
    out = root / "out.html"
    words = [
        f"--reports={reports}",
        f"--dataset={folder}",
        f"--html={out}",
        "--repeats=200",
    ]
    main(words)
    return out


class Reader(HTMLParser):
    """Tags with attributes, and the text within claims."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def test_hostile_text_is_text(read: Reader, page: Path) -> None:
    tags = [tag for tag, _ in read.tags]
    assert tags.count("script") == 1
    assert not {"img", "iframe", "object", "link", "i"} & {*tags}
    for _, attributes in read.tags:
        assert not any(name.startswith("on") for name in attributes)
    text = "".join(read.text)
    assert text.count(EVIL) == 5  # post, translation, and the title in the tables of all claims
    assert "Second" in text


def digest(text: str) -> str:
    """A text's SHA-256, as a policy of contents states it."""
    hashed = hashlib.sha256(text.encode()).digest()
    return base64.b64encode(hashed).decode()


def test_only_our_script_may_run_and_nothing_is_loaded(read: Reader, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>\n</body>", text, re.DOTALL)
    policy = next(a["content"] for t, a in read.tags if a.get("http-equiv"))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{digest(style)}'; "
        f"script-src 'sha256-{digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    for _, attributes in read.tags:
        assert "style" not in attributes
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                address = value or ""
                assert address.startswith("#")
    assert "url(http" not in text
    assert "@import" not in text


def test_every_section_is_there(read: Reader, page: Path) -> None:
    tags = [tag for tag, _ in read.tags]
    assert tags.count("svg") == 5  # tables of shaded numbers have none
    text = "".join(read.text)
    for heading in (
        "Score by language",
        "Difference from epoch-0",
        "Learning curve",
        "Recall by depth",
        "Rank of the gold",
        "Systems and representations, macro mrr@5",
        "Cost against quality",
    ):
        assert heading in text
    assert NAME in text  # a model's name with markup and a dollar sign
    for value in (
        "0.7500",
        "1.0000",
        "items/s",
        "too few papers differ",
    ):
        assert value in text
    for family in (
        "All against epoch-0",
        "All against epoch-0, de claims (a family of its own)",
    ):
        assert f"Tests: {family}" in text
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"mathdefault|/tmp/|file:", html)


def test_links_lead_somewhere(read: Reader) -> None:
    ids = [a["id"] for _, a in read.tags if "id" in a]
    anchors = [a for tag, a in read.tags if tag == "a"]
    links = {(a["href"] or "")[1:] for a in anchors}
    assert len(set(ids)) == len(ids)
    assert links <= set(ids)
    # Every claim has a link, and the ranks link to their claims.
    claims = {f"claim-{claim}" for claim in range(4)}
    assert claims <= links
    asked = [str(a["data-ranks"]) for a in anchors if "data-ranks" in a]
    assert sorted(asked) == [
        "0:0:0 1:0:0",
        "0:1:1 1:0:0",
        "0:1:1 1:1:1",
        "0:2:5 1:1:1",
    ]


def saved(folder: str, system: str = "BM25", form: str = "original") -> LoadedSystem:
    report = SystemReport(
        folder,
        "bm25",
        system,
        claims=form,
        runs="runs",
    )
    return LoadedSystem(report, Path(folder), "d", "dev")


def compared_of(systems: dict[str, LoadedSystem], macro: dict[str, float]) -> sections.PageData:
    """Systems of whose claims each has its macro score."""
    ids = tuple(c.id for c in data().claims if c.lang == "en")
    scores = {}
    for name, value in macro.items():
        values = np.full(len(ids), value)
        scores[name] = Scores(ids, {"mrr@5": values})
    baseline = next(iter(macro))
    scored = ScoredRuns(data(), "mrr@5", baseline, {}, scores)
    return sections.PageData(scored, systems, 10, 0)


def test_every_run_has_a_learning_curve_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plots: list[Any] = []

    def line_plot(lines: Any, *_: Any) -> str:
        plots.append(lines)
        return "svg"

    monkeypatch.setattr(sections, "line_plot", line_plot)

    def row(run: str, name: str) -> LoadedSystem:
        system, _, _ = name.partition(".")
        report = SystemReport(name, "m", system)
        folder = Path(f"{run}/evaluation")
        return LoadedSystem(report, folder, "d", "dev")

    systems = {}
    for run in ("r1", "r2"):
        for i in (1, 0):
            systems[f"{run} {i}"] = row(run, f"epoch-{i}")
    systems["r3"] = row("r3", "epoch-0")  # one point is no curve
    for i in (0, 1):
        systems[f"H {i}"] = row("r1", f"epoch-{i}+H.bilingual")
    for i in (0, 1):
        systems[f"stage {i}"] = row("r1", f"epoch-{i}+S.bilingual: first stage")
    macro = {name: i / 10 for i, name in enumerate(systems)}
    compared = compared_of(systems, macro)
    sections._learning_curve(compared)
    curves = {
        "r1: epochs": (0.1, 0.0),
        "r2: epochs": (0.3, 0.2),
        "r1: epochs+H.bilingual": (0.5, 0.6),
    }
    expected = {name: [*enumerate(line)] for name, line in curves.items()}
    assert plots == [expected]

    first_two = dict([*systems.items()][:2])
    compared = compared_of(first_two, macro)
    sections._learning_curve(compared)
    assert list(plots[1]) == ["evaluation: epochs"]


def test_fewer_languages_and_a_metric_of_no_report_fill_every_section(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, Any] = {}

    def log_tables(mode: Any, tables: Any, **_: Any) -> None:
        logged.update(tables)

    monkeypatch.setattr(report, "log_tables", log_tables)
    out = tmp_path / "o.html"
    words = [
        f"--reports={page.parent / 'run'}",
        f"--dataset={page.parent / 'data'}",
        f"--html={out}",
        "--repeats=20",
        "--languages=en",
        "--metric=mrr@7",
    ]
    main(words)
    # Of the two English claims epoch-0 has one at rank 1 and one at 2, epoch-1 only one.
    cost_rows = logged["Cost against quality"].rows
    scores = {row[0]: row[1] for row in cost_rows}
    assert scores == {"epoch-0": 0.75, "epoch-1": 0.5}
    by_language = logged["Score by language"]
    english = {row[0]: float(row[1][:6]) for row in by_language.rows}
    assert english == scores
    assert list(by_language.columns) == ["system", "en"]  # one language: its macro is itself
    costs = [row[-5:-3] for row in cost_rows]
    assert costs == [["2.0", "2.0"], ["3.0", "1.3"]]
    text = out.read_text()
    for heading in (
        "Learning curve",
        "Systems and representations",
        "in all languages",
    ):
        assert heading in text


def test_languages_that_no_report_scored_are_not_counted(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = page.parent / "run"
    original = json.loads((reports / FILE).read_text())
    english = tmp_path / "en"
    mixed = tmp_path / "mixed"
    # Each report is next to the runs of all languages.
    for folder, languages in (
        (english, {"epoch-0": ["en"], "epoch-1": ["en"]}),
        (mixed, {"epoch-0": ["en"], "epoch-1": ["en", "de"]}),
    ):
        shutil.copytree(reports, folder)
        record = copy.deepcopy(original)
        for name, langs in languages.items():
            system = record["systems"][name]
            table = system["languages"]
            system["languages"] = {lang: table[lang] for lang in langs}
        (folder / FILE).write_text(json.dumps(record))
    words = [f"--dataset={page.parent / 'data'}", "--repeats=20"]
    out = tmp_path / "out"
    main([f"--reports={english}", *words, f"--out={out}"])
    compared = json.loads((out / "compare.json").read_text())
    scores = compared["scores"]
    assert set(scores) == {"macro", "en"}
    assert scores["macro"]["epoch-0"]["value"] == 0.75
    capsys.readouterr()
    with refused(UserError, "languages: ", "'en' (epoch-0)", "'de en", "--languages"):
        main([f"--reports={mixed}", *words])
    main([f"--reports={mixed}", *words, "--languages=en"])


def test_the_table_of_forms_has_a_row_for_each_system() -> None:
    """Two systems of one model are two rows, one system over two forms is one."""
    forms = ("original", "bilingual")
    names = ("BM25", "BM25-metadata")
    systems = {}
    for name in names:
        for form in forms:
            key = f"{name}.{form}"
            systems[key] = saved(key, name, form)
    macro = {name: i / 10 for i, name in enumerate(systems)}
    compared = compared_of(systems, macro)
    (shaded,) = sections._representations(compared).shaded
    rows = shaded.table.rows
    assert list(shaded.table.columns) == ["system", *forms]
    assert [row[0] for row in rows] == [*names]
    values = [float(cell or 0) for row in rows for cell in row[1:]]
    assert values == [i / 10 for i in range(4)]
    assert shaded.levels == [[0, 3], [6, 9]]
    # The same system of two folders, for example with other rewritings, has two rows.
    renamed = {}
    for folder in "ab":
        for form in forms:
            key = f"BM25.{form}"
            alias = f"{folder}/{key}"
            renamed[alias] = replace(systems[key], alias=alias)
    equal = dict.fromkeys(renamed, 0.5)
    compared = compared_of(renamed, equal)
    (shaded,) = sections._representations(compared).shaded
    assert [row[0] for row in shaded.table.rows] == list(renamed)
    # With one form there is one number per system, which the scores already have.
    part = {name: system for name, system in systems.items() if system.report.claims == "original"}
    compared = compared_of(part, macro)
    assert not sections._representations(compared).tables


def write_training(root: Path, i: int, name: str) -> Path:
    """The report of a training in its folder, with what was chosen on val."""
    run = Run.from_lists(RUNS["epoch-0"])
    trials = []
    for n in range(3):
        score = 0.25 + i / 8 + n / 16
        trials.append(Trial({"epoch": n}, score))
    choice = Choice(
        "checkpoint",
        {"epoch": 1},
        0.3125,
        "val",
        40,
        tried=tuple(trials),
        compared=3,
    )
    choice = replace(
        choice,
        rule="one_se",
        best={"epoch": 2},
        error=0.0123,
        reason=f"why {name}",
    )
    fusion = replace(
        choice,
        what="scale",
        settings={"scale": 0.7},
        compared=77,
        tried=(),
    )
    scores = evaluate_result(run, data(), repeats=0)
    entry = {
        "languages": scores.languages,
        "macro": scores.macro,
        "val": {
            "val, seen papers": {"macro": {"mrr@5": 0.1234}},
            "val, unseen papers": {"macro": {"mrr@5": 0.2234}},
        },
        "choices": (fusion,),
        "runs": "runs",
    }
    training = TrainingReport(
        (),
        "best",
        1,
        "checkpoints/epoch-1",
        choice=choice,
    )
    folder = root / name
    dataset = str(root / "data")
    write_report(folder, {f"epoch-{i}": entry}, dataset, training=training)
    for lang in ("en", "de"):
        claims = [claim.id for claim in data().claims if claim.lang == lang]
        file = folder / "runs" / f"{lang}.trec"
        write_trec_run(run.restricted(claims), file, "t")
    return folder


def test_what_was_chosen_on_val_is_shown_with_what_was_compared(tmp_path: Path) -> None:
    """Two trainings have distinct names; a choice that is not the best has a reason."""
    write_beir([data()], tmp_path / "data")
    folders = []
    for i, name in enumerate(("one", "two")):
        folder = write_training(tmp_path, i, name)
        folders.append(str(folder))
    out = tmp_path / "page.html"
    main(["--reports", *folders, f"--html={out}", "--repeats=5"])
    read = Reader()
    read.feed(out.read_text())
    cells = [text.strip() for text in read.text]
    for text in (
        "Chosen on val",
        "val, seen papers",
        "0.1234",
        "0.2234",
        "Compared: two",
    ):
        assert text in cells, text
    for text in (
        "epoch 2",
        "0.3750",
        "0.5000",
        "best",
        "chosen",
        "0.0123",
        "77",
        "why one",
    ):
        assert text in cells, text
    assert "40 claims of val" in cells
    assert "scale 0.7" in cells
    without = compared_of({"a": saved("a")}, {"a": 0.5})
    assert not sections._choices(without).tables


def claims_dataset(read: Reader) -> list[dict[str, Any]]:
    return [a for tag, a in read.tags if tag == "details" and a.get("class") == "claim"]


def test_claims_have_language_and_winner(read: Reader) -> None:
    tags = [(a["data-language"], a["data-tag"]) for a in claims_dataset(read)]
    # Those that systems differ on come first: c1 by 1, c4 by one half, then the others.
    assert tags == [
        ("en", "epoch-0"),
        ("en", "epoch-1"),
        ("de", "several"),
        ("de", "nobody"),
    ]
    options = "".join(read.text)
    for name in ("several", "nobody", "4 of 4 claims"):
        assert name in options


def test_golds_are_marked_among_the_ranks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count('<th scope="row" class="gold">') == 4
    # A source that the collection lacks, and a gold that a system does not find.
    row = '<tr><th scope="row"{}><bdi>{}</bdi></th><td>{}</td><td>{}</td></tr>'
    lacking = row.format("", "gone", "-", 2)
    assert lacking in text
    gold = row.format(' class="gold"', "Body (p3)", "-", "-")
    assert gold in text


def test_fewer_claims_and_one_system(tmp_path: Path) -> None:
    folder, reports = save(tmp_path)
    both = Report.read(reports)
    system = replace(both.systems["epoch-1"], runs="runs")
    one = reports / "epoch-1"
    Report("data", "dev", {"epoch-1": system}).write(one)
    out = tmp_path / "o.html"
    words = [
        f"--reports={one}",
        f"--dataset={folder}",
        f"--html={out}",
        "--claims=1",
        "--repeats=20",
    ]
    main(words)
    reader = Reader()
    reader.feed(out.read_text())
    assert len(claims_dataset(reader)) == 1
    text = "".join(reader.text)
    assert "epoch-1 has mrr@5 0.500 (95 % interval" in text
    assert "1 of 4 claims" in text
    assert "Holm" not in text
    assert "Learning curve" not in text


@pytest.mark.slow
def test_reports_alone_say_what_they_are_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, reports = save(tmp_path)
    dev = replace(Report.read(reports), dataset=str(folder))
    dev.write(reports)
    out = tmp_path / "o.html"
    main([f"--reports={reports}", f"--html={out}", "--repeats=20"])
    assert "<title>data, dev: mrr@5</title>" in out.read_text()

    last = {"epoch-1": dev.systems["epoch-1"]}
    test = replace(dev, split="test", systems=last)
    other = tmp_path / "other"
    test.write(other)
    none = tmp_path / "p.html"
    words = [
        f"--reports={reports}",
        f"--reports={other}",
        f"--html={none}",
    ]
    with pytest.raises(SystemExit):
        run_program(main, words)
    output = capsys.readouterr().err
    assert "split: the reports differ: 'dev' (epoch-0, " in output
    assert "); 'test' (" in output
    assert not none.exists()
