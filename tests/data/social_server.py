"""A server on this machine that speaks the JSON of Bluesky's and Mastodon's public APIs."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

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
    """Answer with `answers`: path -> (status, headers, body)."""

    daemon_threads = True

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.delay, self.drips = 0.0, False
        # If set, answers a request of getPosts by its query.
        self.by_query: Callable[[dict[str, list[str]]], object] | None = None
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
        parts = urlsplit(self.path)
        if self.server.by_query is not None and parts.path.endswith(".getPosts"):
            self.server.say(parts.path, self.server.by_query(parse_qs(parts.query)))
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


@contextlib.contextmanager
def serving() -> Iterator[Server]:
    """Serve a post of Bluesky and a status of Mastodon."""
    server = Server()
    # Looks every 20 ms whether it is to stop: by default it is half a second.
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    server.say("/xrpc/com.atproto.identity.resolveHandle", {"did": DID})
    server.say("/xrpc/app.bsky.feed.getPosts", {"posts": [{"uri": "at://..", "record": RECORD}]})
    server.say("/api/v1/statuses/110", STATUS)
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
