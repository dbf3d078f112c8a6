"""Files of mined negatives: what is written is read, and what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.mining import MinedRow, Negative, read_mined, write_mined

DATA = Dataset(
    (
        Claim("c1", "one", golds=("g1", "g2")),
        Claim("c2", "two", golds=("g1",)),
        Claim("ü\u2028", "x", golds=("g2",)),
    ),
    tuple(Source(name, name) for name in ("g1", "g2", "n1", "n2", "n\u2028\x85")),
    Qrels(),
    "train",
)
ROWS = [
    MinedRow("c1", "g1", (Negative("n1", 0.5, "both"), Negative("n2", -0.25, "random"))),
    MinedRow("c1", "g2", ()),
    MinedRow("ü\u2028", "g2", (Negative("n\u2028\x85", 1.0, "bm25"), Negative("g1", 0.0, "dense"))),
]
GOOD: dict[str, Any] = {
    "claim": "c2",
    "positive": "g1",
    "negatives": [{"source": "n1", "score": 0.5, "origin": "dense"}],
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Line separators that are no line breaks of JSONL stay inside their id."""
    assert write_mined(iter(ROWS), tmp_path / "new" / "mined.jsonl") == 3
    assert read_mined(tmp_path / "new" / "mined.jsonl", DATA) == ROWS


def test_lines_are_what_json_writes(tmp_path: Path) -> None:
    names, scores = ('"\\', "\n\x00\x7f\u2028é", "\ud7ff😷"), (1e-17, -0.0, 1e22)
    negatives = tuple(Negative(*pair, "both") for pair in zip(names, scores, strict=True))
    write_mined([MinedRow(names[1], names[0], negatives)], tmp_path / "mined.jsonl")
    row = {
        "claim": names[1],
        "positive": names[0],
        "negatives": [
            {"source": name, "score": score, "origin": "both"}
            for name, score in zip(names, scores, strict=True)
        ],
    }
    written = (tmp_path / "mined.jsonl").read_bytes().decode()
    assert written == json.dumps(row, ensure_ascii=False) + "\n"


def test_a_stopped_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "mined.jsonl"
    write_mined(ROWS[:1], path)

    def stopped() -> Iterator[MinedRow]:
        yield ROWS[1]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_mined(stopped(), path)
    assert read_mined(path, DATA) == ROWS[:1]
    assert [p.name for p in tmp_path.iterdir()] == ["mined.jsonl"]


def test_empty_lines_a_bom_and_more_fields_are_borne(tmp_path: Path) -> None:
    path = tmp_path / "mined.jsonl"
    line = json.dumps({**GOOD, "comment": 1})
    path.write_bytes(b"\xef\xbb\xbf\n" + line.encode() + b"\r\n  \n")
    assert read_mined(path, DATA) == [MinedRow("c2", "g1", (Negative("n1", 0.5, "dense"),))]


def changed(**fields: Any) -> dict[str, Any]:
    return {key: value for key, value in {**GOOD, **fields}.items() if value is not ...}


def negative(**fields: Any) -> dict[str, Any]:
    made = {"source": "n1", "score": 0.5, "origin": "dense", **fields}
    return changed(
        negatives=[
            {"source": "n2", "score": 1, "origin": "both"},
            {key: value for key, value in made.items() if value is not ...},
        ]
    )


@pytest.mark.parametrize(
    ("record", "field", "why"),
    [
        (changed(claim=...), "claim", "missing"),
        (changed(claim=None), "claim", "not text"),
        (changed(claim="c9"), "claim", "'c9' is no training claim"),
        (changed(positive={}), "positive", "not text"),
        (changed(positive="g2"), "positive", "'g2' is not gold"),
        (changed(negatives=None), "negatives", "not a list"),
        (changed(negatives=["n1"]), "negatives[0]", "not a JSON object"),
        (negative(source=3), "negatives[1].source", "not text"),
        (negative(source="n9"), "negatives[1].source", "'n9' is not in the corpus"),
        (negative(source="g1"), "negatives[1].source", "'g1' is gold"),
        (negative(source="n2"), "negatives[1].source", "'n2' is listed twice"),
        (negative(score="0.5"), "negatives[1].score", "not a number"),
        (negative(score=float("nan")), "negatives[1].score", "finite"),
        (negative(score=10**400), "negatives[1].score", "finite"),
        (
            negative(origin="luck"),
            "negatives[1].origin",
            "'luck' is none of bm25, dense, both, random",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_field(
    record: dict[str, Any], field: str, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "mined.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(record)}\n")
    with pytest.raises(InputError) as caught:
        read_mined(path, DATA)
    (problem,) = caught.value.problems
    assert (problem.file, problem.line, problem.field) == (str(path), 3, field)
    assert why in problem.why


@pytest.mark.parametrize(
    "line", ["{", "[1", "nonsense", "[" * 100_000, '{"claim": ' + "9" * 5000 + "}"]
)
def test_broken_json_is_named_with_its_line(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mined.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{line}\n")
    with pytest.raises(InputError) as caught:
        read_mined(path, DATA)
    (problem,) = caught.value.problems
    assert (problem.line, problem.field) == (2, None)
    assert "not JSON" in problem.why


@pytest.mark.parametrize("line", ["3", '"text"', "[]", "null"])
def test_a_line_that_is_no_object(line: str, tmp_path: Path) -> None:
    path = tmp_path / "mined.jsonl"
    path.write_text(line)
    with pytest.raises(InputError, match=r":1: is not a JSON object"):
        read_mined(path, DATA)


def test_a_pair_that_stands_there_twice(tmp_path: Path) -> None:
    path = tmp_path / "mined.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n{json.dumps(GOOD)}\n")
    with pytest.raises(InputError, match=r":2: positive: this pair is already on line 1"):
        read_mined(path, DATA)


def test_files_that_hold_nothing_or_are_none(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n\n")
    for path, why in [
        (empty, "no rows"),
        (tmp_path / "none", "no such file"),
        (tmp_path, "is a folder"),
    ]:
        with pytest.raises(InputError, match=why) as caught:
            read_mined(path, DATA)
        assert caught.value.problems[0].file == str(path)


def test_a_line_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "mined.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\xfe\n")
    with pytest.raises(InputError, match=r":2: is not UTF-8"):
        read_mined(path, DATA)
