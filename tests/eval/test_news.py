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
    (folder / "qrels").mkdir(parents=True)
    corpus = [{"_id": k, "title": title, "text": text} for k, (title, text) in ARTICLES.items()]
    queries = [{"_id": key, "text": text} for key, (text, _) in POSTS.items()]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "".join(f"{key}\t{gold}\t1\n" for key, (_, gold) in POSTS.items())
    for split, row in (("test", ""), ("test_events", "d2\tn5\t1\n")):
        text = f"query-id\tcorpus-id\tscore\n{judged}{row}"
        (folder / "qrels" / f"{split}.tsv").write_text(text)
    return folder


def run(data: Path, out: Path, *words: str, config: Path = CONFIGS / "bm25.yaml") -> Any:
    argv = ["--config", str(METRICS), "--systems", str(config), "--dataset", str(data)]
    argv += ["--out", str(out), "--store", str(out.parent / "store"), "--repeats", "50", *words]
    main([*argv, *([] if "--split" in words else ["--split", "test"])])
    return json.loads((out / "report.json").read_text())["systems"]


def test_every_row_has_the_papers_measures_with_intervals(data: Path, tmp_path: Path) -> None:
    words = ["--only", "BM25", "BM25-title"]
    systems = run(data, tmp_path / "out", *words)
    row = systems["BM25.original"]
    ranking = read_run(tmp_path / "out" / row["runs"] / "en.trec").run
    ids = {key: ranking.sources(key) for key in POSTS}
    ranks = [ids[k].index(gold) + 1 if gold in ids[k] else 0 for k, (_, gold) in POSTS.items()]
    assert ranks == [1, 2, 0, 0]  # d2: n5 is about the same
    scores = row["macro"]
    assert scores["recall@1"] == scores["p@1"] == 0.25 and scores["mrr@500"] == 0.375
    assert scores["recall@10"] == scores["recall@100"] == scores["recall@500"] == 0.5
    assert row["intervals"]["values"].keys() == {*scores} - {"queries"}
    printed = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "95 % of recall@500" in printed and "95 % of mrr@500" in printed
    # With only titles the ranking differs: "trial" and Cuomo's otters are in the bodies.
    title = systems["BM25-title.original"]
    assert (title["sources"], title["model"]) == ("title", "bm25-news")
    runs = read_run(tmp_path / "out" / title["runs"] / "en.trec").run
    assert set(runs.sources("d4")) == {"n1", "n2", "n5"}
    # Other judgements of the same posts are another split: n5, which is first for d2, counts too.
    events = run(data, tmp_path / "events", *words[:2], "--split", "test_events")
    assert events["BM25.original"]["macro"]["p@1"] == 0.5
    with refused(ConfigError, "metrics: 'recall'"):
        run(data, tmp_path / "no", "--metrics", "recall")


def test_injected_golds_are_rows_of_the_papers_table_and_of_no_test(
    data: Path, tiny_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = save_cross_encoder(tmp_path / "tiny", tiny_folder)
    stage = f"{{rerank: cross_encoder, model: {model}, depth: 4, sources: title}}"
    entry = "label: news-ce-minilm-msm{}\n  retrieve: {{bm25: {{clean: true}}}}\n  stages:"
    config = tmp_path / "rerank.yaml"
    config.write_text(
        f"CE:\n  {entry.format('')}\n    - {stage}\n"
        f"CE+gold:\n  {entry.format('+gold')}\n"
        f"    - {{rerank: inject_gold, depth: 4}}\n    - {stage}\n"
    )
    systems = run(data, tmp_path / "out", config=config)
    first, honest = systems["CE.original: first stage"], systems["CE.original"]
    last = systems["CE+gold.original"]
    recalls = [row["macro"]["recall@500"] for row in (first, honest, last)]
    assert recalls == [0.5, 0.5, 1.0]
    assert [row["sources"] for row in (first, honest, last)] == ["title_abstract", *["title"] * 2]
    assert [row["simulated"] for row in (first, honest, last)] == [False, False, True]
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    tested = {c["system"] for test in report["tests"] for c in test["comparisons"]}
    assert tested == {"CE.original"}
    # A system with injected golds cannot be submitted.
    zipped, words = tmp_path / "sent.zip", ["--only", "CE+gold", "--submit"]
    with refused(ConfigError, "submit"):
        run(data, tmp_path / "refused", *words, str(zipped), config=config)
    assert not zipped.exists() and not (tmp_path / "refused").exists()
    capsys.readouterr()
    tables = ["--published", "--tables", "2023-rerank", "--repeats", "20"]
    report_main([*tables, "--reports", str(tmp_path / "out")])
    output = capsys.readouterr().out
    lines = output.splitlines()
    number = next(i for i, line in enumerate(lines) if line.startswith("MiniLM (MSM CE)"))
    assert lines[number + 1].split()[0] == "ours"
    assert "100.0*" in lines[number + 1]  # recall@100 with the gold injected, over other claims
    assert "17.8[a]" in output and "an MRR cannot be below recall@1" in output


def test_shipped_systems_have_the_published_labels() -> None:
    published = {m for table in load_published() for row in table.rows for m in row.models}
    labels = set()
    for path in sorted(CONFIGS.glob("*.yaml")):
        systems = read_systems([path], sorted(SYSTEMS_FOLDER.glob("*.yaml")))
        assert f"configs/news/{path.name}" in path.read_text(encoding="utf-8")
        labels |= {system.full_label() for system in systems.values()}
        if path.stem.startswith("rerank"):
            assert {system.stages[-1].depth for system in systems.values()} == {500}
            injects = {system.stages[0].name == "rerank inject_gold" for system in systems.values()}
            assert injects == {path.stem == "rerank_injected"}
    news = {label for label in published if label.startswith("news-") or label == "bm25-lemmas"}
    assert news - labels == {"news-ce-ct-bert+gold+events"}


@pytest.mark.slow
def test_the_fact_checks_have_the_figures_of_the_benchmarks(tmp_path: Path) -> None:
    data = shared("tweets-factchecks")
    (row,) = run(data, tmp_path / "out", "--only", "BM25", "--split", "dev").values()
    scores = {metric: round(value, 4) for metric, value in row["macro"].items()}
    assert {k: v for k, v in scores.items() if k.startswith("recall") or k == "mrr@500"} == {
        "recall@1": 0.5660,
        "recall@10": 0.8832,
        "recall@100": 0.9492,
        "recall@500": 0.9746,
        "mrr@500": 0.7047,
    }
