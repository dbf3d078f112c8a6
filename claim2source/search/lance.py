"""Wrap LanceDB: connections, filters, term queries, and the meaning of its errors."""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import reduce
from importlib.util import find_spec, module_from_spec
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from claim2source.core.arguments import is_digits
from claim2source.core.errors import InputError, UserError
from claim2source.core.languages import language_tag, primary_language
from claim2source.search.files import LAST_VERSION, IndexFiles
from claim2source.search.rows import Where, venue_key

if TYPE_CHECKING:
    import pyarrow
    from lancedb.expr import Expr

# (id, score), best first.
Hits = list[tuple[str, float]]
_REST_CLIENT = "lance_namespace_urllib3_client"
# Remedy for files that cannot be read.
ADVICE = "restore it from a backup, or index again into another --out"
# LanceDB's errors for a full disk, a quota, and a disk or folder that cannot be written.
_UNWRITABLE = {
    "os error 28": "no space left on the disk: free some space",
    "os error 122": "the disk quota is exhausted: free some space",
    "os error 27": "a file exceeds the size limit: raise the limit",
    "os error 30": "the disk is read-only: choose another",
    "os error 13": "permission denied: allow this user to write there",
}


def compact(table: Any, retention: timedelta) -> None:
    """Merge the parts of a table; remove versions that are older than `retention`."""
    with warnings.catch_warnings():
        # Without retention it warns that readers of old versions fail; ours start again.
        warnings.filterwarnings("ignore", "optimize.cleanup_older_than=0", UserWarning)
        table.optimize(cleanup_older_than=retention)


@contextmanager
def named_errors(location: str) -> Iterator[None]:
    """Convert LanceDB's exceptions and panics to one-line errors."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        text = str(error)
        for sign, reason in _UNWRITABLE.items():
            if sign in text:
                advice = f"{reason}, and run the same command again; finished writes are kept"
                raise UserError(f"{location}: {advice}") from None
        reason = f"its table cannot be read or written: {short(error)}; {ADVICE}"
        raise InputError(location, reason=reason) from None


def short(error: Exception) -> str:
    """Cut LanceDB's message before the paths of its own source."""
    message, _, _ = str(error).partition(", /")
    line = " ".join(message.split())
    return line[:300] or type(error).__name__


def connection(files: IndexFiles, cache: int | None = None) -> Any:
    """Open the database; its tables keep the version that was current when they were opened.

    At most `cache` bytes of search indexes, and of metadata, are kept in memory; None: gigabytes.
    """
    lancedb, options = lancedb_module(), getattr(files, "options", None)
    session = None
    if cache is not None:
        session = lancedb.Session(index_cache_size_bytes=cache, metadata_cache_size_bytes=cache)
    return lancedb.connect(files.uri, storage_options=options, session=session)


def newest_version(names: Iterable[str]) -> int:
    """Return the newest version in the names of the files of `_versions`; 0 if there is none."""
    newest = 0
    for name in names:
        digits = PurePath(name).stem
        if not name.endswith(".manifest") or not is_digits(digits):
            continue
        version = int(digits)
        if len(digits) == 20:  # such names count down, so that the newest is listed first
            version = LAST_VERSION - version
        newest = max(newest, version)
    return newest


def lancedb_module() -> Any:
    # By default it warns that a new index is not there yet, and sorts vectors into partitions in
    # parts that need much memory.
    os.environ.setdefault("LANCEDB_LOG", "error")
    os.environ.setdefault("LANCE_SHUFFLE_BATCH_BYTES", str(2**22))
    _spare_rest_client()
    try:
        import lancedb
    except ImportError:
        raise UserError("an index needs LanceDB: pip install 'claim2source[index]'") from None
    return lancedb


def _spare_rest_client() -> None:
    """Let LanceDB import the models of its REST service without the service's client.

    The client makes validators for every call, which takes half of LanceDB's import time. It is
    loaded on use.
    """
    spec = None if _REST_CLIENT in sys.modules else find_spec(_REST_CLIENT)
    if spec is None or spec.loader is None:
        return
    loader, module = spec.loader, module_from_spec(spec)

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        del module.__getattr__
        loader.exec_module(module)
        return getattr(module, name)

    module.__getattr__ = load  # type: ignore[method-assign]
    sys.modules[_REST_CLIENT] = module


def numbers(table: pyarrow.Table, column: str) -> np.ndarray:
    numbers: np.ndarray = table[column].to_numpy().astype(np.float64)
    return numbers


def id_filter(ids: Sequence[str]) -> Expr:
    from lancedb.expr import col

    return col("id").isin(list(ids))


def expression(where: Where) -> Expr | None:
    """Convert a filter to LanceDB's expressions, which quote values; None if there is no filter."""
    from lancedb.expr import col, lit

    parts = []
    if where.last_day is not None:
        parts.append(col("day") <= lit(where.last_day))  # unknown days are 0
    if where.language is not None:
        # An older index may have a code in the form of its file.
        codes = dict.fromkeys((primary_language(where.language), language_tag(where.language)))
        parts.append(col("lang").isin(list(codes)))
    if where.venue is not None:
        parts.append(col("venue_key") == lit(venue_key(where.venue)))
    if where.ids is not None:
        parts.append(id_filter(where.ids))
    if not parts:
        return None
    return reduce(operator.and_, parts)


def filtered(query: Any, where: Where, rows: np.ndarray | None = None) -> Any:
    """Restrict a query to some papers, and to those in rows of these numbers."""
    from lancedb.expr import col

    condition = expression(where)
    if rows is not None:
        listed = col("_rowid").isin(rows.tolist())
        condition = listed if condition is None else condition & listed
    return query if condition is None else query.where(condition, prefilter=True)


def create_index(table: Any, column: str) -> None:
    """Make the search index of the ids, or of a column of terms."""
    from lancedb.index import FTS, BTree

    # Texts are analysed before: LanceDB only splits them at spaces.
    terms = FTS(
        base_tokenizer="whitespace",
        max_token_length=None,
        lower_case=False,
        stem=False,
        remove_stop_words=False,
        ascii_folding=False,
    )
    table.create_index(column, config=BTree() if column == "id" else terms)
