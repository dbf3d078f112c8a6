"""`scripts/soak_index.py`: ten kills lose nothing; an index that lost something is found out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from scripts.soak_index import Config, Step, contents, opened, rows_of, run_and_kill, soak


@pytest.mark.slow
def test_no_acknowledged_paper_is_lost_in_ten_kills(tmp_path: Path) -> None:
    config = Config(kills=10, batch=200, exact_below=500)
    said = soak(config, tmp_path)
    print(said)
    found = re.match(r"10 kills \((.*)\); (\d+) steps, (\d+) papers, none lost\n", said)
    assert found is not None and int(found[2]) >= 10 and int(found[3]) > 500
    assert "in build" in found[1] and "scores differ by at most" in said


def test_what_an_index_lost_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is stopped after a step, and an index that someone took a paper from."""
    config = Config(kills=1, batch=20)

    def written(*_: object, **__: object) -> None:
        engine = opened(tmp_path / "index", config)
        engine.upsert(rows_of(Step.of(0, config)))
        engine.close()
        (tmp_path / "journal").write_text("begin 0 upsert\ndone 0\nbegin 1 upsert\n")

    monkeypatch.setattr("scripts.soak_index.run_and_kill", written)
    assert "1 in upsert" in soak(config, tmp_path)

    def damaged(*_: object, **__: object) -> None:
        written()
        engine = opened(tmp_path / "index", config)
        engine.delete(["p3"])
        engine.close()

    assert len(contents(tmp_path, config)) == 20
    monkeypatch.setattr("scripts.soak_index.run_and_kill", damaged)
    with pytest.raises(UserError, match="in upsert: 1 of 20 papers lost"):
        soak(config, tmp_path)
    assert callable(run_and_kill)
