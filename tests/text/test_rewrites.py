"""Rewritings are appended once, in the representation that is scored."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.core.records import Claim
from claim2source.text import ClaimForm, render_claim
from claim2source.text.rewrites import read_rewrites, rewritten

CLAIMS = (
    Claim("en", "wow", "en", "never shown"),
    Claim("de", "krass", "de", "wow"),
    Claim("fr", "bof", "fr"),
    Claim("no", "left alone", "en"),
)
REWRITES = {name: f"A study of {name}." for name in ("en", "de", "fr", "elsewhere")}


@pytest.mark.parametrize(
    ("form", "texts"),
    [
        ("original", ["wow\nA study of en.", "krass\nA study of de.", "bof\nA study of fr."]),
        ("translated", ["wow\nA study of en.", "wow\nA study of de.", "bof\nA study of fr."]),
        ("bilingual", ["wow\nA study of en.", "krass\nwow\nA study of de.", "bof\nA study of fr."]),
    ],
)
def test_appended_once_behind_all_else(form: ClaimForm, texts: list[str]) -> None:
    claims = rewritten(CLAIMS, REWRITES, form)
    assert [render_claim(claim, form) for claim in claims] == [*texts, "left alone"]
    assert claims[3] == CLAIMS[3]


def test_read_from_lines(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('{"_id": "a", "text": " A study. "}\n\n{"_id": 2, "text": ""}\n', "utf-8")
    assert read_rewrites(path) == {"a": "A study."}
    path.write_text('{"_id": "a", "text": 5}\n{"_id": "a", "text": "x"}\n{"text": "y"}\n', "utf-8")
    with pytest.raises(InputError) as caught:
        read_rewrites(path)
    assert [(p.line, p.field) for p in caught.value.problems] == [
        (1, "text"),
        (2, "_id"),
        (3, "_id"),
    ]
