"""Read posts from any file: JSON, JSON lines, tables, and exports of networks."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from claim2source.core.config import Settings, require
from claim2source.core.errors import InputError, Problems, did_you_mean
from claim2source.core.records import Claim
from claim2source.data.jsonl import Row, json_records
from claim2source.data.networks import Html, plain_text, unescaped
from claim2source.data.post_exports import (
    REPOSTS,
    RETWEET,
    WITHOUT_TEXT,
    FoundPost,
    clean_language,
    iso_day,
    network_posts,
)
from claim2source.data.post_tables import is_table, table_rows
from claim2source.data.text_files import id_error, text_error, text_lines

log = logging.getLogger(__name__)

# Characters; a longer text is not a post.
LONGEST = 2_000_000
REPEATED = "repeated posts"
# Names of keys and columns for each field, in lower case and without signs; the first one that
# exists is used.
FIELDS: Mapping[str, tuple[str, ...]] = {
    "text": (
        *("text", "post", "tweettext", "posttext", "fulltext", "tweet", "content", "body"),
        *("message", "messagetext", "caption"),
    ),
    "id": (
        *("idstr", "id", "tweetid", "postid", "statusid", "messageid", "index", "uri"),
        "tweetpermalink",
    ),
    "lang": ("lang", "language", "tweetlang", "languagecode"),
    "date": (
        *("date", "createdat", "createdutc", "created", "publishedat", "published", "postedat"),
        *("posted", "tweetcreatedat", "timestamp", "datetime", "time"),
    ),
    "translation": ("translation",),
}
# Columns in exports of X that are filled only for reposts, or that mark reposts.
_REPOST_MARKS = frozenset(
    "referencedtweetsretweetedid retweetedstatusid retweetedstatusidstr retweetedid retweetid "
    "isretweet retweet".split()
)
_X_MARKS = _REPOST_MARKS | frozenset("idstr tweetid tweetpermalink conversationid fromuser".split())
# Columns of the files that Reddit exports: a post's text is its title and its body.
_REDDIT_MARKS = frozenset(("subreddit", "title", "url"))
_NO = frozenset(("", "0", "0.0", "false", "no", "nan", "none", "null"))
_HTML = re.compile(
    r"</(?:p|div|span|a|b|i|em|strong|li|ul|ol|blockquote)>|<br\s*/?>", re.IGNORECASE
)
# Beginning of a file in X's archive: a script that assigns a list.
_ASSIGNED = re.compile(r"\s*window\.YTD\.\w+\.part[0-9]+\s*=")


@dataclass(frozen=True)
class Post(Settings):
    """Post; `lang` and `date` are "" if unknown, `links` are the addresses in it."""

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
        # Halves of surrogate pairs, as from arguments that are not UTF-8, are not characters.
        text = self.text.encode("utf-8", "replace").decode("utf-8")
        return Claim(self.id, text, lang, self.translation or None)


@dataclass(frozen=True)
class PostRecord:
    """Record of a file: its post, or the reason why it is skipped, and all of its columns.

    `columns` are those of a table, the keys of an object, or the fields of an exported post.
    """

    post: Post | None
    columns: Mapping[str, str]
    id: str = ""
    text: str = ""
    left_out: str = ""


@dataclass
class PostFile:
    """Read the posts of a file; `read` and `left_out` (by reason) count its records.

    The file is JSON lines, a JSON document, a table (CSV, TSV, XLSX) or a network's export.
    `columns` maps fields to keys or columns (`{"text": "tweet"}`); without it, exports are
    recognised. A post without an id gets its line number, or its position in an export. Raises
    `InputError` for a wrong record, or if there is no post.
    """

    path: Path
    columns: Mapping[str, str] = field(default_factory=dict)
    read: int = 0
    left_out: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name in self.columns:
            require(name in FIELDS, "columns", name, f"FIELD=COLUMN, of {', '.join(FIELDS)}")

    def __iter__(self) -> Iterator[Post]:
        for record in self.records():
            if record.post is not None:
                yield record.post

    def records(self) -> Iterator[PostRecord]:
        """Yield all records of the file, including skipped ones."""
        self.read = 0
        self.left_out = Counter()
        problems = Problems()
        # By id: the hash of the text, and its location.
        seen: dict[str, tuple[int, str]] = {}
        for row, found, columns in self._found(problems):
            problems.raise_if_any()
            key = found.id
            reason = found.left_out
            if not reason:
                _check(row, found)
                text_hash = hash(found.text)
                if key in seen:
                    reason = REPEATED
                    first_hash, place = seen[key]
                    if first_hash != text_hash:
                        row.complain("id", f"{key!r} is already {place}")
                problems.raise_if_any()
                seen.setdefault(key, (text_hash, _place(row)))

            if reason:
                self.left_out[reason] += 1
                yield PostRecord(None, columns, key, found.text, reason)
                continue
            self.read += 1
            post = Post(
                key,
                found.text,
                found.lang,
                found.date,
                found.translation,
                found.links,
            )
            yield PostRecord(post, columns, key, found.text)
        problems.raise_if_any()
        if not self.read:
            omitted = self._omitted()
            reason = "contains no posts"
            if omitted:
                reason = f"{reason}; skipped: {omitted}"
            problems.add(self.path, None, None, reason)
            problems.raise_if_any()

    def note(self) -> str:
        """Counts of the skipped records in one line; "" if there are none."""
        omitted = self._omitted()
        if not omitted:
            return ""
        return f"{self.path}: {self.read} posts read; skipped: {omitted}"

    def _omitted(self) -> str:
        counts = self.left_out.most_common()
        return ", ".join(f"{count} {reason}" for reason, count in counts)

    def _found(self, problems: Problems) -> Iterator[tuple[Row, FoundPost, Mapping[str, str]]]:
        """Yield the file's records, each with its post and its columns."""
        if is_table(self.path):
            for row in table_rows(self.path, self._table_columns, problems):
                own_post = self._own_post(row)
                columns = _own_columns(row.record)
                yield row, own_post, columns
            return

        _refuse_other_files(self.path)
        lines = _without_script(text_lines(self.path, problems))
        place = 0
        for row in json_records(self.path, problems, lines):
            posts = None if self.columns else network_posts(row.record)
            if posts is None:
                place += 1
                own_post = self._own_post(row)
                columns = _own_columns(row.record)
                yield row, own_post, columns
                continue
            for post in posts:
                place += 1
                named = post if post.id else replace(post, id=str(place))
                inner = row if len(posts) == 1 else _inner_row(row, place)
                columns = _post_columns(named)
                yield inner, named, columns

    def _table_columns(self, header: Sequence[str]) -> list[str]:
        """Choose the columns of a table to read. Raises `InputError` if none is the text."""
        names = self._names(header)
        if not header and "text" not in names:
            raise InputError(self.path, field=None, reason="is empty")
        if "text" not in names:
            listed = ", ".join(header)
            reason = f"no such column; pass --columns text=NAME, one of: {listed}"
            raise InputError(self.path, field="text", reason=reason)

        known_marks = _X_MARKS | _REDDIT_MARKS
        marks = [name for name in header if _normalised(name) in known_marks]
        chosen = [*names.values(), *marks]
        return list(dict.fromkeys(chosen))

    def _names(self, keys: Collection[str]) -> dict[str, str]:
        """Choose the key of each field: the one in `columns`, else the first known one."""
        names: dict[str, str] = {}
        normalised: dict[str, str] = {}
        for key in keys:
            plain_key = _normalised(key)
            normalised.setdefault(plain_key, key)
        for name, known in FIELDS.items():
            column = self.columns.get(name)
            if column is not None and column not in keys:
                near = did_you_mean(column, keys)
                listed = ", ".join(keys)
                reason = f"no column {column!r}; {near}there are: {listed}"
                raise InputError(self.path, field=name, reason=reason)
            exact = name if name in keys else None
            first = next((normalised[key] for key in known if key in normalised), None)
            chosen = column or exact or first
            if chosen:
                names[name] = chosen
        return names

    def _own_post(self, row: Row) -> FoundPost:
        """Read a record that is not from a network: a row of a table, or an object with a text."""
        names = self._names(row.record)
        if "text" not in names:
            listed = ", ".join(row.record) or "none"
            row.complain("text", f"is missing; pass --columns text=NAME, one of: {listed}")
            return FoundPost()
        key = row.record.get(names["id"]) if "id" in names else None
        is_absent = key is None or isinstance(key, str) and not key.strip()
        id = str(row.line) if is_absent else row.as_id(names["id"], key)
        text_name = names["text"]
        value = _filled(row.record, text_name)
        text, links = _plain(row.as_text(text_name, value))
        language = _other(row, "lang", names)
        date = _other(row, "date", names)
        translation = _other(row, "translation", names)

        marks = {_normalised(name): cell for name, cell in row.record.items()}
        if marks.keys() >= _REDDIT_MARKS:
            title = plain_text(marks["title"])
            address = plain_text(marks["url"])
            text = "\n\n".join(filter(None, (title, text)))
            links += tuple(filter(None, [address]))
        reason = "" if text.strip() else WITHOUT_TEXT
        if not marks.keys().isdisjoint(_X_MARKS):
            text = unescaped(text)
            if RETWEET.match(text) or _has_repost_mark(marks):
                reason = REPOSTS
        return FoundPost(
            id or "",
            text,
            clean_language(language),
            iso_day(date),
            links,
            translation,
            reason,
        )


def read_posts(path: Path, columns: Mapping[str, str] | None = None) -> Iterator[Post]:
    """Yield the posts of a file, as `PostFile` does; warn about skipped records."""
    file = PostFile(path, columns or {})
    yield from file
    note = file.note()
    if note:
        log.warning("%s", note)


def _own_columns(record: Mapping[str, object]) -> dict[str, str]:
    """Convert the values of a record to texts; values of other types become JSON."""
    columns: dict[str, str] = {}
    for name, value in record.items():
        if value is None:
            text = ""
        elif isinstance(value, str):
            text = value
        else:
            text = json.dumps(value, ensure_ascii=False)
        column = _encodable(name)
        columns[column] = _encodable(text)
    return columns


def _post_columns(post: FoundPost) -> dict[str, str]:
    fields = {
        "id": post.id,
        "text": post.text,
        "lang": post.lang,
        "date": post.date,
        "links": " ".join(post.links),
    }
    return {name: _encodable(text) for name, text in fields.items()}


def _encodable(text: str) -> str:
    """Replace halves of surrogate pairs, which cannot be written to files."""
    encoded = text.encode("utf-8", "replace")
    return encoded.decode("utf-8")


def _place(row: Row) -> str:
    if row.location == row.line:
        return f"on line {row.line}"
    return f"that of {row.location}"


def _inner_row(row: Row, place: int) -> Row:
    """Make a row for a post within a record, for its errors."""

    def complain(field: str, reason: str, kind: str = "", /) -> None:
        row.complain(f"post {place}: {field}", reason, kind)

    return Row({}, place, complain, f"post {place}")


def _check(row: Row, found: FoundPost) -> None:
    length = len(found.text)
    if length > LONGEST:
        row.complain("text", f"{length} characters; at most {LONGEST}")
    id_reason = id_error(found.id)
    if id_reason:
        row.complain("id", id_reason)
    for name in ("text", "translation"):
        text = getattr(found, name)
        text_reason = text_error(text)
        if text_reason:
            row.complain(name, text_reason)


def _normalised(name: str) -> str:
    """Reduce a key or column to lower-case letters and digits: "Tweet Id" is "tweetid"."""
    lower = name.lower()
    return re.sub(r"[\W_]", "", lower)


def _filled(record: Mapping[str, object], name: str) -> object:
    value = record.get(name)
    return "" if value is None else value


def _other(row: Row, field: str, names: Mapping[str, str]) -> str:
    """Return a field of a record or of its metadata; numbers are dates."""
    name = names.get(field, field)
    value = _filled(row.record, name)
    if value == "":
        name = f"metadata.{field}"
        value = _filled(row.meta, field)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if field == "date" and is_number:
        value = str(value)
    return row.as_text(name, value)


def _plain(text: str) -> tuple[str, tuple[str, ...]]:
    """Return a text without HTML tags, and its links if it is HTML."""
    if not _HTML.search(text):
        return text, ()
    reader = Html()
    reader.feed(text)
    reader.close()
    links = dict.fromkeys(link for link in reader.links if link.startswith("http"))
    return reader.text, tuple(links)


def _has_repost_mark(marks: Mapping[str, object]) -> bool:
    """Whether a column of X that is filled only for reposts, or marks them, is set."""
    return any(_is_set(marks.get(name)) for name in _REPOST_MARKS)


def _is_set(value: object) -> bool:
    if value is None:
        return False
    text = str(value).strip()
    return text.lower() not in _NO


def _refuse_other_files(path: Path) -> None:
    """Raise `InputError` for files that some networks export instead of JSON, with a remedy."""
    suffix = path.suffix.lower()
    if suffix == ".car":
        raise InputError(path, reason="is a repository of Bluesky: save its listRecords as JSON")
    if path.is_file() and suffix in (".html", ".htm"):
        raise InputError(path, reason="is a web page: export the posts as JSON")


def _without_script(lines: Iterator[tuple[int, str | None]]) -> Iterator[tuple[int, str | None]]:
    """Remove the assignment at the beginning of a file in X's archive."""
    is_first = True
    for number, line in lines:
        if is_first and line is not None and line.strip():
            if _ASSIGNED.match(line):
                line = _ASSIGNED.sub("", line, count=1)
            is_first = False
        yield number, line
