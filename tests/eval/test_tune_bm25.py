"""`eval/tune_bm25.py`: what is tried, what the choice may see, what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from claim2source.core.config import make
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.datasets import load, write_beir
from claim2source.evaluation.reports import read_reports
from claim2source.io.trec import read_run
from claim2source.pipeline.evaluate import evaluate as evaluate_result
from claim2source.retrieve import BM25, BM25Config
from claim2source.systems.choose import choose, weigh
from eval import tune_bm25 as tune
from eval.tune_bm25 import main

FAST = ["--k1", "1.2", "2.0", "--b", "0.75", "--title_weight", "2"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tune")
    main([f"--out={out}", *FAST])
    return out


def report_of(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return found


def choice_of(out: Path) -> dict[str, Any]:
    (choice,) = report_of(out)["choices"]
    found: dict[str, Any] = choice
    return found


def setting(found: dict[str, Any]) -> BM25Config:
    return BM25Config(**found["settings"])


def test_every_analysis_is_tried_and_the_best_chosen(done: Path) -> None:
    report = choice_of(done)
    tried = [setting(one) for one in report["tried"]]
    assert len({(t.stop_words, t.stemmer, t.metadata) for t in tried}) == len(tried) == 8
    assert (tried[0].stop_words, tried[0].stemmer, tried[0].metadata) == (True, True, False)
    allowed = [one for one in report["tried"] if one["verdict"] in ("given", "better")]
    better = [one["score"] for one in allowed[1:]]
    best = max(better, default=allowed[0]["score"])
    assert report["score"] == best
    assert len({one["score"] for one in report["tried"]}) > 1
    assert report["tried"][0]["verdict"] == "given"
    # Two settings of k1, each for every claim.
    claims = report["claims"]
    assert {one["cost"]["claims"] for one in report["tried"]} == {2 * claims}
    assert all(
        one["cost"]["seconds"] and one["cost"]["peak_memory_bytes"] for one in report["tried"]
    )
    text = (done / "report.md").read_text()
    assert "| verdict | seconds | items/s | peak MB | tokens | parameters |\n" in text
    # The score is what the setting has on train, searched alone.
    train = load("demo", "train")
    result = BM25(setting(report)).index(train.sources).search(train.claims, 5)
    assert evaluate_result(result, train, ["mrr@5"]).macro["mrr@5"] == pytest.approx(best)


def test_the_yaml_is_what_other_programs_take(done: Path) -> None:
    text = (done / "bm25.yaml").read_text()
    said = yaml.safe_load(text)
    chosen = setting(choice_of(done))
    assert BM25Config(**said["bm25"]) == chosen
    assert all(getattr(BM25Config(), key) != value for key, value in said["bm25"].items())
    assert text.startswith("# BM25 for demo, chosen on ") and "of train" in text
    assert make(BM25Config, said["bm25"]) == chosen


def test_both_settings_are_reported_with_their_runs(done: Path) -> None:
    report, dev = report_of(done), load("demo", "dev")
    assert list(report["systems"]) == ["bm25-tuned", "bm25-default"]
    assert [s.report.model for s in read_reports([done])] == ["bm25-tuned", "bm25-default"]
    for name, config in (
        ("bm25-tuned", setting(choice_of(done))),
        ("bm25-default", BM25Config()),
    ):
        expected = BM25(config).index(dev.sources).search(dev.claims)
        assert report["systems"][name]["macro"] == pytest.approx(
            evaluate_result(expected, dev).macro
        )
        for lang in dev.languages:
            run = read_run(done / "runs" / name / f"{lang}.trec").run
            claims = [c.id for c in dev.claims if c.lang == lang]
            assert set(run.claim_ids) <= set(claims)
            assert [run.sources(c) for c in claims] == [expected.run.sources(c) for c in claims]
    (test,) = report["tests"]
    assert (test["average"], test["comparisons"][0]["baseline"]) == ("macro", "bm25-default")
    macro = [report["systems"][n]["macro"]["mrr@5"] for n in ("bm25-tuned", "bm25-default")]
    assert test["comparisons"][0]["difference"] == pytest.approx(macro[0] - macro[1])
    text = (done / "report.md").read_text()
    assert "| bm25-default | macro |" in text and "items/s" in text and "permutations" in text


def settled(tried: list[tuple[BM25Config, float]], data: Dataset) -> Any:
    on, count = weigh(data), len(data.claims)
    choices = [(c, choose("bm25", {c: np.full(count, s)}, on)[1]) for c, s in tried]
    return tune.settle(choices, data)


def one_word_each(count: int, claims_of_first: int) -> Dataset:
    """Papers found by a stop word alone: the first by many claims, the others by one each."""
    sources = tuple(Source(f"s{i:02d}", ("the" if i == 0 else f"w{i}")) for i in range(count))
    claims = [Claim(f"a{i}", "the", golds=("s00",)) for i in range(claims_of_first)]
    claims += [Claim(f"c{i}", f"w{i}", golds=(f"s{i:02d}",)) for i in range(1, count)]
    qrels = Qrels({c.id: {c.golds[0]: 1} for c in claims})
    return Dataset(tuple(claims), sources, qrels, "train")


def test_one_paper_with_many_claims_does_not_change_the_analysis() -> None:
    given, other = BM25Config(), BM25Config(stop_words=False)
    place, verdicts = settled([(given, 0.2), (other, 1.0)], one_word_each(12, 50))
    assert (place, verdicts) == (0, ["given", "too few papers differ"])


def test_what_is_better_on_many_papers_is_taken() -> None:
    words = [f"{chr(97 + i)}ank" for i in range(20)]
    sources = tuple(Source(f"s{i:02d}", f"{word}s") for i, word in enumerate(words))
    claims = tuple(Claim(f"c{i}", word, golds=(f"s{i:02d}",)) for i, word in enumerate(words))
    data = Dataset(claims, sources, Qrels({c.id: {c.golds[0]: 1} for c in claims}), "train")
    worse, better = BM25Config(stemmer=False), BM25Config()
    assert settled([(worse, 0.0), (better, 1.0)], data) == (1, ["given", "better"])
    assert settled([(better, 1.0), (worse, 0.0)], data) == (0, ["given", "worse"])
    assert settled([(worse, 0.0)], data) == (0, ["given"])


def test_without_golds_nothing_is_chosen_or_reported(tmp_path: Path) -> None:
    sources = (Source("s", "title"),)
    judged = Dataset(
        (Claim("train-1", "t", golds=("s",)),), sources, Qrels({"train-1": {"s": 1}}), "train"
    )
    write_beir([judged], tmp_path / "data")
    with open(tmp_path / "data" / "queries.jsonl", "a") as file:
        file.write('{"_id": "dev-1", "text": "t", "metadata": {"lang": "en"}}\n')
    with pytest.raises(UserError, match="no golds to report on"):
        main([f"--out={tmp_path / 'o'}", f"--dataset={tmp_path / 'data'}", "--split=dev"])
    (tmp_path / "data" / "qrels" / "train.tsv").unlink()
    with pytest.raises(UserError, match="to choose by"):
        main([f"--out={tmp_path / 'o'}", f"--dataset={tmp_path / 'data'}", "--split=null"])
