"""An index that grows by single papers stays small, and its readers keep working."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from claim2source.search import engine as engine_module
from claim2source.search import retention as retention_module
from claim2source.search.engine import Engine, open_index
from tests.search.engines import Corpus, read_any_manifest

CORPUS = Corpus.drawn(60)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_one_paper_at_a_time_does_not_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_module, "SPARE", 0)
    monkeypatch.setattr(retention_module, "CROWDED", ((2, timedelta(milliseconds=1)),))
    folder = tmp_path / "idx"
    engine = Engine.create(folder, read_any_manifest())
    engine.upsert(CORPUS.rows(range(50)))
    engine.build()
    first = size(folder)
    reader = open_index(folder)
    assert len(reader.fetch(["p1", "p2"])) == 2
    sizes = []
    for number in range(50, 54):
        engine.upsert(CORPUS.rows([number]))
        engine.build()
        sizes.append(size(folder))
        # It was opened before, and reads data that it has not read yet.
        assert len(reader.fetch(["p1", f"p{number - 44}"])) == 2
    engine.close()
    assert max(sizes) < 4 * first and min(sizes[1:]) < max(sizes)
    reader.refresh()
    assert set(reader.fetch([f"p{number}" for number in range(54)])) == {
        f"p{number}" for number in range(54)
    }
    assert reader.stats().unbuilt == 0


@pytest.mark.slow
def test_a_small_update_writes_little(tmp_path: Path) -> None:
    folder = tmp_path / "idx"
    engine = Engine.create(folder, read_any_manifest())
    engine.upsert(CORPUS.rows(range(50)))
    engine.build()
    before = engine.files.listed("papers.lance/data")
    engine.upsert(CORPUS.rows([50]))
    engine.build()
    added = engine.files.listed("papers.lance/data").keys() - before.keys()
    assert len(added) == 1  # of the paper alone: the others were not written again
    # Many papers are, in one part.
    engine.upsert(CORPUS.rows(range(51, 60)))
    engine.build()
    engine.close()
    assert open_index(folder).stats().papers == 60


@pytest.mark.slow
def test_a_first_run_leaves_every_paper_on_the_disk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "COMPACTED", 20)
    folder = tmp_path / "idx"
    engine = Engine.create(folder, read_any_manifest(), exact_below=30)
    counts = []
    reader = None
    for start in range(0, 60, 10):
        engine.upsert(CORPUS.rows(range(start, start + 10)))
        counts.append(len(engine.files.listed("papers.lance/data")))
        reader = reader or open_index(folder)
    assert counts == [1, 1, 2, 1, 2, 1]
    engine.build()
    assert len(engine.files.listed("papers.lance/data")) == 1
    # It was opened before its files went.
    assert reader is not None and len(reader.fetch(["p1", "p59"])) == 2
    # From then on old versions stay.
    engine.upsert(CORPUS.rows([3]))
    engine.build()
    engine.close()
    assert len(engine.files.listed("papers.lance/data")) > 1
    assert open_index(folder).stats().papers == 60
