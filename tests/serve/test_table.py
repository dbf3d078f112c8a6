"""A table of posts by the page's way: rows in order, errors by row, a file without formulas."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from claim2source.eval.find import main
from openpyxl import Workbook

from claim2source.search.engine import open_index
from claim2source.serve import table
from tests.eval import conftest
from tests.serve.servers import SlowFinder, serving

index = conftest.index


@pytest.fixture(scope="module")
def finder(index: str) -> SlowFinder:
    return SlowFinder(open_index(index))


@pytest.fixture(scope="module")
def client(finder: SlowFinder) -> Iterator[httpx.Client]:
    with serving(finder, capacity=8) as address:
        with httpx.Client(base_url=address, timeout=60) as client:
            yield client


def send(client: httpx.Client, text: str | bytes, **options: Any) -> httpx.Response:
    content = text if isinstance(text, bytes) else text.encode()
    options.setdefault("params", {"name": "p.csv"})
    return client.post("/table", content=content, **options)


def rows(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def csv_text(lines: list[dict[str, Any]]) -> str:
    """Join the rows' parts of the file to download."""
    return "".join(line["csv"] for line in lines)


def csv_rows(text: str) -> list[dict[str, str]]:
    """Read a CSV file's rows by their columns."""
    reader = csv.DictReader(io.StringIO(text))
    return list(reader)


TABLE = """id,tweet,lang,date,Note
7,"claim a works, they say",en,2020-05-01,-3
8,=cmd|' /C calc'!A0,,,=1+1
9,poison apple,de,,
9,,,,no text
10,claim b,de,2019,ü
"""
IDS = ["7", "8", "9", "9", "10"]


def test_posts_are_answered_in_their_order(client: httpx.Client) -> None:
    response = send(client, TABLE)
    first, *lines = rows(response)
    assert first["posts"] == 5
    assert [line["id"] for line in lines] == IDS
    failed = [bool(line.get("error")) for line in lines]
    assert failed == [False, False, True, True, False]
    assert lines[0]["verdict"] == "not judged"
    assert lines[0]["title"]

    # A row links to its full answer.
    link = lines[4]["answer"]
    page = client.get(link)
    assert page.status_code == 200
    assert ">claim b</textarea>" in page.text
    assert "lang=de" in link
    assert "date=2019" in link

    found = csv_rows(first["csv"] + csv_text(lines))
    posts = [row["post"] for row in found]
    ids = [row["id"] for row in found]
    assert posts == ids == IDS
    assert found[1]["tweet"].startswith("'=cmd")
    notes = [row["Note"] for row in found]
    assert notes[1] == "'=1+1"
    assert notes[2:] == ["", "no text", "ü"]
    assert notes[0] == "-3"
    left_out = [bool(row["left_out"]) for row in found]
    assert left_out == [False, False, True, True, False]
    has_title = [bool(row["title"]) for row in found]
    assert has_title == [True, True, False, False, True]


def test_the_file_to_download_is_that_of_find(
    client: httpx.Client, index: str, tmp_path: Path
) -> None:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(["Seite", "text", "title"])
    sheet.append([1, "claim a", "mine"])
    sheet.append([2, "claim b", "=1+1"])
    posts = tmp_path / "posts.xlsx"
    book.save(posts)
    content = posts.read_bytes()
    response = send(client, content, params={"name": "posts.xlsx"})
    lines = rows(response)

    file = tmp_path / "found.csv"
    words = [
        "--input",
        str(posts),
        "--out",
        str(file),
        "--k",
        "1",
        "--index",
        index,
        "--device",
        "cpu",
    ]
    main(words)
    written = file.read_text(encoding="utf-8-sig")
    ours = csv_rows(csv_text(lines))
    theirs = csv_rows(written)
    assert list(ours[0]) == list(theirs[0])
    names = (
        "Seite",
        "text",
        "title",
        "post",
        "rank",
        "id",
        "result_title",
        "verdict",
    )
    for own, other in zip(ours, theirs, strict=True):
        for name in names:
            assert own[name] == other[name]


def test_a_workbook_that_would_fill_the_memory_is_refused(
    client: httpx.Client, tmp_path: Path
) -> None:
    bombs = (
        (table.MOST_UNPACKED + 1, "A1"),
        (0, "XFD1048576"),
    )
    sheet_name = "xl/worksheets/sheet1.xml"
    for number, (size, far) in enumerate(bombs):
        path = tmp_path / f"{number}.xlsx"
        book = Workbook(write_only=True)
        book.create_sheet("a").append(["text"])
        book.save(path)
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}

        sheet = files[sheet_name].decode()
        row = f'<row r="{far.lstrip("AXFD")}"><c r="{far}"><v>1</v></c></row></sheetData>'
        row = row.replace("A1", "A2")
        sheet = sheet.replace("</sheetData>", row)
        files[sheet_name] = sheet.encode() + b" " * size
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)

        content = path.read_bytes()
        response = send(client, content, params={"name": "a.xlsx"})
        assert response.status_code == 422
        assert "\n" not in response.json()["error"]


def test_a_table_in_german_has_german_texts_and_semicolons(client: httpx.Client) -> None:
    german = {"accept-language": "de-AT"}
    content = "text;id\nclaim a;1\npoison;2\n".encode("utf-16")
    response = send(client, content, headers=german)
    first, good, bad = rows(response)
    assert first["csv"].startswith("text;id;post;post_text;left_out;rank;")
    assert good["label"] == "Nicht beurteilt"
    assert good["verdict"] == "not judged"
    assert "Suche" in bad["error"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.xlsx", "text\na\n"),
        ("p.docx", "text\na\n"),
        ("", "text\na\n"),
        ("p.csv", ""),
        ("p.csv", "beitrag\na\n"),
        ("../../p.csv", 'text\n"a'),
        ("p.csv", "text\n" + "a\n" * (table.MOST + 1)),
        ("p.csv", "id,text\n1,a\n1,b\n"),
    ],
)
def test_a_bad_table_is_one_line(client: httpx.Client, name: str, content: str) -> None:
    response = send(client, content, params={"name": name})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error
    assert "\n" not in error
    assert "/tmp" not in error
    assert "claim2source-" not in error


def test_a_wrong_filter_is_named(client: httpx.Client) -> None:
    params = {
        "name": "p.csv",
        "paper_lang": "' OR 1=1",
    }
    response = send(client, TABLE, params=params)
    assert response.status_code == 422
    assert response.json()["field"] == "paper_lang"


def test_a_table_waits_while_others_fill_the_server(finder: SlowFinder) -> None:
    with (
        serving(finder, capacity=1) as address,
        httpx.Client(base_url=address) as client,
    ):
        content = "text\n" + "claim a\n" * 1 + "claim b\nclaim c\n"
        response = send(client, content)
        lines = rows(response)
    assert len(lines) == 4
    for line in lines:
        assert "error" not in line
