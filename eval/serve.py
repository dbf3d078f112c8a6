"""Serve an index to people, programs and agents: `python eval/serve.py --index DIR`.

Open the printed address in a browser, by default http://127.0.0.1:8000/. The API is at
/api/v1/find and /api/v1/batch (described at /docs and /openapi.json), tools for agents are at
/mcp. At Ctrl+C or SIGTERM the server finishes open requests and stops.
"""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from claim2source.core.config import (
    Between,
    flag,
    list_field,
    read_config,
    require,
)
from claim2source.core.errors import UserError, run_program
from claim2source.core.files import require_writable
from claim2source.core.terminal import say
from claim2source.data.fetch import Fetcher
from claim2source.data.store import Store
from claim2source.find.finder import FinderOptions, with_index
from claim2source.find.marks import MarksFile
from claim2source.models.local import with_local_models
from claim2source.search.shards import open_indexes
from claim2source.serve.server import listen, read_token

# The keys that people need first.
COMMON = (
    "index",
    "host",
    "port",
    "token_file",
    "hosts",
    "pipeline",
    "translator",
    "marks",
    "fetch",
    "log_posts",
)


@dataclass(frozen=True)
class ServeConfig(FinderOptions):
    """Settings of `eval/serve.py`.

    Posts are not stored, except in people's marks. A store of scores and answers is used only
    with --store.

    Args:
        host: the address to listen on; other hosts than loopback require a token.
        port: the port; 0 picks a free one.
        token_file: file with the clients' token in one line; none: CLAIM2SOURCE_TOKEN.
        places: maximal number of posts in the queue and in search; more are refused with 503.
        rate: requests per minute of one address; 0: unlimited.
        timeout: maximal seconds for a post, including its time in the queue.
        marks: file to which people's marks of posts are appended; none: FOLDER.marks.jsonl next to
            the index's folder if only this machine has access, else marks are off.
        grace: seconds for open requests to finish at a stop.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Between(0, 65_535)] = 8000
    token_file: Path | None = None
    places: Annotated[int, Between(1, 10_000)] = 64
    rate: Annotated[int, Between(0, 1_000_000)] = 120
    timeout: Annotated[float, Between(0.1, 3_600)] = 60.0
    marks: Path | None = None
    grace: Annotated[int, Between(0, 3_600)] = 20
    hosts: list[str] = list_field([], help="further names that the Host header may have")
    proxies: list[str] = list_field(
        [], help="addresses of proxies whose X-Forwarded-For is trusted"
    )
    instances: list[str] = list_field([], help="further Mastodon hosts for fetched posts")
    fetch: bool = flag(
        "fetch posts of Bluesky and Mastodon for requests with `fetch`", default=True
    )
    sentences: bool = flag("return each paper's sentence nearest to the post", default=True)
    log_posts: bool = flag("log every post to stderr")

    def check(self) -> None:
        super().check()
        require(bool(self.host.strip()), "host", self.host, "an address, such as 127.0.0.1")

    @property
    def is_local(self) -> bool:
        """Whether only this machine has access."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def marks_file(self, location: str) -> MarksFile | None:
        """Return the file of marks; None if marks are off."""
        if self.marks is not None:
            return MarksFile(self.marks)
        # With a proxy or another name, other machines have access.
        if not self.is_local or self.proxies or self.hosts:
            return None
        return MarksFile.beside(location, self.store)


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until the process is stopped."""
    words = with_index(sys.argv[1:] if argv is None else argv)
    config = read_config(
        ServeConfig, words, program="eval/serve.py", description=__doc__, common=COMMON
    )
    serve(config)


@with_local_models
def serve(config: ServeConfig) -> None:
    """Answer requests until the process is stopped."""
    token = read_token(config.token_file, config.host, is_local=config.is_local)
    engine = open_indexes(config.index)
    if config.marks is not None:
        require_writable(config.marks, "file")
    listening = listen(config.host, config.port)
    try:
        from claim2source.find.several import open_finders
        from claim2source.serve.access import LOCAL, AccessSettings
        from claim2source.serve.app import Service, make_app
        from claim2source.serve.batcher import RequestBatcher
        from claim2source.serve.connections import run_server
        from claim2source.serve.marking import Marking
    except ImportError as error:
        raise UserError(
            f"serve needs {error.name}, which is not installed; pip install 'claim2source[serve]'"
        ) from None

    store = None if config.store is None else Store(config.store)
    finder = open_finders(config, engine, store, sentences=config.sentences)
    batcher = RequestBatcher(finder, capacity=config.places, seconds=config.timeout)
    batcher.start()
    # Without a token, other sites' pages must not reach the server by their own host names.
    hosts = (*LOCAL, *(name.lower() for name in config.hosts)) if token is None else None
    access = AccessSettings(token, hosts, config.rate or None)
    fetcher = Fetcher(tuple(config.instances)) if config.fetch else None
    file = config.marks_file(str(engine.location))
    marking, kept = None, ""
    if file is not None:
        has_each = bool(engine.names) and config.marks is None
        marking = Marking(engine, None if has_each else file, config.store)
        kept = "; marks of posts go to "
        kept += "FOLDER.marks.jsonl next to each index's folder" if has_each else str(file.path)
    app = make_app(Service(batcher, config.log_posts, access, fetcher, marking))
    host = f"[{config.host}]" if ":" in config.host else config.host
    address = f"http://{host}:{listening.getsockname()[1]}/"
    say(f"{finder.papers} papers at {address} (Ctrl+C stops){kept}")
    try:
        run_server(app, listening, config.proxies, config.grace)
    finally:
        batcher.close()
        engine.close()
    say("stopped")


if __name__ == "__main__":
    run_program(main)
