"""Open an engine by where it is: a folder, or the address of a server."""

from __future__ import annotations

from pathlib import Path

from claim2source.core.errors import UserError
from claim2source.engines.engine import Engine
from claim2source.engines.lance import LanceEngine
from claim2source.engines.manifest import MANIFEST, IndexManifest, Kind

SERVER = "qdrant://"


def kind_of(place: str | Path) -> Kind:
    """Name the engine that keeps an index at a place. Raises `UserError` where none can."""
    if str(place).startswith(SERVER):
        raise UserError(
            f"{place}: an index on a server needs the extra qdrant, which this version lacks; "
            "name a folder"
        )
    if "://" in str(place):
        raise UserError(f"{place}: is neither a folder nor an address {SERVER}HOST:PORT/NAME")
    return "lancedb"


def open_engine(place: str | Path) -> Engine:
    """Open the index in a folder, or at qdrant://HOST:PORT/COLLECTION.

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
    kind_of(place)
    return LanceEngine.open(place)


def create_engine(place: str | Path, manifest: IndexManifest) -> Engine:
    """Make an empty index. Raises `UserError` where something else is there."""
    kind_of(place)
    return LanceEngine.create(place, manifest)


def is_engine(place: str | Path) -> bool:
    """Tell whether an index is there."""
    kind_of(place)
    return (Path(place) / MANIFEST).is_file()
