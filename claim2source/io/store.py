"""One store for what is dear to compute, keyed by everything that made it.

Embeddings lie in `<root>/embeddings/<space>/<shard>.safetensors`. The space is the hash of
all that turns text into a vector (weights, adapter, template, pooling, length, dtype); inside
it a row is found by the hash of its text. Shards are written once, to a temporary name that
is then renamed, and carry the hash of their content: a damaged one is said, dropped and its
rows are made again. A shard is hashed when it is first read; after that `<shard>.verified`
holds the file's size, time and inode, and while they stay only its keys are read: the vectors
are memory-mapped. Runs lie in `<root>/runs/<key>.safetensors`, hashed at every reading.

Two processes may write at once: a file's name says its content, and a rename is whole.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from claim2source.core.config import require_one_of
from claim2source.core.files import atomic_path, content_hash, write_text
from claim2source.core.run import Run

log = logging.getLogger(__name__)

HASH_BYTES = 32
VectorType = Literal["float32", "float16"]


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


@dataclass(frozen=True)
class StoredRun:
    """A run as it was stored, and what its stage said about it (JSON values)."""

    run: Run
    about: Mapping[str, Any] = field(default_factory=dict)


class Store:
    """Content-keyed store in one folder; `Store(None)` uses `default_root()`.

    With `vectors` float16 embeddings take half the room, in a space of their own.
    """

    def __init__(self, root: str | Path | None = None, vectors: VectorType = "float32") -> None:
        require_one_of("vectors", vectors, get_args(VectorType))
        self.root = Path(root) if root is not None else default_root()
        self.vectors = vectors

    def space(self, made_by: Mapping[str, Any]) -> EmbeddingSpace:
        """The embeddings made by exactly these inputs."""
        half = self.vectors == "float16"
        key = content_hash({**made_by, "stored": "float16"} if half else made_by)
        return EmbeddingSpace(self.root / "embeddings" / key, half)

    def run(self, made_by: Mapping[str, Any]) -> StoredRun | None:
        """The run made by exactly these inputs; None where there is none, or a damaged one."""
        path = self._run_path(made_by)
        try:
            with safe_open(path, framework="numpy") as file:
                parts = {name: file.get_tensor(name) for name in file.keys()}
                said = (file.metadata() or {}).get("sha256")
            if said != _digest(*(parts[name] for name in _RUN_PARTS)):
                raise ValueError("its content does not match its hash")
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("store: %s cannot be read (%s); the run is made again", path, error)
            return None
        except (SafetensorError, ValueError, KeyError) as error:
            log.warning("store: %s is damaged (%s); the run is made again", path, error)
            path.unlink(missing_ok=True)
            return None
        texts = json.loads(parts["texts"].tobytes())
        pool = texts["pool"]
        run = Run(
            tuple(texts["claims"]),
            parts["offsets"],
            parts["codes"],
            np.array(texts["sources"], dtype=object),
            parts["scores"],
            None if pool is None else {claim: frozenset(ids) for claim, ids in pool.items()},
        )
        return StoredRun(run, texts["about"])

    def put_run(
        self, made_by: Mapping[str, Any], run: Run, about: Mapping[str, Any] | None = None
    ) -> None:
        """Keep a run, with its candidates and JSON values about it, under all that made it."""
        used, codes = np.unique(run.codes, return_inverse=True)
        pool = None if run.pool is None else {c: sorted(ids) for c, ids in run.pool.items()}
        texts = {
            "claims": run.claim_ids,
            "sources": run.vocabulary[used].tolist(),
            "pool": pool,
            "about": dict(about or {}),
        }
        parts: dict[str, np.ndarray] = {
            "offsets": run.offsets.astype(np.int64),
            "codes": codes.astype(np.int32),
            "scores": run.scores.astype(np.float32),
            "texts": np.frombuffer(json.dumps(texts).encode("ascii"), dtype=np.uint8).copy(),
        }
        digest = _digest(*(parts[name] for name in _RUN_PARTS))
        with atomic_path(self._run_path(made_by)) as temporary:
            save_file(parts, temporary, metadata={"sha256": digest})

    def _run_path(self, made_by: Mapping[str, Any]) -> Path:
        return self.root / "runs" / f"{content_hash(made_by)}.safetensors"


_RUN_PARTS = ("offsets", "codes", "scores", "texts")


class EmbeddingSpace:
    """Vectors of one encoder; rows are added in shards and found by `text_key`.

    With `half` rows are kept as float16.
    """

    def __init__(self, folder: Path, half: bool = False) -> None:
        self.folder, self.half = folder, half
        self._place: dict[bytes, tuple[str, int]] = {}
        self._vectors: dict[str, np.ndarray] = {}
        self._refresh()

    def _refresh(self) -> None:
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name not in self._vectors:
                self._read(path)

    def _read(self, path: Path) -> None:
        try:
            mark = _mark(path)
            with safe_open(path, framework="numpy") as shard:
                keys = shard.get_tensor("keys")
                said = (shard.metadata() or {}).get("sha256")
            vectors = _mapped(path)
            if len(keys) != len(vectors):
                raise ValueError("its keys and vectors differ in number")
            if not _is_verified(path, mark):
                if said != _digest(keys, vectors):
                    raise ValueError("its content does not match its hash")
                _remember(path, mark)
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
        self._add(path.name, [key.tobytes() for key in keys], vectors)

    def _add(self, name: str, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        self._vectors[name] = vectors
        for row, key in enumerate(keys):
            self._place[key] = (name, row)

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
        if self.half:
            # What float16 cannot hold becomes infinite, and is refused below.
            with np.errstate(over="ignore"):
                vectors = vectors.astype(np.float16)
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
        try:
            vectors = _mapped(path)
        except (OSError, ValueError, KeyError):
            pass  # removed or damaged since, or not to be mapped: these rows stay in memory
        self._add(path.name, keys, vectors)


def _mapped(path: Path) -> np.ndarray:
    """The `vectors` of a safetensors file, memory-mapped; ValueError where it holds none."""
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
    entry = header["vectors"]
    if entry["dtype"] not in _DTYPES:
        raise ValueError(f"vectors of type {entry['dtype']}")
    offset, shape = 8 + length + entry["data_offsets"][0], tuple(entry["shape"])
    kind: np.dtype[Any] = _DTYPES[entry["dtype"]]
    return np.memmap(str(path), kind, mode="r", offset=offset, shape=shape)


_DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}


def _mark(path: Path) -> str:
    """What changes when a file is written again: its size, time and inode."""
    status = path.stat()
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}\n"


def _is_verified(path: Path, mark: str) -> bool:
    """Whether this very file was hashed before, by any process."""
    try:
        return path.with_suffix(".verified").read_text(encoding="ascii") == mark
    except (OSError, UnicodeDecodeError):
        return False


def _remember(path: Path, mark: str) -> None:
    try:
        write_text(path.with_suffix(".verified"), mark)
    except OSError:
        pass  # a store that may only be read is hashed every time


def _digest(*parts: np.ndarray) -> str:
    digest = hashlib.sha256(repr((*(part.shape for part in parts), parts[-1].dtype.str)).encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
