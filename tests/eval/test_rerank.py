"""`eval/rerank.py` from its arguments to its files, and the golds that a stage moves."""

from __future__ import annotations

from pathlib import Path

import pytest

import claim2source as c2s
from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.report import Report
from claim2source.core.run import Run
from claim2source.evaluation.moves import Moves, gold_moves
from claim2source.io.trec import read_run, write_trec_run
from claim2source.stages.http import Http
from claim2source.stages.yes_no import YesNo
from claim2source.systems.nodes import RouteNode
from claim2source.systems.read import SYSTEMS_FOLDER, read_systems
from eval.rerank import main


def test_moves_of_golds_are_counted_by_hand() -> None:
    """Golds g: from 2 to 1, from 1 to 3, from 4 (beyond the depth) to 4, never found."""
    orders = {"a": ("xgyz", "gxyz"), "b": ("gxyz", "xygz"), "c": ("xyzg", "zyxg"), "d": ("x", "x")}
    runs = [
        Run.from_lists({c: [(s, -float(i)) for i, s in enumerate(o[n])] for c, o in orders.items()})
        for n in (0, 1)
    ]
    claims = tuple(Claim(c, c, "de" if c == "d" else "en", golds=("g",)) for c in orders)
    qrels = Qrels({claim: {"g": 1} for claim in orders})
    data = Dataset(claims, tuple(map(Source, "gxyz")), qrels, "dev")
    moves = gold_moves(*runs, data, depth=3)
    assert moves == {
        "en": Moves(3, 2 / 3, 1, 1, 1, 1),
        "de": Moves(1, 0.0, 0, 0, 0, 0),
        "macro": Moves(4, 1 / 3, 1, 1, 1, 1),
    }


def test_each_stage_is_scored_written_and_tested(
    tmp_path: Path, tiny_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "systems.yaml"
    stage = f"{{rerank: max_sim, model: {tiny_folder}, max_length: 64"
    files.write_text(
        f"Two:\n  retrieve: Plain\n  stages:\n    - {stage}, depth: 5}}\n"
        f"    - {stage}, depth: 3, mix: 1.0}}\nPlain:\n  retrieve: {{bm25: {{k1: 1.2}}}}\n"
    )
    said = ["--files", str(files), "--repeats", "50", "--store", str(tmp_path / "store")]
    main(["--system", "Two", "--out", str(tmp_path / "out"), *said])
    printed = capsys.readouterr().out
    assert (
        "1. rerank max_sim: the first 5 of up to 100 sources of a claim were re-ranked" in printed
    )
    report = Report.read(tmp_path / "out")
    names = ["first stage", "1. rerank max_sim", "2. rerank max_sim"]
    assert list(report.systems) == names
    dev = c2s.load("demo", "dev")
    first = c2s.BM25(k1=1.2).index(dev.sources).search(dev.claims, 100)
    for name, folder in zip(names, "012", strict=True):
        one = report.systems[name]
        parts = [
            read_run(tmp_path / "out" / "runs" / folder / f"{x}.trec").run for x in ("en", "de")
        ]
        assert set(one.languages) == {"en", "de", "fr"} and one.intervals is not None
        for part in parts:
            for claim in part.claim_ids:
                before, after = first.sources(claim), part.sources(claim)
                assert after[5:] == before[5:] and set(after[:5]) == set(before[:5])
                # The second stage keeps the order of the first three that it is given.
                assert folder != "0" or after == before
    tests = {(c.system, c.baseline) for family in report.tests for c in family.comparisons}
    assert tests == {(names[1], names[0]), (names[2], names[1]), (names[2], names[0])}
    # The ceiling of the first re-ranking is the first stage's recall at its depth.
    ceiling = c2s.evaluate(first, dev, ["recall@5"], repeats=0).macro["recall@5"]
    (row,) = [
        line.split()
        for line in printed.splitlines()
        if line.startswith("1. rerank max_sim") and line.split()[3:6] == ["5", "macro", "150"]
    ]
    assert row[6] == f"{ceiling:.4f}" and row[-4:] != ["0"] * 4
    assert (tmp_path / "out" / "submission_2026" / "predictions_de.tsv").is_file()

    # The same ranking from a file gives the same result.
    write_trec_run(first.run, tmp_path / "bm25.trec")
    run = ["--run", str(tmp_path / "bm25.trec")]
    main(["--system", "Two", "--out", str(tmp_path / "again"), *run, *said])
    again = Report.read(tmp_path / "again")
    assert [one.macro for one in again.systems.values()] == [
        one.macro for one in report.systems.values()
    ]
    with pytest.raises(UserError, match="one of Two, Plain"):
        main(["--system", "None", "--out", str(tmp_path / "no"), *said])
    assert not (tmp_path / "no").exists()
    # A system without stages is its first stage alone.
    main(["--system", "Plain", "--out", str(tmp_path / "plain"), *said])
    plain = Report.read(tmp_path / "plain")
    assert list(plain.systems) == names[:1] and plain.tests == ()
    assert plain.systems[names[0]].macro == report.systems[names[0]].macro
    with pytest.raises(UserError, match="no re-ranker"):
        words = ["--choose_mix", "0.5", "--out", str(tmp_path / "no")]
        main(["--system", "Plain", *words, *said])


def test_the_papers_rerankers_are_there_as_released() -> None:
    files = [SYSTEMS_FOLDER / name for name in ("papers_2026.yaml", "rerankers.yaml")]
    systems = read_systems(files)
    names = ["Nemotron", "BGE", "Jina", "Qwen3-0.6B", "Qwen3-8B", "Qwen3-8B-IT"]
    for name in names:
        ((_, stage),) = systems[name].loaded_stages()
        assert (stage.depth, stage.claims, stage.mix) == (100, "translated", 0), name
        first = systems[name].first
        assert isinstance(first, RouteNode)
        routes = {lang: [part.name for part in parts] for lang, parts in first.routes.items()}
        assert routes == {"default": ["GritLM"], "de": ["GritLM-F"]}
        assert stage.sources == "released"
        if isinstance(stage, Http):
            assert stage.documents <= 64
        if isinstance(stage, YesNo):
            assert stage.max_length == 8192
            assert (stage.template == "escaped") == ("8B" in name)
