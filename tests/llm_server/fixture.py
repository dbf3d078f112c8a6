"""The fixture `llm_server`: starts servers, and stops them after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.llm_server import LLMServer


@pytest.fixture
def llm_server() -> Iterator[Callable[..., LLMServer]]:
    """`llm_server(reply, faults=0.3)` starts a server, see `LLMServer`."""
    servers: list[LLMServer] = []

    def start(*arguments: Any, **options: Any) -> LLMServer:
        servers.append(LLMServer(*arguments, **options).start())
        return servers[-1]

    yield start
    for server in servers:
        server.stop()
