"""Posts from real exports: every field is read back, and every record is counted."""

from __future__ import annotations

import csv
import html
import json
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from claim2source.data.posts import Post, PostFile, read_posts
from tests.data.post_writers import ALL, FORMATS, Draft, Format
from tests.refusals import refused

QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
WORD = st.text("abcXYZ0189äöüßéñ日本語🙂#@&<>\"'%.,:/-", min_size=1, max_size=9).filter(
    lambda word: word != "RT"
)
TEXT = st.lists(WORD, min_size=1, max_size=8).map(" ".join)
TIME = st.datetimes(datetime(2007, 1, 2), datetime(2029, 12, 30)).map(
    lambda time: time.replace(microsecond=0, tzinfo=UTC)
)


def drafts_of(kinds: tuple[Any, ...]) -> st.SearchStrategy[list[Draft]]:
    one = st.builds(
        Draft,
        number=st.integers(1, 10**6),
        text=TEXT,
        lang=st.sampled_from(["de", "en", "fr", "ja"]),
        at=TIME,
        kind=st.sampled_from(kinds),
    )
    return st.lists(one, min_size=1, max_size=6, unique_by=lambda draft: draft.number)


def read(path: Path, **columns: str) -> tuple[list[Post], PostFile]:
    file = PostFile(path, columns)
    return list(file), file


@pytest.mark.parametrize("name", FORMATS)
@QUICK
@given(data=st.data())
def test_an_export_comes_back_whole(name: str, data: st.DataObject, tmp_path: Path) -> None:
    format: Format = FORMATS[name]
    drafts = data.draw(drafts_of(format.kinds))
    path = tmp_path / format.name
    path.write_text(format.write(drafts), encoding="utf-8")
    posts = [draft for draft in drafts if draft.kind == "post"]
    if not posts:
        with refused(UserError, f"{path}: "):
            read(path)
        return
    found, file = read(path)
    expected = {
        format.id(draft): (
            draft.text,
            draft.lang if format.has_language else "",
            draft.at.strftime("%Y-%m-%d"),
        )
        for draft in posts
    }
    assert {post.id: (post.text, post.lang, post.date) for post in found} == expected
    assert len(found) == len(posts) == file.read
    counts = Counter(draft.kind for draft in drafts)
    reasons = {"repost": "reposts", "deleted": "deleted posts", "empty": "without text"}
    left_out = {reasons[kind]: count for kind, count in counts.items() if kind != "post"}
    if format.others:
        left_out["of other kinds"] = format.others
    assert dict(file.left_out) == left_out
    assert file.read + file.left_out.total() == len(drafts) + format.others


TABLES = {
    "own": {"id": "id", "text": "text", "lang": "lang", "date": "date"},
    "lab": {"id": "post_id", "text": "tweet_text"},
    "twint": {"id": "id", "text": "tweet", "lang": "language", "date": "date"},
    "twarc": {"id": "id", "text": "text", "lang": "lang", "date": "created_at"},
    "analytics": {"id": "Tweet id", "text": "Tweet text", "date": "time"},
    "hydrator": {"id": "id", "text": "text", "lang": "lang", "date": "created_at"},
}
EXTRAS = {
    "own": {"note": "x"},
    "lab": {"cord_uid": "abc"},
    "twint": {"retweet": "False", "username": "ada", "likes_count": "3"},
    "twarc": {"referenced_tweets.retweeted.id": "", "author_id": "7"},
    "analytics": {"Tweet permalink": "https://twitter.com/ada/status/1", "impressions": "5"},
    "hydrator": {"retweet_id": "", "favorite_count": "2", "user_name": "ada"},
}


@pytest.mark.parametrize("ending", ["csv", "tsv", "semicolon.csv", "xlsx"])
@pytest.mark.parametrize("name", TABLES)
@settings(QUICK, max_examples=6)
@given(data=st.data())
def test_a_table_comes_back_whole(
    name: str, ending: str, data: st.DataObject, tmp_path: Path
) -> None:
    kinds = ("post", "repost", "empty") if name in ("twint", "twarc", "hydrator") else ("post",)
    drafts = data.draw(drafts_of((*kinds, "empty")))
    rows: list[dict[str, str]] = []
    for draft in drafts:
        text = draft.written if name in ("own", "lab") else html.escape(draft.written, quote=False)
        values = {"id": f"p{draft.number}", "text": text, "lang": draft.lang}
        values["date"] = draft.at.strftime("%Y-%m-%d %H:%M:%S")
        row = {column: values[field] for field, column in TABLES[name].items()} | EXTRAS[name]
        if draft.kind == "repost":
            mark = next(column for column in EXTRAS[name] if "retweet" in column)
            row[mark] = "True" if name == "twint" else "99"
        rows.append(row)
    path = tmp_path / f"posts.{ending}"
    write_table(path, rows)
    posts = [draft for draft in drafts if draft.kind == "post"]
    if not posts:
        with refused(UserError, f"{path}: "):
            read(path)
        return
    found, file = read(path)
    knows = TABLES[name]
    expected = [
        (
            f"p{draft.number}",
            draft.text,
            draft.lang if "lang" in knows else "",
            draft.at.strftime("%Y-%m-%d") if "date" in knows else "",
        )
        for draft in posts
    ]
    assert [(post.id, post.text, post.lang, post.date) for post in found] == expected
    assert file.read + file.left_out.total() == len(drafts)


def write_table(path: Path, rows: list[dict[str, str]]) -> None:
    if path.suffix == ".xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        book.active.append(list(rows[0]))
        for row in rows:
            book.active.append(list(row.values()))
            for cell in book.active[book.active.max_row]:
                cell.data_type = "s" if cell.value else cell.data_type  # no formulas
        book.create_sheet("other").append(["text"])
        book.save(path)
        return
    separator = {".tsv": "\t"}.get(path.suffix, ";" if "semicolon" in path.name else ",")
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)


@QUICK
@given(drafts=drafts_of(("post",)), year=st.sampled_from([2025, 2026]))
def test_a_labs_own_file_comes_back(drafts: list[Draft], year: int, tmp_path: Path) -> None:
    path = tmp_path / "dev.json"
    rows = [{"index": draft.number, "text": draft.text, "pubkey": 9444} for draft in drafts]
    if year == 2025:
        rows = [
            {"post_id": draft.number, "tweet_text": draft.text, "cord_uid": "x"} for draft in drafts
        ]
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=4), encoding="utf-8")
    assert read(path)[0] == [Post(str(draft.number), draft.text) for draft in drafts]


@pytest.mark.parametrize("name", FORMATS)
def test_entities_that_an_author_wrote_stay(name: str, tmp_path: Path) -> None:
    text = "0&#0 &lt;b&gt; &amp;amp; &eacute; R&D &nbsp;"
    path = write(tmp_path, FORMATS[name].write([Draft(1, text)]), FORMATS[name].name)
    (post,) = read(path)[0]
    assert post.text == text


def write(tmp_path: Path, value: object, name: str = "posts.json") -> Path:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def test_a_list_of_posts_is_read_and_a_repeated_one_is_counted(tmp_path: Path) -> None:
    posts = [{"id": "a", "text": "one"}, {"text": "two"}, {"id": "a", "text": "one"}, {"text": ""}]
    found, file = read(write(tmp_path, posts))
    assert found == [Post("a", "one"), Post("2", "two")]
    assert dict(file.left_out) == {"repeated posts": 1, "without text": 1}
    note = file.note()
    assert "2 posts read" in note and "1 repeated posts" in note and "1 without text" in note
    posts[2]["text"] = "three"
    with refused(UserError, "posts.json: record 3: id: 'a' ", "record 1"):
        read(write(tmp_path, posts))


def test_reposts_and_empty_posts_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    drafts = [Draft(1, "a"), Draft(2, "b", kind="repost"), Draft(3, "c", kind="empty")]
    path = write(tmp_path, FORMATS["statuses"].write(drafts))
    assert [post.text for post in read_posts(path)] == ["a"]
    assert "1 reposts" in caplog.text and "1 without text" in caplog.text


def test_reddits_own_files_have_titles_and_bodies(tmp_path: Path) -> None:
    header = "id,permalink,date,ip,subreddit,gildings,title,url,body\n"
    link = "a,https://r/a,2021-05-04 10:00:00 UTC,,science,0,Masks work,https://doi.org/10.1/x,\n"
    text = "b,https://r/b,2021-05-05 10:00:00 UTC,,science,0,Why?,https://r/b,It is so\n"
    found, file = read(write(tmp_path, header + link + text, "posts.csv"))
    assert [post.text for post in found] == ["Masks work", "Why?\n\nIt is so"]
    assert found[0].links == ("https://doi.org/10.1/x",)
    assert [post.date for post in found] == ["2021-05-04", "2021-05-05"]
    assert not file.left_out


@pytest.mark.parametrize("name", ["messages.html", "repo.car"])
def test_other_files_of_networks_are_refused_by_name(name: str, tmp_path: Path) -> None:
    with refused(UserError, "JSON") as caught:
        read(write(tmp_path, "<html>", name))
    assert name in str(caught.value) and "broken" not in str(caught.value)


def test_a_title_of_activity_pub_is_text(tmp_path: Path) -> None:
    note = {"type": "Article", "id": "https://a.example/1", "name": "p < 0.05 & <b>", "content": ""}
    items = [{"type": "Create", "id": "c1", "object": note}]
    (post,) = read(write(tmp_path, {"type": "OrderedCollection", "orderedItems": items}))[0]
    assert post.text == "p < 0.05 & <b>"


def test_html_becomes_text_and_its_links_are_kept(tmp_path: Path) -> None:
    text = '<p>Masken &amp; mehr<br>a &lt; b</p><p><a href="https://doi.org/10.1/x">hier</a></p>'
    rows = [{"id": "1", "content": text, "created_at": "2021-05-04T10:00:00Z"}]
    (post,) = read(write(tmp_path, rows))[0]
    links = ("https://doi.org/10.1/x",)
    assert post == Post("1", "Masken & mehr\na < b\n\nhier", date="2021-05-04", links=links)
    # Single signs are not tags.
    (post,) = read(write(tmp_path, [{"text": "a < b & c > d &amp;"}]))[0]
    assert post.text == "a < b & c > d &amp;"


def test_what_a_post_quotes_shows_and_links_is_read(tmp_path: Path) -> None:
    """Pictures and polls of ActivityPub, quotations of X, links of Telegram."""
    note = {
        "id": "https://a.example/1",
        "type": "Question",
        "published": "2021-05-04T10:00:00Z",
        "attributedTo": "https://a.example/ada",
        "content": "<p>Was hilft?</p>",
        "attachment": [{"mediaType": "image/png", "name": "A chart of masks"}],
        "oneOf": [{"name": "Masken"}, {"name": "Tee"}],
    }
    (post,) = read(write(tmp_path, note))[0]
    assert post.text == "Was hilft?\n\n[image] A chart of masks\n\n[poll] Masken. Tee"
    tweet = {
        "id": "1",
        "text": "wow https://t.co/a",
        "author_id": "7",
        "referenced_tweets": [{"type": "quoted", "id": "5"}],
        "entities": {
            "urls": [
                {"url": "https://t.co/a", "expanded_url": "https://doi.org/10.1/x"},
                {"url": "https://t.co/b", "expanded_url": "https://twitter.com/b/status/5"},
            ]
        },
        "note_tweet": {"text": "wow, the whole of it"},
    }
    included = {"tweets": [{"id": "5", "text": "Masks cut outbreaks"}]}
    (post,) = read(write(tmp_path, {"data": [tweet], "includes": included}))[0]
    assert post.text == "wow, the whole of it\n\n[quoted post] Masks cut outbreaks"
    assert post.links == ("https://doi.org/10.1/x",)
    pieces = ["Siehe ", {"type": "text_link", "text": "hier", "href": "https://doi.org/10.1/x"}]
    message = {"id": 1, "type": "message", "date": "2021-05-04T10:00:00", "text": pieces}
    (post,) = read(write(tmp_path, {"name": "K", "id": 7, "messages": [message]}))[0]
    assert (post.text, post.links) == ("Siehe hier", ("https://doi.org/10.1/x",))


@pytest.mark.parametrize("name", ["posts.csv", "posts.json", "posts.jsonl"])
def test_columns_are_named(name: str, tmp_path: Path) -> None:
    row = {"Beitrag": "Masken helfen", "nr": "n1", "sprache": "de", "tag": "4.5.2021"}
    lines = {
        "posts.csv": "Beitrag,nr,sprache,tag\nMasken helfen,n1,de,4.5.2021\n",
        "posts.json": json.dumps([row]),
        "posts.jsonl": json.dumps(row) + "\n",
    }
    path = write(tmp_path, lines[name], name)
    with refused(UserError, "text", "--columns text=NAME", "Beitrag"):
        read(path)
    found, _ = read(path, text="Beitrag", id="nr", lang="sprache", date="tag")
    assert found == [Post("n1", "Masken helfen", "de", "2021-05-04")]
    with refused(UserError, "text: ", "'Post'", "Beitrag"):
        read(path, text="Post")
    with refused(UserError, "columns: 'title' "):
        read(path, title="Beitrag")


@pytest.mark.parametrize(
    ("value", "day"),
    [
        ("2021-05-04T23:59:59.123Z", "2021-05-04"),
        ("2021-05-04 10:00:00 CEST", "2021-05-04"),
        ("Tue May 04 10:00:00 +0000 2021", "2021-05-04"),
        (1620122400, "2021-05-04"),
        ("1620122400.0", "2021-05-04"),
        (1620122400000, "2021-05-04"),
        ("4 May 2021", "2021-05-04"),
        ("04.05.2021", "2021-05-04"),
        ("2021-05", "2021-05"),
        (2021, "2021"),
        ("05/04/2021", "05/04/2021"),
        (None, ""),
    ],
)
def test_dates_are_iso_as_far_as_they_are_known(value: object, day: str, tmp_path: Path) -> None:
    (post,) = read(write(tmp_path, [{"text": "a", "date": value}]))[0]
    assert post.date == day


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("a.json", [{"text": 7}], "a.json: record 1: text: "),
        ("a.json", [{"tweet_text": ["x"]}], "a.json: record 1: tweet_text: "),
        ("a.json", ["x"], "a.json: record 1: "),
        ("a.json", "[{", "a.json:1: "),
        ("a.json", [{"text": "a", "id": "b c"}], "a.json: record 1: id: "),
        ("a.jsonl", '{"text": "a"}\n{"post_id": 1}\n', "a.jsonl:2: text: "),
        ("a.js", "window.YTD.tweets.part0 = [ {]", "a.js:1: "),
        ("a.json", {"messages": []}, "a.json:1: text: "),
        ("a.csv", "", "a.csv: "),
        ("a.csv", "id,words\n1,a\n", "a.csv: text: "),
        ("a.csv", "id,text\n1,a\n2\n", "a.csv:3: 1 columns"),
        ("a.xlsx", "no workbook", "a.xlsx: "),
        ("a.json", {"type": "OrderedCollection", "orderedItems": []}, "a.json: "),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(
    name: str, value: object, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError) as error:
        read(write(tmp_path, value, name))
    assert reason in str(error.value) and len(error.value.lines) == 1


def test_every_network_writes_each_kind_that_it_has() -> None:
    assert {kind for format in FORMATS.values() for kind in format.kinds} == set(ALL)


KEYS = (
    "id type text content created_at account visibility reblog orderedItems object actor feed post "
    "posts records record value uri $type thread parent replies commit did collection data meta "
    "errors tweet full_text id_str entities urls referenced_tweets includes kind children title "
    "selftext body subreddit created_utc messages chats list date poll answers text_entities "
    "contentMap attachment oneOf published media_attachments quote langs embed noteTweet core"
).split()
WORDS = (
    "Create Announce Note OrderedCollection Listing t1 t3 more message service at://x/y/z "
    "app.bsky.feed.post app.bsky.feed.defs#notFoundPost retweeted quoted 1"
).split()
LEAF = st.none() | st.booleans() | st.integers(-5, 2 * 10**9) | st.sampled_from(WORDS) | TEXT
TREE = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=7)
    ),
    max_leaves=40,
)


@settings(QUICK, max_examples=20)
@given(st.lists(st.dictionaries(st.sampled_from(KEYS), TREE, min_size=1, max_size=8), max_size=3))
def test_any_json_is_read_or_refused(tmp_path: Path, records: list[dict[str, Any]]) -> None:
    path = write(tmp_path, records)
    try:
        found, file = read(path)
    except UserError as error:
        assert all(str(path) in line for line in error.lines)
        return
    assert found and len(found) == file.read
    assert all(post.text.strip() and post.id for post in found)
