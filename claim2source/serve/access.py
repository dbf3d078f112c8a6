"""Admit requests or refuse them by host, rate, token, origin and size; add security headers."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from math import ceil

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from claim2source.core.arguments import is_digits
from claim2source.serve.batcher import complain

COOKIE = "claim2source"
# Bytes of a request's body: a batch of long posts.
MAX_BYTES = 2 * 2**20
# Larger bodies are read up to so many bytes: a client that is sending does not see a refusal.
DISCARDED = 8 * MAX_BYTES
# Seconds in which a body must have arrived.
SECONDS = 20
# Most addresses whose requests are counted.
ADDRESSES = 10_000
LOCAL = ("localhost", "127.0.0.1", "[::1]")
MCP = "/mcp"
# Paths that need no token, and paths that are not counted either.
OPEN = ("/health", "/enter", "/static/")
FREE = ("/health", "/static/")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    # Only this server sees the origin of a form, and nobody else its address.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
# (status, reason, scope, headers) -> response.
Refusal = Callable[[int, str, Scope, Mapping[str, str]], Response]


@dataclass(frozen=True)
class AccessSettings:
    """Settings of access to the server.

    Args:
        token: the clients' token; None: no token is needed.
        hosts: allowed names in the Host header; None: any. This keeps other sites' pages from
            reaching the server by their own host name (DNS rebinding).
        rate: requests per minute of one address; None: unlimited.
    """

    token: str | None = None
    hosts: tuple[str, ...] | None = LOCAL
    rate: int | None = 120


class Rate:
    """Limit requests by address: `rate` at once, then as many per minute."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, address: str) -> int:
        """Count a request; return 0, or the seconds to wait if the rate is exceeded."""
        key = _client_group(address)
        now = self.clock()
        tokens, last = self._left.pop(key, (float(self.rate), now))
        tokens = min(self.rate, tokens + (now - last) * self.rate / 60)
        seconds = 0
        if tokens < 1:
            seconds = ceil((1 - tokens) * 60 / self.rate - 1e-6)
        if not seconds:
            tokens -= 1
        self._left[key] = (tokens, now)
        if len(self._left) > ADDRESSES:
            self._left.popitem(last=False)
        return seconds


class Access:
    """Guard an application: refuse requests before they reach it."""

    def __init__(self, app: ASGIApp, settings: AccessSettings, refusal: Refusal) -> None:
        self.app = app
        self.settings = settings
        self.refusal = refusal
        self._rate = None
        if settings.rate is not None:
            self._rate = Rate(settings.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        has_started = False

        async def send_once(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.start":
                has_started = True
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("cache-control", "no-store")
            await send(message)

        try:
            refused = self._refused(scope)
            if refused is None:
                body = await _body(scope, receive)
                if isinstance(body, bytes):
                    await self.app(scope, _replayed(body, receive), send_once)
                    return
                if body is None:  # the client has gone
                    return
                refused = self.refusal(*body, scope, {"connection": "close"})
            await refused(scope, receive, send_once)
        except Exception as error:
            complain(error)
            if not has_started:
                reason = "internal error; see the server's log"
                await self.refusal(500, reason, scope, {})(scope, receive, send_once)

    def _refused(self, scope: Scope) -> Response | None:
        """Return the refusal of a request by its headers; None if it is admitted."""
        headers = Headers(scope=scope)
        close = {"connection": "close"}
        if not self._is_served(headers):
            return self.refusal(421, "this host is not served here", scope, close)
        seconds = self._seconds_to_wait(scope)
        if seconds:
            reason = f"too many requests; try again in {seconds} s"
            return self.refusal(429, reason, scope, close | {"retry-after": str(seconds)})
        if self._lacks_token(scope["path"], headers):
            bearer = {"www-authenticate": "Bearer"}
            return self.refusal(401, "a token is needed", scope, close | bearer)
        if _is_cross_origin(scope, headers):
            return self.refusal(403, "cross-origin request refused", scope, close)
        return None

    def _is_served(self, headers: Headers) -> bool:
        hosts = self.settings.hosts
        return hosts is None or _without_port(headers.get("host", "")) in hosts

    def _seconds_to_wait(self, scope: Scope) -> int:
        """Count a request of its address; return the seconds to wait, 0 if it is admitted."""
        if self._rate is None or _is_under_any(scope["path"], FREE):
            return 0
        address = ""
        if scope.get("client"):
            address = scope["client"][0]
        return self._rate.wait(address)

    def _lacks_token(self, path: str, headers: Headers) -> bool:
        if self.settings.token is None or _is_under_any(path, OPEN):
            return False
        return not self._has_token(headers)

    def _has_token(self, headers: Headers) -> bool:
        token = self.settings.token or ""
        kind, _, value = headers.get("authorization", "").partition(" ")
        bearer = kind.lower() == "bearer" and same_secret(value.strip(), token)
        return bearer or same_secret(
            cookie_value(headers.get("cookie", ""), COOKIE), token_cookie(token)
        )


def _is_cross_origin(scope: Scope, headers: Headers) -> bool:
    """Whether another site's page sent a request that it must not send.

    Links to the page, with a post in its form, are allowed; it searches only if its reader does.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        return True
    is_link = scope["method"] == "GET" and scope["path"] != MCP
    return is_foreign(headers) and not is_link


def is_foreign(headers: Headers) -> bool:
    """Whether another site's page started a request, by the browser's headers."""
    return headers.get("sec-fetch-site") == "cross-site"


def is_followed(headers: Headers) -> bool:
    """Whether a reader followed a link, by the browser's headers; not a script or an image."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-user") == "?1"


def token_cookie(token: str) -> str:
    """Make the cookie of a client that has shown the token; it does not reveal the token."""
    return hmac.new(token.encode(), b"claim2source cookie", hashlib.sha256).hexdigest()


def same_secret(a: str, b: str) -> bool:
    """Compare secrets in constant time."""
    return hmac.compare_digest(a.encode("utf-8", "replace"), b.encode())


def cookie_value(header: str, name: str) -> str:
    """Read a cookie; "" if there is none."""
    try:
        morsel = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return "" if morsel is None else morsel.value


def _is_under_any(path: str, prefixes: Iterable[str]) -> bool:
    return any(_is_under(path, prefix) for prefix in prefixes)


def _is_under(path: str, prefix: str) -> bool:
    if prefix.endswith("/"):
        return path.startswith(prefix)
    return path == prefix


def _without_port(host: str) -> str:
    name, _, port = host.rpartition(":")
    if name and is_digits(port):
        host = name
    return host.lower()


def _client_group(address: str) -> str:
    """Return the network of a client: an IPv6 client has 2 ** 64 addresses."""
    try:
        host = ipaddress.ip_address(address)
    except ValueError:
        return address
    if host.version == 4:
        return str(host)
    return str(ipaddress.ip_network((address, 64), strict=False))


async def _body(scope: Scope, receive: Receive) -> bytes | tuple[int, str] | None:
    """Read the body; return status and reason of a refusal, or None if the client has gone."""
    large = 413, f"more than {MAX_BYTES} bytes"
    length = Headers(scope=scope).get("content-length", "")
    if is_digits(length) and (len(length) > 12 or int(length) > DISCARDED):
        return large
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(SECONDS):
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    return None
                part = message.get("body", b"")
                size += len(part)
                if size <= MAX_BYTES:
                    parts.append(part)
                if size > DISCARDED:
                    return large
                if not message.get("more_body", False):
                    if size <= MAX_BYTES:
                        return b"".join(parts)
                    return large
    except TimeoutError:
        return 408, f"the request took more than {SECONDS} s"


def _replayed(body: bytes, receive: Receive) -> Receive:
    messages: Iterable[Message] = iter([{"type": "http.request", "body": body}])

    async def replay() -> Message:
        for message in messages:
            return message
        return await receive()

    return replay
