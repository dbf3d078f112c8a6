"""Run a server: limit connections, close those with incomplete requests, count refusals.

Many refusals are logged in one line.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from claim2source.core.errors import Stopped
from claim2source.serve.schemas import CHARACTERS

log = logging.getLogger(__name__)

# Seconds within which the line and headers of a request must arrive, from the connection's start
# or the request's first byte; and the most open connections.
HEADERS_WITHIN = 10.0
CONNECTIONS = 200
# Seconds for which lines that differ only in their values are counted, not written.
QUIET = 60.0


class CappedProtocol(H11Protocol):
    """Uvicorn's HTTP protocol for a bounded number of clients, with a time limit."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, or close it at once if too many are open."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            log.warning("more than %d connections: refused", CONNECTIONS)
            transport.abort()
            return
        self._wait_for_headers()

    def data_received(self, data: bytes) -> None:
        """Parse incoming data; limit the time until a request's headers are complete."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._headers_came()
        elif self._deadline is None and not self.transport.is_closing():
            self._wait_for_headers()

    def on_response_complete(self) -> None:
        """Continue with data that the client has already sent."""
        super().on_response_complete()
        if self.conn.trailing_data[0] and self._deadline is None:
            self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._headers_came()
        super().connection_lost(exc)

    def _wait_for_headers(self) -> None:
        self._deadline = self.loop.call_later(HEADERS_WITHIN, self._too_late)

    def _headers_came(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        answering = self.cycle is not None and not self.cycle.response_complete
        if not answering and not self.transport.is_closing():
            log.warning("no complete request within %g s: closed", HEADERS_WITHIN)
            self.transport.abort()


class Sparse(logging.Filter):
    """Log the first of many similar lines, and later their number."""

    def __init__(self) -> None:
        super().__init__()
        self._since: dict[str, float] = {}
        self._suppressed: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        key = str(record.msg)
        now = time.monotonic()
        if now - self._since.get(key, -QUIET) < QUIET:
            self._suppressed[key] += 1
            return False
        if len(self._since) > 1_000:
            self._since.clear()
        self._since[key] = now
        count = self._suppressed.pop(key, 0)
        if count:
            record.msg = f"{record.getMessage().replace('%', '%%')} (and {count} more like it)"
            record.args = ()
            record.exc_info = None
        return True


def quiet_loggers() -> None:
    """Limit the number of logged lines, whatever clients send."""
    names: tuple[Any, ...] = (__name__, "uvicorn.error", "asyncio", "mcp", "h11")
    for name in names:
        logging.getLogger(name).addFilter(Sparse())


def run_server(app: ASGIApp, listening: socket.socket, proxies: Sequence[str], grace: int) -> None:
    """Answer requests at a port until the process is stopped; then finish open requests.

    X-Forwarded-For of `proxies` is trusted; `grace` are the seconds to finish.
    """
    quiet_loggers()
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            http=CappedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,  # it would contain the posts of /?post=
            server_header=False,
            proxy_headers=bool(proxies),
            forwarded_allow_ips=list(proxies),
            timeout_graceful_shutdown=grace,
            # The longest post in an address: four bytes a character, three signs for each.
            h11_max_incomplete_event_size=12 * CHARACTERS + 2**16,
        )
    )
    try:
        server.run(sockets=[listening])
    except (Stopped, KeyboardInterrupt):  # raised again once everything is finished
        pass
