"""A real server in a thread of the test, and a finder that answers when it is told to."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from claim2source.engines import Where
from claim2source.io.posts import Post
from claim2source.pipeline.asking import Answer, Finder
from claim2source.serve.app import Service, make_app
from claim2source.serve.connections import CappedProtocol
from claim2source.serve.desk import Desk
from claim2source.serve.gate import GateSettings


class SlowFinder(Finder):
    """Find as ever, once `go` is set; `asked` are the posts of each search, `begun` is set then.

    A post that says "poison" makes the search fail.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.asked: list[list[str]] = []

    def find(self, posts: Sequence[Post], k: int = 10, where: Where | None = None) -> list[Answer]:
        self.asked.append([post.text for post in posts])
        self.begun.set()
        self.told("a slow stage")
        assert self.go.wait(60)
        if any("poison" in post.text for post in posts):
            raise ValueError([post.text for post in posts])
        return super().find(posts, k, where)


@contextmanager
def serving(
    finder: Finder, *, places: int = 64, seconds: float = 60, gate: GateSettings | None = None
) -> Iterator[str]:
    import uvicorn

    desk = Desk(finder, places=places, seconds=seconds)
    desk.start()
    settings = replace(gate or GateSettings(), rate=gate.rate if gate else None)
    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(Service(desk, gate=settings))
    server = uvicorn.Server(
        uvicorn.Config(
            app, http=CappedProtocol, ws="none", lifespan="on", log_config=None, access_log=False
        )
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        desk.close()
        assert not thread.is_alive()
