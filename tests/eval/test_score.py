"""eval/score.py as a process: its output and its refusals."""

import json
from pathlib import Path

import pytest
from claim2source.eval import score
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from tests.processes import program
from tests.refusals import refused
from tests.shared_data import shared


def as_json(capsys, *arguments: object) -> dict:
    score.main([*map(str, arguments), "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Four claims about three papers, and runs with every oddity that is let through."""
    monkeypatch.chdir(tmp_path)
    Path("q.tsv").write_text(
        "query-id\tcorpus-id\tscore\nc1\ta\t1\nc2\ta\t1\nc3\tb\t1\nc4\tc\t1\nnogold\ta\t0\n"
    )
    # c1 right, c2 second (its gold twice), c3 listed empty, c4 absent, two claims too many.
    Path("lab.tsv").write_text(
        "post_id\tpreds\nc1\t['a']\nc2\t['z', 'a', 'a']\nc3\t[]\nnogold\t['a']\nother\t['a']\n"
    )
    # A tie at c3: by id descending the gold b is after x.
    Path("run.trec").write_text(
        "c1 Q0 a 1 1 t\nc2 Q0 a 1 1 t\nc3 Q0 b 1 1 t\nc3 Q0 x 2 1 t\nc4 Q0 c 1 1 t\n"
    )
    return tmp_path


def test_names_of_files_and_claims_cannot_steer_the_terminal(folder, capsys):
    name = "a\x1b]0;owned\x07.trec"
    Path(name).write_text(Path("run.trec").read_text())
    score.main(["--qrels", "q.tsv", "--run", name])
    out = capsys.readouterr().out
    assert "a\\x1b]0;owned\\x07 " in out
    assert out.replace("\n", "").isprintable()
    Path(name).write_text("c1\x1b]0;owned\x07 Q0 a 1 no t\n")
    with pytest.raises(UserError) as error:
        score.main(["--qrels", "q.tsv", "--run", name])
    assert all(line.isprintable() for line in error.value.lines)
    # JSON has the name unchanged.
    Path(name).write_text(Path("run.trec").read_text())
    assert list(as_json(capsys, "--qrels", "q.tsv", "--run", name)["runs"]) == [Path(name).stem]


def test_the_published_figures(capsys):
    data, names = shared("runs"), [f"predictions_BM25_{x}dev_TOP10" for x in ("", "Pre_Processed_")]
    words = f"--qrels={data}/subtask4b_query_tweets_dev.tsv --metrics mrr@1 mrr@5 mrr@10"
    runs = [word for name in names for word in ("--run", data / f"{name}.tsv")]
    report = as_json(capsys, *words.split(), *runs)
    items = report["runs"].items()
    assert {name: {m: round(v, 6) for m, v in means.items()} for name, means in items} == {
        names[0]: {"mrr@1": 0.505714, "mrr@5": 0.552274, "mrr@10": 0.557658},
        names[1]: {"mrr@1": 0.565, "mrr@5": 0.615726, "mrr@10": 0.622075},
    }
    assert report["claims"] == 1400
    nothing = dict.fromkeys(report["runs"], 0)
    assert report["missing"] == report["repeated"] == report["ignored"] == nothing
    test = report["paired_test"]["metrics"]["mrr@5"]
    assert test["difference"] == pytest.approx(0.552274 - 0.615726, abs=1e-6)
    assert test["p_value"] == 1 / 10_001 and test["repeats"] == 10_000
    # Fewer papers than claims: 1,400 tweets are about 772 papers.
    assert test["groups"] == 772


def test_json_counts_what_was_let_through(folder, capsys):
    report = as_json(capsys, "--qrels", "q.tsv", "--run", "lab.tsv", "--metrics", "mrr@5", "hit@1")
    notes = report["notes"]
    assert len(notes) == 2 and "lab: 1 " in notes[-1]
    assert report == {
        "runs": {"lab": {"mrr@5": (1 + 1 / 2) / 4, "hit@1": 0.25}},
        "claims": 4,
        "missing": {"lab": 2},
        "repeated": {"lab": 1},
        "ignored": {"lab": 2},
        "notes": [f"mrr@5: {DEEPER.format('lab')}", notes[-1]],
    }


DEEPER = "deeper than the lists of {}, whose longest has 2 sources; golds further down count as not found."


def test_metrics_deeper_than_the_lists_are_said_and_stand(folder, capsys):
    words = ["--qrels", "q.tsv", "--run", "run.trec", "lab.tsv", "--metrics", "mrr@2", "recall@100"]
    score.main([*words, "map@3", "hit@1"])
    output = capsys.readouterr().out
    assert f"\nrecall@100, map@3: {DEEPER.format('run, lab')}\n" in output
    short = as_json(capsys, *words)
    assert short["notes"][0] == f"recall@100: {DEEPER.format('run, lab')}"
    # The longest list counts, not the typical one; the same number comes of longer lists.
    lines = "".join(f"other Q0 d{i} 1 {-i} t\n" for i in range(1, 101))
    Path("long.trec").write_text(Path("run.trec").read_text() + lines)
    words[3:5] = ["long.trec"]
    record = as_json(capsys, *words)
    assert record["notes"] == []
    assert record["runs"]["long"] == short["runs"]["run"]


def test_two_runs_are_tested_by_paper_three_are_not(folder, capsys):
    words = "--qrels q.tsv --run run.trec lab.tsv --metrics mrr@5 mrr@1 --seed 3 --repeats 4000"
    report = as_json(capsys, *words.split())
    assert report["runs"]["run"] == {"mrr@5": 3.5 / 4, "mrr@1": 0.75}
    test = report["paired_test"]
    assert test["runs"] == ["run", "lab"] and list(test["metrics"]) == ["mrr@5", "mrr@1"]
    # Papers a, b, c differ by 0.5, 0.5 and 1 at mrr@5: 2 of 8 flips are as far as that.
    figures = test["metrics"]["mrr@5"]
    assert figures["difference"] == 0.5 and (figures["groups"], figures["repeats"]) == (3, 4_000)
    assert figures["p_value"] == pytest.approx(0.25, abs=0.03)
    # At mrr@1 only a and c differ, by 1 each.
    assert test["metrics"]["mrr@1"]["p_value"] == pytest.approx(0.5, abs=0.03)
    three = as_json(capsys, "--qrels", "q.tsv", "--run", "run.trec", "lab.tsv", "run.trec")
    assert "paired_test" not in three and list(three["runs"]) == ["run", "lab", "run #2"]


def test_names_tell_runs_of_one_stem_apart(folder, capsys):
    for name in ("one", "two"):
        (folder / name).mkdir()
        (folder / name / "dev.trec").write_text("c1 Q0 a 1 1 t\n")
    report = as_json(capsys, "--qrels", "q.tsv", "--run", "one/dev.trec", "two/dev.trec")
    assert list(report["runs"]) == ["one/dev", "two/dev"]
    assert report["paired_test"]["metrics"]["mrr@5"]["p_value"] == 1.0


def test_the_table_says_it_all(folder, capsys):
    score.main(["--qrels", "q.tsv", "--run", "lab.tsv", "run.trec", "--metrics", "mrr@5"])
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["run", "mrr@5", "missing", "repeated", "ignored"]
    assert rows[1] == ["lab", "0.375000", "2", "1", "2"]
    assert rows[2] == ["run", "0.875000", "0", "0", "0"]
    assert "4 claims with a gold" in out and "10000 repeats" in out and "(3 of them)" in out
    assert rows[-1][:2] == ["mrr@5", "-0.500000"]
    score.main(["--qrels", "q.tsv", "--run", "lab.tsv"])
    assert "randomisation" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--qrels q.tsv --run run.trec --metrics mrr@5 foo@1", "metrics: 'foo@1' is not allowed"),
        ("--qrels q.tsv --run absent", "absent: no such file"),
        ("--qrels q.tsv --run strangers.tsv", "strangers.tsv: ids do not match: none of its 1"),
        ("--qrels nogold --run run.trec", "no claim has a gold"),
        ("--qrels q.tsv", "run: is missing; wanted"),
    ],
)
def test_bad_input_is_a_line(folder, arguments, message):
    Path("strangers.tsv").write_text("post_id\tpreds\n1\t['a']\n")
    Path("nogold").write_text("c1 0 a 0\n")
    with pytest.raises(UserError) as error:
        score.main(arguments.split())
    assert message in str(error.value)


def test_a_user_error_ends_with_two_and_no_traceback(folder):
    Path("bad.trec").write_text("c1 Q0 a 1 x t\n" * 25)
    proc = program(
        "eval/score.py", "--qrels", "q.tsv", "--run", "run.trec", "bad.trec", "--json", cwd=folder
    )
    assert (proc.returncode, proc.stdout) == (2, "")
    lines = proc.stderr.splitlines()
    assert len(lines) == 21 and lines[-1] == "error: ... and 5 more problems"
    assert lines[0] == "error: bad.trec:1: score: 'x' is not a number"
    with refused(UserError, "mrr@K"):
        score.main("--qrels q.tsv --run bad.trec --metrics mrr".split())


def lab_mrr(predictions: dict[str, list[str]], golds: dict[str, str], k: int) -> float:
    """Compute MRR@k as the lab's function: the list is cut at k as it is, repeats and all."""
    total = 0.0
    for claim, gold in golds.items():
        first = predictions[claim][:k]
        total += 1 / (first.index(gold) + 1) if gold in first else 0.0
    return total / len(golds)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=8), min_size=1, max_size=9)
)
def test_repeated_ids_of_a_labs_tsv_score_as_the_lab_scores_them(tmp_path, capsys, lists):
    predictions = {f"c{number}": listed for number, listed in enumerate(lists)}
    golds = {claim: "abc"[number % 3] for number, claim in enumerate(predictions)}
    gold_file, run_file = tmp_path / "gold.tsv", tmp_path / "lab.tsv"
    rows = [f"{claim}\t{gold}" for claim, gold in golds.items()]
    gold_file.write_text("\n".join(["post_id\tcord_uid", *rows]) + "\n")
    rows = [f"{claim}\t{listed}" for claim, listed in predictions.items()]
    run_file.write_text("\n".join(["post_id\tpreds", *rows]) + "\n")
    report = as_json(capsys, "--qrels", gold_file, "--run", run_file, "--metrics", "mrr@5", "mrr@1")
    for metric, k in (("mrr@5", 5), ("mrr@1", 1)):
        assert report["runs"]["lab"][metric] == pytest.approx(lab_mrr(predictions, golds, k))
    repeats = sum(len(listed) - len(set(listed)) for listed in lists)
    assert report["repeated"]["lab"] == repeats
    assert any(f"lab: {repeats} " in note for note in report["notes"]) == (repeats > 0)


def test_a_repeat_before_the_gold_costs_a_place_in_a_labs_tsv_alone(folder, capsys):
    Path("twice.tsv").write_text("post_id\tpreds\nc1\t['z', 'z', 'a']\n")
    Path("twice.trec").write_text("c1 Q0 z 1 3 t\nc1 Q0 z 2 2 t\nc1 Q0 a 3 1 t\n")
    report = as_json(
        capsys, "--qrels", "q.tsv", "--run", "twice.tsv", "twice.trec", "--metrics", "mrr@5"
    )
    assert [means["mrr@5"] for means in report["runs"].values()] == [1 / 3 / 4, 1 / 2 / 4]
