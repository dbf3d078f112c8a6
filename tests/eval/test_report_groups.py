"""`eval/report.py --groups`: who is tied with the first, over reports and files of runs."""

from __future__ import annotations

import csv
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from claim2source.eval import score
from claim2source.eval.report import main

from claim2source.core.errors import run_program
from claim2source.data.loading import load
from claim2source.data.trec import write_trec_run
from claim2source.evaluation.evaluate import evaluate
from claim2source.search.bm25 import BM25
from tests.report_files import write_report
from tests.shared_data import shared


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the demo: one file, folders by language, a report, and judgements alone."""
    root = tmp_path_factory.mktemp("groups")
    dev = load("demo", "dev")
    runs = {}
    for name, system in {"stems": BM25(), "words": BM25(stemmer=False)}.items():
        runs[name] = system.index(dev.sources).search(dev.claims, 20).run
    write_trec_run(runs["stems"], root / "stems.trec")
    for lang in dev.languages:
        claims = [claim.id for claim in dev.claims if claim.lang == lang]
        for name, run in runs.items():
            write_trec_run(run.restricted(claims), root / name / f"{lang}.trec")
            own = root / "report" / "runs" / name / f"{lang}.trec"
            write_trec_run(run.restricted(claims), own)
        # A lab's file has its own ids, which are the same in every language.
        lines = ["index\tpreds"]
        for claim in claims:
            sources = runs["words"].sources(claim, 5)
            lines.append(f"{claim.removeprefix(f'dev-{lang}-')}\t{sources}")
        (root / "lab").mkdir(exist_ok=True)
        (root / "lab" / f"predictions_{lang}.tsv").write_text("\n".join(lines))
    (root / "lab" / "README.md").write_text("not a run")
    systems = {}
    for name, run in runs.items():
        result = evaluate(run, dev, repeats=0)
        tables = {"languages": result.languages, "macro": result.macro}
        systems[name] = {**tables, "runs": f"runs/{name}"}
    write_report(root / "report", systems, "demo")
    rows = ["query-id\tcorpus-id\tscore"]
    for claim in dev.claims:
        rows += [f"{claim.id}\t{gold}\t1" for gold in claim.golds]
    (root / "gold.tsv").write_text("\n".join(rows))
    return root


def grouped(out: Path, *words: object) -> dict[str, Any]:
    main(["--groups", "--repeats=300", f"--out={out}", *map(str, words)])
    record: dict[str, Any] = json.loads((out / "groups.json").read_text())
    return record


def test_files_folders_and_reports_are_the_same_systems(folder: Path, tmp_path: Path) -> None:
    of_reports = grouped(tmp_path / "a", "--reports", folder / "report")
    words = ["--dataset=demo", "--runs", folder / "stems.trec", folder / "lab"]
    of_files = grouped(tmp_path / "b", *words)
    names = {"stems": "stems", "words": "lab"}
    ours = {system["system"]: system for system in of_reports["systems"]}
    theirs = {system["system"]: system for system in of_files["systems"]}
    assert set(theirs) == set(names.values())
    for name, other in names.items():
        assert set(ours[name]["languages"]) == {"en", "de", "fr"}
        assert ours[name] == {**theirs[other], "system": name}
    # Of reports and files together, the same run twice is tied with itself.
    words = ["--reports", folder / "report", "--runs", folder / "words", folder / "stems"]
    both = grouped(tmp_path / "c", *words)
    assert len(both["systems"]) == 4
    pairs = {frozenset((pair["system"], pair["other"])): pair for pair in both["pairs"]}
    assert pairs[frozenset(("words", str(folder / "words")))]["p"] == 1.0
    dotted = tmp_path / "lab.v2"
    dotted.symlink_to(folder / "lab")
    words = ["--dataset=demo", "--repeats=5", "--runs", dotted]
    alone = grouped(tmp_path / "e", *words)
    assert (alone["first"], alone["repeats"] > 20) == ("lab.v2", True)
    words = ["--reports", folder / "report", "--runs", folder / "words", folder / "stems"]
    few = grouped(tmp_path / "d", *words, "--languages", "de")
    assert few["claims"] < both["claims"] and few["systems"][0]["languages"] == {}


def test_the_page_begins_with_the_groups(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    words = ["--reports", folder / "report"]
    record = grouped(tmp_path / "with", *words, "--html", page)
    text = page.read_text()
    first, second = text.split("<h2>")[1:3]
    assert first.startswith("Who is tied with the first")
    assert second.startswith("Score by language")
    for system in record["systems"]:
        assert system["system"] in first
        assert f"{system['best_rank']} to {system['worst_rank']}" in first
    main([*map(str, words), "--repeats=20", "--html", str(page)])
    assert "Who is tied with the first" not in page.read_text()


def test_outputs_agree_and_can_be_written_again(folder: Path, tmp_path: Path, capsys: Any) -> None:
    words = ["--qrels", folder / "gold.tsv", "--runs", folder / "stems.trec", folder / "words"]
    record = grouped(tmp_path, *words)
    assert grouped(tmp_path, *words) == record
    lines = (tmp_path / "groups.csv").read_text().splitlines()
    rows = [*csv.DictReader(lines)]
    assert [row["system"] for row in rows] == [row["system"] for row in record["systems"]]
    printed = capsys.readouterr().out
    for row in record["systems"]:
        for text in (printed, (tmp_path / "groups.md").read_text()):
            assert f"{row['best_rank']} to {row['worst_rank']}" in text
            assert f"{row['score']:.4f}" in text
    # Judgements alone have no languages: the score is the mean over claims, as in eval/score.py.
    score.main(["--qrels", str(folder / "gold.tsv"), "--run", str(folder / "stems.trec"), "--json"])
    means = json.loads(capsys.readouterr().out)["runs"]["stems"]
    (stems,) = (row for row in record["systems"] if row["system"] == "stems")
    assert stems["score"] == pytest.approx(means["mrr@5"]) and stems["languages"] == {}


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--runs", "stems.trec"], "dataset"),
        (["--qrels", "gold.tsv"], "reports"),
        (["--qrels", "gold.tsv", "--runs", "none.trec"], "none.trec"),
        (["--qrels", "none.tsv", "--runs", "stems.trec"], "none.tsv"),
        (["--qrels", "gold.tsv", "--runs", "stems.trec", "--dataset=demo"], "qrels"),
        (["--qrels", "gold.tsv", "--runs", "stems.trec", "--languages=de"], "qrels"),
        (["--qrels", "gold.tsv", "--runs", "stems.trec", "other.trec"], "other"),
        (["--qrels", "gold.tsv", "--runs", "stems.trec", "--metric=bleu"], "bleu"),
        (["--qrels", "gold.tsv", "--runs", "stems.trec", "--against=stems"], "against"),
        (["--qrels", "gold.tsv", "--runs", "stems.trec", "--html=page.html"], "runs"),
        (["--dataset=demo", "--html=page.html"], "reports"),
        (["--reports", "report", "--published"], "groups"),
        (["--dataset=demo", "--runs", "empty"], "empty"),
        (["--dataset=demo", "--runs", "stems.trec", "--languages=xx"], "languages"),
    ],
)
def test_what_a_user_does_wrong_is_one_line_and_nothing_is_written(
    words: list[str],
    reason: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    Path("empty").mkdir(exist_ok=True)
    Path("other.trec").write_text("nobody Q0 x 1 1 t\n")
    with pytest.raises(SystemExit) as ended:
        run_program(main, ["--groups", f"--out={tmp_path / 'o'}", *words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert reason in error and len(error.splitlines()) == 1
    assert not (tmp_path / "o").exists()


def test_runs_need_groups_and_files_of_others_stay(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--qrels={folder / 'gold.tsv'}", f"--runs={folder / 'stems.trec'}"]
    for given in (words, words[:1]):
        with pytest.raises(SystemExit) as ended:
            run_program(main, [*given, f"--out={tmp_path}"])
        assert ended.value.code == 2
    for name in ("groups.json", "groups.md", "groups.csv"):
        (tmp_path / name).write_text("{} of somebody\n")
        with pytest.raises(SystemExit):
            run_program(main, ["--groups", *words, f"--out={tmp_path}"])
        assert name in capsys.readouterr().err
        assert (tmp_path / name).read_text() == "{} of somebody\n"
        (tmp_path / name).unlink()
    assert not [*tmp_path.iterdir()]


def test_the_runs_of_2025(tmp_path: Path) -> None:
    data = shared("runs")
    runs = sorted(data.glob("predictions_*.tsv"))
    gold = data / "subtask4b_query_tweets_dev.tsv"
    record = grouped(tmp_path, "--qrels", gold, "--runs", *runs)
    assert (record["claims"], record["papers"]) == (1400, 772)
    scores = {row["system"]: round(row["score"], 6) for row in record["systems"]}
    assert scores["predictions_BM25_dev_TOP10"] == 0.552274
    assert scores["predictions_BM25_Pre_Processed_dev_TOP10"] == 0.615726
    assert record["first"] == "predictions_SciBERT_dev_TOP10"
    places = [(row["best_rank"], row["worst_rank"]) for row in record["systems"]]
    assert places == [(1, 1), (2, 2), (3, 3)] and not record["tied_with_first"]


@pytest.mark.slow
def test_37_systems_of_8172_claims_take_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    golds = {f"test-{number}": f"p{rng.integers(5_000)}" for number in range(8172)}
    rows = ["query-id\tcorpus-id\tscore"]
    rows += [f"{claim}\t{gold}\t1" for claim, gold in golds.items()]
    (tmp_path / "gold.tsv").write_text("\n".join(rows))
    for system in range(37):
        places = rng.integers(1, 8 + system // 4, len(golds)).tolist()
        lines = []
        for number, (claim, gold) in enumerate(golds.items()):
            for rank in range(1, 11):
                source = gold if rank == places[number] else f"q{(97 * number + rank) % 9_000}"
                lines.append(f"{claim} Q0 {source} {rank} {1 / rank:.6f} s{system}")
        (tmp_path / f"s{system}.trec").write_text("\n".join(lines))
    runs = [tmp_path / f"s{system}.trec" for system in range(37)]
    started = time.process_time()
    words = ["--groups", f"--qrels={tmp_path / 'gold.tsv'}", "--runs", *map(str, runs)]
    main(words)
    # 10 s, and half as much again for a busy machine.
    assert time.process_time() - started < 15
