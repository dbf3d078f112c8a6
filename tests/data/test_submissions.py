"""The labs' prediction files: lists of ids that are never evaluated, written byte for byte."""

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Dataset, Qrels
from claim2source.core.run import Run
from claim2source.data.submissions import lab_ids, write_submission
from claim2source.data.trec import read_run
from tests.data.test_trec import problems_of, write
from tests.refusals import refused
from tests.shared_data import shared


def test_preds_as_json_or_python_and_with_numbers(tmp_path):
    cells = ["['a', \"b'c\"]", '"[""a"", ""d""]"', "[1, 'a']", "[]", "[ 'a' ,\t'b' ]"]
    path = write(
        tmp_path, "post_id\tpreds\n" + "\n".join(f"{i}\t{cell}" for i, cell in enumerate(cells[:4]))
    )
    run = read_run(path).run
    lists = [run.sources(str(i)) for i in range(4)]
    assert lists == [["a", "b'c"], ["a", "d"], ["1", "a"], []]
    assert list(run.scored("0").values()) == [2.0, 1.0]


def test_broken_preds_are_problems_and_never_evaluated(tmp_path):
    marker = tmp_path / "evaluated"
    cells = [
        f"__import__('pathlib').Path({str(marker)!r}).touch()",
        "",
        "['a', ['b']]",
        "[1.5]",
        "['']",
        "{'a': 1}",
        "[" * 5000,
        "[a, b]",
    ]
    lines = [f"{i}\t{cell}" for i, cell in enumerate(cells)]
    path = write(tmp_path, "post_id\tpreds\n" + "\n".join(lines))
    problems = problems_of(read_run, path)
    assert len(problems) == len(cells) and not marker.exists()
    for number, line in enumerate(problems, 2):
        assert line.startswith(f"F:{number}: preds: ") and len(line) < 120


def test_submissions(tmp_path):
    ranked = {"dev-1": list("abcdef"), "dev-dev-2": ["it's", 'q"', "x"], "9": []}
    run = Run.from_lists(
        {c: [(s, -float(i)) for i, s in enumerate(ids)] for c, ids in ranked.items()}
    )
    path = tmp_path / "predictions.tsv"
    data = Dataset(tuple(Claim(key, "text", "en") for key in ranked), (), Qrels({}), "dev")
    write_submission(run, path, 2025, ids=lab_ids(data, 2025)["predictions.tsv"])
    lines = path.read_text().splitlines()
    assert lines[:2] == ["post_id\tpreds", "1\t['a', 'b', 'c', 'd', 'e']"] and lines[3] == "9\t[]"
    rerun = read_run(path).run
    assert rerun.claim_ids == ("1", "dev-2", "9") and rerun.sources("dev-2") == ["it's", 'q"', "x"]
    write_submission(run, path, 2026, k=2, ids={"dev-1": "x"})
    assert path.read_text().splitlines() == ["index\tpreds", "x\t['a', 'b']"]
    write_submission(run, path, 2025, k=1)
    assert read_run(path).run.claim_ids == tuple(ranked)


def test_two_claims_may_not_share_a_written_id(tmp_path):
    claims = tuple(Claim(key, "text", lang) for key, lang in (("dev-1", "de"), ("1", "de")))
    for year, field in ((2025, "post_id"), (2026, "index")):
        with refused(InputError, f"{field}: '1' ", "'dev-1' and '1'"):
            lab_ids(Dataset(claims, (), Qrels({}), "dev"), year)


@pytest.mark.parametrize("name", ["BM25", "BM25_Pre_Processed", "SciBERT"])
def test_a_labs_submission_comes_back_byte_for_byte(tmp_path, name):
    source = shared("runs") / f"predictions_{name}_dev_TOP10.tsv"
    read = read_run(source)
    assert len(read.run.claim_ids) == 1400 and len(read.run) == 14_000 - read.repeated
    write_submission(read.run, tmp_path / "p.tsv", 2025, k=10)
    assert (tmp_path / "p.tsv").read_bytes() == source.read_bytes()
