"""Posts at addresses, by the public APIs that a server on this machine speaks."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from claim2source.core.errors import UserError
from claim2source.io.fetch import BLUESKY_API, Fetcher, is_address
from claim2source.io.posts import Post

DID = "did:plc:abc123"
RECORD = {
    "$type": "app.bsky.feed.post",
    "text": "New study: masks cut outbreaks 3.7x\nnature.com/arti...",
    "langs": ["en-GB", "de"],
    "createdAt": "2021-05-04T10:00:00.000Z",
    "facets": [
        {
            "index": {"byteStart": 36, "byteEnd": 54},
            "features": [
                {"$type": "app.bsky.richtext.facet#link", "uri": "https://nature.com/articles/1"},
                {"$type": "app.bsky.richtext.facet#tag", "tag": "masks"},
            ],
        },
        {"features": [{"$type": "app.bsky.richtext.facet#mention", "did": DID}]},
    ],
    "embed": {"$type": "app.bsky.embed.external", "external": {"uri": "https://doi.org/10.1/x"}},
}
STATUS = {
    "content": '<p>Neue Studie: Masken &amp; Ausbrüche <a href="https://x.org/tags/m" class="mention hashtag">#<span>m</span></a><br>3,7x</p>'
    '<p><a href="https://nature.com/a?b=1&amp;c=2" rel="nofollow"><span class="invisible">https://</span><span>nature.com/a</span></a></p><script>alert(1)</script>',
    "spoiler_text": "Wissenschaft",
    "language": "de",
    "created_at": "2021-05-04T10:00:00.000Z",
}


class Server(ThreadingHTTPServer):
    """Answer as `answers` say: path -> (status, headers, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.delay, self.drips = 0.0, False
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def place(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def say(self, path: str, value: object, status: int = 200, **headers: str) -> None:
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.answers[path] = status, headers, body


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        time.sleep(self.server.delay)
        status, headers, body = self.server.answers.get(urlsplit(self.path).path, (404, {}, b"{}"))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        for byte in body if self.server.drips else [body]:
            time.sleep(0.05 if self.server.drips else 0)
            with contextlib.suppress(OSError):
                self.wfile.write(bytes([byte]) if isinstance(byte, int) else byte)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    made.say("/xrpc/com.atproto.identity.resolveHandle", {"did": DID})
    made.say("/xrpc/app.bsky.feed.getPosts", {"posts": [{"uri": "at://..", "record": RECORD}]})
    made.say("/api/v1/statuses/110", STATUS)
    yield made
    made.shutdown()
    made.server_close()


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
