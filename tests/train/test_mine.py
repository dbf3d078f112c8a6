"""`train/mine.py` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from claim2source.train.mine import MineConfig, main, mine

from claim2source.core.config import read_config
from claim2source.core.errors import UserError
from claim2source.data.loading import load
from claim2source.data.split import carve_val
from claim2source.mining import read_mined
from claim2source.text import Rendering
from tests.refusals import refused


def options(setup: tuple[Path, Path], out: Path, **more: Any) -> list[str]:
    model, data = setup
    settings = {
        "out": out,
        "dataset": data,
        "model.name": model,
        "model.pooling": "mean",
        "model.max_length": 24,
        "mining.max_share": "null",
        "val_share": 0.2,
        "val_seen_share": 0,
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return [f"--{key}={value}" for key, value in settings.items()]


def mined(setup: tuple[Path, Path], out: Path, **settings: Any) -> list[str]:
    arguments = options(setup, out, **settings)
    return mine(read_config(MineConfig, arguments, program="t", description="t"))


def test_missing_translations_are_said(
    setup: tuple[Path, Path], untranslated: Path, tmp_path: Path
) -> None:
    model, data = setup
    train, _ = carve_val(load(untranslated, "train"), 0.2, 13)
    german = sum(claim.lang == "de" for claim in train.claims)
    message = f"{german} of {len(train.claims)} claims have no translation and are used as posted"
    out, form = tmp_path / "mined.jsonl", {"rendering__claims": "bilingual"}
    assert mined((model, untranslated), out, **form)[0] == message
    assert message not in mined((model, untranslated), out)
    assert not any("no translation" in line for line in mined((model, data), out, **form))


def test_train_is_mined_without_val_and_nothing_where_a_setting_is_wrong(
    setup: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "mined.jsonl"
    for wrong in (
        {"dataset": tmp_path / "none"},
        {"split": "none"},
        {"mining__first_rank": 9, "mining__last_rank": 3},
    ):
        with pytest.raises(UserError):
            mined(setup, out, **wrong)
    assert list(tmp_path.iterdir()) == []
    main(options(setup, out, mining__hard=3, mining__random=1))
    train, _ = carve_val(load(setup[1], "train"), 0.2, 13)
    rows = read_mined(out, train)
    assert [row.claim for row in rows] == [claim.id for claim in train.claims]
    assert all(len(row.negatives) == 4 for row in rows)
    output = capsys.readouterr().out
    assert f"mined {3 * len(rows)} hard and {len(rows)} random" in output
    assert f"{len(rows)} rows in {out}" in output


def test_the_released_format_has_the_texts_of_the_mined_ids(
    setup: tuple[Path, Path], tmp_path: Path
) -> None:
    """With the requested rendering; a file that somebody else wrote in that format stays."""
    forms = {"rendering__claims": "bilingual", "rendering__sources": "metadata"}
    mined(setup, tmp_path / "ids.jsonl", **forms)
    out = tmp_path / "texts.jsonl"
    output = mined(setup, out, format="gritlm", instruction="Find it", **forms)
    train, _ = carve_val(load(setup[1], "train"), 0.2, 13)
    rows = read_mined(tmp_path / "ids.jsonl", train)
    rendering = Rendering("bilingual", "metadata")
    claims = {claim.id: rendering.claim_texts([claim])[0] for claim in train.claims}
    sources = {source.id: rendering.source_texts([source])[0] for source in train.sources}
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert lines == [
        {
            "query": ["Find it", claims[row.claim]],
            "pos": [["", sources[row.positive]]],
            "neg": [["", sources[negative.source]] for negative in row.negatives],
        }
        for row in rows
    ]
    assert output[-1] == f"{len(rows)} rows of texts in {out}"
    mined(setup, out, format="gritlm", instruction="Find it")
    theirs = '{"query": ["Represent this text:", "x"], "pos": [["", "y"]], "neg": [["", "z"]]}'
    out.write_text(theirs)
    with refused(UserError, out):
        mined(setup, out, format="gritlm")
    assert out.read_text() == theirs
