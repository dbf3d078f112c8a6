"""Configure the model and its server, the sampling, and the budgets.

The key is read from the environment; variables with other services' secrets are refused.
"""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar
from urllib.parse import urlsplit

from claim2source.core.arguments import is_digits
from claim2source.core.config import Between, PositiveShare, Settings, require

log = logging.getLogger(__name__)

# Prefixes of variables with secrets of clouds, hubs, code hosts, registries, databases and this
# library: another person's config must not send them to that person's server.
_FOREIGN_KEYS = tuple(
    """
    ALIBABA ALIYUN ANACONDA_ AWS AZURE BITBUCKET CARGO_ CI_ CIRCLE CLAIM2SOURCE CLEARML_ CLOUDSDK_
    COMET_ CONDA_ DATABASE_ DB_ DIGITALOCEAN_ DOCKER DROPBOX_ FIREBASE GCLOUD GCP GH_ GIT_ GITHUB
    GITLAB GOOGLE GPG_ HEROKU_ HF_ HUGGINGFACE HUGGING_FACE JENKINS_ JUPYTER KAGGLE KUBE MASTODON_
    MINIO_ MLFLOW_ MONGO MYSQL NEPTUNE_ NETRC NODE_AUTH NPM_ OCI_ PG PIP_ POETRY_ POSTGRES PYPI
    QDRANT_ REDIS S3_ SENDGRID_ SENTRY_ SLACK SMTP SSH_ STRIPE SUDO_ TELEGRAM_ TENCENTCLOUD TF_
    ACTIONS_ TWILIO_ TWINE_ TWITTER_ UV_ VAULT_ WANDB ZENODO_
    """.split()
)
# Parts of a name with the same meaning at any position, and suffixes.
_WITHIN = frozenset("AWS AZURE GCP GITHUB GITLAB GOOGLE HF WANDB".split())
_SECRETS = ("PASSWORD", "PASSWD", "PASSPHRASE", "PRIVATE_KEY", "SECRET_ACCESS_KEY")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Variables that describe the machine, its user or a program: they are not keys, and their values
# are private. Whole names, prefixes and suffixes.
_NO_KEYS = frozenset(
    """
    APPDATA COLORTERM COLUMNS COMPUTERNAME COMSPEC CWD DISPLAY EDITOR EMAIL ENV EUID GID HISTFILE
    HISTSIZE HOME HOST HOSTNAME HOSTTYPE IFS INVOCATION_ID LANG LANGUAGE LINES LOCALAPPDATA
    LOCAL_RANK LOCAL_WORLD_SIZE LOGNAME MACHTYPE MAIL MAKEFLAGS MASTER_ADDR MASTER_PORT OLDPWD OS
    OSTYPE PAGER PPID PRINTER PROMPT PS1 PS2 PS4 PWD RANK SESSION_MANAGER SHELL SHELLOPTS SHLVL
    SYSTEMDRIVE SYSTEMROOT TEMP TERM TERMINAL TMP TMPDIR TZ UID UMASK USER USERDOMAIN USERNAME
    USERPROFILE VIRTUAL_ENV VISUAL WINDIR WINDOWID WORLD_SIZE
    """.split()
)
_NO_KEYS_BEGIN = tuple(
    """
    BASH CMAKE_ CUDA_ DBUS_ DYLD_ GTK_ ITERM_ JAVA_ JOURNAL_ KRB5 LC_ LD_ LESS LS_ MALLOC_ MKL_
    NCCL_ NVIDIA_ OMP_ OPENBLAS_ PERL5 PROGRAMFILES PYENV_ PYTEST_ PYTHON QT_ RUBY SLURM_ SYSTEMD_
    TERM_ TORCH_ TRANSFORMERS_ VSCODE_ XAUTH XDG_ ZSH
    """.split()
)
_NO_KEYS_END = ("PATH", "_PROXY", "_HOME", "_DIR", "_FOLDER", "_HOST", "_USER", "_SHELL")


@dataclass(frozen=True)
class LLMConfig(Settings):
    """Configure a server that speaks the OpenAI API, and the sampling of its replies.

    Args:
        model: the model's name on the server
        url: the server's address, with or without /v1
        key_env: the environment variable with the key; local servers do not need one. The
            secret of another service (AWS_.., HF_..) is refused; keys are sent over https and to
            this machine
        temperature: sampling temperature; 0 is greedy decoding
        top_p: sample from the most probable tokens with this total probability
        seed: sampling seed, if the server supports one; a text's n-th version adds n
        max_tokens: maximal tokens of a reply; a truncated reply is a failure
        thinking: whether the model thinks, sent in the form of its family (see
            docs/llm.md#thinking); null leaves it to the server
        chat_template_kwargs: further keys of the model's chat template, sent unchanged; they
            override the keys that `thinking` sends
        concurrency: maximal number of requests in flight
        timeout: seconds until a request is aborted and sent again
        retries: how often a request is sent again after 429, 5xx, a broken connection or a
            time-out
        max_tokens_total: stop before the tokens of prompts and replies exceed this
        retry_failed: send again the requests that failed in an earlier run
    """

    # The other keys are set in the file of `--llm FILE`.
    FLAGS: ClassVar = ("model", "url", "retry_failed")

    model: str = ""
    url: str = "http://localhost:8000/v1"
    key_env: str = "OPENAI_API_KEY"
    temperature: Annotated[float, Between(0, 2)] = 0.0
    top_p: PositiveShare = 1.0
    seed: Annotated[int, Between(0, 2**31 - 1)] | None = None
    max_tokens: Annotated[int, Between(1, 1_000_000)] = 1024
    thinking: bool | None = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    concurrency: Annotated[int, Between(1, 1024)] = 16
    timeout: Annotated[float, Between(0, 86_400, above=True)] = 120.0
    retries: Annotated[int, Between(0, 100)] = 6
    max_tokens_total: Annotated[int, Between(0, 10**11)] | None = None
    retry_failed: bool = False

    def check(self) -> None:
        check_server("llm.", self.url, self.key_env)

    @property
    def base_url(self) -> str:
        """Return the base URL for paths such as /models: it ends in /v1 or the like."""
        url = self.url.strip().rstrip("/").removesuffix("/chat/completions").rstrip("/")
        last = urlsplit(url).path.rpartition("/")[2]
        if last.startswith("v") and is_digits(last[1:2]):
            return url
        return f"{url}/v1"

    @property
    def key(self) -> str:
        """Read the key from the environment; "" if there is none, or if it must not be sent."""
        return read_key(self.key_env, self.url)


def check_server(group: str, url: str, key_env: str) -> None:
    """Raise `ConfigError` for an invalid address or key variable; `group` is the keys' prefix.

    The variable must not belong to another service.
    """
    try:
        parts = urlsplit(url.strip())
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # Parsers treat spaces and control characters differently.
        good = good and url.strip().isprintable() and not any(map(str.isspace, url.strip()))
    except ValueError:
        parts = urlsplit("")
        good = False
    secret = parts.username or parts.password or parts.query or parts.fragment
    reason = f"an address without user, password or query; set the key with {group}key_env"
    # An address with a password is not shown.
    require(not secret, f"{group}url", "..", reason)
    require(good, f"{group}url", url, "an address such as http://localhost:8000")
    name = f"{group}key_env"
    require(_NAME.fullmatch(key_env) is not None, name, key_env, "a variable's name")
    upper = key_env.upper().lstrip("_")
    foreign = upper.startswith(_FOREIGN_KEYS) or upper.endswith(_SECRETS)
    foreign |= not _WITHIN.isdisjoint(upper.split("_"))
    allowed = "a variable for this server's key, not another service's secret"
    require(not foreign, name, key_env, allowed)
    require(not _is_no_key(upper), name, key_env, "a variable that holds this server's key")


def _is_no_key(name: str) -> bool:
    """Whether a variable, in capitals, is known not to be a key."""
    if not name or name in _NO_KEYS:
        return True
    if name.endswith(("KEY", "TOKEN")):
        return False
    return name.startswith(_NO_KEYS_BEGIN) or name.endswith(_NO_KEYS_END)


def read_key(name: str, url: str) -> str:
    """Read the key for a server; "" if there is none, or if it would be sent unencrypted.

    A key is sent only over https, or to this machine.
    """
    key = os.environ.get(name, "").strip()
    if key and not is_safe(url):
        _warn(name, urlsplit(url).hostname or "")
        return ""
    return key


def is_safe(url: str) -> bool:
    """Whether requests to a server are private: over https, or to this machine."""
    parts = urlsplit(url.strip())
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme == "https" or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = None
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
    return (mapped or address).is_loopback


def may_use_proxy(url: str) -> bool:
    """Whether a proxy of the environment may be used; never for requests to this machine."""
    return urlsplit(url.strip()).scheme == "https" or not is_safe(url)


def key_state(name: str, url: str) -> str:
    """Describe why a server rejected a key: refused, not set, or not sent."""
    if read_key(name, url):
        return "is refused"
    if os.environ.get(name, "").strip():
        return "is not sent over plain http"
    return "is not set"


@cache
def _warn(name: str, host: str) -> None:
    log.warning("the key in %s is not sent to %s over plain http; use https", name, host)
