"""Serve an index to people, programs and agents: `python eval/serve.py --index DIR`.

A page at /, an API at /api/v1/find and /api/v1/batch (described at /docs and /openapi.json), and
a tool for agents at /mcp. It stops at Ctrl+C or SIGTERM, after what is being answered.
"""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import ExitStack
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
from claim2source.core.errors import InputError, Stopped, UserError, run_program
from claim2source.core.terminal import say
from claim2source.engines import open_index
from claim2source.find.options import FinderOptions, with_index
from claim2source.io.store import Store
from claim2source.io.text_files import read_lines
from claim2source.models.local import with_local_models

TOKEN = "CLAIM2SOURCE_TOKEN"
# Characters of a token that nobody guesses.
SHORTEST = 16


@dataclass(frozen=True)
class ServeConfig(FinderOptions):
    """Settings of `eval/serve.py`.

    Nothing is stored of posts: a store of scores and answers is used only with --store.

    Args:
        host: the address to listen at; beyond loopback a token is required.
        port: the port; 0 takes a free one.
        token_file: file of one line, which clients must show; none: CLAIM2SOURCE_TOKEN.
        places: posts that may wait or be searched at a time; more are refused with 503.
        rate: requests a minute of one address; 0: any number.
        timeout: seconds that a post may take, waiting included.
        grace: seconds to finish what is being answered when it is stopped.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Between(0, 65_535)] = 8000
    token_file: Path | None = None
    places: Annotated[int, Between(1, 10_000)] = 64
    rate: Annotated[int, Between(0, 1_000_000)] = 120
    timeout: Annotated[float, Between(0.1, 3_600)] = 60.0
    grace: Annotated[int, Between(0, 3_600)] = 20
    hosts: list[str] = list_field([], help="further names in the Host header to answer to")
    proxies: list[str] = list_field(
        [], help="addresses of proxies that are believed whom they ask for"
    )
    sentences: bool = flag("find each paper's sentence that is nearest to the post", default=True)
    log_posts: bool = flag("print every post on stderr; otherwise none is")

    def check(self) -> None:
        super().check()
        require(bool(self.host.strip()), "host", self.host, "an address, such as 127.0.0.1")

    @property
    def is_local(self) -> bool:
        """Tell whether only this machine can ask."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def main(argv: Sequence[str] | None = None) -> None:
    """Serve until the process is stopped."""
    words = with_index(sys.argv[1:] if argv is None else argv)
    serve(read_config(ServeConfig, words, program="eval/serve.py", description=__doc__))


@with_local_models
def serve(config: ServeConfig) -> None:
    """Answer requests until the process is stopped."""
    token = token_of(config)
    engine = open_index(config.index or "")
    listening = listen(config)
    try:
        import uvicorn

        from claim2source.serve.access import LOCAL, AccessSettings
        from claim2source.serve.app import Service, make_app
        from claim2source.serve.batcher import RequestBatcher
        from claim2source.serve.connections import CappedProtocol, quiet_loggers
        from claim2source.serve.schemas import CHARACTERS
    except ImportError as error:
        raise UserError(
            f"serving needs {error.name}, which is not installed; pip install 'claim2source[serve]'"
        ) from None

    store = None if config.store is None else Store(config.store)
    finder = config.open_finder(engine, store, sentences=config.sentences)
    batcher = RequestBatcher(finder, places=config.places, seconds=config.timeout)
    batcher.start()
    # Without a token other sites' pages must not get at it under a name of theirs.
    hosts = (*LOCAL, *(name.lower() for name in config.hosts)) if token is None else None
    access = AccessSettings(token, hosts, config.rate or None)
    quiet_loggers()
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(Service(batcher, config.log_posts, access)),
            http=CappedProtocol,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,  # it would hold the posts of /?post=
            server_header=False,
            proxy_headers=bool(config.proxies),
            forwarded_allow_ips=config.proxies,
            timeout_graceful_shutdown=config.grace,
            # The longest post in an address: four bytes a character, three signs for each.
            h11_max_incomplete_event_size=12 * CHARACTERS + 2**16,
        )
    )
    port = listening.getsockname()[1]
    papers = engine.stats().papers
    host = f"[{config.host}]" if ":" in config.host else config.host
    say(f"{papers} papers at http://{host}:{port}/ (Ctrl+C stops)")
    try:
        server.run(sockets=[listening])
    except (Stopped, KeyboardInterrupt):  # raised again once everything is finished
        pass
    finally:
        batcher.close()
    say("stopped")


def token_of(config: ServeConfig) -> str | None:
    """Read the token, if there is one. Raises `ConfigError` where one is required."""
    token, origin = os.environ.get(TOKEN), TOKEN
    if config.token_file is not None:
        origin = str(config.token_file)
        lines = read_lines(config.token_file)
        token = lines[0].strip() if len(lines) == 1 else ""
    if token is None:
        allowed = f"a loopback address; others need a token: --token_file, or {TOKEN}"
        require(config.is_local, "host", config.host, allowed)
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        why = f"must hold a token: one line of at least {SHORTEST} ASCII characters without spaces"
        raise InputError(origin, why=why)
    return token


def listen(config: ServeConfig) -> socket.socket:
    """Take the port. Raises `UserError` where that is not possible."""
    with ExitStack() as undo:
        try:
            addresses = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)
            family, kind, _, _, address = addresses[0]
            # The protocol is named, so that asyncio sets TCP_NODELAY: an answer's second packet
            # would wait 40 ms for the receipt of the first.
            listening = undo.enter_context(socket.socket(family, kind, socket.IPPROTO_TCP))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(256)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise UserError(f"{config.host}:{config.port}: {why}") from None
        undo.pop_all()
    return listening


if __name__ == "__main__":
    run_program(main)
