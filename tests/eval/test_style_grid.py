"""eval/style_grid.py: the grid as a program, its files, and what a second run costs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from claim2source.eval.style_grid import main

from claim2source.core.errors import UserError
from claim2source.core.report import Report
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from tests.refusals import refused
from tests.shared_data import REPOSITORY

RULES = REPOSITORY / "configs" / "style_grid" / "rules.yaml"


def test_texts_that_are_not_there_are_missed_before_a_model_is(tmp_path: Path) -> None:
    systems = tmp_path / "systems.yaml"
    systems.write_text("Dense:\n  retrieve: {dense: none/such}\n")
    words = [f"--systems={systems}", f"--out={tmp_path / 'out'}", "--dataset=demo"]
    with refused(UserError, "nosuch: "):
        main([*words, f"--styles.texts={tmp_path / 'nosuch'}"])
    assert not (tmp_path / "out").exists()


def test_the_grid_is_rows_of_the_report_and_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By rules, without a server; next to the published cells, where BM25 is the papers'."""
    dev, data, out = load("demo", "dev"), tmp_path / "ct25-cut", tmp_path / "out"
    few = dev.with_claims(dev.claims[:8])
    golds = {gold for claim in few.claims for gold in claim.golds}
    rest = [source for source in dev.sources if source.id not in golds][: 20 - len(golds)]
    sources = (*(source for source in dev.sources if source.id in golds), *rest)
    write_beir(replace(few, sources=sources), data)
    words = [f"--config={RULES}", f"--dataset={data}", f"--out={out}", "--only=[BM25]"]
    words += ["--repeats=50", f"--store={tmp_path / 'store'}", "--languages=en"]
    main([*words, "--styles.claim_styles=[C1]", "--styles.source_styles=[S3]"])
    report = Report.read(out)
    name = next(iter(report.systems))
    cell = report.systems[f"{name}.S3C1"]
    assert list(report.systems) == [name, f"{name}.S0C1", f"{name}.S3C0", f"{name}.S3C1"]
    assert cell.rewrites == "rules"
    # Styles by rules are not a paper's styles: published tables do not use these cells.
    assert cell.style == "S3C1, not the papers'"
    assert (out / cell.runs / "en.trec").is_file()
    printed, page = capsys.readouterr().out, (out / "styles" / "report.md").read_text("utf-8")
    for text in (printed, page):
        assert "rewritten by rules, which stand in for a language model" in text
        assert (
            "+0.0225?" in text and "-0.3086?" in text and "texts rewritten by Llama-3.3-70B" in text
        )
        assert "^: the best cell" in text and "S3 tweet, C0 as posted, C1 formal. Texts by" in text
    assert "paired randomisation tests" in page
