"""Runs and judgements as files: formats, round trips, problems with file, line and field."""

import gzip
import json
from io import StringIO
from pathlib import Path

import ir_measures
import numpy as np
import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import FileProblems, InputError
from claim2source.core.records import Qrels
from claim2source.core.run import Run
from claim2source.data import trec
from claim2source.data.trec import read_qrels, read_run, write_beir_qrels, write_trec_run

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Few distinct values, neighbours in float32 among them, so that ties are long.
BELOW_1 = float(np.nextafter(np.float32(1), np.float32(0)))
TIED_VALUES = [
    0.0,
    1.0,
    BELOW_1,
    -0.1,
    2.0**-149,
    -(2.0**-149),
    3.4028234663852886e38,
]
TIED = st.sampled_from(TIED_VALUES)
IDS = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]),
    min_size=1,
    max_size=4,
)
SCORED = st.dictionaries(
    IDS,
    FLOATS | TIED,
    min_size=1,
    max_size=8,
)
RANKED = st.dictionaries(
    IDS,
    SCORED.map(lambda d: list(d.items())),
    max_size=4,
    min_size=1,
)


def problems_of(reader, path) -> list[str]:
    with pytest.raises(InputError) as error:
        reader(path)
    message = str(error.value)
    named = message.replace(str(path), "F")
    return named.splitlines()


def first_fields(problems: list[str]) -> list[str]:
    """Return the first field of each line: the file and the line of its problem."""
    return [line.split(": ")[0] for line in problems]


def write(tmp_path, content: str | bytes, name: str = "file"):
    path = tmp_path / name
    if isinstance(content, str):
        content = content.encode()
    path.write_bytes(content)
    return path


@settings(max_examples=50)
@given(RANKED)
def test_a_trec_run_comes_back_to_the_last_bit_and_any_tool_ranks_it_as_we_do(
    tmp_path_factory, ranked
):
    path = tmp_path_factory.mktemp("run") / "r.trec"
    run = Run.from_lists(ranked)
    write_trec_run(run, path)
    read = read_run(path)
    assert list(read.run) == list(run)
    assert read.run.claim_ids == run.claim_ids
    assert read.repeated == 0
    assert read.path == path

    text = path.read_text("utf-8")
    rows = [line.split(" ") for line in text.splitlines()]
    written = [(row[0], row[2]) for row in rows]
    assert written == [row[:2] for row in run]
    ranks = [int(row[3]) for row in rows]
    assert ranks == run.ranks().tolist()
    constants = {(row[1], row[5]) for row in rows}
    assert constants == {("Q0", "claim2source")}
    for claim in run.claim_ids:
        ours = run.sources(claim)
        claim_rows = [row for row in rows if row[0] == claim]
        exact = {row[2]: float(row[4]) for row in claim_rows}
        # Readers with float64 see no tie, readers with float32 see ours.
        distinct = set(exact.values())
        assert len(distinct) == len(exact)
        assert sorted(exact, key=lambda s: -exact[s]) == ours
        rounded = {s: np.float32(score) for s, score in exact.items()}
        theirs = sorted(
            rounded,
            key=lambda s: (rounded[s], s),
            reverse=True,
        )
        assert theirs == ours


def test_trec_tools_agree_on_a_written_file_with_ties(tmp_path):
    path = tmp_path / "r.trec"
    tied = [(source, 0.1) for source in "abcd"]
    run = Run.from_lists({"c": tied})
    write_trec_run(run, path)
    with open(path) as file:
        theirs = pytrec_eval.parse_run(file)

    for rank, gold in enumerate("dcba", 1):
        expected = pytest.approx(1 / rank)
        judged = {"c": {gold: 1}}
        trec_eval = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"})
        values = trec_eval.evaluate(theirs)
        assert values["c"]["recip_rank"] == expected
        # RR@k breaks ties by ascending id, so a tie left in the file would show here.
        docs = list(ir_measures.read_trec_run(str(path)))
        qrels = [ir_measures.Qrel("c", gold, 1)]
        measure = ir_measures.RR @ 10
        scores = ir_measures.calc_aggregate([measure], qrels, docs)
        assert scores[measure] == expected


def test_an_empty_run_is_written_and_ids_are_checked(tmp_path):
    path = tmp_path / "r.trec"
    # Plain scores stay short, and equal scores of two claims are not a tie.
    plain = {
        "c": [("a", 0.1), ("b", 12.5)],
        "d": [("a", 0.1)],
    }
    write_trec_run(Run.from_lists(plain), path, "t")
    written = path.read_text()
    assert written.splitlines() == [
        "c Q0 b 1 12.5 t",
        "c Q0 a 2 0.100000001 t",
        "d Q0 a 1 0.100000001 t",
    ]
    without_sources = Run.from_lists({"c": []})
    write_trec_run(without_sources, path)
    assert path.read_text() == ""
    path.unlink()

    with_spaces = {
        "a b": [("x", 1.0)],
        "c": [("y\tz", 1.0), ("", 2.0), ("w\u00a0", 3.0)],
    }
    bad = Run.from_lists(with_spaces)
    lines = problems_of(lambda p: write_trec_run(bad, p), path)
    fields = [line.split(":")[1].strip() for line in lines]
    assert fields == ["claim id"] + ["source id"] * 3
    assert "'a b'" in lines[0]
    assert "white space" in lines[0]

    empty = Run.from_lists({})
    lines = problems_of(lambda p: write_trec_run(empty, p, "a tag"), path)
    assert lines[0].startswith("F: tag: 'a tag'")
    scores = [("s", float("-inf")), ("t", 1.0)]
    infinite = Run.from_lists({"c": scores})
    lines = problems_of(lambda p: write_trec_run(infinite, p), path)
    assert "'c', source 's'" in lines[0]
    assert not list(tmp_path.iterdir())

    # A source in the vocabulary that the run does not rank is allowed.
    vocabulary = np.array(["a b", "ok"])
    positions = np.array([[1]])
    unused = Run.from_codes(
        ["c"],
        vocabulary,
        positions,
        np.array([[1.0]]),
    )
    write_trec_run(unused, path)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_formats_with_bom_crlf_and_blank_lines(tmp_path, mark, end):
    def file(*lines: str):
        content = end.join(["", *lines, "", " ", ""])
        return write(tmp_path, mark + content.encode())

    def run_in(*lines: str) -> Run:
        return read_run(file(*lines)).run

    def grades_in(*lines: str):
        return read_qrels(file(*lines)).grades

    run = run_in("c1 Q0 a 1 0.5 t", "c1\tQ0\tb  2 1e0 t")
    assert list(run) == [("c1", "b", 1.0), ("c1", "a", 0.5)]
    # Only ASCII white space separates columns, as in trec_eval.
    run = run_in("c1 Q0 a\u00a0b 1 2 t")
    assert list(run) == [("c1", "a\u00a0b", 2.0)]
    grades = grades_in("c1 0 a\u2003b 1")
    assert grades == {"c1": {"a\u2003b": 1}}
    run = run_in("post_id\tpreds", "7\t['a', 'b']", "8\t[]")
    assert list(run) == [("7", "a", 2.0), ("7", "b", 1.0)]
    assert run.claim_ids == ("7", "8")
    run = run_in("text\tpreds\tindex", 'hi\t["x"]\t0')
    assert list(run) == [("0", "x", 1.0)]

    expected = {
        "c1": {"a": 1, "b": 0},
        "c2": {"a": 2},
    }
    layouts = (
        ["c1 0 a 1", "c1 Q0 b 0", "c2\t0\ta\t2"],
        ["query-id\tcorpus-id\tscore", "c1\ta\t1", "c1\tb\t0", "c2\ta\t2"],
        ["score\tquery-id\tcorpus-id", "1\tc1\ta", "0\tc1\tb", "2\tc2\ta"],
    )
    for lines in layouts:
        assert grades_in(*lines) == expected
    grades = grades_in(
        "post_id\ttweet_text\tcord_uid",
        '1\t"two',
        '""lines"""\tx',
        "2\tplain\ty",
    )
    assert grades == {"1": {"x": 1}, "2": {"y": 1}}
    grades = grades_in("index\tpubkey", "3\t44")
    assert grades == {"3": {"44": 1}}


def test_a_run_is_ranked_by_score_and_repeated_sources_are_counted(tmp_path):
    lines = [
        "c Q0 a 1 1 t",
        "d Q0 x 1 9 t",
        "c Q0 b 9 2 t",
        "c Q0 z 3 1.00000001 t",
        "",
    ]
    path = write(tmp_path, "\n".join(lines))
    run = read_run(path).run
    assert run.sources("c") == ["b", "z", "a"]
    assert run.claim_ids == ("c", "d")

    lines = [
        "post_id\tpreds",
        "1\t['b', 'a', 'b', 'c', 'a']",
        "2\t['b', 'b']",
        "1\t['z', 'a']",
        "",
    ]
    path = write(tmp_path, "\n".join(lines))
    read = read_run(path)
    assert read.repeated == 5
    assert read.run.sources("1") == ["b", "a", "c"]
    assert read.run.sources("2") == ["b"]

    rows = [
        "c Q0 b 1 3 t",
        "c Q0 a 2 2 t",
        "c Q0 b 3 1 t",
        "d Q0 b 1 1 t",
        "c Q0 a 4 0 t",
    ]
    for lines in (rows, rows[::-1]):
        path = write(tmp_path, "\n".join(lines))
        read = read_run(path)
        assert read.repeated == 2
        assert read.run.scored("c") == {"b": 3.0, "a": 2.0}
        assert read.run.scored("d") == {"b": 1.0}


ROWS = st.tuples(
    st.sampled_from(["c", "d-1", "e"]),
    st.sampled_from(["a", "b", "z9", "a\u00a0b", "a\x1cb", "k v"]),
    st.sampled_from(["1", "-2.5e3", "1_0", "nan", "0", "1e39"]),
    st.sampled_from([" ", "\t", "  ", "\x0c"]),
    st.sampled_from(["\n", "\r\n", " \n", "\n\n", "\r", ""]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=6))
def test_runs_read_by_columns_are_those_read_by_lines(rows):
    """Both ways agree wherever the quick one is taken, and it is taken for plain files."""
    text = ""
    for claim, source, score, space, end in rows:
        columns = (claim, "Q0", source, "1", score, "t")
        text += space.join(columns) + end
    lines = [*StringIO(text, newline="\n")]
    quick = trec._plain_trec_run(lines)
    problems = FileProblems(Path("F"))
    ranked, repeated = trec._read_trec_run(lines, problems)
    if quick is None:
        return

    assert not repeated
    assert not len(problems.collected)
    lists: dict[str, list[tuple[str, float]]] = {}
    for claim, scores in ranked.items():
        lists[claim] = [*scores.items()]
    slow = Run.from_lists(lists)
    assert list(quick) == list(slow)
    assert quick.claim_ids == slow.claim_ids


def test_plain_runs_are_read_by_columns():
    lines = [
        "c Q0 a 1 2 t\n",
        "c\tQ0  b 2 1e0 t\r\n",
        "d Q0 a 1 -3 t",
    ]
    quick = trec._plain_trec_run(lines)
    assert quick is not None
    assert list(quick) == [
        ("c", "a", 2.0),
        ("c", "b", 1.0),
        ("d", "a", -3.0),
    ]
    repeated = [*lines, "c Q0 b 3 9 t"]
    assert trec._plain_trec_run(repeated) is None  # a source again
    uneven = ["c Q0 a 1 2\n", "c Q0 b 2 1 t u\n"]
    assert trec._plain_trec_run(uneven) is None


def test_problems_of_a_trec_run(tmp_path):
    scores = ("x", "NaN", "1e39", "1_0", "\u0663", "1 t extra")
    lines = [
        "c Q0 a 1 2 t",
        "",
        *(f"c Q0 s{score} 2 {score} t" for score in scores),
        "c d e",
    ]
    path = write(tmp_path, "\n".join(lines))
    said = problems_of(read_run, path)
    assert first_fields(said) == [f"F:{n}" for n in range(3, 10)]
    assert said[0].startswith("F:3: score: 'x' ")
    assert said[1].startswith("F:4: score: 'NaN' ")
    assert said[5].startswith("F:8: 10 columns")
    assert said[6].startswith("F:9: 3 columns")

    path = write(tmp_path, "c Q0 a 1 3.40282356e+38 t")
    scored = read_run(path).run.scored("c")
    largest = np.finfo(np.float32).max
    assert scored["a"] == float(largest)


def test_problems_of_qrels(tmp_path):
    lines = [
        "c 0 a 1",
        "c 0 a 1",
        "c 0 b",
        "c 0 d 1.5",
        "c 0 a 2",
        "c 0 e x",
    ]
    path = write(tmp_path, "\n".join(lines))
    said = problems_of(read_qrels, path)
    assert first_fields(said) == ["F:3", "F:4", "F:5", "F:6"]
    assert said[0].startswith("F:3: 3 columns")
    assert "'1.5'" in said[1]
    assert "'c' 'a' " in said[2]

    tsv = "query-id\tcorpus-id\tscore\nc\ta\t1\nc\ta\n\tb\t1\nc\t \t1\nc\tb\t\n"
    path = write(tmp_path, tsv)
    said = problems_of(read_qrels, path)
    places = [
        "F:3: 2 columns",
        "F:4: claim id: ",
        "F:5: source id: ",
        "F:6: score: '' ",
    ]
    for line, place in zip(said, places, strict=True):
        assert line.startswith(place)


def test_the_line_of_a_problem_counts_the_lines_within_quotes(tmp_path):
    tsv = 'post_id\ttweet_text\tcord_uid\n1\t"a\n\nb"\tx\n2\tshort\n3\t"left open\tz\n4\tw\tv\n'
    path = write(tmp_path, tsv)
    lines = problems_of(read_qrels, path)
    assert lines[0].startswith("F:5: 2 columns")
    assert lines[1].startswith("F:6: broken row")
    assert len(lines) == 2


@pytest.mark.parametrize("reader", [read_run, read_qrels])
def test_files_that_hold_nothing_or_are_not_there(tmp_path, reader):
    for content in (b"", b"\n \r\n\n", b"\xef\xbb\xbf\n"):
        empty = write(tmp_path, content)
        assert problems_of(reader, empty) == ["F: is empty"]
    absent = tmp_path / "absent"
    assert problems_of(reader, absent) == ["F: no such file"]
    folder_problems = problems_of(reader, tmp_path)
    assert "folder" in folder_problems[0]

    header = "index\tpreds\n\n"
    if reader is read_qrels:
        header = "query-id\tcorpus-id\tscore\n"
    path = write(tmp_path, header)
    header_problems = problems_of(reader, path)
    assert "only a header" in header_problems[0]


def test_wrong_encoding_is_named_with_its_line(tmp_path):
    good = "c Q0 é 1 2 t\n".encode()
    latin = b"c Q0 \xe8 1 1 t\n"
    path = write(tmp_path, good * 2 + latin + good)
    (line,) = problems_of(read_run, path)
    assert line.startswith("F:3: is not UTF-8: ")

    zipped = write(tmp_path, gzip.compress(good))
    (line,) = problems_of(read_run, zipped)
    assert line.startswith("F:1: ")
    assert "gzip" in line

    path = write(tmp_path, good + b"c Q0 \0 2 1 t\n")
    (line,) = problems_of(read_run, path)
    assert line.startswith("F:2: ")
    assert "NUL" in line


def test_large_cells_and_grades(tmp_path):
    # The csv module refuses more than 131,072 characters.
    ids = [f"source-{n}" for n in range(20_000)]
    cell = json.dumps(ids)
    path = write(tmp_path, f"index\tpreds\n1\t{cell}\n")
    run = read_run(path).run
    assert run.sources("1") == ids

    path = write(tmp_path, f"c 0 a {10**9}\nc 0 b {'9' * 5000}\n")
    lines = problems_of(read_qrels, path)
    shown = ("1000000000", "9" * 40)
    assert lines == [
        f"F:{n}: score: '{grade}' is too large: 9 digits at most"
        for n, grade in enumerate(shown, 1)
    ]


GRADES = st.dictionaries(IDS, st.integers(-1, 3), min_size=1, max_size=3)


@given(st.dictionaries(IDS, GRADES, min_size=1, max_size=4))
def test_qrels_round_trips(tmp_path_factory, grades):
    path = tmp_path_factory.mktemp("qrels") / "q"
    write_beir_qrels(Qrels(grades), path)
    reread = read_qrels(path).grades
    after = [(c, *g.items()) for c, g in reread.items()]
    before = [(c, *g.items()) for c, g in grades.items()]
    assert after == before


def test_beir_qrels_may_hold_white_space_and_quotes(tmp_path):
    graded = {'"x"': 1, "it's": 2}
    qrels = Qrels({"a b": graded})
    path = tmp_path / "dev.tsv"
    write_beir_qrels(qrels, path)
    text = path.read_text()
    assert text.startswith("query-id\tcorpus-id\tscore\na b\t")
    assert read_qrels(path).grades == qrels.grades
