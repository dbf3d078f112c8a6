"""News as a data set: recall up to 500 and MRR by hand, golds injected, judgements of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from claim2source.eval.evaluate import main
from claim2source.eval.report import main as report_main

from claim2source.core.errors import ConfigError
from claim2source.data.trec import read_run
from claim2source.evaluation.published.tables import load_published
from claim2source.systems.read import SYSTEMS_FOLDER, read_systems
from tests.refusals import refused
from tests.shared_data import REPOSITORY, shared
from tests.stages.tiny import save_cross_encoder

METRICS = REPOSITORY / "configs" / "evaluate" / "news.yaml"
CONFIGS = REPOSITORY / "configs" / "news"
# (title, text); the first four are linked, n5 reports the same as n2.
ARTICLES = {
    "n1": ("Otters carried viruses", "Long river report by WHO."),
    "n2": ("Masks cut infections", "London trial by WHO."),
    "n3": ("Schools close", "Governor Cuomo said otters masks."),
    "n4": ("Bees", ""),
    "n5": ("Masks cut infections in London", "A trial by WHO in London."),
}
POSTS = {
    "d1": ("Otters carried 17 viruses #otters", "n1"),
    "d2": ("Masks cut 3 infections in a London trial in London", "n2"),
    "d3": ("Nothing in common @n3", "n3"),
    "d4": ("otters masks infections trial", "n4"),
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "adma2023"
    qrels = folder / "qrels"
    qrels.mkdir(parents=True)
    corpus = []
    for key, (title, text) in ARTICLES.items():
        corpus.append({"_id": key, "title": title, "text": text})
    queries = []
    for key, (text, _) in POSTS.items():
        queries.append({"_id": key, "text": text})
    for name, rows in (("corpus", corpus), ("queries", queries)):
        lines = [json.dumps(row) + "\n" for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(lines))
    judged = "".join(f"{key}\t{gold}\t1\n" for key, (_, gold) in POSTS.items())
    text = f"query-id\tcorpus-id\tscore\n{judged}"
    (qrels / "test.tsv").write_text(text)
    (qrels / "test_events.tsv").write_text(text + "d2\tn5\t1\n")
    return folder


def run(data: Path, out: Path, *words: str, config: Path = CONFIGS / "bm25.yaml") -> Any:
    argv = [
        "--config",
        str(METRICS),
        "--systems",
        str(config),
        "--dataset",
        str(data),
        "--out",
        str(out),
        "--store",
        str(out.parent / "store"),
        "--repeats",
        "50",
        *words,
    ]
    if "--split" not in words:
        argv += ["--split", "test"]
    main(argv)
    report = json.loads((out / "report.json").read_text())
    return report["systems"]


def test_every_row_has_the_papers_measures_with_intervals(data: Path, tmp_path: Path) -> None:
    words = ["--only", "BM25", "BM25-title"]
    out = tmp_path / "out"
    systems = run(data, out, *words)
    row = systems["BM25.original"]
    file = out / row["runs"] / "en.trec"
    ranking = read_run(file).run
    ranks = []
    for key, (_, gold) in POSTS.items():
        ids = ranking.sources(key)
        rank = ids.index(gold) + 1 if gold in ids else 0
        ranks.append(rank)
    assert ranks == [1, 2, 0, 0]  # d2: n5 is about the same
    scores = row["macro"]
    assert scores["recall@1"] == scores["p@1"]
    assert scores["p@1"] == 0.25
    assert scores["mrr@500"] == 0.375
    assert scores["recall@10"] == scores["recall@100"]
    assert scores["recall@100"] == scores["recall@500"]
    assert scores["recall@500"] == 0.5
    intervals = row["intervals"]["values"]
    assert intervals.keys() == {*scores} - {"queries"}
    printed = (out / "report.md").read_text(encoding="utf-8")
    assert "95 % of recall@500" in printed
    assert "95 % of mrr@500" in printed

    # With only titles the ranking differs: "trial" and Cuomo's otters are in the bodies.
    title = systems["BM25-title.original"]
    assert title["sources"] == "title"
    assert title["model"] == "bm25-news"
    file = out / title["runs"] / "en.trec"
    ranking = read_run(file).run
    assert set(ranking.sources("d4")) == {"n1", "n2", "n5"}
    # Other judgements of the same posts are another split: n5, which is first for d2, counts too.
    bm25 = ["--only", "BM25"]
    events = run(data, tmp_path / "events", *bm25, "--split", "test_events")
    scores = events["BM25.original"]["macro"]
    assert scores["p@1"] == 0.5
    with refused(ConfigError, "metrics: 'recall'"):
        run(data, tmp_path / "no", "--metrics", "recall")


def test_injected_golds_are_rows_of_the_papers_table_and_of_no_test(
    data: Path,
    tiny_folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = save_cross_encoder(tmp_path / "tiny", tiny_folder)
    stage = f"{{rerank: cross_encoder, model: {model}, depth: 4, sources: title}}"
    entry = "label: news-ce-minilm-msm{}\n  retrieve: {{bm25: {{clean: true}}}}\n  stages:"
    config = tmp_path / "rerank.yaml"
    plain = entry.format("")
    with_golds = entry.format("+gold")
    config.write_text(
        f"CE:\n  {plain}\n    - {stage}\n"
        f"CE+gold:\n  {with_golds}\n"
        f"    - {{rerank: inject_gold, depth: 4}}\n    - {stage}\n"
    )
    out = tmp_path / "out"
    systems = run(data, out, config=config)
    rows = [
        systems["CE.original: first stage"],
        systems["CE.original"],
        systems["CE+gold.original"],
    ]
    recalls = [row["macro"]["recall@500"] for row in rows]
    assert recalls == [0.5, 0.5, 1.0]
    sources = [row["sources"] for row in rows]
    assert sources == ["title_abstract", "title", "title"]
    simulated = [row["simulated"] for row in rows]
    assert simulated == [False, False, True]
    report = json.loads((out / "report.json").read_text())
    tested = set()
    for test in report["tests"]:
        for comparison in test["comparisons"]:
            tested.add(comparison["system"])
    assert tested == {"CE.original"}

    # A system with injected golds cannot be submitted.
    zipped = tmp_path / "sent.zip"
    nowhere = tmp_path / "refused"
    words = [
        "--only",
        "CE+gold",
        "--submit",
        str(zipped),
    ]
    with refused(ConfigError, "submit"):
        run(data, nowhere, *words, config=config)
    assert not zipped.exists()
    assert not nowhere.exists()
    capsys.readouterr()
    tables = [
        "--published",
        "--tables",
        "2023-rerank",
        "--repeats",
        "20",
        "--reports",
        str(out),
    ]
    report_main(tables)
    output = capsys.readouterr().out
    lines = output.splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith("MiniLM (MSM CE)"))
    ours = lines[number + 1]
    assert ours.split()[0] == "ours"
    assert "100.0*" in ours  # recall@100 with the gold injected, over other claims
    assert "17.8[a]" in output
    assert "an MRR cannot be below recall@1" in output


def test_shipped_systems_have_the_published_labels() -> None:
    published = set()
    for table in load_published():
        for row in table.rows:
            published.update(row.models)
    labels = set()
    for path in sorted(CONFIGS.glob("*.yaml")):
        shipped = sorted(SYSTEMS_FOLDER.glob("*.yaml"))
        systems = read_systems([path], shipped).values()
        text = path.read_text(encoding="utf-8")
        assert f"configs/news/{path.name}" in text
        labels |= {system.full_label() for system in systems}
        if path.stem.startswith("rerank"):
            depths = {system.stages[-1].depth for system in systems}
            assert depths == {500}
            first_stages = [system.stages[0].name for system in systems]
            injects = {name == "rerank inject_gold" for name in first_stages}
            assert injects == {path.stem == "rerank_injected"}
    news = set()
    for label in published:
        if label.startswith("news-") or label == "bm25-lemmas":
            news.add(label)
    assert news - labels == {"news-ce-ct-bert+gold+events"}


@pytest.mark.slow
def test_the_fact_checks_have_the_figures_of_the_benchmarks(tmp_path: Path) -> None:
    data = shared("tweets-factchecks")
    words = ["--only", "BM25", "--split", "dev"]
    (row,) = run(data, tmp_path / "out", *words).values()
    scores = {}
    for metric, value in row["macro"].items():
        if metric.startswith("recall") or metric == "mrr@500":
            scores[metric] = round(value, 4)
    assert scores == {
        "recall@1": 0.5660,
        "recall@10": 0.8832,
        "recall@100": 0.9492,
        "recall@500": 0.9746,
        "mrr@500": 0.7047,
    }
