"""Open an engine by where it is: a folder, or the address of a server."""

from __future__ import annotations

from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.engines.address import FORM, SCHEMES, Address
from claim2source.engines.engine import Engine
from claim2source.engines.lance import LanceEngine
from claim2source.engines.manifest import MANIFEST, IndexManifest, Kind
from claim2source.engines.qdrant import QdrantEngine


def kind_of(place: str | Path) -> Kind:
    """Name the engine that keeps an index at a place. Raises `UserError` where none can."""
    if str(place).startswith(SCHEMES):
        Address.parsed(place)
        return "qdrant"
    if "://" in str(place):
        kind = str(place).partition("://")[0]  # the rest may hold a password
        raise UserError(f"{kind}://..: is neither a folder nor an address {FORM}")
    return "lancedb"


def open_engine(place: str | Path) -> Engine:
    """Open the index in a folder, or at qdrant://HOST:PORT/COLLECTION.

    A server is spoken to with TLS at qdrants://, with the key in the environment variable
    QDRANT_API_KEY. qdrant:///FOLDER/COLLECTION is Qdrant's local mode, for trials.
    Raises `UserError` where there is none.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> from claim2source.engines import grow_engine
        >>> folder = tempfile.mkdtemp() + "/idx"
        >>> grow_engine(folder, c2s.load("demo", "dev").sources[:20]).papers
        20
        >>> len(open_engine(folder).search("masks", k=5).sources("0"))
        5
    """
    return (QdrantEngine if kind_of(place) == "qdrant" else LanceEngine).open(place)


def create_engine(place: str | Path, manifest: IndexManifest) -> Engine:
    """Make an empty index. Raises `UserError` where something else is there."""
    return (QdrantEngine if kind_of(place) == "qdrant" else LanceEngine).create(place, manifest)


def is_engine(place: str | Path) -> bool:
    """Tell whether an index is there."""
    if kind_of(place) == "qdrant":
        return QdrantEngine.exists(place)
    return (Path(place) / MANIFEST).is_file()
