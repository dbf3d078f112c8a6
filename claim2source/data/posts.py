"""Read posts, as JSON lines or CSV: a text, and perhaps id, language, date and translation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.config import Settings, require
from claim2source.core.errors import Problems
from claim2source.core.languages import primary_language
from claim2source.core.records import Claim
from claim2source.data.jsonl import JsonLines, Row
from claim2source.data.text_files import open_spreadsheet, tsv_rows

# A longer one is no post.
LONGEST = 2_000_000
# Columns of a table of posts, in upper or lower case.
COLUMNS = ("text", "post", "id", "_id", "lang", "date", "translation")


@dataclass(frozen=True)
class Post(Settings):
    """Post: `lang` and `date` are "" if they are not known, `links` are its addresses."""

    id: str
    text: str
    lang: str = ""
    date: str = ""
    translation: str = ""
    links: tuple[str, ...] = ()

    def check(self) -> None:
        require(bool(self.text.strip()), "post", self.text[:40], "a text")
        long = f"{len(self.text)} characters"
        require(len(self.text) <= LONGEST, "post", long, f"at most {LONGEST}")

    def claim(self, lang: str) -> Claim:
        # Half of a surrogate pair, such as of an argument that is not UTF-8, is no letter.
        text = self.text.encode("utf-8", "replace").decode("utf-8")
        return Claim(self.id, text, lang, self.translation or None)


def read_posts(path: Path) -> Iterator[Post]:
    """Yield the posts of a file: `{"text"}` or as in queries.jsonl, or .csv and .tsv by columns.

    A post without an id is numbered by its line. Raises `InputError` for a line that is wrong.
    """
    problems = Problems()
    table = {".csv", ".tsv"} & {suffix.lower() for suffix in path.suffixes[-2:]}
    rows = _table_rows(path, problems) if table else JsonLines(path, problems).records()
    seen: dict[str, int] = {}
    for row in rows:
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


def _table_rows(path: Path, problems: Problems) -> Iterator[Row]:
    """Yield the rows of a CSV file as records; empty cells are absent."""
    header, separator, lines = open_spreadsheet(path, problems, COLUMNS)
    problems.raise_if_any()
    columns = {name.lower(): name for name in reversed(header) if name.lower() in COLUMNS}
    if not {"text", "post"} & set(columns):
        reason = f"no such column; there are: {', '.join(header)}" if header else "is empty"
        problems.add(path, None, "text" if header else None, reason)
        return
    names = list(columns.values())
    for number, cells in tsv_rows(path, names, problems, lines=lines, delimiter=separator):
        pairs = zip(columns, cells, strict=True)

        def complain(field: str, reason: str, kind: str = "", /, number: int = number) -> None:
            problems.add(path, number, columns.get(field, field), reason, kind)

        yield Row({name: cell for name, cell in pairs if cell.strip()}, number, complain)


def _post(row: Row) -> Post | None:
    record = row.record
    field = next((name for name in ("id", "_id") if record.get(name) is not None), None)
    key = str(row.line) if field is None else row.as_id(field, record[field])
    name = "post" if "post" in record and "text" not in record else "text"
    text = row.require_text(name)
    if key is None or not text.strip():
        return None
    if len(text) > LONGEST:
        row.complain(name, f"{len(text)} characters; at most {LONGEST}")
        return None

    def either(name: str) -> str:
        return row.text(name) or row.text(f"metadata.{name}")

    lang = primary_language(either("lang"))
    return Post(key, text, lang, either("date"), either("translation"))
