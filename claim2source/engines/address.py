"""Read the address of a Qdrant collection, and connect to it."""

from __future__ import annotations

import logging
import os
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit
from weakref import WeakValueDictionary

from claim2source.core.errors import InputError, UserError

SCHEMES = ("qdrant://", "qdrants://")
FORM = "qdrant://HOST:PORT/COLLECTION"
# The environment variable that holds the server's key.
KEY = "QDRANT_API_KEY"
PORT, TIMEOUT = 6333, 120
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_COLLECTION = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
_COUNT = re.compile("[1-9][0-9]{0,2}")
_OPTIONS = ("shards", "replicas")
# Stands for a folder of collections that live as long as an engine of this process holds them.
MEMORY = Path(":memory:")
# Qdrant's local mode lets one client open a folder: the engines of this process share it.
_LOCAL: WeakValueDictionary[Path, Any] = WeakValueDictionary()


@dataclass(frozen=True)
class Address:
    """Say where a collection is: on a server, or in a `folder` that Qdrant's local mode keeps.

    `shards` and `replicas` are those of a collection that is made; None: the server's own.
    """

    collection: str
    host: str = ""
    port: int = PORT
    tls: bool = False
    folder: Path | None = None
    shards: int | None = None
    replicas: int | None = None

    @classmethod
    def parsed(cls, place: str | Path) -> Self:
        """Read qdrant[s]://HOST:PORT/COLLECTION?shards=6&replicas=2, or qdrant:///FOLDER/COLLECTION.

        qdrant://:memory:/COLLECTION is in memory.
        Raises `UserError` without repeating what may be a key.
        """
        try:
            url = urlsplit(str(place))
            memory = url.netloc == str(MEMORY)
            host, port = ("", PORT) if memory else (url.hostname or "", url.port or PORT)
            pairs = parse_qsl(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
        except ValueError:
            raise UserError(f"an address is {FORM}; this one cannot be read") from None
        if "@" in url.netloc or url.fragment:
            raise UserError(
                f"an address is {FORM}, without a user or key; the key is read from {KEY}"
            )
        options: dict[str, int] = {}
        for name, value in pairs:
            if name not in _OPTIONS:
                allowed = " and ".join(_OPTIONS)
                raise UserError(
                    f"an address has the options {allowed}, no others; a key is read from {KEY}"
                )
            if not _COUNT.fullmatch(value):
                raise UserError(f"{name} of an address is a number from 1 to 999")
            options[name] = int(value)
        path, _, collection = url.path.rpartition("/")
        shown = f"{url.scheme}://{url.netloc}{url.path}"
        outside = bool(host) or memory
        if not _COLLECTION.fullmatch(collection) or outside == bool(path):
            raise UserError(f"{shown}: is no address {FORM}")
        if host:
            shards, replicas = options.get("shards"), options.get("replicas")
            return cls(collection, host, port, url.scheme == "qdrants", None, shards, replicas)
        if url.scheme == "qdrants" or options:
            raise UserError(
                f"{shown}: the address of a folder has neither TLS nor shards nor replicas"
            )
        return cls(collection, folder=MEMORY if memory else Path(path))

    def __str__(self) -> str:
        if self.folder is not None:
            return f"{SCHEMES[0]}{self.folder}/{self.collection}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{SCHEMES[self.tls]}{host}:{self.port}/{self.collection}"

    @property
    def key(self) -> str | None:
        """Read the key. Raises `UserError` where it would cross a network in the open."""
        key = os.environ.get(KEY, "").strip() or None
        if key and not self.tls and self.host not in _LOOPBACK:
            raise UserError(f"{self}: {KEY} is sent with TLS only; the address begins {SCHEMES[1]}")
        return key

    @property
    def is_there(self) -> bool:
        """Tell whether there is anything to connect to; a server is asked later."""
        return self.folder in (None, MEMORY) or (self.folder / "meta.json").is_file()

    def connect(self) -> Any:
        """Return a `QdrantClient`. A folder is made where it is absent."""
        try:
            from qdrant_client import QdrantClient
        except ImportError:
            raise UserError(
                f"{self}: an index on a server is kept by Qdrant, whose client is not installed; "
                "pip install 'claim2source[qdrant]'"
            ) from None
        if self.folder is None:
            for name in ("httpx", "httpcore", "hpack"):  # their debugging logs headers
                logging.getLogger(name).setLevel(logging.WARNING)
            with warnings.catch_warnings():
                # That a key goes to this machine without TLS was allowed above.
                warnings.filterwarnings("ignore", "Api key is used with an insecure connection")
                return QdrantClient(
                    host=self.host,
                    port=self.port,
                    https=self.tls,
                    api_key=self.key,
                    timeout=TIMEOUT,
                    check_compatibility=False,
                )
        folder = self.folder if self.folder == MEMORY else self.folder.resolve()
        if (client := _LOCAL.get(folder)) is None:
            if not self.is_there and folder.exists() and any(folder.iterdir()):
                raise InputError.at(folder, why="holds something else than Qdrant's collections")
            try:
                memory = folder == MEMORY
                client = QdrantClient(
                    location=str(folder) if memory else None,
                    path=None if memory else str(folder),
                    force_disable_check_same_thread=True,
                )
            except RuntimeError:
                why = "in use by another process: Qdrant's local mode lets one open a folder"
                raise InputError.at(folder, why=why) from None
            except OSError as error:
                raise InputError.at(folder, why=error.strerror or str(error)) from None
            _LOCAL[folder] = client
        return client
