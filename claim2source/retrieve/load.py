"""Open a written index, whatever its kind."""

from __future__ import annotations

from pathlib import Path

from claim2source.core.stage import Index
from claim2source.retrieve.bm25 import BM25Index
from claim2source.retrieve.dense import DenseIndex, Model
from claim2source.retrieve.fuse import PARTS, FusionConfig, HybridIndex
from claim2source.retrieve.index_folder import IndexFolder


def load_index(
    folder: str | Path,
    device: str | None = None,
    *,
    model: Model | None = None,
    verify: bool = True,
) -> Index:
    """Open an index that `save` wrote, memory-mapped.

    A dense index loads its model at the first search, on `device`, and refuses another one than
    made its vectors; `model` says where it is now, if not where it was. `verify` reads all files
    to compare their sha256. Raises `InputError` where the folder is damaged or not an index.

    Example:
        >>> import tempfile
        >>> import claim2source as c2s
        >>> index = c2s.BM25().index(c2s.load("demo", "dev").sources)
        >>> folder = tempfile.mkdtemp() + "/bm25"
        >>> index.save(folder)
        >>> found = c2s.load_index(folder).search("masks")
        >>> list(found.run) == list(index.search("masks").run)
        True
    """
    index_folder = IndexFolder.open(folder, verify)
    if index_folder.kind == "bm25":
        return BM25Index.load(index_folder)
    if index_folder.kind == DenseIndex.kind:
        return DenseIndex.load(index_folder, device, model)
    if index_folder.kind == "hybrid":
        # Their files were compared just now: this manifest holds all hashes.
        first, second = (
            load_index(index_folder.path / name, device, model=model, verify=False)
            for name in PARTS
        )
        return HybridIndex(first, second, index_folder.settings("fusion", FusionConfig))
    raise index_folder.wrong("index", f"{index_folder.kind!r} is none of bm25, dense, hybrid")
