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
    return client.post("/table", content=content, **{"params": {"name": "p.csv"}, **options})


def rows(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


TABLE = """id,tweet,lang,date,Note
7,"claim a works, they say",en,2020-05-01,-3
8,=cmd|' /C calc'!A0,,,=1+1
9,poison apple,de,,
9,,,,no text
10,claim b,de,2019,ü
"""
IDS = ["7", "8", "9", "9", "10"]


def test_posts_are_answered_in_their_order(client: httpx.Client) -> None:
    first, *lines = rows(send(client, TABLE))
    assert first["posts"] == 5 and [line["id"] for line in lines] == IDS
    assert [bool(line.get("error")) for line in lines] == [False, False, True, True, False]
    assert lines[0]["verdict"] == "not judged" and lines[0]["title"]
    # A row links to its full answer.
    page = client.get(lines[4]["answer"])
    assert page.status_code == 200 and ">claim b</textarea>" in page.text
    assert "lang=de" in lines[4]["answer"] and "date=2019" in lines[4]["answer"]
    file = csv.DictReader(io.StringIO(first["csv"] + "".join(line["csv"] for line in lines)))
    found = list(file)
    assert [row["post"] for row in found] == [row["id"] for row in found] == IDS
    assert found[1]["tweet"].startswith("'=cmd") and found[1]["Note"] == "'=1+1"
    assert [row["Note"] for row in found[2:]] == ["", "no text", "ü"] and found[0]["Note"] == "-3"
    assert [bool(row["left_out"]) for row in found] == [False, False, True, True, False]
    assert [bool(row["title"]) for row in found] == [True, True, False, False, True]


def test_the_file_to_download_is_that_of_find(
    client: httpx.Client, index: str, tmp_path: Path
) -> None:
    book = Workbook()
    sheet = book.active
    assert sheet is not None
    for row in (["Seite", "text", "title"], [1, "claim a", "mine"], [2, "claim b", "=1+1"]):
        sheet.append(row)
    book.save(tmp_path / "posts.xlsx")
    content = (tmp_path / "posts.xlsx").read_bytes()
    lines = rows(send(client, content, params={"name": "posts.xlsx"}))
    words = ["--input", str(tmp_path / "posts.xlsx"), "--out", str(tmp_path / "found.csv")]
    main([*words, "--k", "1", "--index", index, "--device", "cpu"])
    written = (tmp_path / "found.csv").read_text(encoding="utf-8-sig")
    ours, theirs = (
        list(csv.DictReader(io.StringIO(text)))
        for text in ("".join(line["csv"] for line in lines), written)
    )
    assert list(ours[0]) == list(theirs[0])
    for own, other in zip(ours, theirs, strict=True):
        names = ("Seite", "text", "title", "post", "rank", "id", "result_title", "verdict")
        assert [own[name] for name in names] == [other[name] for name in names]


def test_a_workbook_that_would_fill_the_memory_is_refused(
    client: httpx.Client, tmp_path: Path
) -> None:
    for number, (size, far) in enumerate(((table.MOST_UNPACKED + 1, "A1"), (0, "XFD1048576"))):
        path = tmp_path / f"{number}.xlsx"
        book = Workbook(write_only=True)
        book.create_sheet("a").append(["text"])
        book.save(path)
        with zipfile.ZipFile(path) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
        sheet = files["xl/worksheets/sheet1.xml"].decode()
        row = f'<row r="{far.lstrip("AXFD")}"><c r="{far}"><v>1</v></c></row></sheetData>'
        sheet = sheet.replace("</sheetData>", row.replace("A1", "A2"))
        files["xl/worksheets/sheet1.xml"] = sheet.encode() + b" " * size
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        response = send(client, path.read_bytes(), params={"name": "a.xlsx"})
        assert response.status_code == 422 and "\n" not in response.json()["error"]


def test_a_table_in_german_has_german_texts_and_semicolons(client: httpx.Client) -> None:
    german = {"accept-language": "de-AT"}
    content = "text;id\nclaim a;1\npoison;2\n".encode("utf-16")
    first, good, bad = rows(send(client, content, headers=german))
    assert first["csv"].startswith("text;id;post;post_text;left_out;rank;")
    assert (good["label"], good["verdict"]) == ("Nicht beurteilt", "not judged")
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
    assert error and "\n" not in error and "/tmp" not in error and "claim2source-" not in error


def test_a_wrong_filter_is_named(client: httpx.Client) -> None:
    response = send(client, TABLE, params={"name": "p.csv", "paper_lang": "' OR 1=1"})
    assert (response.status_code, response.json()["field"]) == (422, "paper_lang")


def test_a_table_waits_while_others_fill_the_server(finder: SlowFinder) -> None:
    with serving(finder, capacity=1) as address, httpx.Client(base_url=address) as client:
        content = "text\n" + "claim a\n" * 1 + "claim b\nclaim c\n"
        lines = rows(send(client, content))
    assert len(lines) == 4 and not any("error" in line for line in lines)
