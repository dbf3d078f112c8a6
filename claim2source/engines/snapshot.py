"""Write an index as a snapshot, one Parquet file, and read it back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from claim2source.core.errors import InputError, UserError
from claim2source.core.progress import Progress
from claim2source.engines.columns import columns_of, rows_of, schema_of, table_of
from claim2source.engines.manifest import IndexManifest
from claim2source.engines.rows import Rows
from claim2source.retrieve.index_folder import MANIFEST, IndexFolder, write_folder

KIND, ROWS = "snapshot", "papers.parquet"
# Papers that are read at a time.
SIZE = 2048


def write_snapshot(
    manifest: IndexManifest, stored: Iterable[Rows], total: int, folder: Path, progress: bool
) -> int:
    """Write papers, terms and vectors to a folder; return the number of papers.

    Its manifest holds the file's sha256. Raises `InputError` where `folder` holds anything but
    an older snapshot.
    """
    if (folder / MANIFEST).is_file() and not is_snapshot(folder):
        raise InputError.at(folder, why="an index lies here; choose another folder")
    papers = 0

    def write(temporary: Path) -> dict[str, object]:
        nonlocal papers
        from pyarrow import parquet

        schema = schema_of(manifest.dimensions, manifest.sentences > 0)
        with (
            parquet.ParquetWriter(temporary / ROWS, schema, compression="zstd") as file,
            Progress("papers" if progress else None, total) as bar,
        ):
            for rows in stored:
                file.write_table(table_of(rows, schema))
                papers += len(rows)
                bar.update(len(rows))
        return {"papers": papers, "of": manifest}

    write_folder(folder, KIND, write)
    return papers


def is_snapshot(folder: Path) -> bool:
    """Tell whether a folder holds a snapshot."""
    try:
        return IndexFolder.open(folder, verify=False).kind == KIND
    except UserError:
        return False


def stored_rows(folder: Path, sentences: bool) -> Iterator[Rows]:
    """Yield what a snapshot holds, with the vectors of sentences or without."""
    from pyarrow import parquet

    with parquet.ParquetFile(folder / ROWS) as file:
        yield from map(rows_of, file.iter_batches(SIZE, columns=columns_of(sentences)))
