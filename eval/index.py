"""Make an index of papers, or let it grow: `python eval/index.py SOURCE --out DIR`.

SOURCE is `demo` or another data set, or a file or folder of JSON (corpus.jsonl, works of OpenAlex
and Crossref), XML of PubMed or JATS, RIS, NBIB, BibTeX, CSV or Parquet. What is in the index as it
is stays: a stopped run goes on. In several processes (a Slurm array, or accelerate) each encodes
its share into the store and leaves the index alone; a last run by itself then writes it. With
`--launcher ray` the workers of a Ray cluster encode, and this process writes the index afterwards.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from claim2source.core.config import read_config, require
from claim2source.core.errors import run_program
from claim2source.core.files import require_writable
from claim2source.core.program import command_of
from claim2source.core.terminal import say
from claim2source.datasets.loading import require_golds
from claim2source.datasets.paper_files import PaperFiles
from claim2source.datasets.papers import Notices, read_notices
from claim2source.engines import is_engine
from claim2source.engines.files import files_of
from claim2source.engines.growing import grow, open_for_writing, undo_re_encoding
from claim2source.find.index import (
    IndexProgramConfig,
    choose_gpu,
    count_papers,
    dense_of,
    encode_anew,
    fill,
    fit_abstention_to,
    index_words,
    launch,
    load_model,
    mark,
    model_name,
    model_of,
    open_unharmed,
    remove,
    require_same,
    shard_of,
)
from claim2source.io.text_files import read_lines
from claim2source.models.local import with_local_models


def main(argv: Sequence[str] | None = None) -> None:
    """Write the papers, and print the index's contents."""
    words = index_words(sys.argv[1:] if argv is None else argv)
    program = "eval/index.py"
    write_index(read_config(IndexProgramConfig, words, program=program, description=__doc__))


@with_local_models
def write_index(config: IndexProgramConfig) -> None:
    """Write papers into an index, or change the index that is there."""
    files_of(config.out)
    ids = [] if config.delete is None else [*map(str.strip, read_lines(config.delete))]
    notices = None if config.retractions is None else read_notices(config.retractions)
    if config.claims is not None:
        require_golds(config.claims, "train", lenient=config.lenient)
    if config.source is None:
        change(config, ids, notices)
    else:
        write_papers(config, config.source, ids, notices)


def change(config: IndexProgramConfig, ids: Sequence[str], notices: Notices | None) -> None:
    """Remove and mark papers, encode them anew, or fit abstention."""
    engine = open_unharmed(config)
    try:
        if config.undo:
            say(f"{config.out}: again of the model {model_name(undo_re_encoding(engine))}")
            return
        if config.re_encode is not None:
            encode_anew(engine, config)
            return
        if config.delete is not None or notices is not None:
            remove(engine, ids)
            mark(engine, notices)
            engine.build(say)
        if config.claims is not None:
            engine.lock()
            resolved = load_model(model_of(config, engine.manifest), config.device)
            engine.use(resolved.encoder)  # its folder may be another one than the manifest's
            say(fit_abstention_to(engine, config, resolved))
    finally:
        engine.close()


def write_papers(
    config: IndexProgramConfig, source: str, ids: Sequence[str], notices: Notices | None
) -> None:
    """Check the papers, encode and write them, and fit abstention; or encode a process's share."""
    if "://" not in config.out:
        require_writable(Path(config.out), "folder")
    # Damage and other settings are said before papers are read and a model is loaded.
    manifest = open_unharmed(config).manifest if is_engine(config.out) else None
    if manifest is not None:
        require_same(config, manifest)
    sentences = config.sentences if manifest is None else manifest.sentences > 0
    files = PaperFiles.of(source, config.column_map, config.format, config.lenient)
    files.without = frozenset(ids)
    shard, shards = shard_of(config.shard, os.environ)
    allowed = "none where Slurm, accelerate or --shard divides"
    require(config.launcher is None or shards == 1, "launcher", config.launcher, allowed)
    # A pipe can be read only once.
    files.check = config.read_first and shards == 1 and all(path.is_file() for path in files.files)
    total = count_papers(files) if files.check else None
    choose_gpu(config, os.environ)
    model = model_of(config, manifest)
    resolved = load_model(model, config.device)
    dense = dense_of(config, manifest, model, resolved)
    if shards > 1:
        fill(files, dense, sentences, shard, shards, config.batch)
        return
    if config.launcher is not None:
        launch(config, model, dense, sentences)
    engine = open_for_writing(config.out, dense, config.bm25, sentences)
    try:
        remove(engine, ids)
        grown = grow(engine, files, dense, total=total, progress=True, say=say, batch=config.batch)
        if mark(engine, notices):
            engine.build(say)
        say(f"{config.out}: {grown}")
        if omissions := files.omissions():
            say(f"left out or changed: {omissions}")
        if config.abstention:
            say(fit_abstention_to(engine, config, resolved))
    finally:
        engine.close()
    say(f'next: {command_of("eval/find.py")} "new study: .." --index {shlex.quote(config.out)}')


if __name__ == "__main__":
    run_program(main)
