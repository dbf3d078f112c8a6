"""A real server in a thread of the test, and a finder that answers when the test lets it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from claim2source.data.fetch import Fetcher
from claim2source.data.posts import Post
from claim2source.find.finder import Answer, Finder
from claim2source.search.rows import Where
from claim2source.serve.access import AccessSettings
from claim2source.serve.app import Service, make_app
from claim2source.serve.batcher import RequestBatcher
from claim2source.serve.connections import CappedProtocol
from claim2source.serve.marking import Marking


class SlowFinder(Finder):
    """Find as ever, once `go` is set; `asked` are the posts of each search, `begun` is set then.

    A post with "poison" makes the search fail.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.go, self.begun = threading.Event(), threading.Event()
        self.go.set()
        self.asked: list[list[str]] = []

    def find(self, posts: Sequence[Post], k: int = 10, where: Where | None = None) -> list[Answer]:
        self.asked.append([post.text for post in posts])
        self.begun.set()
        self.on_part("a slow stage")
        assert self.go.wait(60)
        if any("poison" in post.text for post in posts):
            raise ValueError([post.text for post in posts])
        return super().find(posts, k, where)


@contextmanager
def serving(
    finder: Finder,
    *,
    capacity: int = 64,
    seconds: float = 60,
    access: AccessSettings | None = None,
    fetcher: Fetcher | None = None,
    marking: Marking | None = None,
) -> Iterator[str]:
    import uvicorn

    batcher = RequestBatcher(finder, capacity=capacity, seconds=seconds)
    batcher.start()
    settings = replace(access or AccessSettings(), rate=access.rate if access else None)
    listening = socket.create_server(("127.0.0.1", 0))
    app = make_app(Service(batcher, access=settings, fetcher=fetcher, marking=marking))
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
        batcher.close()
        assert not thread.is_alive()
