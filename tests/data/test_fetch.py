"""Posts at addresses, by the public APIs that a server on this machine speaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from claim2source.core.errors import UserError
from claim2source.data.fetch import BLUESKY_API, Fetcher, is_address, posts_from
from claim2source.data.posts import Post
from tests import refusals
from tests.data.social_server import DID, RECORD, STATUS, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        yield running


def fetcher(server: Server, **options: Any) -> Fetcher:
    base_urls = dict.fromkeys((BLUESKY_API, "mastodon.social", "own.example"), server.place)
    return Fetcher(base_urls=base_urls, **options)


def test_a_post_of_bluesky_is_read_with_its_links(server: Server) -> None:
    post = fetcher(server).post("https://bsky.app/profile/ada.example.org/post/3kab", "7")
    links = ("https://nature.com/articles/1", "https://doi.org/10.1/x")
    assert post == Post("7", RECORD["text"], "en", "2021-05-04", links=links)  # type: ignore[arg-type]
    (first, headers), (second, _) = server.asked
    assert parse_qs(urlsplit(first).query) == {"handle": ["ada.example.org"]}
    assert parse_qs(urlsplit(second).query) == {"uris": [f"at://{DID}/app.bsky.feed.post/3kab"]}
    assert not {"Cookie", "Authorization", "Referer"} & set(headers)
    server.asked.clear()
    fetcher(server).post(f"https://bsky.app/profile/{DID}/post/3kab")
    assert len(server.asked) == 1  # the handle is not resolved again


def test_a_status_of_mastodon_is_text(server: Server) -> None:
    post = fetcher(server).post("https://mastodon.social/@ada/110?x=1#y")
    assert post.text.startswith("Wissenschaft\nNeue Studie: Masken & Ausbrüche #m\n3,7x\n\n")
    assert "<" not in post.text
    assert (post.lang, post.date) == ("de", "2021-05-04")
    assert post.links == ("https://nature.com/a?b=1&c=2",)
    with refusals.refused(UserError, "own.example", "--instances"):
        fetcher(server).post("https://own.example/@ada/110")
    assert fetcher(server, instances=("own.example",)).post("https://own.example/@ada/110") == post


def bluesky(server: Server, *views: dict[str, Any]) -> Post:
    """Fetch a post whose view is the first; the others are found by their addresses."""
    by_uri = {view["uri"]: {"posts": [view]} for view in views[1:]}
    first = {"posts": [{"uri": f"at://{DID}/app.bsky.feed.post/3k", **views[0]}]}
    server.by_query = lambda query: by_uri.get(query.get("uris", [""])[0], first)
    return fetcher(server).post(f"https://bsky.app/profile/{DID}/post/3k")


QUOTED_URI = "at://did:plc:other/app.bsky.feed.post/3q"
QUOTED = {
    "text": "Masks cut outbreaks 3.7x",
    "langs": ["de"],
    "createdAt": "2020-01-02T00:00:00Z",
    "facets": [
        {"features": [{"$type": "app.bsky.richtext.facet#link", "uri": "https://doi.org/10.1/q"}]}
    ],
    "embed": {"$type": "app.bsky.embed.images", "images": [{"alt": "A table"}, {"alt": ""}]},
}
SHOWN = {
    "$type": "app.bsky.embed.record#viewRecord",
    "uri": QUOTED_URI,
    "value": QUOTED,
    "embeds": [],
}
POINTS_TO = {"uri": QUOTED_URI, "cid": "x"}
OWN = {"text": "wow", "langs": ["en"], "createdAt": "2021-05-04T10:00:00Z"}
IMAGES = {"$type": "app.bsky.embed.images", "images": [{"alt": "A chart of masks"}, {"alt": " "}]}
QUOTE_TEXT = "[quoted post] Masks cut outbreaks 3.7x\n\n[image] A table"
RECORD_EMBED = {"$type": "app.bsky.embed.record", "record": POINTS_TO}
WITH_MEDIA = {
    "$type": "app.bsky.embed.recordWithMedia",
    "record": {"record": POINTS_TO},
    "media": IMAGES,
}
MEDIA_VIEW = {"$type": "app.bsky.embed.recordWithMedia#view", "record": {"record": SHOWN}}


@pytest.mark.parametrize(
    "view",
    [
        {"record": {**OWN, "embed": WITH_MEDIA}, "embed": MEDIA_VIEW},
        # If a server does not show the quoted post, it is fetched.
        {"record": {**OWN, "embed": WITH_MEDIA}},
        {"record": {**OWN, "embed": WITH_MEDIA}, "embed": {"record": {"record": POINTS_TO}}},
    ],
)
def test_pictures_and_quotations_of_bluesky_are_read_and_marked(
    server: Server, view: dict[str, Any]
) -> None:
    post = bluesky(server, view, {"uri": QUOTED_URI, "record": QUOTED})
    assert post.text == f"wow\n\n[image] A chart of masks\n\n{QUOTE_TEXT}"
    assert (post.lang, post.date, post.links) == ("en", "2021-05-04", ("https://doi.org/10.1/q",))


def test_what_a_post_of_bluesky_may_carry(server: Server) -> None:
    quoted = {"uri": QUOTED_URI, "record": QUOTED}
    quotes = {**OWN, "text": "", "embed": RECORD_EMBED}
    post = bluesky(server, {"record": quotes, "embed": {"record": SHOWN}})
    assert (post.text, post.lang, post.date) == (QUOTE_TEXT, "de", "2021-05-04")
    boost = {"$type": "app.bsky.feed.repost", "subject": POINTS_TO, "createdAt": "2022-01-01"}
    post = bluesky(server, {"record": boost}, quoted)
    assert post.text == "[boosted post] Masks cut outbreaks 3.7x\n\n[image] A table"
    assert (post.lang, post.date) == ("de", "2020-01-02")
    card = {"external": {"uri": "https://a.org", "title": "A study", "description": "of masks"}}
    post = bluesky(server, {"record": {**OWN, "embed": card}})
    assert (post.text, post.links) == ("wow\n\n[link] A study. of masks", ("https://a.org",))
    # A post that quotes itself ends, and invisible posts have no text.
    own_uri = {"uri": f"at://{DID}/app.bsky.feed.post/3k"}
    itself = {**OWN, "embed": {"$type": "app.bsky.embed.record", "record": own_uri}}
    assert bluesky(server, {"record": itself}).text == "\n\n[quoted post] ".join(["wow"] * 3)
    for kind in ("NotFound", "Blocked", "Detached"):
        hidden = {"record": {"$type": f"app.bsky.embed.record#view{kind}", **POINTS_TO}}
        view = {"record": {**OWN, "embed": RECORD_EMBED}, "embed": hidden}
        assert bluesky(server, view, quoted).text == "wow"
    for uri in ("https://evil.org/", "at://did:plc:x/app.bsky.feed.like/3k", 5, None):
        strange = {"$type": "app.bsky.embed.record", "record": {"uri": uri}}
        assert bluesky(server, {"record": {**OWN, "embed": strange}}).text == "wow"


HTML = [
    ("<p>see <span class='invisible'>https://</span><span class='ellipsis'>a.org/x</span>"
     "<span class='invisible'>yz</span></p>", "see https://a.org/xyz"),
    ("<p>good <img class='emojo' alt=':mask:' src='x'> idea :mask:</p>", "good :mask: idea :mask:"),
    ("<p>a</p><script>alert('<p>')</script><style>p {}</style><p>b</p>", "a\n\nb"),
    ("<pre>x\n  y</pre><h2>t</h2>u<div>v</div>w", "x\ny\n\nt\n\nu\nv\nw"),
    ("<details><summary>a</summary>b</details><table><tr><td>c</td><td>d</td></tr></table>e",
     "a\nb\n\nc  d\n\ne"),
]  # fmt: skip


@pytest.mark.parametrize(("html", "text"), HTML)
def test_elements_of_a_status_keep_words_apart(server: Server, html: str, text: str) -> None:
    server.say("/api/v1/statuses/110", {**STATUS, "content": html, "spoiler_text": ""})
    assert fetcher(server).post("https://mastodon.social/@ada/110").text == text


def test_what_a_status_of_mastodon_may_carry(server: Server) -> None:
    def post(**options: Any) -> Post:
        own = {"content": "<p>wow</p>", "language": "en", "created_at": "2021-05-04T10:00:00Z"}
        server.say("/api/v1/statuses/110", {**own, **options})
        return fetcher(server).post("https://mastodon.social/@ada/110")

    files = [{"type": "image", "description": "A chart"}, {"type": "gifv", "description": "A cat"}]
    assert post(media_attachments=files).text == "wow\n\n[image] A chart\n\n[video] A cat"
    poll = {"options": [{"title": "masks"}, {"title": "tea"}]}
    assert post(poll=poll).text == "wow\n\n[poll] masks. tea"
    boosted = post(content="", reblog={**STATUS, "spoiler_text": "", "content": "<p>masks</p>"})
    assert (boosted.text, boosted.lang) == ("[boosted post] masks", "de")
    inline = "<p class='quote-inline'>RE: <a href='https://a.org/q'>x</a></p><p>wow</p>"
    quote = {"state": "accepted", "quoted_status": {"content": "<p>masks</p>", "language": "de"}}
    assert post(content=inline, quote=quote).text == "wow\n\n[quoted post] masks"
    assert post(content=inline, quote=quote).links == ()
    assert post(content=inline, quote={"state": "revoked"}).text == "RE: x\n\nwow"
    card = {"url": "https://a.org/1", "title": "A study", "description": ""}
    assert post(card=card).text == "wow\n\n[link] A study"
    assert post(card=card).links == ("https://a.org/1",)
    odd = {"media_attachments": [5, {"type": 3}], "poll": [], "card": 5, "reblog": "", "quote": 1}
    assert post(**odd).text == "wow"


@pytest.mark.parametrize(
    ("address", "fact"),
    [
        ("http://mastodon.social/@ada/110", "https://"),
        ("https://me:secret@mastodon.social/@ada/110", "https://"),
        ("https://mastodon.social.evil.org/@ada/110", "--instances"),
        ("https://mastodon.social/@ada/١١٠", "https://mastodon.social/@NAME/NUMBER"),
        ("https://mastodon.social/@ada/110/../x", "https://mastodon.social/@NAME/NUMBER"),
        ("https://bsky.app/profile/a&uris=b/post/3k", "https://bsky.app/profile/NAME/post/KEY"),
        ("https://[bad", ""),
    ],
)
def test_other_addresses_are_not_asked(server: Server, address: str, fact: str) -> None:
    with refusals.refused(UserError, address, fact):
        fetcher(server).post(address)
    assert server.asked == []
    assert is_address(f" {address}\n") and not is_address(f"see {address}")
    with refusals.refused(UserError, "instances: 'https://a.b'"):
        Fetcher(("https://a.b",))


@pytest.mark.parametrize(
    "address",
    [
        *("file:///etc/passwd", "FILE:///x", "file:/x", "file:///my file", "ftp://a.org/x"),
        *("at://did:plc:a/app.bsky.feed.post/b", "javascript:alert(1)", "data:text/plain,x"),
        *("ssh://a", "gopher://a.org", "mailto:a@b.org", "s3://bucket/x", "http+unix://x"),
    ],
)
def test_addresses_of_other_kinds_are_not_fetched(server: Server, address: str) -> None:
    for given in (None, fetcher(server)):
        with pytest.raises(UserError) as error:
            next(posts_from(f" {address}\n", None, given))
        assert address in str(error.value) and "https://" in str(error.value)
    assert server.asked == []


@pytest.mark.parametrize(
    "post", ["Breaking: masks work", "note:this", "doi:10.1000/x", "3:1", "see file:///x", "a//b"]
)
def test_texts_with_colons_are_posts(post: str) -> None:
    assert next(posts_from(post, None, None)).text == post


def test_what_a_server_must_not_do(server: Server) -> None:
    path, address = "/api/v1/statuses/110", "https://mastodon.social/@ada/110"

    def refused(fact: str, **options: Any) -> None:
        with refusals.refused(UserError, fact) as error:
            fetcher(server, **options).post(address)
        assert str(error.value).startswith(address) and "\n" not in str(error.value)

    server.say("/elsewhere", STATUS)
    for status in (301, 302, 303, 307, 308):
        server.say(path, b"", status, Location=f"{server.place}/elsewhere")
        refused(f"({status})")
    assert {path_asked for path_asked, _ in server.asked} == {path}
    server.say(path, json.dumps({**STATUS, "filler": "x" * 3000}).encode())
    refused("2000 bytes", limit=2000)
    for status, fact in ((404, "no such post"), (401, "not public"), (500, "500")):
        server.say(path, {}, status)
        refused(fact)
    for value in (b"<html>", b"[" * 100_000, [], b"\xff"):
        server.say(path, value)
        refused("JSON")
    for value, fact in (({"content": 5}, "content"), ({"content": "<p> </p>"}, "no text")):
        server.say(path, value)
        refused(fact)
    server.say(path, STATUS)
    server.delay = 1.0
    refused("timed out", timeout=0.2)
    server.delay, server.drips = 0.0, True
    refused("timed out", timeout=0.3)
    server.drips = False
    bluesky = "https://bsky.app/profile/ada.org/post/3k"
    for answer in ({}, {"posts": []}, {"posts": [None]}, {"posts": [{"record": "x"}]}):
        server.say("/xrpc/app.bsky.feed.getPosts", answer)
        with refusals.refused(UserError, bluesky, "no such post"):
            fetcher(server).post(bluesky)
    odd = {"text": "t", "facets": [{"features": [5]}], "langs": "en", "createdAt": 5, "embed": []}
    server.say("/xrpc/app.bsky.feed.getPosts", {"posts": [{"record": odd}]})
    assert fetcher(server).post(bluesky) == Post("0", "t")
