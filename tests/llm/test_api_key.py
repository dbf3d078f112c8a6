"""A key is sent only to its own server, and other services' secrets are never sent."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.llm import LLM, LLMConfig
from claim2source.llm.config import _warn, is_safe, key_state, may_use_proxy
from claim2source.stages.http import Http
from claim2source.stages.pairs import Pair
from tests.llm.test_client import requests_for
from tests.llm_server import LLMServer
from tests.refusals import refused

SAFE = [
    "https://api.example.org/v1",
    "http://localhost:8000/v1",
    "http://llm.localhost:1",
    "http://127.0.0.1:8000",
    "http://[::1]:8000",
    "http://[::ffff:127.0.0.1]",
]
READABLE = [
    "http://api.example.org/v1",
    "http://localhost.evil.org",
    "http://127.0.0.1.evil.org",
    "http://0.0.0.0:8000",
    "http://[2001:db8::1]",
]


@pytest.mark.parametrize("url", SAFE + READABLE)
def test_a_key_is_sent_over_https_and_to_this_machine(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MY_CREDENTIAL", " sk-very-secret\n")
    _warn.cache_clear()
    config, stage = (
        LLMConfig("m", url, key_env="MY_CREDENTIAL"),
        Http(url=url, model="m", key_env="MY_CREDENTIAL"),
    )
    with caplog.at_level(logging.WARNING):
        keys = {config.key, stage.server._key}
    assert is_safe(url) == (url in SAFE)
    assert keys == {"sk-very-secret" if url in SAFE else ""}
    assert ("MY_CREDENTIAL is not sent" in caplog.text) == (url in READABLE)
    assert len(caplog.records) <= 1 and "sk-very" not in caplog.text
    assert key_state("MY_CREDENTIAL", url).endswith("refused" if url in SAFE else "plain http")
    monkeypatch.delenv("MY_CREDENTIAL")
    assert key_state("MY_CREDENTIAL", url) == "is not set"


@pytest.mark.parametrize(
    "name",
    "AWS_SECRET_ACCESS_KEY GOOGLE_APPLICATION_CREDENTIALS AZURE_CLIENT_SECRET HF_TOKEN WANDB_API_KEY"
    " GITHUB_TOKEN GH_TOKEN GITLAB_TOKEN CI_JOB_TOKEN HUGGING_FACE_HUB_TOKEN HUGGINGFACE_TOKEN"
    " NPM_TOKEN TWINE_PASSWORD DOCKER_AUTH_CONFIG SSH_AUTH_SOCK PGPASSWORD MYSQL_PWD DATABASE_URL"
    " S3_SECRET_KEY CLAIM2SOURCE_TOKEN _AWS_KEY azure_openai_api_key PROD_AWS_KEY".split()
    + ["", "A B", "A=B", "9A", "A\0"]
    # Variables that are not keys.
    + "PATH HOME USER SHELL PWD LOGNAME HOSTNAME LD_PRELOAD LD_LIBRARY_PATH PYTHONPATH MANPATH _"
    " PYTHONSTARTUP LANG LC_ALL TMPDIR XDG_CACHE_HOME JAVA_HOME VIRTUAL_ENV path SSH_TTY TERM"
    " https_proxy ALL_PROXY CUDA_VISIBLE_DEVICES OLDPWD USERPROFILE EDITOR".split(),
)  # fmt: skip
def test_other_services_secrets_are_refused_and_keys_of_servers_allowed(name: str) -> None:
    for make, key in (
        (lambda: LLMConfig("m", key_env=name), "llm.key_env"),
        (lambda: Http(model="m", key_env=name), "key_env"),
    ):
        with pytest.raises(ConfigError) as error:
            make()
        assert error.value.key == key
    for name in "OPENAI_API_KEY GEMINI_API_KEY VLLM_API_KEY my_key MASTER_KEY LOCAL_PASS".split():
        assert LLMConfig("m", key_env=name).key_env == Http(model="m", key_env=name).key_env


@pytest.mark.parametrize("name", ["HTTP_PROXY", "http_proxy", "ALL_PROXY"])
def test_no_proxy_sees_what_is_sent_to_this_machine(
    name: str, monkeypatch: pytest.MonkeyPatch, llm_server: Callable[..., LLMServer]
) -> None:
    server, proxy = llm_server(key="sk-very-secret"), llm_server()
    monkeypatch.setenv("MY_CREDENTIAL", "sk-very-secret")
    monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
    config = LLMConfig(server.model, server.url, key_env="MY_CREDENTIAL")
    (answer,) = LLM(config).answer(requests_for("a"))
    assert (answer.failure, server.requests, proxy.requests) == (None, 1, 0)
    stage = Http(url=server.url, model="m", key_env="MY_CREDENTIAL")
    with refused(UserError, "'m'", server.url):
        list(stage.score([Pair("a", "b")]))
    assert may_use_proxy("http://10.0.0.7") and may_use_proxy("https://localhost")
