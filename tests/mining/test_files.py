"""Files of mined negatives: they round-trip, and errors are located."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.mining import MinedRow, Negative, read_mined, write_mined
from tests.refusals import refused

DATA = Dataset(
    (
        Claim("c1", "one", golds=("g1", "g2")),
        Claim("c2", "two", golds=("g1",)),
        Claim('ü\u2028"\\', "x", golds=("g2",)),
    ),
    tuple(Source(name, name) for name in ("g1", "g2", "n1", "n2", 'n\u2028\x85"\\\x00\n')),
    Qrels(),
    "train",
)
ROWS = [
    MinedRow("c1", "g1", (Negative("n1", 0.5, "both"), Negative("n2", -0.25, "random"))),
    MinedRow("c1", "g2", ()),
    MinedRow(
        'ü\u2028"\\',
        "g2",
        (Negative('n\u2028\x85"\\\x00\n', 1e-17, "bm25"), Negative("g1", 0.0, "dense")),
    ),
]
GOOD: dict[str, Any] = {
    "claim": "c2",
    "positive": "g1",
    "negatives": [{"source": "n1", "score": 0.5, "origin": "dense"}],
}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """Line separators that are not line breaks of JSONL stay inside their id."""
    assert write_mined(iter(ROWS), tmp_path / "new" / "mined.jsonl") == 3
    assert read_mined(tmp_path / "new" / "mined.jsonl", DATA) == ROWS


def test_dense_lexical_and_fused_scores_are_kept_apart(tmp_path: Path) -> None:
    """A score that is not known has no field, as in a file of an earlier version."""
    negatives = (
        Negative("n1", 0.75, "both", 0.25, 12.5),
        Negative("n2", -0.25, "random", -0.25),
        Negative("g2", 0.5, "first"),
    )
    rows, path = [MinedRow("c2", "g1", negatives)], tmp_path / "mined.jsonl"
    write_mined(rows, path)
    assert read_mined(path, DATA) == rows
    scores = [
        {"score": 0.75, "dense": 0.25, "lexical": 12.5},
        {"score": -0.25, "dense": -0.25},
        {"score": 0.5},
    ]
    written = json.loads(path.read_text(encoding="utf-8"))["negatives"]
    assert [{k: v for k, v in row.items() if isinstance(v, float)} for row in written] == scores


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
    fields_of = {"source": "n1", "score": 0.5, "origin": "dense", **fields}
    return changed(
        negatives=[
            {"source": "n2", "score": 1, "origin": "both"},
            {key: value for key, value in fields_of.items() if value is not ...},
        ]
    )


@pytest.mark.parametrize(
    ("record", "field", "reason"),
    [
        (changed(claim=...), "claim", "missing"),
        (changed(claim="c9"), "claim", "'c9'"),
        (changed(positive="g2"), "positive", "'g2'"),
        (changed(negatives=None), "negatives", "array"),
        (changed(negatives=["n1"]), "negatives.0", "object"),
        (negative(source="n9"), "negatives.1.source", "'n9'"),
        (negative(source="g1"), "negatives.1.source", "'g1'"),
        (negative(source="n2"), "negatives.1.source", "'n2'"),
        (negative(score="0.5"), "negatives.1.score", "'0.5'"),
        (negative(score=10**400), "negatives.1.score", "finite"),
        (negative(dense="high"), "negatives.1.dense", "'high'"),
        (negative(lexical=10**400), "negatives.1.lexical", "finite"),
        (
            negative(origin="luck"),
            "negatives.1.origin",
            "'luck' is not allowed; allowed: bm25, dense, both, random",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_field(
    record: dict[str, Any], field: str, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / "mined.jsonl"
    path.write_text(f"{json.dumps(GOOD)}\n\n{json.dumps(record)}\n")
    with pytest.raises(InputError) as error:
        read_mined(path, DATA)
    (problem,) = error.value.problems
    assert (problem.file, problem.line, problem.field) == (str(path), 3, field)
    assert reason in problem.reason


def test_files_that_are_broken_or_hold_nothing_are_named_with_their_line(tmp_path: Path) -> None:
    path, good = tmp_path / "mined.jsonl", json.dumps(GOOD).encode()
    for content, facts in [
        (good + b"\n[1\n", (":2: ", "JSON")),
        (good + b"\n" + b"[" * 100_000, (":2: ", "JSON")),
        (b'{"claim": ' + b"9" * 5000 + b"}", (":1: ", "JSON")),
        (b"null", (":1: ", "object")),
        (good + b"\n" + good, (":2: positive: ", "line 1")),
        (good + b"\n\xff\xfe\n", (":2: ", "UTF-8")),
        (b"\n\n", (": ",)),
    ]:
        path.write_bytes(content)
        with refused(InputError, f"{path}{facts[0]}", *facts[1:]):
            read_mined(path, DATA)
    for other in (tmp_path / "none", tmp_path):
        with refused(InputError, f"{other}: "):
            read_mined(other, DATA)
