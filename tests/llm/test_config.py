"""Addresses are read with or without /v1; what is no address or out of range is refused."""

from __future__ import annotations

import pytest

from claim2source.core.errors import UserError
from claim2source.llm import LLMConfig


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://localhost:8000", "http://localhost:8000/v1"),
        ("http://localhost:8000/", "http://localhost:8000/v1"),
        ("http://localhost:8000/v1/", "http://localhost:8000/v1"),
        (" https://x.org/llm/v1/chat/completions", "https://x.org/llm/v1"),
        ("https://x.org/api/v3", "https://x.org/api/v3"),
        ("https://x.org/vllm", "https://x.org/vllm/v1"),
    ],
)
def test_addresses(url: str, base: str) -> None:
    assert LLMConfig(url=url).base_url == base


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(
            ("url", value)
            for value in (
                "",
                "localhost:8000",
                "ftp://x",
                "http://",
                "http://x:99999",
                "http://a\tb",
            )
        ),
        *(("temperature", -1.0), ("temperature", float("nan")), ("top_p", 0.0), ("concurrency", 0)),
        *(("timeout", 0.0), ("timeout", float("inf")), ("retries", -1), ("max_tokens", 0)),
        *(("max_requests", -1), ("max_tokens_total", -1), ("seed", -1), ("key_env", " ")),
        ("max_wait", -1.0),
    ],
)
def test_what_is_not_allowed_names_its_key(key: str, value: object) -> None:
    with pytest.raises(UserError, match=f"^config: llm.{key}: .*allowed: "):
        LLMConfig(**{key: value})


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    for url in ("http://me:hunter22@x.org/v1", "https://x.org/v1?api_key=hunter22"):
        with pytest.raises(UserError, match="without user, password or query") as error:
            LLMConfig(url=url)
        assert "hunter22" not in str(error.value)
