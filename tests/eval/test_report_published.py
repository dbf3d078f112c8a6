"""`eval/report.py --published`: our numbers next to the papers', from saved reports."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.eval.report import main as report

from claim2source.core.config import read_config
from claim2source.core.errors import run_program
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import PublishedScore, Report
from claim2source.core.run import Run
from claim2source.data.beir import write_beir
from claim2source.data.grouping import gold_groups
from claim2source.data.trec import write_trec_run
from claim2source.evaluation.published.scores import PublishedTables
from claim2source.evaluation.reports import ReportConfig, read_reports
from claim2source.metrics.families import score_intervals
from claim2source.metrics.metrics import evaluate, macro
from claim2source.metrics.significance import bootstrap_intervals
from tests.report_files import write_report

METRICS = ["mrr@5", "recall@1"]
E5 = "intfloat/e5-large-v2"


def main(arguments: list[str]) -> None:
    report(["--published", *arguments])


def save(
    folder: Path,
    counts: dict[str, int],
    *,
    checkpoint: str = E5,
    share: float = 0.6,
    dataset: str = "data",
    split: str = "dev",
    seed: int = 0,
    **options: Any,
) -> tuple[dict[str, Run], Qrels]:
    """A report as eval/evaluate.py writes it, its runs, and judgements of two claims a paper."""
    rng = np.random.default_rng(seed)
    runs = {}
    golds = {}
    table = {}
    for lang, count in counts.items():
        lists = {}
        for i in range(count):
            claim = f"{lang}{i}"
            gold = f"p{lang}{i // 2}"
            golds[claim] = {gold: 1}
            first = gold if rng.random() < share else "x"
            lists[claim] = [(first, 1.0)]
        run = Run.from_lists(lists)
        runs[lang] = run
        file = folder / "runs" / f"{lang}.trec"
        write_trec_run(run, file)
        ids = list(lists)
        scores = evaluate(run, Qrels(golds), METRICS, ids)
        table[lang] = {**scores.means(), "queries": count}

    qrels = Qrels(golds)
    claims = tuple(Claim(c, "", c[:2]) for c in golds)
    data = Dataset(claims, (), qrels, split)
    ranked = {}
    for run in runs.values():
        for claim in run.claim_ids:
            ranking = run.scored(claim)
            ranked[claim] = [*ranking.items()]
    whole = Run.from_lists(ranked)
    scores = evaluate(whole, qrels, METRICS)
    bounds = score_intervals(scores, data, METRICS, 500)
    system = {
        "model": checkpoint,
        "system": checkpoint,
        "sources": "title_abstract",
        "intervals": bounds.values,
        "languages": table,
        "macro": macro(table),
        "cost": {"seconds": 12.34, "claims": 1400},
        "runs": "runs",
        **options,
    }
    name = Path(checkpoint).name
    write_report(folder, {name: system}, dataset, split)
    return runs, qrels


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    main([str(a) for a in arguments])
    return capsys.readouterr().out


def cells(*arguments: object) -> dict[tuple[str, ...], PublishedScore]:
    """The cells that have a score of ours: table, row, column -> score."""
    words = ["--published", *map(str, arguments)]
    config = read_config(ReportConfig, words, program="t", description="t")
    reports = read_reports(config.reports)
    tables = PublishedTables.of(reports, config.tables)
    found = {}
    for table, scores in tables.cells.items():
        for place, ours in scores.items():
            key = (table, *place)
            found[key] = ours.cell
    return found


def test_without_runs_every_table_is_shown_with_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    for said in (
        "0.5575",
        "+0.0225",
        "-0.3450",
        "63.5",
        "7829.0",
        "0.7628",
        "2e-4",
        "one H100",
    ):
        assert said in text
    assert "-[cd]" in text
    assert "[d] empty: " in text
    assert "GritLM-7B" in text
    assert "unreliable: the same four numbers" in text
    assert "  ours" in text
    assert "  difference" not in text
    widths = map(len, text.splitlines())
    assert max(widths) < 190


def test_ours_stand_beside_with_difference_and_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, qrels = save(tmp_path, {"en": 1400})
    values = evaluate(runs["en"], qrels, ["mrr@5"])
    mean = values.mean("mrr@5")
    difference = mean - 0.6568
    groups = gold_groups(qrels, values.claim_ids)
    scores = values["mrr@5"][None]
    intervals = bootstrap_intervals(scores, groups, repeats=500)
    low, high = intervals[0]
    ((key, cell),) = cells("--reports", tmp_path).items()
    assert key == ("2025-styles", "E5-Large", "S0C0")
    assert cell.same_claims
    assert cell.ours == pytest.approx(mean)
    assert cell.difference == pytest.approx(difference)
    assert (cell.low, cell.high) == pytest.approx((low, high))
    inside = "yes" if low <= 0.6568 <= high else "no"
    assert cell.inside == inside
    assert inside == "no"

    text = printed(capsys, "--reports", tmp_path, "--tables", "2025-styles")
    assert f"{mean:.4f}" in text
    assert f"{difference:+.4f}" in text
    folder = str(tmp_path)
    (cost,) = [line.split() for line in text.splitlines() if folder in line]
    assert cost == [
        "E5-Large",
        "e5-large-v2",
        folder,
        "12.3",
        "113.5",
        "-",
        "-",
        "-",
    ]
    # Without an interval the verdict is unknown.
    bare = tmp_path / "bare"
    save(bare, {"en": 1400}, intervals={"mrr@1": {"en": (0.1, 0.2)}})
    empty = cells("--reports", bare)[key]
    assert empty.inside == "unknown"
    assert empty.low is None
    assert empty.ours == cell.ours
    near = tmp_path / "near"
    save(near, {"en": 1400}, share=0.6568)
    close = cells("--reports", near)[key]
    assert close.inside == "yes"


def test_seconds_are_compared_over_the_papers_claims_alone(tmp_path: Path) -> None:
    complete = {"en": 32}
    for counts in (
        complete,
        {"en": 2},
        {"ar": 32},
        {"en": 32, "ar": 32},
    ):
        folder = tmp_path / repr(counts)
        save(
            folder,
            counts,
            checkpoint="fielded-bm25",
            dataset="English_dev.json",
        )
        table = cells("--reports", folder, "--tables", "2024-results")
        times = [cell.ours for (*_, column), cell in table.items() if column == "dev time"]
        expected = [12.34] if counts == complete else []
        assert times == expected, counts


def test_other_claims_are_shown_but_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "part"
    save(folder, {"en": 431}, dataset="/data/ct25")
    arguments = ["--reports", folder]
    found = cells(*arguments)
    cell = found["2025-styles", "E5-Large", "S0C0"]
    assert cell.ours
    assert cell.difference is None
    assert cell.inside == "unknown"
    assert not cell.same_claims
    text = printed(capsys, *arguments)
    assert f"{cell.ours:.4f}*" in text
    # The same counts from a data set of another name belong nowhere.
    save(folder, {"en": 431}, dataset="demo")
    name = Path(E5).name
    assert f"In no table: {name} of {folder}" in printed(capsys, *arguments)


VAL = {"en": 3905, "de": 386, "fr": 702}


def test_three_languages_their_average_and_the_representation(tmp_path: Path) -> None:
    save(
        tmp_path,
        VAL,
        split="val",
        claims="translated",
        checkpoint="e5-large-v2-metadata",
        sources="metadata_paper_order",
    )
    table = cells("--reports", tmp_path)
    # English is the same text in all three; the others are only filled for translations.
    places = {key[1:] for key in table}
    assert places == {
        ("E5", "Orig EN"),
        ("E5", "Transl EN"),
        ("E5", "Biling EN"),
        ("E5", "Transl DE"),
        ("E5", "Transl FR"),
        ("E5", "Transl AVG"),
    }
    parts = []
    for language in ("EN", "DE", "FR", "AVG"):
        column = f"Transl {language}"
        parts.append(table["2026-stage1", "E5", column])
    ours = [part.ours for part in parts]
    mean = np.mean(ours[:3])
    assert ours[3] == pytest.approx(mean)
    widths = [(part.high or 0) - (part.low or 0) for part in parts]
    # The macro interval is by language: 386 German claims weigh a third.
    squares = [(width / 3) ** 2 for width in widths[:3]]
    expected = np.sqrt(sum(squares))
    assert widths[3] == pytest.approx(expected, rel=0.1)


def test_what_one_paper_did_does_not_stand_in_the_other_ones_row(tmp_path: Path) -> None:
    """E5 over titles and abstracts is 2025's, E5 with metadata 2026's; BM25 alike."""
    checkpoints = (E5, "bm25", "hybrid:" + E5)
    for i, checkpoint in enumerate(checkpoints):
        folder = tmp_path / str(i)
        save(folder, VAL, split="val", checkpoint=checkpoint)
    save(tmp_path / "rich", {"en": 1400}, sources="metadata")
    reports = [tmp_path / name for name in ("0", "1", "2", "rich")]
    assert not cells("--reports", *reports)


def test_the_systems_of_a_hybrid_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its BM25 and its fusion were tuned: ours, not the papers'; the dense part is theirs."""
    folder = tmp_path / "a"
    save(folder, {"en": 1400})
    (part,) = Report.read(folder).systems.values()
    models = {
        "bm25": "bm25-tuned",
        "dense": E5,
        "hybrid": f"tuned-hybrid:{E5}",
    }
    systems = {}
    for name, model in models.items():
        systems[name] = replace(
            part,
            name=name,
            model=model,
            system=name,
            runs=f"runs/{name}",
        )
    Report("data", "dev", systems).write(tmp_path)
    table = cells("--reports", tmp_path)
    rows = {key[1] for key in table if key[0] == "2025-styles"}
    assert rows == {"E5-Large"}
    assert ("2025-test", "BM25", "dev") not in table
    text = printed(capsys, "--reports", tmp_path)
    for name in ("bm25", "hybrid"):
        model = models[name]
        assert f"In no table: {name} of {tmp_path} ({model}, " in text


def test_percent_and_deltas_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    news = tmp_path / "news"
    save(
        news,
        {"en": 3000},
        checkpoint="bm25-lemmas",
        dataset="adma2023",
        split="test",
    )
    record = json.loads((news / "report.json").read_text())
    (system,) = record["systems"].values()
    percent = 100 * system["macro"]["recall@1"]
    found = cells("--reports", news)
    cell = found["2023-candidates", "BM25", "TB@1"]
    assert cell.ours == pytest.approx(percent)
    text = printed(capsys, "--reports", news)
    assert f"{percent:.1f}" in text
    # A rewritten style is shown as the paper does: as the difference to the plain one.
    for i, style in enumerate(["S0C0", "S0C1"]):
        share = 0.5 + i / 10
        save(tmp_path / style, {"en": 1400}, share=share, style=style)
    arguments = [
        "--reports",
        tmp_path / "S0C0",
        tmp_path / "S0C1",
        "--tables",
        "2025-styles",
    ]
    both = cells(*arguments)
    first = both["2025-styles", "E5-Large", "S0C0"]
    formal = both["2025-styles", "E5-Large", "S0C1"]
    gain = formal.ours - first.ours
    assert gain > 0
    assert f"{gain:+.4f}" in printed(capsys, *arguments)
    difference = formal.ours - 0.6578
    assert formal.difference == pytest.approx(difference)


def test_markdown_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = printed(capsys, "--out", tmp_path)
    out = tmp_path / "published.md"
    assert str(out) in output
    assert "|" not in output
    text = out.read_text()
    narrow = text.replace("   |", " |")
    assert "| BM25 | 0.5575[de] | +0.0225[e]" in narrow
    assert "## 2026: Official test, MRR@5 [2026-test]" in text
    lines = text.splitlines()
    header = next(line for line in lines if "S0C0" in line)
    assert header.count("|") == 22  # not broken into blocks


def test_csv_has_a_line_for_each_cell(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    cost = {
        "seconds": 12.34,
        "claims": 1400,
        "joules": 2500.0,
    }
    save(folder, {"en": 1400}, cost=cost)
    ((key, cell),) = cells("--reports", folder).items()
    arguments = [
        "--reports",
        str(folder),
        "--tables",
        "2025-styles",
        f"--out={tmp_path}",
    ]
    main(arguments)
    rows = {}
    with open(tmp_path / "published.csv", encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            place = (line["table"], line["row"], line["column"])
            rows[place] = line
    assert len(rows) > 100
    filled = {place for place, line in rows.items() if line["ours"]}
    assert filled == {key}
    table, row, column = key
    assert rows[key] == {
        "table": table,
        "row": row,
        "column": column,
        "metric": "mrr@5",
        "language": "en",
        "unit": "",
        "published": "0.6568",
        "unreliable": "",
        "ours": f"{cell.ours:.6f}",
        "difference": f"{cell.difference:.6f}",
        "low": f"{cell.low:.6f}",
        "high": f"{cell.high:.6f}",
        "inside": "no",
        "same_claims": "yes",
        "report": str(folder),
        "seconds": "12.3",
        "items/s": "113.5",
        "peak MB": "",
        "tokens": "",
        "parameters": "",
        "kJ": "2.50",
    }


def test_tables_that_are_not_there_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_program(main, ["--tables", "2027"])
    assert ended.value.code == 2
    assert "2025-styles" in capsys.readouterr().err


def test_the_page_has_the_tables_with_a_score_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = tuple(Claim(f"c{i}", "post", golds=("p1",)) for i in range(4))
    qrels = Qrels({claim.id: {"p1": 1} for claim in claims})
    source = Source("p1", "A title")
    data = Dataset(claims, (source,), qrels, "dev")
    folder = tmp_path / "ct25"
    write_beir([data], folder)
    run = Run.from_lists({claim.id: [("p1", 1.0)] for claim in claims})
    write_trec_run(run, tmp_path / "runs" / "en.trec")
    table = {"mrr@5": 1.0, "recall@1": 1.0, "queries": 4}
    system = {
        "model": E5,
        "sources": "title_abstract",
        "languages": {"en": table},
        "macro": table,
        "system": E5,
        "runs": "runs",
    }
    write_report(tmp_path, {"<b>e5": system}, str(folder))

    words = ["--reports", str(tmp_path), "--repeats=20"]
    file = tmp_path / "p.html"
    main([*words, "--tables", "2025-styles", f"--html={file}"])
    output = capsys.readouterr().out
    assert "1.0000*" in output
    assert f"1 system in {file}" in output
    page = file.read_text(encoding="utf-8")
    assert "<h2>Published numbers</h2>" in page
    assert "[2025-styles]" in page
    assert "1.0000*" in page
    assert "<b>e5" not in page
    plain = tmp_path / "q.html"
    report([*words, f"--html={plain}"])
    assert "Published numbers" not in plain.read_text(encoding="utf-8")
