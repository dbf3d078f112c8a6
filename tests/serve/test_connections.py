"""Slow and many clients, by real sockets; and what other sites' pages start."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from claim2source.search.engine import open_index
from claim2source.serve import connections
from claim2source.serve.connections import Sparse
from tests.eval import conftest
from tests.eval.papers import POST
from tests.serve.servers import SlowFinder, serving

index = conftest.index


@pytest.fixture(scope="module")
def finder(index: str) -> SlowFinder:
    return SlowFinder(open_index(index))


@pytest.fixture
def address(finder: SlowFinder, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(connections, "HEADERS_WITHIN", 0.6)
    monkeypatch.setattr(connections, "CONNECTIONS", 8)
    with serving(finder) as address:
        yield address


def connect(address: str) -> socket.socket:
    host, _, port = address.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def seconds_until_closed(client: socket.socket, part: bytes = b"") -> float:
    """Send a byte now and then until the server closes the connection."""
    client.settimeout(0.1)
    start = time.monotonic()
    while time.monotonic() - start < 10:
        try:
            client.sendall(part[:1])
            part = part[1:]
            if client.recv(2**16) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    return time.monotonic() - start


def read_answer(client: socket.socket) -> None:
    data = b""
    while b"places" not in data:  # its last word
        data += client.recv(2**16)


@pytest.mark.slow
def test_half_sent_headers_are_closed_in_time_and_a_slow_answer_is_not(
    address: str, finder: SlowFinder
) -> None:
    headers = b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-a: b\r\n" * 100
    for head in (b"", b"GET /", headers):
        with connect(address) as client:
            client.sendall(head)
            assert 0.4 < seconds_until_closed(client, b"x" * 1000 if head else b"") < 3
    # The second request of a connection that was used well has the same time.
    with connect(address) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        read_answer(client)
        time.sleep(1)
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /")
        read_answer(client)
        assert 0.4 < seconds_until_closed(client) < 3
    finder.go.clear()
    with httpx.Client(base_url=address, timeout=20) as client:
        import threading

        threading.Timer(1.5, finder.go.set).start()
        assert client.post("/api/v1/find", json={"post": POST}).status_code == 200


def test_connections_are_capped_and_logged_in_one_line(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    quiet = Sparse()
    logger = logging.getLogger(connections.__name__)
    logger.addFilter(quiet)
    try:
        clients = [connect(address) for _ in range(40)]
        time.sleep(0.3)
        closed = 0
        for client in clients:
            client.settimeout(0.05)
            try:
                closed += client.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                closed += 1
        assert closed >= 30
        time.sleep(1)
        assert httpx.get(f"{address}/health").status_code == 200
    finally:
        logger.removeFilter(quiet)
        for client in clients:
            client.close()
    lines = [record for record in caplog.records if record.name == connections.__name__]
    assert len(lines) == 2  # refused, and closed


def test_what_another_sites_page_starts_runs_no_search(finder: SlowFinder) -> None:
    foreign = {"sec-fetch-site": "cross-site"}
    # With its default deadlines, an idle connection is not closed in the meantime.
    with serving(finder) as address, httpx.Client(base_url=address, headers=foreign) as client:
        finder.asked.clear()
        page = client.get("/", params={"post": POST})
        assert page.status_code == 200 and POST in page.text and 'class="paper' not in page.text
        for path in ("/api/v1/find", "/api/v1/batch", "/answer", "/mcp"):
            assert client.post(path, json={"post": POST}).status_code == 403
        assert client.get("/mcp").status_code == 403 and finder.asked == []
        # A link that a reader follows, such as in a colleague's mail, is not such a page's doing.
        followed = {**foreign, "sec-fetch-mode": "navigate", "sec-fetch-user": "?1"}
        same = {"sec-fetch-site": "same-origin"}
        for own in ({}, same, {"sec-fetch-site": "none"}, followed):
            assert 'class="paper' in httpx.get(address, params={"post": POST}, headers=own).text
