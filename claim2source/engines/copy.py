"""Copy an index without encoding again: from a snapshot, and to another engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from claim2source.core.errors import InputError
from claim2source.core.files import content_hash
from claim2source.core.progress import Progress
from claim2source.engines.engine import Engine
from claim2source.engines.manifest import IndexManifest
from claim2source.engines.open import create_engine, is_engine, kind_of, open_engine
from claim2source.engines.rows import Rows
from claim2source.engines.snapshot import KIND, ROWS, SIZE, stored_rows
from claim2source.retrieve.index_folder import MANIFEST, IndexFolder


def restore(
    folder: Path,
    place: str | Path,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """Make an index of a snapshot, at a place where there is none; it is built and locked.

    A restore that was killed goes on. Raises `InputError` where the snapshot is damaged.
    """
    opened = IndexFolder.open(folder, verify=True)
    if opened.kind != KIND:
        raise opened.wrong("index", f"{opened.kind!r} is no snapshot")
    path = folder / MANIFEST
    manifest = IndexManifest.parsed(json.dumps(opened.values.get("of")), path)
    files = opened.values["files"]
    read = partial(stored_rows, folder, manifest.sentences > 0)
    return _filled(place, manifest, files[ROWS], read, opened.count("papers"), progress, say)


def migrate(
    engine: Engine,
    place: str | Path,
    progress: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> Engine:
    """Copy an index to a place where there is none; the copy is built and locked.

    A migration that was killed goes on.
    """
    papers = engine.stats().papers
    copying, read = content_hash(engine.where), partial(engine.rows, SIZE)
    return _filled(place, engine.manifest, copying, read, papers, progress, say)


def _filled(
    place: str | Path,
    manifest: IndexManifest,
    copying: str,
    read: Callable[[], Iterable[Rows]],
    papers: int,
    progress: bool,
    say: Callable[[str], None],
) -> Engine:
    if is_engine(place):
        target = open_engine(place)
        target.lock()
        if target.manifest.copying != copying:
            target.close()
            raise InputError.at(place, why="holds an index already; choose another place")
    else:
        target = create_engine(place, manifest.emptied(kind_of(place), copying))
    try:
        with Progress("papers" if progress else None, papers) as bar:
            for rows in read():
                ids = [paper.source.id for paper in rows.papers]
                known = target.stamps(ids)
                target.upsert(rows.only([i for i, one in enumerate(ids) if one not in known]))
                bar.update(len(rows))
        target.build(say)
        target.note(copying="")
    except BaseException:
        target.close()
        raise
    return target
