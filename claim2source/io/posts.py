"""Read posts: one JSON object a line, with a text and perhaps id, language, date, translation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.config import Settings, require
from claim2source.core.errors import Problems
from claim2source.core.records import Claim
from claim2source.io.jsonl import JsonLines, Row

# A longer one is no post.
MOST = 2_000_000


@dataclass(frozen=True)
class Post(Settings):
    """Hold a post: `lang` and `date` are "" where they are not known, `links` are its addresses."""

    id: str
    text: str
    lang: str = ""
    date: str = ""
    translation: str = ""
    links: tuple[str, ...] = ()

    def check(self) -> None:
        require(bool(self.text.strip()), "post", self.text[:40], "a text")
        long = f"{len(self.text)} characters"
        require(len(self.text) <= MOST, "post", long, f"at most {MOST}")

    def claim(self, lang: str) -> Claim:
        """Return the post as a claim in a language."""
        # Half of a surrogate pair, such as of an argument that is not UTF-8, is no letter.
        text = self.text.encode("utf-8", "replace").decode("utf-8")
        return Claim(self.id, text, lang, self.translation or None)


def read_posts(path: Path) -> Iterator[Post]:
    """Yield the posts of a file: `{"text"}`, or as in a data set's queries.jsonl.

    A post without an id is numbered by its line. Raises `InputError` for a line that is wrong.
    """
    problems = Problems()
    lines = JsonLines(path, problems)
    seen: dict[str, int] = {}
    for row in lines.records():
        post = _post(row)
        if post is not None and seen.setdefault(post.id, row.line) != row.line:
            row.complain("id", f"{post.id!r} is already on line {seen[post.id]}")
        problems.raise_if_any()
        if post is not None:
            yield post
    problems.raise_if_any()
    if not seen:
        problems.add(path, None, None, "holds no posts")
        problems.raise_if_any()


def _post(row: Row) -> Post | None:
    record = row.record
    field = next((name for name in ("id", "_id") if record.get(name) is not None), None)
    key = str(row.line) if field is None else row.as_id(field, record[field])
    name = "post" if "post" in record and "text" not in record else "text"
    text = row.require_text(name)
    if key is None or not text.strip():
        return None
    if len(text) > MOST:
        row.complain(name, f"{len(text)} characters; at most {MOST}")
        return None

    def either(name: str) -> str:
        return row.text(name) or row.text(f"metadata.{name}")

    lang = either("lang").strip().lower().partition("-")[0]
    return Post(key, text, lang, either("date"), either("translation"))
