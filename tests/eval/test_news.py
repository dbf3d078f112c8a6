"""eval/news.py: figures by hand, golds injected or not, same events, failures, bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.report import Report
from claim2source.evaluation.published.tables import load_published
from claim2source.io.trec import read_run
from claim2source.pipeline.staged import read_pipeline
from claim2source.systems.read import SYSTEMS_FOLDER, read_systems
from eval.news import main
from eval.report import main as report_main
from tests.shared_data import REPOSITORY, shared
from tests.stages.tiny import save_cross_encoder
from tests.text.small_pipeline import write_pipeline

BM25 = "configs/news/bm25.yaml"
# (title, text, date); the first four are linked.
ARTICLES = {
    "n1": ("Otters carried viruses", "Long river report by WHO.", "2020-04-01"),
    "n2": ("Masks cut infections", "London trial by WHO.", "2020-04-02"),
    "n3": ("Schools close", "Governor Cuomo said otters masks.", "2020-04-03"),
    "n4": ("Bees", "", "2020-05-01"),
    "n5": ("Masks cut infections in London", "A trial by WHO in London.", "2020-04-03"),
}
POSTS = {
    "d1": ("Otters carried 17 viruses #otters", "n1"),
    "d2": ("Masks cut 3 infections in a London trial in London", "n2"),
}
POSTS |= {"d3": ("Nothing in common @n3", "n3"), "d4": ("otters masks infections trial", "n4")}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "qrels").mkdir(parents=True)
    corpus = [
        {"_id": key, "title": title, "text": text, "metadata": {"date": day}}
        for key, (title, text, day) in ARTICLES.items()
    ]
    queries = [{"_id": key, "text": text} for key, (text, _) in POSTS.items()]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "".join(f"{key}\t{gold}\t1\n" for key, (_, gold) in POSTS.items())
    (folder / "qrels" / "dev.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    return folder


def run(data: Path, out: Path, *words: str, config: str | Path = BM25) -> dict[str, Any]:
    argv = ["--config", str(config), "--dataset", str(data), "--split", "dev", "--out", str(out)]
    main([*argv, "--repeats", "50", "--store", str(out.parent / "store"), *words])
    found: dict[str, Any] = json.loads((out / "report.json").read_text())
    return found


def test_the_top_of_the_report_has_the_papers_measures(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(data, tmp_path / "out")
    ranks = {}
    ranking = read_run(tmp_path / "out" / "runs" / "en.trec").run
    for key, (_, gold) in POSTS.items():
        found = ranking.sources(key)
        ranks[key] = found.index(gold) + 1 if gold in found else None
    assert ranks["d1"] == 1 and ranks["d3"] is None and ranks["d4"] is None
    assert ranks["d2"] == 2  # n5 is about the same
    assert report["recall@1"] == sum(rank == 1 for rank in ranks.values()) / 4
    assert report["recall@10"] == report["recall@100"] == report["recall@500"] == 0.5
    assert report["mrr"] == pytest.approx(sum(1 / rank for rank in ranks.values() if rank) / 4)
    table = capsys.readouterr().out
    assert "recall@500" in table and "Gold not among the first 5: 2 of 4 claims" in table
    assert Report.read(tmp_path / "out").headline["mrr"] == report["mrr"]
    with open(tmp_path / "out" / "errors.csv", encoding="utf-8-sig", newline="") as file:
        assert {row["claim"] for row in csv.DictReader(file)} == {"d3", "d4"}


def test_titles_alone_are_another_system(data: Path, tmp_path: Path) -> None:
    report = run(data, tmp_path / "out", "--system", "BM25-title")
    system = report["systems"]["BM25-title"]
    assert (system["sources"], system["model"]) == ("title", "bm25-news")
    runs = read_run(tmp_path / "out" / "runs" / "en.trec").run
    assert set(runs.sources("d4")) == {"n1", "n2", "n5"}  # "trial" and Cuomo's otters are bodies'


def staged(folder: Path, model: str = "", unsupported: str = "") -> Path:
    path = folder / "rerank.yaml"
    path.write_text(
        "CE:\n"
        "  label: news-ce-minilm-msm\n"
        "  retrieve: {bm25: {clean: true}}\n"
        "  stages:\n"
        f"    - {{rerank: cross_encoder, model: {model or 'nowhere/x'}, depth: 3, sources: title}}\n"
        + (f"  unsupported: {unsupported}\n" if unsupported else "")
    )
    return path


def test_golds_are_injected_on_demand_and_beside_the_honest_figures(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    config = staged(tmp_path, str(save_cross_encoder(tmp_path / "tiny", tiny_folder)))
    honest = run(data, tmp_path / "honest", config=config)
    assert list(honest["systems"]) == ["CE: first stage", "CE"] and honest["recall@500"] == 0.5
    both = run(data, tmp_path / "both", "--golds", "both", config=config)
    assert list(both["systems"]) == ["CE: first stage", "CE", "CE, gold injected"]
    injected = both["systems"]["CE, gold injected"]
    # The top is the honest system's; with golds injected every claim has its gold.
    assert both["recall@500"] == honest["recall@500"]
    assert injected["macro"]["recall@500"] == 1.0
    note = "CE, gold injected: the gold was put among the candidates of 2 of 4 claims."
    assert both["notes"][-1] == note and note not in honest["notes"]
    assert (injected["model"], injected["sources"]) == ("news-ce-minilm-msm+gold", "title")
    alone = run(data, tmp_path / "alone", "--golds", "injected", config=config)
    assert list(alone["systems"]) == ["CE, gold injected"] and alone["recall@500"] == 1.0
    assert (tmp_path / "both" / "runs" / "gold_injected" / "en.trec").is_file()


def test_a_tuned_model_takes_the_place_of_the_systems_own(
    data: Path, tiny_folder: Path, tmp_path: Path
) -> None:
    config = staged(tmp_path, unsupported="not tuned yet")
    with pytest.raises(UserError, match="not tuned yet"):
        run(data, tmp_path / "out", config=config)
    model = str(save_cross_encoder(tmp_path / "tiny", tiny_folder))
    report = run(data, tmp_path / "out", "--reranker", model, config=config)
    assert report["recall@500"] == 0.5
    with pytest.raises(ConfigError, match="reranker: .*last stage has no `model`"):
        run(data, tmp_path / "no", "--reranker", model)
    with pytest.raises(ConfigError, match="golds: .*no stage that re-ranks"):
        run(data, tmp_path / "no", "--golds", "both")


def test_articles_of_the_same_event_count_where_that_is_asked(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = write_pipeline(tmp_path / "pipeline")
    words = ["--same_event", "--events.pipeline", pipeline, "--events.similarity", "0.7"]
    report = run(data, tmp_path / "out", *words)
    before, after = report["systems"]["BM25"], report["systems"]["BM25, same event"]
    assert report["mrr"] == before["macro"]["mrr@500"]
    # n5, which is first for d2, reports the event of its gold, which is second.
    assert before["macro"]["p@1"] == 0.25 and after["macro"]["p@1"] == 0.5
    assert after["macro"]["mrr@500"] == 0.5 and after["macro"]["recall@10"] == 0.5
    assert after["model"] == "bm25-news+events"
    assert "1 of 4 linked articles (25.0%) have others of their event" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out" / "events").iterdir()} == {
        "sets.jsonl",
        "qrels.tsv",
        "reader_1.csv",
        "reader_2.csv",
    }


def test_the_papers_tables_take_the_injected_figures_and_mark_what_is_impossible(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = data.rename(data.with_name("adma2023"))
    (named / "qrels" / "dev.tsv").rename(named / "qrels" / "test.tsv")
    config = staged(tmp_path, str(save_cross_encoder(tmp_path / "tiny", tiny_folder)))
    words = ["--config", str(config), "--dataset", str(named), "--split", "test", "--golds", "both"]
    main([*words, "--out", str(tmp_path / "out"), "--repeats", "20"])
    capsys.readouterr()
    tables = ["--published", "--tables", "2023-rerank", "--repeats", "20"]
    report_main([*tables, "--reports", str(tmp_path / "out")])
    said = capsys.readouterr().out
    lines = said.splitlines()
    place = next(i for i, line in enumerate(lines) if line.startswith("MiniLM (MSM CE)"))
    assert lines[place + 1].split()[:4] == ["ours", *lines[place + 1].split()[1:4]]
    assert "100.0*" in lines[place + 1]  # recall@100 with the gold injected, over other claims
    assert "17.8[a]" in said and "an MRR cannot be below recall@1" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--config", BM25, "--system", "BM26"], "system: 'BM26'"),
        (["--config", BM25, "--dataset", "demo", "--split", "tset"], "no split 'tset'"),
        ([], "pipeline"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(REPOSITORY)
    with pytest.raises(UserError) as caught:
        main([*words, "--out", str(tmp_path / "out")])
    assert len(caught.value.lines) == 1 and said in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_every_shipped_file_is_read_and_its_last_system_is_the_one_with_bodies() -> None:
    files = sorted((REPOSITORY / "configs" / "news").glob("*.yaml"))
    published = {m for table in load_published() for row in table.rows for m in row.models}
    assert {path.stem for path in files} >= {"bm25", "distilbert", "minilm", "ct_bert", "rerank"}
    for path in files:
        systems = read_systems([path], sorted(SYSTEMS_FOLDER.glob("*.yaml")))
        last = read_pipeline(path, staged=False).name
        assert f"configs/news/{path.name}" in path.read_text(encoding="utf-8")
        # The paper's better form of CT-BERT as a bi-encoder is the headline.
        assert last.endswith("-title") == (path.stem == "ct_bert")
        for name, system in systems.items():
            label = system.label_of() + "+gold" * bool(system.stages)
            ours = label.startswith(("bm25-news", "ours-")) or "-passages" in label
            assert (label in published) != ours, name
    depths = {system.stages[-1]["depth"] for system in systems.values()}
    assert files[-1].stem == "rerank" and depths == {500} and len(systems) == 9


@pytest.mark.slow
def test_the_fact_checks_have_the_figures_of_the_benchmarks(tmp_path: Path) -> None:
    report = run(shared("tweets-factchecks"), tmp_path / "out")
    top = {key: round(report[key], 4) for key in report["headline"]}
    assert top == {
        "recall@1": 0.5660,
        "recall@10": 0.8832,
        "recall@100": 0.9492,
        "recall@500": 0.9746,
        "mrr": 0.7047,
    }
