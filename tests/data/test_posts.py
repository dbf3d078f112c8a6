"""Files of posts: allowed and refused lines."""

from __future__ import annotations

from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.data.posts import LONGEST, Post, read_posts
from tests.refusals import refused


def test_posts_have_ids_languages_and_dates(tmp_path: Path) -> None:
    path = tmp_path / "posts.jsonl"
    path.write_text(
        '{"text": "a"}\n\n{"post": "b", "id": 7, "lang": "DE-at", "date": "2021-05"}\n'
        '{"_id": "c", "text": "c", "metadata": {"lang": "fr", "translation": "see"}}\n'
    )
    assert list(read_posts(path)) == [
        Post("1", "a"),
        Post("7", "b", "de", "2021-05"),
        Post("c", "c", "fr", translation="see"),
    ]
    claim = Post("x", "half \udcff", translation="t").claim("de")
    assert (claim.text, claim.lang, claim.translation) == ("half ?", "de", "t")


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = tmp_path / "posts.jsonl"
    for text, *facts in [
        ("", "posts.jsonl: "),
        ('{"text": " "}', "posts.jsonl: ", "1 without text"),
        ('{"text": "a"}\n{"text": 7}', "posts.jsonl:2: text: "),
        ('{"text": "a"}\n{"id": "1", "text": "b"}', "posts.jsonl:2: id: '1' ", "line 1"),
        ('{"text": "a", "id": "b c"}', "posts.jsonl:1: id: "),
        (f'{{"text": "{"x" * (LONGEST + 1)}"}}', f"text: {LONGEST + 1} ", str(LONGEST)),
    ]:
        path.write_text(text)
        with refused(UserError, *facts):
            list(read_posts(path))
    with refused(UserError, "post: '' "):
        Post("0", "")
