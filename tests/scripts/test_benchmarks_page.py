"""The page is made from docs/results; a report's rows and tests are shown as in the report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.errors import InputError, UserError
from claim2source.core.report import Report
from claim2source.data.loading import load
from claim2source.evaluation.compare import compare
from claim2source.evaluation.evaluate import evaluate
from claim2source.search.bm25 import BM25
from scripts.benchmarks_page import Benchmarks, main
from tests.refusals import refused
from tests.shared_data import REPOSITORY

RESULTS = REPOSITORY / "docs" / "results"
WORDS = """
introduction: Words.
sets:
  - {set: demo dev, figures: bm25, date: 2026-11-26, command: claim2source x, rows: {B: stems}}
  - {set: demo dev, metric: recall@5, figures: bm25, date: 2026-11-26, command: claim2source x, rows: {R: words}}
findings: [{text: "Stems help:", tests: [[bm25, words, stems]]}]
did_not_help: [{text: Nothing.}]
"""


def test_the_page_is_made_of_its_figures(tmp_path: Path) -> None:
    page = (REPOSITORY / "BENCHMARKS.md").read_text(encoding="utf-8")
    assert Benchmarks(RESULTS).page() == page, (
        "run python scripts/benchmarks_page.py --results docs/results --out BENCHMARKS.md"
    )
    assert len(page.encode()) < 12_000
    links = re.findall(r"\]\((docs/results/[^)]+)\)", page)
    assert {REPOSITORY / link for link in links} == {*RESULTS.glob("*.md")}
    # No file of figures is left that no page shows.
    words = (RESULTS / "benchmarks.yaml").read_text(encoding="utf-8")
    for path in RESULTS.glob("*.md"):
        words += path.read_text(encoding="utf-8")
    assert all(re.search(rf"\b{path.stem}\b", words) for path in RESULTS.glob("*.json"))


@pytest.fixture(scope="module")
def report() -> Report:
    dev = load("demo", "dev")
    dev = dev.with_claims(dev.claims[:60])
    results = {
        "stems": BM25().index(dev.sources).search(dev.claims),
        "words": BM25(stemmer=False).index(dev.sources).search(dev.claims),
    }
    tests = compare(results, dev, baseline="stems", repeats=200).tests
    return replace(evaluate(results, dev, repeats=200), tests=tests)


def test_a_report_is_shown_as_it_was_written(tmp_path: Path, report: Report) -> None:
    report.write(tmp_path)
    (tmp_path / "report.json").rename(tmp_path / "bm25.json")
    (tmp_path / "benchmarks.yaml").write_text(WORDS, encoding="utf-8")
    out = tmp_path / "B.md"
    main(["--results", str(tmp_path), "--out", str(out)])
    page = out.read_text(encoding="utf-8")
    first, second = report.systems["stems"], report.systems["words"]
    assert f"| demo dev | B | {first.macro['mrr@5']:.4f} | {first.bounds('macro')} |" in page
    assert f"| demo dev, recall@5 | R | {second.macro['recall@5']:.4f} |" in page
    assert page.count("claim2source x") == 1  # one command, both rows
    (test,) = [comparison for family in report.tests for comparison in family.comparisons][:1]
    assert (
        f"{test.difference:+.4f} ({test.low:+.4f} to {test.high:+.4f}; p {test.p_holm:.4f})" in page
    )
    # A page that someone else wrote stays.
    out.write_text("# Mine\n", encoding="utf-8")
    with refused(UserError, out):
        main(["--results", str(tmp_path), "--out", str(out)])


@pytest.mark.parametrize(
    ("before", "after", "fact"),
    [
        ("{B: stems}", "{B: stem}", "row 'stem'"),
        ("[bm25, words, stems]", "[bm25, stems, words]", "test of 'stems'"),
        ("figures: bm25", "figures: bm52", "bm52.json"),
        ("date: 2026-11-26, ", "", "date"),
    ],
)
def test_words_without_figures_are_refused(
    before: str, after: str, fact: str, tmp_path: Path, report: Report
) -> None:
    report.write(tmp_path)
    (tmp_path / "report.json").rename(tmp_path / "bm25.json")
    (tmp_path / "benchmarks.yaml").write_text(WORDS.replace(before, after), encoding="utf-8")
    with refused(InputError, fact):
        Benchmarks(tmp_path).page()
    assert json.loads((tmp_path / "bm25.json").read_text())["systems"]
