"""Access control: who is admitted, how often, how much; what a refusal shows and hides."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from claim2source.serve import access as module
from claim2source.serve.access import (
    ADDRESSES,
    DISCARDED,
    HEADERS,
    LOCAL,
    MAX_BYTES,
    Access,
    AccessSettings,
    Rate,
    token_cookie,
)

TOKEN = "a-token-of-twenty-signs"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Say how long the body was; a path of errors fails."""
    request = Request(scope, receive)
    if request.url.path == "/error":
        raise ValueError(request.url.query)
    body = await request.body()
    response = Response(str(len(body)))
    await response(scope, receive, send)


def refusal(
    status: int,
    reason: str,
    scope: Scope,
    headers: Mapping[str, str],
) -> Response:
    return JSONResponse({"error": reason}, status, dict(headers))


def ask(
    settings: AccessSettings,
    *requests: tuple[str, dict[str, str]],
    **options: Any,
) -> list[httpx.Response]:
    async def run() -> list[httpx.Response]:
        access = Access(echo, settings, refusal)
        transport = httpx.ASGITransport(access, client=("10.0.0.1", 1))
        answers = []
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for path, headers in requests:
                answer = await client.post(path, headers=headers, **options)
                answers.append(answer)
        return answers

    return asyncio.run(run())


def codes(answers: list[httpx.Response]) -> list[int]:
    """Give the answers' status codes, in their order."""
    return [answer.status_code for answer in answers]


def test_a_token_is_shown_as_bearer_or_cookie_and_in_no_other_way() -> None:
    good = {"authorization": f"Bearer {TOKEN}"}
    cases: list[tuple[str, dict[str, str], int]] = [
        ("/", good, 200),
        ("/", {"cookie": f"a=b; claim2source={token_cookie(TOKEN)}"}, 200),
        ("/", {}, 401),
        ("/", {"authorization": f"Bearer {TOKEN}x"}, 401),
        ("/", {"cookie": f"claim2source={TOKEN}"}, 401),
        ("/api/v1/find", {}, 401),
        ("/static", {}, 401),
        ("/health", {}, 200),
        ("/static/find.css", {}, 200),
    ]
    requests = [(path, headers) for path, headers, _ in cases]
    answers = ask(AccessSettings(TOKEN), *requests)
    assert codes(answers) == [status for *_, status in cases]
    assert answers[2].headers["www-authenticate"] == "Bearer"
    for answer in answers:
        headers = dict(answer.headers)
        assert HEADERS.items() <= headers.items()
        assert answer.headers["cache-control"] == "no-store"
    cookie = token_cookie(TOKEN)
    assert TOKEN not in cookie
    assert cookie != token_cookie(TOKEN + "x")


def test_other_hosts_and_other_sites_are_refused() -> None:
    cases = [
        ({"host": "localhost:8000"}, 200),
        ({"host": "[::1]:8000"}, 200),
        ({"host": "rebound.example:8000"}, 421),
        ({"host": "lab:8000"}, 200),
        ({"host": "localhost:80", "origin": "http://localhost:80"}, 200),
        ({"host": "localhost:80", "origin": "http://localhost:81"}, 403),
        ({"host": "localhost:80", "origin": "https://evil.example"}, 403),
        ({"host": "localhost:80", "origin": "null"}, 403),
    ]
    settings = AccessSettings(hosts=(*LOCAL, "lab"))
    requests = [("/", headers) for headers, _ in cases]
    answers = ask(settings, *requests)
    assert codes(answers) == [status for _, status in cases]

    any_host = AccessSettings(TOKEN, hosts=None)
    (anywhere,) = ask(any_host, ("/health", {"host": "any.example"}))
    assert anywhere.status_code == 200


def test_an_address_has_its_rate_and_is_told_when_to_come_back() -> None:
    now = 0.0
    rate = Rate(3, clock=lambda: now)
    waits = [rate.wait("a") for _ in range(5)]
    assert waits == [0, 0, 0, 20, 20]
    assert rate.wait("b") == 0
    now = 19.0
    assert rate.wait("a") == 1
    now = 21.0
    assert rate.wait("a") == 0
    assert rate.wait("a") == 19
    now = 10_000.0
    waits = [rate.wait("a") for _ in range(4)]
    assert waits == [0, 0, 0, 20]

    # Everybody has many addresses of IPv6, and one of IPv4.
    waits = [rate.wait(f"2001:db8::{i}") for i in range(4)]
    assert waits == [0, 0, 0, 20]
    waits = [rate.wait(f"10.0.0.{i}") for i in range(4)]
    assert waits == [0] * 4

    # The number of counted addresses is bounded.
    for i in range(2 * ADDRESSES):
        rate.wait(f"10.1.{i // 256}.{i % 256}")
    assert len(rate._left) == ADDRESSES


def test_too_many_requests_are_refused_before_anything_else_is_looked_at() -> None:
    settings = AccessSettings(TOKEN, rate=2)
    wrong = ("/", {"authorization": "Bearer guessed"})
    requests: list[tuple[str, dict[str, str]]] = [
        wrong,
        wrong,
        wrong,
        ("/health", {}),
        ("/enter", {}),
    ]
    answers = ask(settings, *requests)
    assert codes(answers) == [401, 401, 429, 200, 429]
    assert answers[2].headers["retry-after"] == "30"


def test_a_body_is_measured_whether_its_length_is_said_or_not() -> None:
    async def parts(size: int) -> AsyncIterator[bytes]:
        for start in range(0, size, 2**16):
            yield b"x" * min(2**16, size - start)

    sizes = (
        (MAX_BYTES, 200),
        (MAX_BYTES + 1, 413),
        (DISCARDED + 1, 413),
    )
    for size, status in sizes:
        (response,) = ask(AccessSettings(), ("/", {}), content=b"x" * size)
        (streamed,) = ask(AccessSettings(), ("/", {}), content=parts(size))
        assert response.status_code == status
        assert streamed.status_code == status
        if status == 200:
            assert response.text == streamed.text == str(MAX_BYTES)
    lie = {"content-length": "9" * 30}
    (lied,) = ask(AccessSettings(), ("/", lie), content=b"x")
    assert lied.status_code == 413


def test_a_body_that_does_not_arrive_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SECONDS", 0.05)

    async def slow() -> AsyncIterator[bytes]:
        yield b"x"
        await asyncio.sleep(30)

    (answer,) = ask(AccessSettings(), ("/", {}), content=slow())
    assert answer.status_code == 408


def test_an_error_of_ours_is_logged_without_the_post(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        (answer,) = ask(AccessSettings(), ("/error?post=secret", {}))
    assert answer.status_code == 500
    assert "secret" not in answer.text
    headers = dict(answer.headers)
    assert HEADERS.items() <= headers.items()
    assert "ValueError" in caplog.text
    assert "in echo" in caplog.text
    ours = [record for record in caplog.records if record.name.startswith("claim2source")]
    assert ours
    messages = "".join(our.getMessage() for our in ours)
    assert "secret" not in messages
