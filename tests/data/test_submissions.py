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
    cells = [
        "['a', \"b'c\"]",
        '"[""a"", ""d""]"',
        "[1, 'a']",
        "[]",
        "[ 'a' ,\t'b' ]",
    ]
    rows = [f"{i}\t{cell}" for i, cell in enumerate(cells[:4])]
    path = write(tmp_path, "post_id\tpreds\n" + "\n".join(rows))
    run = read_run(path).run
    assert run.sources("0") == ["a", "b'c"]
    assert run.sources("1") == ["a", "d"]
    assert run.sources("2") == ["1", "a"]
    assert run.sources("3") == []
    scored = run.scored("0")
    assert list(scored.values()) == [2.0, 1.0]


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
    assert len(problems) == len(cells)
    assert not marker.exists()
    for number, line in enumerate(problems, 2):
        assert line.startswith(f"F:{number}: preds: ")
        assert len(line) < 120


def dev_set(claims: list[Claim]) -> Dataset:
    """Return a data set of these claims, without sources and judgements."""
    return Dataset(tuple(claims), (), Qrels({}), "dev")


def test_submissions(tmp_path):
    ranked = {
        "dev-1": list("abcdef"),
        "dev-dev-2": ["it's", 'q"', "x"],
        "9": [],
    }
    lists: dict[str, list[tuple[str, float]]] = {}
    for claim, sources in ranked.items():
        lists[claim] = [(source, -float(i)) for i, source in enumerate(sources)]
    run = Run.from_lists(lists)
    path = tmp_path / "predictions.tsv"
    claims = [Claim(key, "text", "en") for key in ranked]
    ids = lab_ids(dev_set(claims), 2025)
    write_submission(run, path, 2025, ids=ids["predictions.tsv"])
    lines = path.read_text().splitlines()
    assert lines[:2] == ["post_id\tpreds", "1\t['a', 'b', 'c', 'd', 'e']"]
    assert lines[3] == "9\t[]"
    rerun = read_run(path).run
    assert rerun.claim_ids == ("1", "dev-2", "9")
    assert rerun.sources("dev-2") == ["it's", 'q"', "x"]

    write_submission(
        run,
        path,
        2026,
        k=2,
        ids={"dev-1": "x"},
    )
    lines = path.read_text().splitlines()
    assert lines == ["index\tpreds", "x\t['a', 'b']"]
    write_submission(run, path, 2025, k=1)
    rerun = read_run(path).run
    assert rerun.claim_ids == tuple(ranked)


def test_two_claims_may_not_share_a_written_id(tmp_path):
    claims = [
        Claim("dev-1", "text", "de"),
        Claim("1", "text", "de"),
    ]
    data = dev_set(claims)
    for year, field in ((2025, "post_id"), (2026, "index")):
        with refused(InputError, f"{field}: '1' ", "'dev-1' and '1'"):
            lab_ids(data, year)


@pytest.mark.parametrize("name", ["BM25", "BM25_Pre_Processed", "SciBERT"])
def test_a_labs_submission_comes_back_byte_for_byte(tmp_path, name):
    source = shared("runs") / f"predictions_{name}_dev_TOP10.tsv"
    read = read_run(source)
    assert len(read.run.claim_ids) == 1400
    assert len(read.run) == 14_000 - read.repeated
    path = tmp_path / "p.tsv"
    write_submission(read.run, path, 2025, k=10)
    assert path.read_bytes() == source.read_bytes()
