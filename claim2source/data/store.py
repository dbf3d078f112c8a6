"""Store embeddings and runs in one folder, keyed by everything that they depend on.

Embeddings are in `<root>/embeddings/<space>/<shard>.safetensors`. The space is the hash of
everything that turns a text into a vector (weights, adapter, template, pooling, length, dtype);
within it, a row is found by the hash of its text. A shard is written once, under a temporary name
that is then renamed, and contains the hash of its content. A damaged shard is logged and removed,
and its rows are computed again. A shard is hashed when it is first read; `<shard>.verified` then
records the file's size, time and inode, and as long as these stay the same only the keys are read,
and the vectors are memory-mapped. Runs are in `<root>/runs/<key>.safetensors`, and are hashed
whenever they are read.

Several processes may write at the same time: files are named by their content, and a rename is
atomic.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from claim2source.core.files import atomic_path, content_hash, write_text
from claim2source.core.run import Run

log = logging.getLogger(__name__)

NAME_FILE = "model.txt"
_RUN_PARTS = ("offsets", "codes", "scores", "texts")
_FLOAT32 = np.dtype("<f4")
# Bytes of a key, which is the sha256 of a text.
HASH_BYTES = 32
_KEY = np.dtype(f"S{HASH_BYTES}")
# New keys stay in a dictionary (200 bytes a key) up to this number, or this share of the others.
_RECENT = 2**16
_SHARE = 0.25
# JSON values that identify everything that a vector or run depends on.
MadeBy = Mapping[str, object]


def default_root() -> Path:
    """Return `CLAIM2SOURCE_STORE`, or a folder in the user's cache."""
    folder = os.environ.get("CLAIM2SOURCE_STORE")
    if folder:
        return Path(folder)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "claim2source"


def text_key(text: str) -> bytes:
    """Return the 32-byte key under which a text's vector is stored."""
    encoded = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(encoded).digest()


def pair_key(claim: bytes, source: bytes) -> bytes:
    """Return the key of a pair's score, given the `text_key`s of claim and source."""
    joined = claim + source
    return hashlib.sha256(joined).digest()


@dataclass(frozen=True)
class StoredRun:
    """Stored run, with the JSON values that were stored with it."""

    run: Run
    about: Mapping[str, Any] = field(default_factory=dict, repr=False)


class Store:
    """Store embeddings and runs by content in one folder; `Store(None)` uses `default_root()`.

    With `keeps_open` each space's shards are read once, as for a stream of batches; what other
    processes add later is not found, and computed again.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        keeps_open: bool = False,
    ) -> None:
        self.root = Path(root) if root is not None else default_root()
        self._open: dict[Path, EmbeddingSpace] | None = {} if keeps_open else None

    def space(
        self,
        made_by: MadeBy,
        model: str = "",
        dimensions: int | None = None,
    ) -> EmbeddingSpace:
        """Open the embeddings for exactly these inputs; `model` is a name for display."""
        folder = self.root / "embeddings" / content_hash(made_by)
        kept = self._open or {}
        space = kept.get(folder) or EmbeddingSpace(folder, model, dimensions)
        if self._open is not None:
            self._open[folder] = space
        return space

    def pair_scores(self, made_by: MadeBy, model: str = "") -> EmbeddingSpace:
        """Open a re-ranker's scores of pairs: float32 rows of one number, keyed by `pair_key`."""
        return self.space({"pairs": made_by}, model, 1)

    def run(self, made_by: MadeBy) -> StoredRun | None:
        """Read the run for exactly these inputs; None if it is missing or damaged."""
        path = self._run_path(made_by)
        with _dropping_damaged(path, "the run is"):
            return _read_run(path)
        return None

    def put_run(
        self,
        made_by: MadeBy,
        run: Run,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        """Store a run, with its candidates and JSON values about it, under its inputs."""
        used_codes, codes = np.unique(run.codes, return_inverse=True)
        pool = None
        if run.pool is not None:
            pool = {claim: sorted(ids) for claim, ids in run.pool.items()}
        texts = {
            "claims": run.claim_ids,
            "sources": run.vocabulary[used_codes].tolist(),
            "pool": pool,
            "about": dict(about or {}),
        }
        parts: dict[str, np.ndarray] = {
            "offsets": run.offsets.astype(np.int64),
            "codes": codes.astype(np.int32),
            "scores": run.scores.astype(np.float32),
            "texts": _json_array(texts),
        }
        digest = _digest(*(parts[name] for name in _RUN_PARTS))
        path = self._run_path(made_by)
        with atomic_path(path) as temporary:
            save_file(parts, temporary, metadata={"sha256": digest})

    def _run_path(self, made_by: MadeBy) -> Path:
        key = content_hash(made_by)
        return self.root / "runs" / f"{key}.safetensors"


def _json_array(texts: Mapping[str, object]) -> np.ndarray:
    """Write JSON values as an array of bytes."""
    encoded = json.dumps(texts).encode("ascii")
    return np.frombuffer(encoded, dtype=np.uint8).copy()


def _read_run(path: Path) -> StoredRun:
    with safe_open(path, framework="numpy") as file:
        parts = {name: file.get_tensor(name) for name in file.keys()}
        digest = (file.metadata() or {}).get("sha256")
    _check_digest(digest, *(parts[name] for name in _RUN_PARTS))
    raw_texts = parts["texts"]
    texts = json.loads(raw_texts.tobytes())
    pool = None
    if texts["pool"] is not None:
        pool = {claim: frozenset(ids) for claim, ids in texts["pool"].items()}
    run = Run(
        tuple(texts["claims"]),
        parts["offsets"],
        parts["codes"],
        np.array(texts["sources"], dtype=object),
        parts["scores"],
        pool,
    )
    return StoredRun(run, texts["about"])


class KeyTable:
    """Map millions of keys to row numbers, with 40 bytes per key.

    A key that is added twice has the later row.
    """

    def __init__(self) -> None:
        self._keys = np.empty(0, _KEY)
        self._rows = np.empty(0, np.int64)
        self._recent: dict[bytes, int] = {}

    def add(self, keys: Sequence[bytes], first: int) -> None:
        """Add the keys of consecutive rows, starting at `first`."""
        end = first + len(keys)
        rows = range(first, end)
        self._recent.update(zip(keys, rows, strict=True))
        limit = max(_RECENT, _SHARE * len(self._keys))
        if len(self._recent) > limit:
            self._settle()

    def add_arrays(self, keys: Sequence[np.ndarray], first: int) -> None:
        """Add the keys (arrays [n, 32] uint8) of consecutive rows, starting at `first`."""
        self._settle()
        if not keys:
            return
        joined = np.ascontiguousarray(np.concatenate(keys)).view(_KEY).ravel()
        end = first + len(joined)
        self._merge(joined, np.arange(first, end))

    def _settle(self) -> None:
        recent = self._recent
        self._recent = {}
        self._merge(
            np.array(list(recent), _KEY),
            np.array(list(recent.values()), np.int64),
        )

    def _merge(self, keys: np.ndarray, rows: np.ndarray) -> None:
        order = np.argsort(keys, kind="stable")
        keys = np.concatenate([self._keys, keys[order]])
        rows = np.concatenate([self._rows, rows[order]])
        # Two sorted parts: a stable sort merges them, older rows of a key first.
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._rows = rows[order]

    def find(self, keys: Sequence[bytes]) -> np.ndarray:
        """Return the row of each key, [keys] int64, or -1 if it is unknown."""
        searched = np.array(keys, _KEY)
        rows = np.full(len(searched), -1, np.int64)
        if len(self._keys):
            ends = np.searchsorted(self._keys, searched, side="right")
            slots = np.maximum(ends - 1, 0)
            matches = self._keys[slots] == searched
            matched_slots = slots[matches]
            rows[matches] = self._rows[matched_slots]
        if self._recent:
            for position, key in enumerate(keys):
                rows[position] = self._recent.get(key, rows[position])
        return rows


class EmbeddingSpace:
    """Vectors of one encoder; rows are added in shards and found by `text_key`.

    Shards with other `dimensions`, with another type or with a number that is not finite are
    computed again. `model` is written next to them, for people who look into the store.
    """

    def __init__(
        self,
        folder: Path,
        model: str = "",
        dimensions: int | None = None,
    ) -> None:
        self.folder = folder
        self.model = model
        self.dimensions = dimensions
        # Rows are numbered across shards; those of a shard begin at its entry in `_starts`.
        self._shards: list[np.ndarray] = []
        self._starts: list[int] = []
        self._end = 0
        self._table = KeyTable()
        keys: list[np.ndarray] = []
        for path in sorted(folder.glob("*.safetensors")):
            # An unreadable file is not damaged, and kept for the next process.
            with _dropping_damaged(path, "its vectors are"):
                keys.append(self._read_shard(path))
        self._table.add_arrays(keys, 0)

    def _read_shard(self, path: Path) -> np.ndarray:
        mark = _file_stamp(path)
        with safe_open(path, framework="numpy") as shard:
            keys = shard.get_tensor("keys")
            digest = (shard.metadata() or {}).get("sha256")
        vectors = _mapped(path)
        if vectors.ndim != 2 or self.dimensions not in (None, vectors.shape[1]):
            raise ValueError(f"its vectors have the shape {vectors.shape}")
        wanted_shape = (len(vectors), HASH_BYTES)
        if keys.dtype != np.uint8 or keys.shape != wanted_shape:
            shape = f"{keys.dtype} {keys.shape}"
            raise ValueError(f"its keys are {shape}, for {len(vectors)} vectors")
        if not _is_verified(path, mark):
            _check_digest(digest, keys, vectors)
            if not np.isfinite(vectors).all():
                raise ValueError("a vector is not finite")
            # A read-only store is hashed every time.
            with contextlib.suppress(OSError):
                mark_path = path.with_suffix(".verified")
                write_text(mark_path, mark)
        self._add(vectors)
        return keys

    def _add(self, vectors: np.ndarray) -> int:
        first = self._end
        self._shards.append(vectors)
        self._starts.append(first)
        self._end += len(vectors)
        return first

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """List the positions of the keys that have no vector yet."""
        is_missing = self._table.find(keys) < 0
        positions: list[int] = np.flatnonzero(is_missing).tolist()
        return positions

    def get(self, keys: Sequence[bytes]) -> np.ndarray:
        """Read vectors [len(keys), dimensions] in the order of `keys`.

        Raises KeyError if one is missing.
        """
        count = len(keys)
        if not count:
            return np.empty((0, 0), dtype=np.float32)
        rows = self._table.find(keys)
        if rows.min() < 0:
            missing = int(rows.argmin())
            raise KeyError(keys[missing])
        shards = np.searchsorted(self._starts, rows, side="right") - 1
        first = self._shards[shards[0]]
        dimensions = first.shape[1]
        found = np.empty((count, dimensions), dtype=first.dtype)
        for shard in np.unique(shards):
            positions = np.flatnonzero(shards == shard)
            rows_in_shard = rows[positions] - self._starts[shard]
            found[positions] = self._shards[shard][rows_in_shard]
        return found

    def put(self, keys: Sequence[bytes], vectors: np.ndarray) -> None:
        """Add rows as one shard. Raises ValueError if lengths differ or a value is not finite."""
        count = len(keys)
        if count != len(vectors):
            raise ValueError(f"{count} keys for {len(vectors)} vectors")
        vectors = vectors.astype(_FLOAT32, copy=False)
        if not np.isfinite(vectors).all():
            raise ValueError("a vector is not finite; refusing to store it")
        if not count:
            return

        joined = np.frombuffer(b"".join(keys), dtype=np.uint8)
        rows = joined.reshape(count, HASH_BYTES).copy()
        vectors = np.ascontiguousarray(vectors)
        digest = _digest(rows, vectors)
        path = self.folder / f"{digest}.safetensors"
        with atomic_path(path) as temporary:
            save_file(
                {"keys": rows, "vectors": vectors},
                temporary,
                metadata={"sha256": digest},
            )
        name_file = self.folder / NAME_FILE
        if self.model and not name_file.exists():
            write_text(name_file, self.model)
        # If the file was removed or damaged since, these rows stay in memory.
        with contextlib.suppress(OSError, ValueError, KeyError):
            vectors = _mapped(path)
        first = self._add(vectors)
        self._table.add(keys, first)


@contextlib.contextmanager
def _dropping_damaged(path: Path, content: str) -> Iterator[None]:
    """Log and remove a file that the body finds damaged; ignore a missing one."""
    try:
        yield
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning(
            "store: %s cannot be read (%s); %s computed again",
            path,
            error,
            content,
        )
    except (SafetensorError, ValueError, KeyError) as error:
        log.warning(
            "store: %s is damaged (%s); %s computed again",
            path,
            error,
            content,
        )
        path.unlink(missing_ok=True)


def _mapped(path: Path) -> np.ndarray:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(length))
        entry = header["vectors"]
    if entry["dtype"] != "F32":
        raise ValueError(f"its vectors have the type {entry['dtype']}")
    begin = entry["data_offsets"][0]
    return np.memmap(
        str(path),
        _FLOAT32,
        mode="r",
        offset=8 + length + begin,
        shape=tuple(entry["shape"]),
    )


def _file_stamp(path: Path) -> str:
    status = path.stat()
    # The first number is the version of the check.
    return f"2 {status.st_size} {status.st_mtime_ns} {status.st_ino}\n"


def _is_verified(path: Path, mark: str) -> bool:
    mark_path = path.with_suffix(".verified")
    try:
        return mark_path.read_text(encoding="ascii") == mark
    except (OSError, UnicodeDecodeError):
        return False


def _check_digest(digest: str | None, *parts: np.ndarray) -> None:
    if digest != _digest(*parts):
        raise ValueError("its content does not match its hash")


def _digest(*parts: np.ndarray) -> str:
    shapes = (part.shape for part in parts)
    last_type = parts[-1].dtype.str
    description = repr((*shapes, last_type))
    digest = hashlib.sha256(description.encode())
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()
