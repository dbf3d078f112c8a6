"""A real HTTP server for re-rankers: it replays recorded replies, or replies by a rule."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

# Path and body -> status, JSON, headers.
Rule = Callable[[str, dict[str, Any]], tuple[int, Any, Mapping[str, str]]]


class ScoreServer(ThreadingHTTPServer):
    """Serve a rule within a `with`; `requests` has (path, body, headers) of each."""

    daemon_threads = True

    def __init__(self, rule: Rule) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.rule = rule
        self.requests: list[tuple[str, dict[str, Any], dict[str, str]]] = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, body, _ in self.requests]


class Handler(BaseHTTPRequestHandler):
    server: ScoreServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.requests.append((self.path, body, dict(self.headers)))
        status, reply, headers = self.server.rule(self.path, body)
        content = json.dumps(reply).encode()
        self.send_response(status)
        # Nobody waits: the client's own waits begin with half a second.
        soon = {"content-length": str(len(content)), "retry-after-ms": "1"}
        for name, value in {**soon, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


def shuffled(reply: Any) -> Any:
    """The same results in another order, as from servers that sort by score."""
    record = json.loads(json.dumps(reply))
    results = record if isinstance(record, list) else record.get("data", record.get("results", []))
    results[:] = results[1:] + results[:1]
    return record


def replaying(exchanges: list[dict[str, Any]], *, mix: bool = False) -> Rule:
    """Reply to a recorded request as was recorded; anything else is refused."""

    def rule(path: str, body: dict[str, Any]) -> tuple[int, Any, Mapping[str, str]]:
        for exchange in exchanges:
            if exchange["method"] == "POST" and (exchange["path"], exchange["request"]) == (
                path,
                body,
            ):
                reply = shuffled(exchange["response"]) if mix else exchange["response"]
                return exchange["status"], reply, {}
        return 418, {"error": {"message": "not recorded"}}, {}

    return rule
