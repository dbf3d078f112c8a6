"""A table of posts by the page's way: rows in order, errors by row, a file without formulas."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

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


TABLE = """id,tweet,lang,date
7,"claim a works, they say",en,2020-05-01
8,=cmd|' /C calc'!A0,,
9,poison apple,de,
10,claim b,de,2019
"""


def test_posts_are_answered_in_their_order(client: httpx.Client) -> None:
    first, *lines = rows(send(client, TABLE))
    assert first["posts"] == 4 and [line["id"] for line in lines] == ["7", "8", "9", "10"]
    assert [bool(line.get("error")) for line in lines] == [False, False, True, False]
    assert lines[0]["verdict"] == "not judged" and lines[0]["title"]
    # A row leads to its whole answer.
    page = client.get(lines[3]["answer"])
    assert page.status_code == 200 and ">claim b</textarea>" in page.text
    assert "lang=de" in lines[3]["answer"] and "date=2019" in lines[3]["answer"]
    file = csv.DictReader(io.StringIO(first["csv"] + "".join(line["csv"] for line in lines)))
    found = list(file)
    assert [row["post"] for row in found] == ["7", "8", "9", "10"]
    assert found[1]["text"].startswith("'=cmd") and found[2]["error"] and not found[2]["title"]
    for row in found:
        assert not any((value or "").startswith(("=", "+", "-", "@")) for value in row.values())


def test_a_table_in_german_has_german_texts_and_semicolons(client: httpx.Client) -> None:
    german = {"accept-language": "de-AT"}
    content = "text;id\nclaim a;1\npoison;2\n".encode("utf-16")
    first, good, bad = rows(send(client, content, headers=german))
    assert first["csv"].rstrip() == ";".join(table.COLUMNS)
    assert (good["label"], good["verdict"]) == ("Nicht beurteilt", "not judged")
    assert "Suche" in bad["error"]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p.xlsx", "text\na\n"),
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
