"""Qdrant's local mode behind its REST API on loopback: requests are real, what answers is no server."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from qdrant_client import QdrantClient, models

# Method and path after the collection: the client's method, and what reads the body.
_ROUTES: dict[tuple[str, str], tuple[str, type | None]] = {
    ("GET", "/exists"): ("collection_exists", None),
    ("GET", ""): ("get_collection", None),
    ("DELETE", ""): ("delete_collection", None),
    ("PUT", ""): ("create_collection", models.CreateCollection),
    ("PATCH", ""): ("update_collection", models.UpdateCollection),
    ("PUT", "/index"): ("create_payload_index", models.CreateFieldIndex),
    ("PUT", "/points"): ("upsert", models.PointsList),
    ("POST", "/points"): ("retrieve", models.PointRequest),
    ("POST", "/points/delete"): ("delete", None),
    ("POST", "/points/query"): ("query_points", models.QueryRequest),
    ("POST", "/points/scroll"): ("scroll", models.ScrollRequest),
    ("POST", "/points/count"): ("count", models.CountRequest),
    ("POST", "/points/payload"): ("set_payload", models.SetPayload),
    ("PUT", "/points/vectors"): ("update_vectors", models.UpdateVectors),
}
_RENAMED = {
    "create_collection": {"vectors": "vectors_config", "sparse_vectors": "sparse_vectors_config"},
    "query_points": {
        "filter": "query_filter",
        "params": "search_params",
        "with_vector": "with_vectors",
    },
    "scroll": {"filter": "scroll_filter", "with_vector": "with_vectors"},
    "count": {"filter": "count_filter"},
    "retrieve": {"with_vector": "with_vectors"},
}


@dataclass
class QdrantServer:
    """What was asked: (method, path, query, key, body)."""

    port: int = 0
    key: str = ""
    asked: list[tuple[str, str, str, str | None, Any]] = field(default_factory=list)
    status: str = "green"


@contextmanager
def qdrant_server(key: str = "") -> Iterator[QdrantServer]:
    """Serve; with a key only those who send it."""
    client, lock = QdrantClient(":memory:"), threading.Lock()
    server = QdrantServer(key=key)

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else {}
            sent, (path, _, query) = self.headers.get("api-key"), self.path.partition("?")
            server.asked.append((self.command, path, query, sent, body))
            found = re.fullmatch("/collections/([^/]+)(/.*)?", path)
            assert found is not None
            name, rest = found[1], found[2] or ""
            if key and sent != key:
                return self._say(403 if sent else 401, {"status": {"error": "forbidden"}})
            with lock:
                if (
                    rest != "/exists"
                    and self.command != "PUT"
                    and not client.collection_exists(name)
                ):
                    return self._say(404, {"status": {"error": "Not found"}})
                result = self._result(name, rest, body)
            return self._say(200, {"result": result, "status": "ok", "time": 0.0})

        def _result(self, name: str, rest: str, body: Any) -> Any:
            method, kind = _ROUTES[self.command, rest]
            values = dict(kind.model_validate(body)) if kind else {}
            if method == "delete":
                values = {"points_selector": models.PointIdsList(points=body["points"])}
            if method == "set_payload":
                values["points"] = values.get("points") or values.get("filter")
                values.pop("filter")
            renamed = _RENAMED.get(method, {})
            values = {renamed.get(n, n): v for n, v in values.items() if v is not None}
            if method == "create_collection":
                values["vectors_config"] = dict(values["vectors_config"])
            for extra in ("shard_key", "lookup_from", "field_schema"):
                if method != "create_payload_index":
                    values.pop(extra, None)
            result = getattr(client, method)(name, **values)
            if method == "collection_exists":
                return {"exists": result}
            if method == "get_collection":
                return {
                    **result.model_dump(mode="json", exclude_none=True),
                    "status": server.status,
                }
            if method == "scroll":
                points = [point.model_dump(mode="json") for point in result[0]]
                return {"points": points, "next_page_offset": result[1]}
            if method == "retrieve":
                return [point.model_dump(mode="json") for point in result]
            return result.model_dump(mode="json") if hasattr(result, "model_dump") else result

        def _say(self, status: int, answer: Any) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *args: Any) -> None:
            """Stay silent."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.port = http.server_address[1]
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
