"""Write posts as networks export them, without code of the library's readers.

Each writer takes drafts and returns the file's text. Reposts, deleted and empty drafts are written
in the network's way.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

Kind = Literal["post", "repost", "deleted", "empty"]
Value = dict[str, Any]


@dataclass(frozen=True)
class Draft:
    """A draft of a post; `at` is a time in UTC."""

    number: int
    text: str
    lang: str = "de"
    at: datetime = datetime(2021, 5, 4, 10, 0, tzinfo=UTC)
    kind: Kind = "post"

    @property
    def iso(self) -> str:
        return self.at.strftime("%Y-%m-%dT%H:%M:%S.000Z")

    @property
    def written(self) -> str:
        return "" if self.kind == "empty" else self.text


def as_html(text: str) -> str:
    parts = html.escape(text).split("\n")
    return f"<p>{'<br />'.join(parts)}</p>" if text else ""


# Mastodon


def status(draft: Draft) -> Value:
    written = {
        "id": f"{110_000 + draft.number}",
        "created_at": draft.iso,
        "visibility": "public",
        "spoiler_text": "",
        "language": draft.lang,
        "content": as_html(draft.written),
        "reblog": None,
        "account": {"acct": "ada"},
        "media_attachments": [],
        "uri": f"https://social.example/users/ada/statuses/{110_000 + draft.number}",
    }
    if draft.kind == "repost":
        inner = status(Draft(draft.number + 500_000, draft.text))
        written |= {"content": inner["content"], "reblog": inner}
    return written


def mastodon_statuses(drafts: Sequence[Draft]) -> str:
    return json.dumps([status(draft) for draft in drafts], ensure_ascii=False, indent=2)


def mastodon_lines(drafts: Sequence[Draft]) -> str:
    return "".join(json.dumps(status(draft)) + "\n" for draft in drafts)


def mastodon_search(drafts: Sequence[Draft]) -> str:
    return json.dumps({"accounts": [], "statuses": [*map(status, drafts)], "hashtags": []})


def activity(draft: Draft) -> Value:
    actor = "https://social.example/users/ada"
    key = f"{actor}/statuses/{110_000 + draft.number}"
    around = {"id": f"{key}/activity", "actor": actor, "published": draft.iso}
    if draft.kind == "repost":
        return {**around, "type": "Announce", "object": "https://other.example/users/b/statuses/1"}
    if draft.kind == "deleted":
        return {**around, "type": "Delete", "object": {"id": key, "type": "Tombstone"}}
    content = as_html(draft.written)
    note = {
        "id": key,
        "type": "Note",
        "summary": None,
        "published": draft.iso,
        "attributedTo": actor,
        "content": content,
        "contentMap": {draft.lang: content},
        "attachment": [],
        "tag": [],
    }
    return {**around, "type": "Create", "object": note}


def mastodon_outbox(drafts: Sequence[Draft]) -> str:
    items = [activity(draft) for draft in drafts]
    head = {"@context": "https://www.w3.org/ns/activitystreams", "id": "outbox.json"}
    return json.dumps({**head, "type": "OrderedCollection", "orderedItems": items})


# Bluesky


def bluesky_uri(draft: Draft) -> str:
    return f"at://did:plc:ada/app.bsky.feed.post/3k{draft.number}"


def bluesky_record(draft: Draft) -> Value:
    written = {"$type": "app.bsky.feed.post", "text": draft.written, "createdAt": draft.iso}
    return {**written, "langs": [draft.lang]}


def bluesky_view(draft: Draft) -> Value:
    if draft.kind == "deleted":
        gone = {"$type": "app.bsky.feed.defs#notFoundPost", "notFound": True}
        return {**gone, "uri": bluesky_uri(draft)}
    author = {"did": "did:plc:ada", "handle": "ada.example.org"}
    view = {"uri": bluesky_uri(draft), "cid": "baf", "author": author, "likeCount": 3}
    return {**view, "record": bluesky_record(draft), "indexedAt": draft.iso}


def bluesky_feed(drafts: Sequence[Draft]) -> str:
    items: list[Value] = []
    for draft in drafts:
        item: Value = {"post": bluesky_view(draft)}
        if draft.kind == "repost":
            item["reason"] = {"$type": "app.bsky.feed.defs#reasonRepost", "indexedAt": draft.iso}
        items.append(item)
    return json.dumps({"feed": items, "cursor": "x"})


def bluesky_thread(drafts: Sequence[Draft]) -> str:
    """The first draft is the parent of the second, the others reply to the one before."""

    def node(draft: Draft) -> Value:
        view = bluesky_view(draft)
        if draft.kind == "deleted":
            return view
        return {"$type": "app.bsky.feed.defs#threadViewPost", "post": view}

    nodes = [node(draft) for draft in drafts]
    for reply, above in zip(nodes[:1:-1], nodes[-2:0:-1], strict=False):
        above["replies"] = [reply]
    thread = nodes[1] if len(nodes) > 1 else nodes[0]
    if len(nodes) > 1:
        thread["parent"] = nodes[0]
    return json.dumps({"thread": thread})


def bluesky_records(drafts: Sequence[Draft]) -> str:
    records: list[Value] = []
    for draft in drafts:
        record = bluesky_record(draft)
        if draft.kind == "repost":
            record = {"$type": "app.bsky.feed.repost", "subject": {"uri": "at://x/y/z"}}
        records.append({"uri": bluesky_uri(draft), "cid": "baf", "value": record})
    return json.dumps({"records": records})


def bluesky_stream(drafts: Sequence[Draft]) -> str:
    lines: list[str] = []
    for draft in drafts:
        key = {"collection": "app.bsky.feed.post", "rkey": f"3k{draft.number}"}
        commit: Value = {"operation": "create", "record": bluesky_record(draft), **key}
        if draft.kind == "deleted":
            commit = {"operation": "delete", **key}
        event = {"did": "did:plc:ada", "time_us": 1, "kind": "commit", "commit": commit}
        lines.append(json.dumps(event) + "\n")
    return "".join(lines)


# X


def old_tweet(draft: Draft) -> Value:
    key = str(10**18 + draft.number)
    text = draft.written
    written = {
        "id": key,
        "id_str": key,
        "full_text": html.escape(text, quote=False),
        "created_at": draft.at.strftime("%a %b %d %H:%M:%S +0000 %Y"),
        "lang": draft.lang,
        "retweeted": False,
        "favorite_count": "3",
        "entities": {"urls": [], "hashtags": []},
    }
    if draft.kind == "repost":
        written["full_text"] = f"RT @other: {written['full_text']}"
    if draft.kind == "deleted":
        written["deleted_at"] = draft.iso
    return written


def x_archive(drafts: Sequence[Draft]) -> str:
    items = [{"tweet": old_tweet(draft)} for draft in drafts]
    return f"window.YTD.tweets.part0 = {json.dumps(items, indent=2)}"


def x_old_archive(drafts: Sequence[Draft]) -> str:
    return f"window.YTD.tweet.part1 = {json.dumps([old_tweet(draft) for draft in drafts])}"


def new_tweet(draft: Draft) -> Value:
    key = str(10**18 + draft.number)
    written = {
        "id": key,
        "text": html.escape(draft.written, quote=False),
        "edit_history_tweet_ids": [key],
        "created_at": draft.iso,
        "lang": draft.lang,
        "author_id": "7",
    }
    if draft.kind == "repost":
        written["text"] = "RT @other: .."
        written["referenced_tweets"] = [{"type": "retweeted", "id": "5"}]
    return written


def x_answer(drafts: Sequence[Draft]) -> str:
    data = [new_tweet(draft) for draft in drafts if draft.kind != "deleted"]
    errors = [
        {
            "resource_type": "tweet",
            "parameter": "ids",
            "resource_id": str(10**18 + draft.number),
            "title": "Not Found Error",
        }
        for draft in drafts
        if draft.kind == "deleted"
    ]
    answer: Value = {"data": data} if data else {}
    if errors:
        answer["errors"] = errors
    return json.dumps({**answer, "includes": {"users": []}, "meta": {"result_count": len(data)}})


def x_lines(drafts: Sequence[Draft]) -> str:
    return "".join(json.dumps(new_tweet(draft)) + "\n" for draft in drafts)


# Reddit


def reddit_data(draft: Draft) -> Value:
    """A submission if the number is even, else a comment."""
    seconds = int(draft.at.timestamp())
    is_comment = draft.number % 2 == 1
    gone = draft.kind == "deleted"
    data: Value = {"subreddit": "science", "author": "ada", "created_utc": seconds}
    key = f"k{draft.number}"
    text = html.escape(draft.written, quote=False)
    if is_comment:
        body = "[removed]" if gone else text
        return {**data, "id": key, "name": f"t1_{key}", "body": body, "link_id": "t3_x"}
    title, *rest = text.split("\n", 1)
    data |= {"id": key, "name": f"t3_{key}", "is_self": True, "url": "https://reddit.com/r/x"}
    data |= {"title": title, "selftext": rest[0] if rest else ""}
    if draft.kind == "repost":
        data["crosspost_parent"] = "t3_other"
    return {**data, "title": "[deleted by user]", "selftext": "[removed]"} if gone else data


def reddit_kind(data: Value) -> str:
    return str(data["name"])[:2]


def reddit_listing(drafts: Sequence[Draft]) -> str:
    children: list[Value] = []
    for data in map(reddit_data, drafts):
        children.append({"kind": reddit_kind(data), "data": data})
    children.append({"kind": "more", "data": {"count": 9, "children": ["a"]}})
    return json.dumps({"kind": "Listing", "data": {"after": None, "children": children}})


def reddit_page(drafts: Sequence[Draft]) -> str:
    """A submission's page: a listing with it, and one with its nested comments."""
    top = [data for data in map(reddit_data, drafts) if reddit_kind(data) == "t3"]
    below: Any = ""
    for data in reversed([data for data in map(reddit_data, drafts) if data not in top]):
        child = {"kind": "t1", "data": {**data, "replies": below}}
        below = {"kind": "Listing", "data": {"children": [child]}}
    first = {"children": [{"kind": "t3", "data": data} for data in top]}
    none: Value = {"kind": "Listing", "data": {"children": []}}
    return json.dumps([{"kind": "Listing", "data": first}, below or none])


def pushshift(drafts: Sequence[Draft]) -> str:
    return "".join(json.dumps(reddit_data(draft)) + "\n" for draft in drafts)


# Telegram


def message(draft: Draft) -> Value:
    first, *rest = draft.written.split(" ", 1)
    pieces: Any = draft.written
    if rest:  # as Telegram writes bold text or a link
        pieces = [{"type": "bold", "text": first}, f" {rest[0]}"]
    written: Value = {
        "id": draft.number,
        "type": "message",
        "date": draft.at.strftime("%Y-%m-%dT%H:%M:%S"),
        "date_unixtime": str(int(draft.at.timestamp())),
        "from": "Kanal",
        "text": pieces,
    }
    if draft.kind == "repost":
        written["forwarded_from"] = "Other"
    return written


def telegram(drafts: Sequence[Draft]) -> str:
    chat = {"name": "Kanal", "type": "public_channel", "id": 77}
    return json.dumps({**chat, "messages": [*map(message, drafts)]}, indent=1)


def telegram_account(drafts: Sequence[Draft]) -> str:
    service = {"id": 0, "type": "service", "date": "2021-01-01T00:00:00", "action": "join"}
    chats = [
        {"name": "A", "type": "personal_chat", "id": 5, "messages": [*map(message, drafts)]},
        {"name": "B", "type": "personal_chat", "id": 6, "messages": [service]},
    ]
    return json.dumps({"about": "..", "chats": {"about": "..", "list": chats}})


def plain_id(draft: Draft) -> str:
    return str(draft.number)


@dataclass(frozen=True)
class Format:
    """File name, writer, ids of its posts, and the fields of the format.

    `kinds` are the kinds that it can write. `joined` is the separator between the first line and the
    rest of a text after reading.
    """

    name: str
    write: Callable[[Sequence[Draft]], str]
    id: Callable[[Draft], str]
    kinds: tuple[Kind, ...] = ("post", "repost", "empty")
    has_language: bool = True
    others: int = 0


def reddit_name(draft: Draft) -> str:
    return f"t{1 if draft.number % 2 else 3}_k{draft.number}"


ALL: tuple[Kind, ...] = ("post", "repost", "deleted", "empty")
_STATUS: Callable[[Draft], str] = lambda draft: f"{110_000 + draft.number}"  # noqa: E731
_TWEET: Callable[[Draft], str] = lambda draft: str(10**18 + draft.number)  # noqa: E731


def note_id(draft: Draft) -> str:
    return f"https://social.example/users/ada/statuses/{110_000 + draft.number}"


def chat_id(draft: Draft) -> str:
    return f"5-{draft.number}"


FORMATS = {
    "statuses": Format("statuses.json", mastodon_statuses, _STATUS),
    "status lines": Format("statuses.jsonl", mastodon_lines, _STATUS),
    "status search": Format("search.json", mastodon_search, _STATUS),
    "outbox": Format("outbox.json", mastodon_outbox, note_id, ALL),
    "feed": Format("feed.json", bluesky_feed, bluesky_uri, ALL),
    "thread": Format("thread.json", bluesky_thread, bluesky_uri, ("post", "empty")),
    "records": Format("records.json", bluesky_records, bluesky_uri),
    "stream": Format("events.jsonl", bluesky_stream, bluesky_uri, ("post", "deleted", "empty")),
    "archive": Format("tweets.js", x_archive, _TWEET, ALL),
    "old archive": Format("tweet.js", x_old_archive, _TWEET, ALL),
    "answer": Format("answer.json", x_answer, _TWEET, ALL),
    "tweet lines": Format("tweets.jsonl", x_lines, _TWEET),
    "listing": Format("new.json", reddit_listing, reddit_name, ("post", "deleted", "empty"), False),
    "page": Format("page.json", reddit_page, reddit_name, ("post", "deleted", "empty"), False),
    "pushshift": Format("RS.ndjson", pushshift, reddit_name, ("post", "deleted", "empty"), False),
    "chat": Format("result.json", telegram, plain_id, has_language=False),
    "account": Format("result.json", telegram_account, chat_id, has_language=False, others=1),
}
