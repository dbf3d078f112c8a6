"""Read the clients' token, and bind the port."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

from claim2source.core.config import require
from claim2source.core.errors import InputError, UserError
from claim2source.data.text_files import read_lines

TOKEN = "CLAIM2SOURCE_TOKEN"
# Fewest characters of a token that cannot be guessed.
SHORTEST = 16


def read_token(file: Path | None, host: str, *, is_local: bool) -> str | None:
    """Read the clients' token from a file or the environment; `ConfigError` if it is missing."""
    token = os.environ.get(TOKEN)
    origin = TOKEN
    if file is not None:
        origin = str(file)
        lines = read_lines(file)
        token = ""
        if len(lines) == 1:
            token = lines[0].strip()
    if token is None:
        allowed = f"a loopback address; others need a token: --token_file, or {TOKEN}"
        require(is_local, "host", host, allowed)
        return None
    if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
        reason = (
            f"must contain a token: one line of at least {SHORTEST} ASCII characters without spaces"
        )
        raise InputError(origin, reason=reason)
    return token


def listen(host: str, port: int) -> socket.socket:
    """Bind the port. Raises `UserError` if that is not possible."""
    with ExitStack() as undo:
        try:
            addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            family, kind, _, _, address = addresses[0]
            # The protocol is set, so that asyncio sets TCP_NODELAY: else an answer's second packet
            # would wait 40 ms for the acknowledgement of the first.
            listening = undo.enter_context(socket.socket(family, kind, socket.IPPROTO_TCP))
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(256)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UserError(f"{host}:{port}: {reason}") from None
        undo.pop_all()
    return listening
