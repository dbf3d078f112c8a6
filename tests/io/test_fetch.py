"""Posts at addresses, by the public APIs that a server on this machine speaks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from claim2source.core.errors import UserError
from claim2source.io.fetch import BLUESKY_API, Fetcher, is_address
from claim2source.io.posts import Post
from tests.io.social_server import DID, RECORD, STATUS, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as made:
        yield made


def fetcher(server: Server, **options: Any) -> Fetcher:
    places = dict.fromkeys((BLUESKY_API, "mastodon.social", "own.example"), server.place)
    return Fetcher(places=places, **options)


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
    assert len(server.asked) == 1  # that name is known already


def test_a_status_of_mastodon_is_text(server: Server) -> None:
    post = fetcher(server).post("https://mastodon.social/@ada/110?x=1#y")
    assert post.text.startswith("Wissenschaft\nNeue Studie: Masken & Ausbrüche #m\n3,7x\n\n")
    assert "<" not in post.text
    assert (post.lang, post.date, post.links) == (
        "de",
        "2021-05-04",
        ("https://nature.com/a?b=1&c=2",),
    )
    with pytest.raises(UserError, match="own.example is neither bsky.app nor a known instance"):
        fetcher(server).post("https://own.example/@ada/110")
    assert fetcher(server, instances=("own.example",)).post("https://own.example/@ada/110") == post


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("http://mastodon.social/@ada/110", "no plain https://"),
        ("https://mastodon.social:8080/@ada/110", "no plain https://"),
        ("https://me:secret@mastodon.social/@ada/110", "no plain https://"),
        ("https://mastodon.social.evil.org/@ada/110", "neither bsky.app nor"),
        ("https://127.0.0.1/@ada/110", "neither bsky.app nor"),
        ("https://mastodon.social/@ada/110/../x", "is not https://mastodon.social/@NAME/NUMBER"),
        (
            "https://mastodon.social/api/v1/statuses/110",
            "is not https://mastodon.social/@NAME/NUMBER",
        ),
        ("https://bsky.app/profile/ada.org", "is not https://bsky.app/profile/NAME/post/KEY"),
        ("https://bsky.app/profile/a&uris=b/post/3k", "is not https://bsky.app"),
        ("https://bsky.app/profile/ada.org/post/3k%2F..", "is not https://bsky.app"),
        ("https://[bad", "is no address"),
        ("file:///etc/passwd", "no plain https://"),
    ],
)
def test_other_addresses_are_not_asked(server: Server, address: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        fetcher(server).post(address)
    assert server.asked == []


def test_what_a_server_must_not_do(server: Server) -> None:
    path, address = "/api/v1/statuses/110", "https://mastodon.social/@ada/110"

    def refused(why: str, **options: Any) -> None:
        with pytest.raises(UserError, match=why) as caught:
            fetcher(server, **options).post(address)
        assert str(caught.value).startswith(address) and "\n" not in str(caught.value)

    server.say("/elsewhere", STATUS)
    for status in (301, 302, 303, 307, 308):
        server.say(path, b"", status, Location=f"{server.place}/elsewhere")
        refused("redirects elsewhere")
    assert {asked for asked, _ in server.asked} == {path}
    server.say(path, json.dumps({**STATUS, "filler": "x" * 3000}).encode())
    refused("answers more than 2000 bytes", most=2000)
    for status, why in ((404, "no such post"), (401, "not public"), (500, "answers 500")):
        server.say(path, {}, status)
        refused(why)
    for value in (b"<html>", b"[" * 100_000, [], {"content": 5}, {"content": "<p> </p>"}, b"\xff"):
        server.say(path, value)
        refused("JSON object|has no content|has no text")
    server.say(path, STATUS)
    server.delay = 1.0
    refused("cannot be read: .*timed out", timeout=0.2)
    server.delay, server.drips = 0.0, True
    refused("cannot be read: .*timed out", timeout=0.3)
    server.drips = False
    bluesky = "https://bsky.app/profile/ada.org/post/3k"
    for answer in ({}, {"posts": []}, {"posts": [None]}, {"posts": [{"record": "x"}]}):
        server.say("/xrpc/app.bsky.feed.getPosts", answer)
        with pytest.raises(UserError, match="there is no such post"):
            fetcher(server).post(bluesky)
    odd = {"text": "t", "facets": [{"features": [5]}], "langs": "en", "createdAt": 5, "embed": []}
    server.say("/xrpc/app.bsky.feed.getPosts", {"posts": [{"record": odd}]})
    assert fetcher(server).post(bluesky) == Post("0", "t")


def test_only_a_whole_text_is_an_address() -> None:
    assert is_address(" https://bsky.app/x\n") and is_address("HTTP://a")
    assert not is_address("see https://bsky.app/x") and not is_address("bsky.app/x")
    with pytest.raises(UserError, match="instances: 'https://a.b' is no host's name"):
        Fetcher(("https://a.b",))
