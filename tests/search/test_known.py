"""A writer that caches the hashes of all ids finds every existing id."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from claim2source.search.engine import Engine
from tests.search.engines import Corpus, read_any_manifest


@pytest.mark.slow
def test_a_writer_of_many_papers_replaces_as_one_of_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claim2source.search.table._MANY", 30)
    old, new = Corpus.drawn(120), Corpus.drawn(120, seed=5)
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    for start in range(0, 120, 40):
        engine.upsert(old.rows(range(start, start + 40)))
    assert engine.delete(["p7"]) == 1
    engine.upsert(new.rows(range(60)))
    ids = [f"p{i}" for i in range(120)]
    expected = [*new.papers[:60], *old.papers[60:]]
    assert engine.fetch(ids) == dict(zip(ids, expected, strict=True))
    assert engine.stats().papers == 120
    engine.build()
    assert engine.stats().papers == 120 and engine.fetch(ids[:1])
    engine.close()


def test_a_write_that_stops_halfway_adds_no_paper_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("claim2source.search.table._MANY", 30)
    corpus = Corpus.drawn(120)
    engine = Engine.create(tmp_path / "index", read_any_manifest())
    for start in (0, 40):
        engine.upsert(corpus.rows(range(start, start + 40)))
    with monkeypatch.context() as stopped:
        stopped.setattr(Engine, "_write_seal", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.upsert(corpus.rows(range(80, 120)))
    engine.upsert(corpus.rows(range(80, 120)))
    assert engine.stats().papers == 120
    engine.close()
