"""One store for what is dear to compute, keyed by everything that made it.

Embeddings lie in `<root>/embeddings/<space>/<shard>.safetensors`. The space is the hash of
all that turns text into a vector (weights, adapter, template, pooling, length, dtype); inside
it a row is found by the hash of its text. Shards are written once, to a temporary name that
is then renamed, and carry the hash of their content: a damaged one is said, dropped and its
rows are made again. Two processes never write the same file, so they cannot disturb each other.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from claim2source.files import atomic_path, content_hash

log = logging.getLogger(__name__)

HASH_BYTES = 32


def default_root() -> Path:
    """`CLAIM2SOURCE_STORE`, or the user's cache folder."""
    named = os.environ.get("CLAIM2SOURCE_STORE")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "claim2source"


def text_key(text: str) -> bytes:
    """The 32 bytes under which a text's vector is found."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


class Store:
    """Content-keyed store in one folder; `Store(None)` uses `default_root()`."""

    def __init__(self, root: str | Path | None = None) -> None:
        self.root = Path(root) if root is not None else default_root()

    def space(self, made_by: Mapping[str, Any]) -> EmbeddingSpace:
        """The embeddings made by exactly these inputs."""
        return EmbeddingSpace(self.root / "embeddings" / content_hash(made_by))


class EmbeddingSpace:
    """Vectors of one encoder; rows are added in shards and found by `text_key`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._place: dict[bytes, tuple[str, int]] = {}
        self._vectors: dict[str, np.ndarray] = {}
        self._refresh()

    def _refresh(self) -> None:
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name not in self._vectors:
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            with safe_open(path, framework="numpy") as shard:
                keys, vectors = shard.get_tensor("keys"), shard.get_tensor("vectors")
                said = (shard.metadata() or {}).get("sha256")
            if said != _digest(keys, vectors) or len(keys) != len(vectors):
                raise ValueError("its content does not match its hash")
        except FileNotFoundError:
            return  # another process found it damaged first
        except OSError as error:
            # Not to be read is not damaged: the vectors may be there for the next process.
            log.warning("store: %s cannot be read (%s); its vectors are made again", path, error)
            return
        except (SafetensorError, ValueError, KeyError) as error:
            log.warning("store: %s is damaged (%s); its vectors are made again", path, error)
            path.unlink(missing_ok=True)
            return
        self._vectors[path.name] = vectors
        for row, key in enumerate(keys):
            self._place[key.tobytes()] = (path.name, row)

    def __contains__(self, key: bytes) -> bool:
        return key in self._place

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Positions of the keys that have no vector yet."""
        return [i for i, key in enumerate(keys) if key not in self._place]

    def get(self, keys: Sequence[bytes]) -> np.ndarray:
        """Vectors [len(keys), dimensions] in the order of `keys`; KeyError when one is missing."""
        places = [self._place[key] for key in keys]
        if not places:
            return np.empty((0, 0), dtype=np.float32)
        first = self._vectors[places[0][0]]
        out = np.empty((len(keys), first.shape[1]), dtype=first.dtype)
        by_shard: dict[str, tuple[list[int], list[int]]] = {}
        for position, (shard, row) in enumerate(places):
            positions, rows = by_shard.setdefault(shard, ([], []))
            positions.append(position)
            rows.append(row)
        for shard, (positions, rows) in by_shard.items():
            out[positions] = self._vectors[shard][rows]
        return out

    def put(self, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        """Add rows as one shard. Raises ValueError on a length mismatch or a non-finite value."""
        if len(keys) != len(vectors):
            raise ValueError(f"{len(keys)} keys for {len(vectors)} vectors")
        if not np.isfinite(vectors).all():
            raise ValueError("a vector is not finite; refusing to store it")
        if not len(keys):
            return
        rows = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), HASH_BYTES).copy()
        vectors = np.ascontiguousarray(vectors)
        digest = _digest(rows, vectors)
        path = self.folder / f"{digest}.safetensors"
        with atomic_path(path) as temporary:
            save_file({"keys": rows, "vectors": vectors}, temporary, metadata={"sha256": digest})
        self._vectors[path.name] = vectors
        for row, key in enumerate(keys):
            self._place[key] = (path.name, row)


def _digest(keys: np.ndarray, vectors: np.ndarray) -> str:
    digest = hashlib.sha256(repr((keys.shape, vectors.shape, vectors.dtype.str)).encode())
    digest.update(np.ascontiguousarray(keys).data)
    digest.update(np.ascontiguousarray(vectors).data)
    return digest.hexdigest()
