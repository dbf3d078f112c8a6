"""Rankings as others have them score as the same run of a file does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from datasets import Dataset as HFDataset

import claim2source as c2s
from claim2source.core.errors import UserError
from claim2source.core.records import Dataset
from claim2source.core.report import Report
from claim2source.core.run import Run
from claim2source.data.beir import write_beir
from tests.refusals import refused


@pytest.fixture(scope="module")
def dev() -> Dataset:
    return c2s.load("demo", "dev")


@pytest.fixture(scope="module")
def run(dev: Dataset) -> Run:
    return c2s.BM25().index(dev.sources).search(dev.claims).run


@pytest.fixture(scope="module")
def expected(dev: Dataset, run: Run, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The scores of the run, read from a BEIR folder and a TREC file."""
    folder = tmp_path_factory.mktemp("files")
    write_beir([dev], folder / "data")
    c2s.write_trec_run(run, folder / "run.trec")
    data = c2s.load(folder / "data", "dev")
    return c2s.evaluate(c2s.read_run(folder / "run.trec").run, data, repeats=50)


def require_equal(report: Report, expected: Report, name: str = "system") -> None:
    """All that is scored is equal, interval bounds included."""
    actual, target = report.systems[name], expected.systems["system"]
    assert (actual.languages, actual.macro) == (target.languages, target.macro)
    assert actual.intervals == target.intervals and actual.twins == target.twins


def scores_of(run: Run) -> dict[str, dict[str, float]]:
    return {claim: run.scored(claim) for claim in run.claim_ids}


def test_a_file_a_dict_and_tables_score_as_the_run_does(
    dev: Dataset, run: Run, expected: Report, tmp_path: Path
) -> None:
    c2s.write_trec_run(run, tmp_path / "run.trec")
    frame = run.to_pandas()
    shuffled = frame.sample(frac=1, random_state=1)
    columns = {"claim": "qid", "source": "docno"}
    # PyTerrier's columns: its own numbers and the claim's text, next to the ids.
    terrier = frame.rename(columns=columns).assign(docid=range(len(frame)), claim="a text")
    table = HFDataset.from_pandas(
        frame.rename(columns={"claim": "query-id", "source": "corpus-id"}), preserve_index=False
    )
    numbers = {
        claim: {source: np.float32(score) for source, score in ranked.items()}
        for claim, ranked in scores_of(run).items()
    }
    for ranking in (str(tmp_path / "run.trec"), numbers, shuffled, terrier, table):
        require_equal(c2s.evaluate(ranking, dev, repeats=50), expected)  # type: ignore[arg-type]
    by_name: dict[str, Any] = {
        "bm25": run,
        "mine": scores_of(run),
        "frame": frame,
        "file": tmp_path / "run.trec",
    }
    report = c2s.evaluate(by_name, dev, repeats=50)
    assert list(report.systems) == list(by_name)
    for name in by_name:
        require_equal(report, expected, name)
    both = c2s.evaluate({"a": scores_of(run), "b": scores_of(run)}, dev, repeats=50)
    assert list(both.systems) == ["a", "b"]
    compared = c2s.compare(by_name, dev, repeats=50)
    assert all(c.difference == 0 for test in compared.tests for c in test.comparisons)


def test_a_claim_without_sources_counts_and_a_repeated_source_has_its_best_score(
    dev: Dataset,
) -> None:
    english = dev.in_languages(["en"])
    first, second, *_ = english.claims
    report = c2s.evaluate({first.id: {first.golds[0]: 1}, second.id: {}}, english, repeats=0)
    assert report.macro["mrr@5"] == pytest.approx(1 / len(english.claims))
    rows = [(first.id, first.golds[0], 1.0), (first.id, "x", 2.0), (first.id, first.golds[0], 3.0)]
    frame = pd.DataFrame(rows, columns=["qid", "docid", "score"])
    assert c2s.evaluate(frame, english, repeats=0).macro["mrr@1"] > 0


def frame(**cells: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(cells)


WRONG: dict[str, tuple[Any, tuple[str, ...]]] = {
    "no claim": (
        frame(query=["a"], docid=["p"], score=[1]),
        ("system: ", "query-id or query_id or qid or claim", "query, docid, score"),
    ),
    "a text for a score": (
        frame(qid=["a", "a"], docid=["p", "q"], score=[1, "high"]),
        ("system:2: score: 'high'",),
    ),
    "an infinite score": (
        {"a": {"p": float("inf")}},
        ("system: score: inf", "claim 'a', source 'p'"),
    ),
    "other claims": ({"other": {"p1": 1.0}}, ("system: ", "'other'")),
    "nothing": ({}, ("system: ", " 0 claims")),
    "a list": ([("a", "p", 1)], ("system: ", " list ", "Run ")),
    "no such file": ("no/such.trec", ("no/such.trec: ",)),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_ranking_is_refused_in_one_line(name: str, dev: Dataset) -> None:
    ranking, facts = WRONG[name]
    with refused(UserError, *facts) as error:
        c2s.evaluate(ranking, dev, repeats=0)
    assert len(error.value.lines) == 1
