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
    sources = (Source("p1", f"Title {EVIL}"), Source("p2", "Second"), Source("p3", "", "Body"))
    qrels = Qrels({c.id: {c.golds[0]: 1} for c in claims})
    return Dataset(tuple(claims), sources, qrels, "dev")


def ranked(*lists: str) -> dict[str, list[tuple[str, float]]]:
    """The sources of c1, c2 and so on, best first."""
    scored = [[(s, -float(rank)) for rank, s in enumerate(ranking.split())] for ranking in lists]
    return {f"c{i}": ranking for i, ranking in enumerate(scored, 1)}


RUNS = {
    "epoch-0": ranked("p1 p2", "p2", "p1", "p1 p3"),
    "epoch-1": ranked("p2", "p2", "p1", "p3 gone"),
}


def save(root: Path) -> tuple[Path, Path]:
    dataset = data()
    write_beir([dataset], root / "data")
    reports = {}
    for i, (name, lists) in enumerate(RUNS.items()):
        run = Run.from_lists(lists)
        result = evaluate_result(run, dataset, repeats=0)
        reports[name] = {
            "model": NAME,
            "system": NAME,
            "claims": ("original", "bilingual")[i],
            "sources": "metadata",
            "cost": {"seconds": 2.0 + i, "claims": 4},
            "languages": result.languages,
            "macro": result.macro,
            "runs": f"{name}/runs",
        }
        for lang, ids in (("en", ["c1", "c4"]), ("de", ["c2", "c3"])):
            write_trec_run(run.restricted(ids), root / "run" / name / "runs" / f"{lang}.trec")
    write_report(root / "run", reports)
    return root / "data", root / "run"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    folder, reports = save(root)
    out = root / "out.html"
    main([f"--reports={reports}", f"--dataset={folder}", f"--html={out}", "--repeats=200"])
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
    assert [tag for tag, _ in read.tags].count("script") == 1
    assert not [tag for tag, _ in read.tags if tag in ("img", "iframe", "object", "link", "i")]
    assert not [a for _, attributes in read.tags for a in attributes if a.startswith("on")]
    text = "".join(read.text)
    assert text.count(EVIL) == 5  # post, translation, and the title in the tables of all claims
    assert "Second" in text


def test_only_our_script_may_run_and_nothing_is_loaded(read: Reader, page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>\n</body>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for t, a in read.tags if a.get("http-equiv"))
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    styled = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{styled}'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    assert not [a for _, attributes in read.tags for a in attributes if a == "style"]
    for _, attributes in read.tags:
        for name, value in attributes.items():
            if name in ("src", "href", "xlink:href"):
                assert (value or "").startswith("#")
    assert "url(http" not in text and "@import" not in text


def test_every_section_is_there(read: Reader, page: Path) -> None:
    assert [tag for tag, _ in read.tags].count("svg") == 5  # tables of shaded numbers have none
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
    for value in ("0.7500", "1.0000", "items/s", "too few papers differ"):
        assert value in text
    for family in ("All against epoch-0", "All against epoch-0, de claims (a family of its own)"):
        assert f"Tests: {family}" in text
    assert not re.search(r"mathdefault|/tmp/|file:", page.read_text(encoding="utf-8"))


def test_links_lead_somewhere(read: Reader) -> None:
    ids = [a["id"] for _, a in read.tags if "id" in a]
    links = [(a["href"] or "")[1:] for tag, a in read.tags if tag == "a"]
    assert len(set(ids)) == len(ids) and set(links) <= set(ids)
    # Every claim has a link, and the ranks link to their claims.
    assert {f"claim-{claim}" for claim in range(4)} <= set(links)
    asked = [str(a["data-ranks"]) for tag, a in read.tags if tag == "a" and "data-ranks" in a]
    assert sorted(asked) == ["0:0:0 1:0:0", "0:1:1 1:0:0", "0:1:1 1:1:1", "0:2:5 1:1:1"]


def saved(folder: str, system: str = "BM25", form: str = "original") -> LoadedSystem:
    report = SystemReport(folder, "bm25", system, claims=form, runs="runs")
    return LoadedSystem(report, Path(folder), "d", "dev")


def compared_of(systems: dict[str, LoadedSystem], macro: dict[str, float]) -> sections.PageData:
    """Systems of whose claims each has its macro score."""
    claims = [c for c in data().claims if c.lang == "en"]
    values = {n: {"mrr@5": np.full(len(claims), v)} for n, v in macro.items()}
    scores = {n: Scores(tuple(c.id for c in claims), v) for n, v in values.items()}
    scored = ScoredRuns(data(), "mrr@5", next(iter(macro)), {}, scores)
    return sections.PageData(scored, systems, 10, 0)


def test_every_run_has_a_learning_curve_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plots: list[Any] = []
    monkeypatch.setattr(sections, "line_plot", lambda lines, *_: plots.append(lines) or "svg")

    def row(run: str, name: str) -> LoadedSystem:
        report = SystemReport(name, "m", name.partition(".")[0])
        return LoadedSystem(report, Path(f"{run}/evaluation"), "d", "dev")

    systems = {f"{run} {i}": row(run, f"epoch-{i}") for run in ("r1", "r2") for i in (1, 0)}
    systems["r3"] = row("r3", "epoch-0")  # one point is no curve
    systems |= {f"H {i}": row("r1", f"epoch-{i}+H.bilingual") for i in (0, 1)}
    systems |= {f"stage {i}": row("r1", f"epoch-{i}+S.bilingual: first stage") for i in (0, 1)}
    macro = {name: i / 10 for i, name in enumerate(systems)}
    sections._learning_curve(compared_of(systems, macro))
    curves = {"r1: epochs": (0.1, 0.0), "r2: epochs": (0.3, 0.2)}
    curves["r1: epochs+H.bilingual"] = (0.5, 0.6)
    assert plots == [{name: [*enumerate(line)] for name, line in curves.items()}]
    sections._learning_curve(compared_of(dict([*systems.items()][:2]), macro))
    assert list(plots[1]) == ["evaluation: epochs"]


def test_fewer_languages_and_a_metric_of_no_report_fill_every_section(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: dict[str, Any] = {}
    monkeypatch.setattr(report, "log_tables", lambda mode, tables, **_: logged.update(tables))
    words = [f"--reports={page.parent / 'run'}", f"--dataset={page.parent / 'data'}"]
    words += [f"--html={tmp_path / 'o.html'}", "--repeats=20"]
    main([*words, "--languages=en", "--metric=mrr@7"])
    # Of the two English claims epoch-0 has one at rank 1 and one at 2, epoch-1 only one.
    cost = {row[0]: row[1] for row in logged["Cost against quality"].rows}
    assert cost == {"epoch-0": 0.75, "epoch-1": 0.5}
    by_language = logged["Score by language"]
    assert {row[0]: float(row[1][:6]) for row in by_language.rows} == cost
    assert list(by_language.columns) == ["system", "en"]  # one language: its macro is itself
    costs = [row[-5:-3] for row in logged["Cost against quality"].rows]
    assert costs == [["2.0", "2.0"], ["3.0", "1.3"]]
    text = (tmp_path / "o.html").read_text()
    for heading in ("Learning curve", "Systems and representations", "in all languages"):
        assert heading in text


def test_languages_that_no_report_scored_are_not_counted(
    page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = page.parent / "run" / FILE
    original = json.loads(path.read_text())
    # Each report is next to the runs of all languages.
    for name, languages in (
        ("en", {"epoch-0": ["en"], "epoch-1": ["en"]}),
        ("mixed", {"epoch-0": ["en"], "epoch-1": ["en", "de"]}),
    ):
        shutil.copytree(page.parent / "run", tmp_path / name)
        record = copy.deepcopy(original)
        for system, langs in languages.items():
            table = record["systems"][system]["languages"]
            record["systems"][system]["languages"] = {lang: table[lang] for lang in langs}
        (tmp_path / name / FILE).write_text(json.dumps(record))
    words = [f"--dataset={page.parent / 'data'}", "--repeats=20"]
    main([f"--reports={tmp_path / 'en'}", *words, f"--out={tmp_path / 'out'}"])
    scores = json.loads((tmp_path / "out" / "compare.json").read_text())["scores"]
    assert set(scores) == {"macro", "en"} and scores["macro"]["epoch-0"]["value"] == 0.75
    capsys.readouterr()
    with refused(UserError, "languages: ", "'en' (epoch-0)", "'de en", "--languages"):
        main([f"--reports={tmp_path / 'mixed'}", *words])
    main([f"--reports={tmp_path / 'mixed'}", *words, "--languages=en"])


def test_the_table_of_forms_has_a_row_for_each_system() -> None:
    """Two systems of one model are two rows, one system over two forms is one."""
    forms, names = ("original", "bilingual"), ("BM25", "BM25-metadata")
    systems = {f"{n}.{form}": saved(f"{n}.{form}", n, form) for n in names for form in forms}
    macro = {name: i / 10 for i, name in enumerate(systems)}
    (shaded,) = sections._representations(compared_of(systems, macro)).shaded
    assert list(shaded.table.columns) == ["system", *forms]
    assert [row[0] for row in shaded.table.rows] == [*names]
    values = [float(cell or 0) for row in shaded.table.rows for cell in row[1:]]
    assert values == [i / 10 for i in range(4)]
    assert shaded.levels == [[0, 3], [6, 9]]
    # The same system of two folders, for example with other rewritings, has two rows.
    aliases = [f"{folder}/BM25.{form}" for folder in "ab" for form in forms]
    renamed = {alias: replace(systems[alias[2:]], alias=alias) for alias in aliases}
    (shaded,) = sections._representations(compared_of(renamed, dict.fromkeys(renamed, 0.5))).shaded
    assert [row[0] for row in shaded.table.rows] == list(renamed)
    # With one form there is one number per system, which the scores already have.
    part = {name: system for name, system in systems.items() if system.report.claims == "original"}
    assert not sections._representations(compared_of(part, macro)).tables


def test_what_was_chosen_on_val_is_shown_with_what_was_compared(tmp_path: Path) -> None:
    """Two trainings have distinct names; a choice that is not the best has a reason."""
    run = Run.from_lists(RUNS["epoch-0"])
    write_beir([data()], tmp_path / "data")
    folders = []
    for i, name in enumerate(("one", "two")):
        trials = tuple(Trial({"epoch": n}, 0.25 + i / 8 + n / 16) for n in range(3))
        choice = Choice("checkpoint", {"epoch": 1}, 0.3125, "val", 40, tried=trials, compared=3)
        choice = replace(
            choice, rule="one_se", best={"epoch": 2}, error=0.0123, reason=f"why {name}"
        )
        fusion = replace(choice, what="scale", settings={"scale": 0.7}, compared=77, tried=())
        scores = evaluate_result(run, data(), repeats=0)
        parts = {"seen": 0.1234, "unseen": 0.2234}
        val = {f"val, {part} papers": {"macro": {"mrr@5": v}} for part, v in parts.items()}
        entry = {"languages": scores.languages, "macro": scores.macro, "val": val}
        entry |= {"choices": (fusion,), "runs": "runs"}
        training = TrainingReport((), "best", 1, "checkpoints/epoch-1", choice=choice)
        folder = tmp_path / name
        write_report(folder, {f"epoch-{i}": entry}, str(tmp_path / "data"), training=training)
        for lang in ("en", "de"):
            claims = [claim.id for claim in data().claims if claim.lang == lang]
            write_trec_run(run.restricted(claims), folder / "runs" / f"{lang}.trec", "t")
        folders.append(str(folder))
    out = tmp_path / "page.html"
    main(["--reports", *folders, f"--html={out}", "--repeats=5"])
    read = Reader()
    read.feed(out.read_text())
    cells = [text.strip() for text in read.text]
    for text in ("Chosen on val", "val, seen papers", "0.1234", "0.2234", "Compared: two"):
        assert text in cells, text
    for text in ("epoch 2", "0.3750", "0.5000", "best", "chosen", "0.0123", "77", "why one"):
        assert text in cells, text
    assert "40 claims of val" in cells and "scale 0.7" in cells
    assert not sections._choices(compared_of({"a": saved("a")}, {"a": 0.5})).tables


def claims_dataset(read: Reader) -> list[dict[str, Any]]:
    return [a for tag, a in read.tags if tag == "details" and a.get("class") == "claim"]


def test_claims_have_language_and_winner(read: Reader) -> None:
    tags = [(a["data-language"], a["data-tag"]) for a in claims_dataset(read)]
    # Those that systems differ on come first: c1 by 1, c4 by one half, then the others.
    assert tags == [("en", "epoch-0"), ("en", "epoch-1"), ("de", "several"), ("de", "nobody")]
    options = "".join(read.text)
    assert all(name in options for name in ("several", "nobody", "4 of 4 claims"))


def test_golds_are_marked_among_the_ranks(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count('<th scope="row" class="gold">') == 4
    # A source that the collection lacks, and a gold that a system does not find.
    row = '<tr><th scope="row"{}><bdi>{}</bdi></th><td>{}</td><td>{}</td></tr>'
    assert row.format("", "gone", "-", 2) in text
    assert row.format(' class="gold"', "Body (p3)", "-", "-") in text


def test_fewer_claims_and_one_system(tmp_path: Path) -> None:
    folder, reports = save(tmp_path)
    system = replace(Report.read(reports).systems["epoch-1"], runs="runs")
    Report("data", "dev", {"epoch-1": system}).write(reports / "epoch-1")
    words = [f"--dataset={folder}", f"--html={tmp_path / 'o.html'}", "--claims=1", "--repeats=20"]
    main([f"--reports={reports / 'epoch-1'}", *words])
    reader = Reader()
    reader.feed((tmp_path / "o.html").read_text())
    assert len(claims_dataset(reader)) == 1
    text = "".join(reader.text)
    assert "epoch-1 has mrr@5 0.500 (95 % interval" in text
    assert "1 of 4 claims" in text and "Holm" not in text and "Learning curve" not in text


@pytest.mark.slow
def test_reports_alone_say_what_they_are_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, reports = save(tmp_path)
    dev = replace(Report.read(reports), dataset=str(folder))
    dev.write(reports)
    main([f"--reports={reports}", f"--html={tmp_path / 'o.html'}", "--repeats=20"])
    assert "<title>data, dev: mrr@5</title>" in (tmp_path / "o.html").read_text()
    test = replace(dev, split="test", systems={"epoch-1": dev.systems["epoch-1"]})
    test.write(tmp_path / "other")
    with pytest.raises(SystemExit):
        both = [f"--reports={folder}" for folder in (reports, tmp_path / "other")]
        run_program(main, [*both, f"--html={tmp_path / 'p.html'}"])
    output = capsys.readouterr().err
    assert "split: the reports differ: 'dev' (epoch-0, " in output and "); 'test' (" in output
    assert not (tmp_path / "p.html").exists()
