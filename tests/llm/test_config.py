"""URLs may end in /v1; invalid URLs and values out of range are refused."""

from __future__ import annotations

import pytest

from claim2source.core.errors import UserError
from claim2source.llm import LLMConfig
from tests.refusals import refused


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        (" https://x.org/llm/v1/chat/completions", "https://x.org/llm/v1"),
        ("https://x.org/api/v3", "https://x.org/api/v3"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert LLMConfig(url=url).base_url == base


def test_what_is_no_address_names_its_key_and_shows_no_password() -> None:
    for url in ("", "localhost:8000", "ftp://x", "http://", "http://x:99999", "http://a\tb"):
        with refused(UserError, "config: llm.url: "):
            LLMConfig(url=url)
    for url in ("http://me:hunter22@x.org/v1", "https://x.org/v1?api_key=hunter22"):
        with refused(UserError, "config: llm.url: ") as error:
            LLMConfig(url=url)
        assert "hunter22" not in str(error.value)
