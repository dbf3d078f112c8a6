"""CSV and Parquet as spreadsheets, pandas and older programs write them."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from claim2source.core.records import Source
from tests.data.reading import read, refused

ROWS = "id;title;abstract\n1;Größe, Maß;Ein Text\n"
PAPER = Source("1", "Größe, Maß", "Ein Text")


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        "\ufeff" + ROWS,
        "\ufeffsep=;\r\n" + ROWS.replace("\n", "\r\n"),
        ROWS.replace("\n", "\r"),
        ROWS.replace(";", "\t"),
        "sep=|\n" + ROWS.replace(";", "|"),
        'ID,Title,Abstract\n1,"Größe, Maß",Ein Text\n',
        ROWS.encode("utf-16"),
        ROWS.encode("cp1252"),
    ],
)
def test_the_separators_line_ends_and_encodings_of_spreadsheets(
    tmp_path: Path, data: str | bytes
) -> None:
    papers, notes = read(tmp_path / "a.csv", data)
    assert [paper.source for paper in papers] == [PAPER]
    assert ("Windows-1252" in notes) == (data == ROWS.encode("cp1252"))


def test_the_first_letters_beyond_ascii_decide_the_encoding(tmp_path: Path) -> None:
    """A damaged byte in UTF-8 is not read as another letter."""
    damaged = "id,title\n1,Größe\n".encode() + b"2,a\xff\n"
    refused(tmp_path / "a.csv", damaged, "a.csv:3: ", "0xff at byte 4")
    refused(tmp_path / "a.csv", b"id,title\n1,Gr\xf6\xdfe\n2,\x81\n", "a.csv:3: ")


def test_cells_that_stand_for_nothing_are_empty_and_counted(tmp_path: Path) -> None:
    text = (
        "id,title,abstract,date,authors,venue,other\n"
        "1,Masks,nan,NaT,nan,nan,nan\n2,Tea,None,NA,None,,x\n3,Nan Goldin,Na,2020,Na Li,,\n"
    )
    papers, notes = read(tmp_path / "a.csv", text)
    assert [paper.source for paper in papers] == [
        Source("1", "Masks"),
        Source("2", "Tea"),
        Source("3", "Nan Goldin", "Na", ("Na Li",), "", "2020"),
    ]
    assert "empty: 7 (first: a.csv:2)" in notes and "(other)" in notes


def packed(columns: dict[str, pa.Array] | pa.Table) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), sink)
    return sink.getvalue()


def of(**columns: pa.Array) -> Callable[[], bytes]:
    return lambda: packed({"id": pa.array(["1"]), "title": pa.array(["T"]), **columns})


@pytest.mark.parametrize(
    ("data", "facts"),
    [
        (of(abstract=pa.array([{"a": "x"}])), ["abstract: ", "struct<"]),
        (
            lambda: packed(
                pa.Table.from_arrays([pa.array(["1"])] * 3, names=["id", "title", "id"])
            ),
            ["id: 2 columns", "id, title, id"],
        ),
    ],
)
def test_columns_of_parquet_that_are_no_text_are_one_line(
    tmp_path: Path, data: Callable[[], bytes], facts: list[str]
) -> None:
    refused(tmp_path / "a.parquet", data(), *facts)


def test_days_beyond_the_calendar_are_counted(tmp_path: Path) -> None:
    days = pa.array([2**30, 18394], pa.date32())
    times = pa.array([2**62, 1589241600_000001], pa.timestamp("us", "Europe/Berlin"))
    nanoseconds = pa.array([1589241600_000000001, None], pa.timestamp("ns"))
    ids = pa.array([1, 2])
    for column, dates, unread in (
        (days, ["", "2020-05-12"], 1),
        (times, ["", "2020-05-12"], 1),
        (nanoseconds, ["2020-05-12", ""], 0),
    ):
        data = packed({"id": ids, "title": pa.array(["a", "b"]), "date": column})
        papers, notes = read(tmp_path / "a.parquet", data)
        assert [paper.source.date for paper in papers] == dates
        assert (f"unreadable dates: {unread}" in notes) == (unread > 0)


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.list_(pa.string(), 2)])
def test_lists_of_authors_have_no_absent_names(tmp_path: Path, kind: pa.DataType) -> None:
    authors = pa.array([["Jane Doe", None], ["nan", "Richard Roe"]], kind)
    data = packed({"id": pa.array([1, 2]), "title": pa.array(["a", "b"]), "authors": authors})
    papers, _ = read(tmp_path / "a.parquet", data)
    assert [paper.source.authors for paper in papers] == [("Jane Doe",), ("Richard Roe",)]
