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
    runs, golds, table = {}, {}, {}
    for lang, count in counts.items():
        ids = [f"{lang}{i}" for i in range(count)]
        golds |= {c: {f"p{lang}{i // 2}": 1} for i, c in enumerate(ids)}
        first = {c: next(iter(golds[c])) if rng.random() < share else "x" for c in ids}
        runs[lang] = Run.from_lists({c: [(source, 1.0)] for c, source in first.items()})
        write_trec_run(runs[lang], folder / "runs" / f"{lang}.trec")
        scores = evaluate(runs[lang], Qrels(golds), METRICS, ids)
        table[lang] = {**scores.means(), "queries": count}
    claims = tuple(Claim(c, "", c[:2]) for c in golds)
    data = Dataset(claims, (), Qrels(golds), split)
    ranked = {c: run.scored(c).items() for run in runs.values() for c in run.claim_ids}
    run = Run.from_lists({claim: [*ranking] for claim, ranking in ranked.items()})
    bounds = score_intervals(evaluate(run, Qrels(golds), METRICS), data, METRICS, 500)
    system = {"model": checkpoint, "system": checkpoint, "sources": "title_abstract"}
    system |= {"intervals": bounds.values, "languages": table, "macro": macro(table)}
    system |= {"cost": {"seconds": 12.34, "claims": 1400}, "runs": "runs", **options}
    write_report(folder, {Path(checkpoint).name: system}, dataset, split)
    return runs, Qrels(golds)


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    main([str(a) for a in arguments])
    return capsys.readouterr().out


def cells(*arguments: object) -> dict[tuple[str, ...], PublishedScore]:
    """The cells that have a score of ours: table, row, column -> score."""
    words = ["--published", *map(str, arguments)]
    config = read_config(ReportConfig, words, program="t", description="t")
    tables = PublishedTables.of(read_reports(config.reports), config.tables)
    return {
        (table, *place): ours.cell
        for table, scores in tables.cells.items()
        for place, ours in scores.items()
    }


def test_without_runs_every_table_is_shown_with_gaps(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys)
    for said in ("0.5575", "+0.0225", "-0.3450", "63.5", "7829.0", "0.7628", "2e-4", "one H100"):
        assert said in text
    assert "-[cd]" in text and "[d] empty: " in text
    assert "GritLM-7B" in text and "unreliable: the same four numbers" in text
    assert "  ours" in text and "  difference" not in text
    assert max(map(len, text.splitlines())) < 190


def test_ours_stand_beside_with_difference_and_interval(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs, qrels = save(tmp_path, {"en": 1400})
    values = evaluate(runs["en"], qrels, ["mrr@5"])
    mean, groups = values.mean("mrr@5"), gold_groups(qrels, values.claim_ids)
    low, high = bootstrap_intervals(values["mrr@5"][None], groups, repeats=500)[0]
    ((key, cell),) = cells("--reports", tmp_path).items()
    assert key == ("2025-styles", "E5-Large", "S0C0") and cell.same_claims
    assert cell.ours == pytest.approx(mean) and cell.difference == pytest.approx(mean - 0.6568)
    assert (cell.low, cell.high) == pytest.approx((low, high))
    assert cell.inside == ("yes" if low <= 0.6568 <= high else "no") == "no"
    text = printed(capsys, "--reports", tmp_path, "--tables", "2025-styles")
    assert f"{mean:.4f}" in text and f"{mean - 0.6568:+.4f}" in text
    (cost,) = (line.split() for line in text.splitlines() if str(tmp_path) in line)
    assert cost == ["E5-Large", "e5-large-v2", str(tmp_path), "12.3", "113.5", "-", "-", "-"]
    # Without an interval the verdict is unknown.
    save(tmp_path / "bare", {"en": 1400}, intervals={"mrr@1": {"en": (0.1, 0.2)}})
    empty = cells("--reports", tmp_path / "bare")[key]
    assert (empty.inside, empty.low, empty.ours) == ("unknown", None, cell.ours)
    near = tmp_path / "near"
    save(near, {"en": 1400}, share=0.6568)
    assert cells("--reports", near)[key].inside == "yes"


def test_seconds_are_compared_over_the_papers_claims_alone(tmp_path: Path) -> None:
    for counts in ({"en": 32}, {"en": 2}, {"ar": 32}, {"en": 32, "ar": 32}):
        folder = tmp_path / repr(counts)
        save(folder, counts, checkpoint="fielded-bm25", dataset="English_dev.json")
        table = cells("--reports", folder, "--tables", "2024-results")
        times = [cell.ours for (*_, column), cell in table.items() if column == "dev time"]
        assert times == ([12.34] if counts == {"en": 32} else []), counts


def test_other_claims_are_shown_but_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "part"
    save(folder, {"en": 431}, dataset="/data/ct25")
    arguments = ["--reports", folder]
    cell = cells(*arguments)["2025-styles", "E5-Large", "S0C0"]
    assert cell.ours and cell.difference is None
    assert cell.inside == "unknown" and not cell.same_claims
    text = printed(capsys, *arguments)
    assert f"{cell.ours:.4f}*" in text
    # The same counts from a data set of another name belong nowhere.
    save(folder, {"en": 431}, dataset="demo")
    assert f"In no table: {Path(E5).name} of {folder}" in printed(capsys, *arguments)


VAL = {"en": 3905, "de": 386, "fr": 702}


def test_three_languages_their_average_and_the_representation(tmp_path: Path) -> None:
    extra = {"checkpoint": "e5-large-v2-metadata", "sources": "metadata_paper_order"}
    save(tmp_path, VAL, split="val", claims="translated", **extra)
    table = cells("--reports", tmp_path)
    # English is the same text in all three; the others are only filled for translations.
    assert {key[1:] for key in table} == {
        ("E5", f"{f} EN") for f in ("Orig", "Transl", "Biling")
    } | {("E5", f"Transl {x}") for x in ("DE", "FR", "AVG")}
    parts = [table["2026-stage1", "E5", f"Transl {x}"] for x in ("EN", "DE", "FR", "AVG")]
    ours = [part.ours for part in parts]
    assert ours[3] == pytest.approx(np.mean(ours[:3]))
    widths = [(part.high or 0) - (part.low or 0) for part in parts]
    # The macro interval is by language: 386 German claims weigh a third.
    expected = np.sqrt(sum((w / 3) ** 2 for w in widths[:3]))
    assert widths[3] == pytest.approx(expected, rel=0.1)


def test_what_one_paper_did_does_not_stand_in_the_other_ones_row(tmp_path: Path) -> None:
    """E5 over titles and abstracts is 2025's, E5 with metadata 2026's; BM25 alike."""
    for i, checkpoint in enumerate((E5, "bm25", "hybrid:" + E5)):
        save(tmp_path / str(i), VAL, split="val", checkpoint=checkpoint)
    save(tmp_path / "rich", {"en": 1400}, sources="metadata")
    reports = [tmp_path / name for name in ("0", "1", "2", "rich")]
    assert not cells("--reports", *reports)


def test_the_systems_of_a_hybrid_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its BM25 and its fusion were tuned: ours, not the papers'; the dense part is theirs."""
    save(tmp_path / "a", {"en": 1400})
    (part,) = Report.read(tmp_path / "a").systems.values()
    models = {"bm25": "bm25-tuned", "dense": E5, "hybrid": f"tuned-hybrid:{E5}"}
    parts = [replace(part, name=n, model=m, system=n, runs=f"runs/{n}") for n, m in models.items()]
    Report("data", "dev", {part.name: part for part in parts}).write(tmp_path)
    table = cells("--reports", tmp_path)
    assert {key[1] for key in table if key[0] == "2025-styles"} == {"E5-Large"}
    assert ("2025-test", "BM25", "dev") not in table
    text = printed(capsys, "--reports", tmp_path)
    for name, model in (("bm25", "bm25-tuned"), ("hybrid", f"tuned-hybrid:{E5}")):
        assert f"In no table: {name} of {tmp_path} ({model}, " in text


def test_percent_and_deltas_of_ours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    news = tmp_path / "news"
    save(news, {"en": 3000}, checkpoint="bm25-lemmas", dataset="adma2023", split="test")
    (report,) = json.loads((news / "report.json").read_text())["systems"].values()
    found = cells("--reports", news)["2023-candidates", "BM25", "TB@1"]
    assert found.ours == pytest.approx(100 * report["macro"]["recall@1"])
    assert f"{100 * report['macro']['recall@1']:.1f}" in printed(capsys, "--reports", news)
    # A rewritten style is shown as the paper does: as the difference to the plain one.
    for i, style in enumerate(["S0C0", "S0C1"]):
        save(tmp_path / style, {"en": 1400}, share=0.5 + i / 10, style=style)
    arguments = ["--reports", tmp_path / "S0C0", tmp_path / "S0C1", "--tables", "2025-styles"]
    both = cells(*arguments)
    first, formal = (both["2025-styles", "E5-Large", style] for style in ("S0C0", "S0C1"))
    gain = formal.ours - first.ours
    assert gain > 0 and f"{gain:+.4f}" in printed(capsys, *arguments)
    assert formal.difference == pytest.approx(formal.ours - 0.6578)


def test_markdown_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output, out = printed(capsys, "--out", tmp_path), tmp_path / "published.md"
    assert str(out) in output and "|" not in output
    text = out.read_text()
    assert "| BM25 | 0.5575[de] | +0.0225[e]" in text.replace("   |", " |")
    assert "## 2026: Official test, MRR@5 [2026-test]" in text
    header = next(line for line in text.splitlines() if "S0C0" in line)
    assert header.count("|") == 22  # not broken into blocks


def test_csv_has_a_line_for_each_cell(tmp_path: Path) -> None:
    save(
        tmp_path / "run",
        {"en": 1400},
        cost={"seconds": 12.34, "claims": 1400, "joules": 2500.0},
    )
    ((key, cell),) = cells("--reports", tmp_path / "run").items()
    main(["--reports", str(tmp_path / "run"), "--tables", "2025-styles", f"--out={tmp_path}"])
    with open(tmp_path / "published.csv", encoding="utf-8", newline="") as file:
        rows = {(row["table"], row["row"], row["column"]): row for row in csv.DictReader(file)}
    assert len(rows) > 100 and {place for place, row in rows.items() if row["ours"]} == {key}
    costs = {"seconds": "12.3", "items/s": "113.5", "peak MB": "", "tokens": "", "parameters": ""}
    costs["kJ"] = "2.50"
    assert rows[key] == {
        **dict(zip(("table", "row", "column"), key, strict=True)),
        **{"metric": "mrr@5", "language": "en", "unit": "", "published": "0.6568"},
        **{"unreliable": "", "ours": f"{cell.ours:.6f}", "difference": f"{cell.difference:.6f}"},
        **{"low": f"{cell.low:.6f}", "high": f"{cell.high:.6f}", "inside": "no"},
        **{"same_claims": "yes", "report": str(tmp_path / "run"), **costs},
    }


def test_tables_that_are_not_there_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run_program(main, ["--tables", "2027"])
    assert ended.value.code == 2 and "2025-styles" in capsys.readouterr().err


def test_the_page_has_the_tables_with_a_score_of_ours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claims = tuple(Claim(f"c{i}", "post", golds=("p1",)) for i in range(4))
    qrels = Qrels({claim.id: {"p1": 1} for claim in claims})
    write_beir([Dataset(claims, (Source("p1", "A title"),), qrels, "dev")], tmp_path / "ct25")
    run = Run.from_lists({claim.id: [("p1", 1.0)] for claim in claims})
    write_trec_run(run, tmp_path / "runs" / "en.trec")
    table = {"mrr@5": 1.0, "recall@1": 1.0, "queries": 4}
    scores = {"model": E5, "sources": "title_abstract", "languages": {"en": table}, "macro": table}
    system = {**scores, "system": E5, "runs": "runs"}
    write_report(tmp_path, {"<b>e5": system}, str(tmp_path / "ct25"))
    words = ["--reports", str(tmp_path), "--repeats=20"]
    main([*words, "--tables", "2025-styles", f"--html={tmp_path / 'p.html'}"])
    printed = capsys.readouterr().out
    assert "1.0000*" in printed and f"1 system in {tmp_path / 'p.html'}" in printed
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "<h2>Published numbers</h2>" in page and "[2025-styles]" in page and "1.0000*" in page
    assert "<b>e5" not in page
    report([*words, f"--html={tmp_path / 'q.html'}"])
    assert "Published numbers" not in (tmp_path / "q.html").read_text(encoding="utf-8")
