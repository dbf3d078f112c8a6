"""Read the key of a server from the environment, and keep other services' secrets out of it."""

from __future__ import annotations

import ipaddress
import logging
import os
import re
from functools import cache
from urllib.parse import urlsplit

from claim2source.core.config import require

log = logging.getLogger(__name__)

# How variables begin that hold the secrets of clouds, hubs, code hosts, registries, data bases and
# of this library: a config that a stranger wrote must not have them sent to the stranger's server.
_OTHERS = tuple(
    """
    ALIBABA ALIYUN ANACONDA_ AWS AZURE BITBUCKET CARGO_ CI_ CIRCLE CLAIM2SOURCE CLEARML_ CLOUDSDK_
    COMET_ CONDA_ DATABASE_ DB_ DIGITALOCEAN_ DOCKER DROPBOX_ FIREBASE GCLOUD GCP GH_ GIT_ GITHUB
    GITLAB GOOGLE GPG_ HEROKU_ HF_ HUGGINGFACE HUGGING_FACE JENKINS_ JUPYTER KAGGLE KUBE MASTODON_
    MINIO_ MLFLOW_ MONGO MYSQL NEPTUNE_ NETRC NODE_AUTH NPM_ OCI_ PG PIP_ POETRY_ POSTGRES PYPI
    QDRANT_ REDIS S3_ SENDGRID_ SENTRY_ SLACK SMTP SSH_ STRIPE SUDO_ TELEGRAM_ TENCENTCLOUD TF_
    ACTIONS_ TWILIO_ TWINE_ TWITTER_ UV_ VAULT_ WANDB ZENODO_
    """.split()
)
# Parts of a name that say the same wherever they stand, and ends.
_WITHIN = frozenset("AWS AZURE GCP GITHUB GITLAB GOOGLE HF WANDB".split())
_SECRETS = ("PASSWORD", "PASSWD", "PASSPHRASE", "PRIVATE_KEY", "SECRET_ACCESS_KEY")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def require_key_env(key: str, name: str) -> None:
    """Raise `ConfigError` where a variable's name is none, or is that of another service."""
    require(_NAME.fullmatch(name) is not None, key, name, "a variable's name")
    upper = name.upper().lstrip("_")
    other = upper.startswith(_OTHERS) or upper.endswith(_SECRETS)
    other |= not _WITHIN.isdisjoint(upper.split("_"))
    require(not other, key, name, "a variable for this server's key, not another service's secret")


def read_key(name: str, url: str) -> str:
    """Read the key for a server; "" where there is none, or where it would be sent readable.

    A key is sent over https, and to this machine.
    """
    key = os.environ.get(name, "").strip()
    if key and not is_safe(url):
        _warn(name, urlsplit(url).hostname or "")
        return ""
    return key


def is_safe(url: str) -> bool:
    """Tell whether nobody between here and a server can read what is sent to it."""
    parts = urlsplit(url.strip())
    host = (parts.hostname or "").removesuffix(".")
    if parts.scheme == "https" or host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def is_plain(url: str) -> bool:
    """Tell whether an address has no spaces and signs within, which readers take differently."""
    return url.strip().isprintable() and not any(map(str.isspace, url.strip()))


def may_use_proxy(url: str) -> bool:
    """Tell whether a proxy of the environment may see what is sent: none is, to this machine."""
    return urlsplit(url.strip()).scheme == "https" or not is_safe(url)


def state_of(name: str, url: str) -> str:
    """Say of the key that a server did not take that it is refused, not set, or not sent."""
    if read_key(name, url):
        return "is refused"
    return "is not sent over plain http" if os.environ.get(name, "").strip() else "is not set"


@cache
def _warn(name: str, host: str) -> None:
    """Say once that a key is not sent."""
    log.warning("the key in %s is not sent to %s over plain http; use https", name, host)
