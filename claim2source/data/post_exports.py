"""Read posts from the exports of networks: Mastodon, Bluesky, X, Reddit and Telegram.

A record is recognised by several of its keys, not by its file's name. A record without a post of
the exporter's own gets a kind, so that it can be counted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from claim2source.core.languages import is_language_tag, primary_language
from claim2source.data.networks import (
    Bluesky,
    PostParts,
    mastodon_post,
    object_or_empty,
    objects,
    plain_text,
    type_name,
    unescaped,
)
from claim2source.data.papers import first_day, iso_language, last_day

# Reasons why a record has no post.
REPOSTS = "reposts"
DELETED = "deleted posts"
WITHOUT_TEXT = "without text"
OTHERS = "of other kinds"
Record = Mapping[str, Any]
_POST = "app.bsky.feed.post"
# Codes of X and of ISO for posts without a language.
_NO_LANGUAGE = re.compile(r"und|zxx|mul|mis|art|q[a-z]{2}")
_X_TIME = "%a %b %d %H:%M:%S %z %Y"
_REMOVED = ("[deleted]", "[removed]", "[deleted by user]", "[ removed by reddit ]")
# Beginning of a retweet in X's archive.
RETWEET = re.compile(r"RT @\w+:")


@dataclass(frozen=True)
class FoundPost:
    """Post in a file, or the kind of a record without a post; `id` is "" if it has none."""

    id: str = ""
    text: str = ""
    lang: str = ""
    date: str = ""
    links: tuple[str, ...] = ()
    translation: str = ""
    left_out: str = ""


def network_posts(record: Record) -> list[FoundPost] | None:
    """Read the posts in an export, or in one of its records; None if the network is unknown."""
    for network in (_reddit, _telegram, _activity_pub, _bluesky, _mastodon, _x):
        found = network(record)
        if found is not None:
            return [_judged(post) for post in found]
    return None


def _judged(post: FoundPost) -> FoundPost:
    if not post.left_out and not post.text.strip():
        return replace(post, left_out=WITHOUT_TEXT)
    return post


def _entries(value: object) -> list[Record]:
    """List the entries of a list; an entry that is not an object becomes an empty record."""
    if not isinstance(value, list):
        return []
    return [object_or_empty(item) for item in value]


def _object(record: Record, key: str) -> Record:
    return object_or_empty(record.get(key))


def _text(record: Record, key: str) -> str:
    return plain_text(record.get(key))


def _left_out(record: Record, id_key: str, reason: str) -> FoundPost:
    return FoundPost(id_text(record.get(id_key)), left_out=reason)


def _of_parts(id: object, parts: PostParts) -> FoundPost:
    links = [link for link in parts.links if link.startswith("http")]
    return FoundPost(
        id_text(id),
        parts.text,
        clean_language(parts.lang),
        iso_day(parts.date),
        tuple(dict.fromkeys(links)),
    )


def id_text(value: object) -> str:
    """Return an id as text; "" if it is not one."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return plain_text(value)


def clean_language(text: str) -> str:
    """Return the code of a language; "" for codes such as `und`."""
    tag = text.strip()
    if not is_language_tag(tag):
        return iso_language(tag)
    code = primary_language(tag)
    return "" if _NO_LANGUAGE.fullmatch(code) else code


def iso_day(value: object) -> str:
    """Return the day of a time as ISO text, or its month or year if no more is known.

    Accepts seconds and milliseconds since 1970, ISO times, X's format and other texts. An
    ambiguous text is returned unchanged.
    """
    if isinstance(value, bool) or value is None:
        return ""
    text = str(value).strip()
    if re.fullmatch(r"-?[0-9]{9,10}(\.[0-9]+)?|-?[0-9]{12,13}", text):
        seconds = float(text)
        if abs(seconds) > 1e11:
            seconds /= 1000
        return datetime.fromtimestamp(seconds, UTC).date().isoformat()
    if re.match(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text):
        return text[:10]
    if re.match(r"[A-Z][a-z]{2} [A-Z][a-z]{2} [0-9]", text):
        try:
            return datetime.strptime(text, _X_TIME).date().isoformat()
        except ValueError:
            return text
    first = first_day(text)
    last = last_day(text)
    if first and first == last:
        return f"{first // 10_000}-{first // 100 % 100:02}-{first % 100:02}"
    return text


# Mastodon


def _mastodon(record: Record) -> list[FoundPost] | None:
    collections = (
        ("statuses", "accounts"),
        ("statuses", "hashtags"),
        ("ancestors", "descendants"),
    )
    for names in collections:
        if all(isinstance(record.get(name), list) for name in names):
            statuses = _entries(record[names[0]])
            statuses += _entries(record.get("descendants"))
            return [_status(status) for status in statuses]
    return [_status(record)] if _is_status(record) else None


def _is_status(record: Record) -> bool:
    marks = (
        "account",
        "visibility",
        "spoiler_text",
        "reblog",
        "media_attachments",
        "favourited",
    )
    has_text = isinstance(record.get("content"), str) and "created_at" in record
    return has_text and sum(mark in record for mark in marks) >= 2


def _status(record: Record) -> FoundPost:
    if _object(record, "reblog"):
        return _left_out(record, "id", REPOSTS)
    return _of_parts(record.get("id"), mastodon_post(record))


# ActivityPub: Mastodon's outbox.json, and that of Pleroma, Misskey and others

_COLLECTIONS = ("OrderedCollection", "OrderedCollectionPage", "Collection", "CollectionPage")
_NOTES = ("Note", "Article", "Question", "Page", "Video", "Audio", "Image", "Event")
_ACTIVITIES = ("Create", "Update", "Announce", "Delete", "Like", "Follow", "Undo", "Add", "Move")


def _activity_pub(record: Record) -> list[FoundPost] | None:
    kind = record.get("type")
    items = record.get("orderedItems", record.get("items"))
    if kind in _COLLECTIONS and isinstance(items, list):
        return [_activity(item) for item in items]
    if kind in _ACTIVITIES and "object" in record and "actor" in record:
        return [_activity(record)]
    if kind == "Tombstone" and "id" in record:
        return [_activity(record)]
    is_note = kind in _NOTES and "content" in record
    if is_note and ("attributedTo" in record or "@context" in record or "published" in record):
        return [_activity(record)]
    return None


def _activity(item: object) -> FoundPost:
    record = object_or_empty(item)
    kind = record.get("type")
    inner = _object(record, "object")
    if kind == "Announce":
        return _left_out(record, "id", REPOSTS)
    if kind in ("Delete", "Tombstone") or inner.get("type") == "Tombstone":
        return _left_out(record, "id", DELETED)
    note = inner if kind in ("Create", "Update") else record
    if note.get("type") not in _NOTES:
        return _left_out(record, "id", OTHERS)
    status = _note_as_status(note)
    return _of_parts(note.get("id"), mastodon_post(status))


def _note_as_status(note: Record) -> dict[str, object]:
    """Convert a note of ActivityPub to a status of Mastodon's API."""
    contents = _object(note, "contentMap")
    by_language = {key: text for key, text in contents.items() if isinstance(text, str)}
    content = _text(note, "content") or next(iter(by_language.values()), "")
    language = next((key for key, text in by_language.items() if text == content), "")
    title = _text(note, "name")
    if title:
        content = f"<p>{html.escape(title)}</p>{content}"
    media: list[dict[str, object]] = []
    attachments = note.get("attachment")
    for item in objects(attachments if isinstance(attachments, list) else [attachments]):
        kind = _text(item, "mediaType").partition("/")[0]
        media.append({"type": kind or "attachment", "description": item.get("name")})
    options: list[dict[str, object]] = []
    for item in [*objects(note.get("oneOf")), *objects(note.get("anyOf"))]:
        options.append({"title": item.get("name")})
    return {
        "content": content,
        "spoiler_text": note.get("summary"),
        "language": language,
        "created_at": note.get("published"),
        "media_attachments": media,
        "poll": {"options": options} if options else None,
    }


# Bluesky


def _bluesky(record: Record) -> list[FoundPost] | None:
    feed = _entries(record.get("feed"))
    if any(_is_shown(item.get("post")) for item in feed):
        return [_feed_item(item) for item in feed]
    thread = _object(record, "thread")
    if type_name(thread).startswith("app.bsky.feed.defs#") or _is_view(thread.get("post")):
        return list(_thread(thread))
    for name in ("posts", "records"):
        items = _entries(record.get(name))
        if any(_is_shown(item) for item in items):
            return [_view(item) for item in items]
    commit = _object(record, "commit")
    if "did" in record and "collection" in commit:
        return [_commit(_text(record, "did"), commit)]
    if _is_shown(record):
        return [_view(record)]
    if _is_shown(record.get("post")):
        return [_feed_item(record)]
    if type_name(record).startswith("app.bsky.") and "createdAt" in record:
        return [_view({"record": record})]
    return None


def _is_view(value: object) -> bool:
    view = object_or_empty(value)
    has_record = bool(_object(view, "record") or _object(view, "value"))
    return has_record and _text(view, "uri").startswith("at://")


def _is_shown(value: object) -> bool:
    """Whether a value is a view of a post, or of a deleted one."""
    return _is_view(value) or _is_gone(object_or_empty(value))


def _is_gone(view: Record) -> bool:
    return type_name(view).endswith(("#notFoundPost", "#blockedPost"))


def _feed_item(item: Record) -> FoundPost:
    view = _object(item, "post")
    reason = _object(item, "reason")
    if type_name(reason).endswith("#reasonRepost"):
        return _left_out(view, "uri", REPOSTS)
    return _view(view)


def _view(view: Record) -> FoundPost:
    record = _object(view, "record") or _object(view, "value")
    kind = type_name(record)
    if _is_gone(view):
        return _left_out(view, "uri", DELETED)
    if kind == "app.bsky.feed.repost":
        return _left_out(view, "uri", REPOSTS)
    if kind not in ("", _POST):
        return _left_out(view, "uri", OTHERS)
    network = Bluesky(lambda uri: None)
    return _of_parts(view.get("uri"), network.post(view))


def _commit(did: str, commit: Record) -> FoundPost:
    """Read an event of the network's stream."""
    uri = f"at://{did}/{commit.get('collection')}/{commit.get('rkey')}"
    if commit.get("operation") == "delete":
        return FoundPost(uri, left_out=DELETED)
    return _view({"uri": uri, "record": commit.get("record")})


def _thread(thread: Record) -> Iterator[FoundPost]:
    """Yield the posts of a thread: parents first, then the post and its replies."""
    above: list[Record] = []
    parent = _object(thread, "parent")
    while parent:
        above.append(parent)
        parent = _object(parent, "parent")
    for node in reversed(above):
        yield _thread_post(node)
    waiting = [thread]
    while waiting:
        node = waiting.pop()
        yield _thread_post(node)
        replies = _entries(node.get("replies"))
        waiting += reversed(replies)


def _thread_post(node: Record) -> FoundPost:
    """Read a post in a thread; only the address is left of a deleted one."""
    post = node.get("post")
    if _is_view(post):
        return _view(object_or_empty(post))
    return _left_out(node, "uri", DELETED)


# X: the archive, both API versions, and lines of either


def _x(record: Record) -> list[FoundPost] | None:
    note = _object(record, "noteTweet")
    if note:
        return [_note_tweet(note)]
    inner = _object(record, "tweet")
    if inner and ("full_text" in inner or "text" in inner):
        return [_tweet(inner)]
    if isinstance(record.get("statuses"), list) and "search_metadata" in record:
        return [_tweet(item) for item in _entries(record["statuses"])]
    if _is_answer(record):
        return list(_answer(record))
    return [_tweet(record)] if _is_tweet(record) else None


# Keys of a tweet in version 1 of the API and in archives, and in version 2.
_OLD_TWEET = "id_str entities user favorite_count retweet_count in_reply_to_user_id".split()
_NEW_TWEET = (
    "edit_history_tweet_ids author_id conversation_id public_metrics referenced_tweets "
    "possibly_sensitive reply_settings"
).split()


def _is_tweet(record: Record) -> bool:
    text = record.get("full_text", record.get("text"))
    if not isinstance(text, str):
        return False
    if "id_str" in record and sum(mark in record for mark in _OLD_TWEET) >= 2:
        return True
    return "id" in record and any(mark in record for mark in _NEW_TWEET)


def _is_answer(record: Record) -> bool:
    """Whether a record is an answer of API version 2: data, or errors for deleted tweets."""
    data = record.get("data")
    items = objects(data if isinstance(data, list) else [data])
    if items:
        are_tweets = all("id" in item and isinstance(item.get("text"), str) for item in items)
        return are_tweets and set(record) <= {"data", "includes", "meta", "errors", "__twarc"}
    meta = _object(record, "meta")
    errors = objects(record.get("errors"))
    has_gone = any("resource_type" in error for error in errors)
    return has_gone or meta.get("result_count") == 0


def _answer(record: Record) -> Iterator[FoundPost]:
    data = record.get("data")
    included: dict[str, str] = {}
    includes = _object(record, "includes")
    for shown in objects(includes.get("tweets")):
        key = id_text(shown.get("id"))
        included[key] = _tweet_text(shown)
    tweets = [] if data is None else data
    for tweet in _entries(tweets if isinstance(tweets, list) else [tweets]):
        yield _tweet(tweet, included)
    for error in objects(record.get("errors")):
        # Other errors are about users, media, or referenced tweets.
        if error.get("resource_type") == "tweet" and error.get("parameter") in ("id", "ids"):
            yield _left_out(error, "resource_id", DELETED)


def _tweet(tweet: Record, included: Mapping[str, str] | None = None) -> FoundPost:
    key = id_text(tweet.get("id_str")) or id_text(tweet.get("id"))
    text = _tweet_text(tweet)
    references = objects(tweet.get("referenced_tweets"))
    is_repost = any(reference.get("type") == "retweeted" for reference in references)
    if is_repost or _object(tweet, "retweeted_status") or RETWEET.match(text):
        return FoundPost(key, left_out=REPOSTS)
    if tweet.get("deleted_at"):
        return FoundPost(key, left_out=DELETED)
    parts = PostParts([text] if text else [])
    parts.lang = _text(tweet, "lang")
    parts.date = _text(tweet, "created_at")
    parts.links = [url for url in _urls(tweet) if not _is_own(url)]
    quoted = _object(tweet, "quoted_status")
    quotations = [_tweet_text(quoted)] if quoted else []
    for reference in references:
        if reference.get("type") == "quoted":
            reference_id = id_text(reference.get("id"))
            known = (included or {}).get(reference_id, "")
            quotations.append(known or _tweet_text(reference))
    for quotation in filter(None, quotations):
        parts.add("quoted post", quotation)
    return _of_parts(key, parts)


def _tweet_text(tweet: Record) -> str:
    """Return the full text of a tweet: the longest of its fields, without HTML entities."""
    extended = _object(tweet, "extended_tweet")
    note = _object(tweet, "note_tweet")
    text = (
        _text(note, "text")
        or _text(extended, "full_text")
        or _text(tweet, "full_text")
        or _text(tweet, "text")
    )
    return unescaped(text)


def _urls(tweet: Record) -> Iterator[str]:
    for holder in (tweet, _object(tweet, "note_tweet")):
        entities = _object(holder, "entities")
        for url in objects(entities.get("urls")):
            yield _text(url, "expanded_url") or _text(url, "url")


def _is_own(url: str) -> bool:
    """Whether an address is X's own, of a picture or a quoted post."""
    return re.match(r"https?://(?:www\.)?(?:twitter|x)\.com/", url) is not None


def _note_tweet(note: Record) -> FoundPost:
    """Read a long post from the archive's note-tweet.js."""
    core = _object(note, "core")
    text = unescaped(_text(core, "text"))
    urls = [_text(url, "expandedUrl") for url in objects(core.get("urls"))]
    parts = PostParts([text] if text else [], urls)
    parts.date = _text(note, "createdAt")
    return _of_parts(note.get("noteTweetId"), parts)


# Reddit: listings of the API, and Pushshift's lines


def _reddit(record: Record) -> list[FoundPost] | None:
    kind = record.get("kind")
    data = record.get("data")
    if kind in ("Listing", "t1", "t3", "more") and isinstance(data, dict):
        return list(_thing(record))
    is_in_subreddit = "subreddit" in record and ("body" in record or "title" in record)
    is_comment = {"body", "link_id", "parent_id"} <= set(record)
    if is_in_subreddit or is_comment or {"selftext", "title"} <= set(record):
        kind = "t1" if "body" in record else "t3"
        return list(_thing({"kind": kind, "data": record}))
    return None


def _thing(thing: Record) -> Iterator[FoundPost]:
    """Yield the posts of a listing, a submission, or a comment with its replies."""
    waiting = [thing]
    while waiting:
        node = waiting.pop()
        data = _object(node, "data")
        kind = node.get("kind")
        if kind == "Listing":
            children = _entries(data.get("children"))
            waiting += reversed(children)
        elif kind == "t3":
            yield _submission(data)
        elif kind == "t1":
            yield _comment(data)
            if _object(data, "replies"):
                waiting.append(data["replies"])
        elif kind != "more":  # "more" lists comments that were not loaded
            yield _left_out(data, "id", OTHERS)


def _submission(data: Record) -> FoundPost:
    key = id_text(data.get("name")) or id_text(data.get("id"))
    if data.get("crosspost_parent") or data.get("crosspost_parent_list"):
        return FoundPost(key, left_out=REPOSTS)
    title = _reddit_text(data, "title")
    body = _reddit_text(data, "selftext")
    if not title and not body and (data.get("title") or data.get("selftext")):
        return FoundPost(key, left_out=DELETED)
    links = [] if data.get("is_self") else [_text(data, "url")]
    parts = PostParts([text for text in (title, body) if text], links)
    parts.date = _reddit_date(data)
    return _of_parts(key, parts)


def _comment(data: Record) -> FoundPost:
    key = id_text(data.get("name")) or id_text(data.get("id"))
    text = _reddit_text(data, "body")
    if not text and data.get("body"):
        return FoundPost(key, left_out=DELETED)
    parts = PostParts([text] if text else [])
    parts.date = _reddit_date(data)
    return _of_parts(key, parts)


def _reddit_text(data: Record, key: str) -> str:
    text = unescaped(_text(data, key))
    return "" if text.casefold() in _REMOVED else text


def _reddit_date(data: Record) -> str:
    return str(data.get("created_utc") or data.get("created") or "")


# Telegram Desktop's result.json


def _telegram(record: Record) -> list[FoundPost] | None:
    chats = objects(_object(record, "chats").get("list"))
    chats += objects(_object(record, "left_chats").get("list"))
    if any("messages" in chat for chat in chats):
        found: list[FoundPost] = []
        for chat in chats:
            chat_id = id_text(chat.get("id"))
            for message in _entries(chat.get("messages")):
                post = _message(message)
                # Message numbers are unique only within a chat.
                found.append(replace(post, id=f"{chat_id}-{post.id}"))
        return found
    messages = _entries(record.get("messages"))
    if any(_is_message(message) for message in messages):
        return [_message(message) for message in messages]
    return [_message(record)] if _is_message(record) else None


def _is_message(record: Record) -> bool:
    is_kind = record.get("type") in ("message", "service") and "date" in record
    return is_kind and ("text" in record or "action" in record or "text_entities" in record)


def _message(message: Record) -> FoundPost:
    key = id_text(message.get("id"))
    if message.get("type") != "message":
        return FoundPost(key, left_out=OTHERS)
    if message.get("forwarded_from") or message.get("forwarded_from_id"):
        return FoundPost(key, left_out=REPOSTS)
    pieces = message.get("text")
    text, links = _pieces(pieces if isinstance(pieces, list) else [pieces])
    if not text:
        text, links = _pieces(message.get("text_entities") or [])
    parts = PostParts([text] if text else [], links)
    parts.date = _text(message, "date") or id_text(message.get("date_unixtime"))
    poll = _object(message, "poll")
    if poll:
        answers = [answer.get("text") for answer in objects(poll.get("answers"))]
        parts.add("poll", poll.get("question"), *answers)
    return _of_parts(key, parts)


def _pieces(pieces: object) -> tuple[str, list[str]]:
    """Join the pieces of a text: strings, and objects such as links and bold words."""
    words: list[str] = []
    links: list[str] = []
    for piece in pieces if isinstance(pieces, Iterable) else ():
        if isinstance(piece, str):
            words.append(piece)
            continue
        record = object_or_empty(piece)
        text = record.get("text")
        words.append(text if isinstance(text, str) else "")
        if record.get("type") == "link":
            links.append(plain_text(text))
        elif record.get("type") == "text_link":
            links.append(_text(record, "href"))
    return "".join(words).strip(), links
