"""Data sets in the BEIR layout are read back as written, and writes are atomic."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from tests.refusals import refused

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
filled = texts.filter(lambda text: text.strip())
ids = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\t\r\n"), min_size=1, max_size=8
).filter(lambda text: text.split() == [text])
languages = st.sampled_from(["en", "de", "fr", "pt-br", "yue"])


@st.composite
def datasets(draw: st.DrawFn) -> list[Dataset]:
    """Splits of one data set: any text, golds of any grade, some claims without any."""
    authors = st.lists(filled, max_size=3).map(tuple)
    source = st.builds(Source, ids, filled, texts, authors, texts, texts)
    sources = draw(st.lists(source, min_size=1, max_size=5, unique_by=lambda source: source.id))
    pool = [source.id for source in sources]
    subsets = st.lists(st.sampled_from(pool), unique=True, max_size=3)
    candidates = st.none() | subsets.map(tuple)
    claim = st.builds(Claim, ids, filled, languages, st.none() | filled, candidates=candidates)
    claims = draw(st.lists(claim, min_size=1, max_size=6, unique_by=lambda claim: claim.id))
    middle = draw(st.integers(1, len(claims)))
    parts = []
    for split, own in (("train", claims[:middle]), ("dev", claims[middle:])):
        grades = {}
        for claim in own:
            candidates = draw(subsets)
            if candidates:
                grades[claim.id] = {s: draw(st.integers(-1, 3)) for s in candidates}
        qrels = Qrels(grades)
        with_golds = tuple(
            replace(
                claim,
                golds=qrels.golds(claim.id),
                excluded=tuple({claim.id} & {*pool} - {*qrels.golds(claim.id)}),
            )
            for claim in own
        )
        if own:
            parts.append(Dataset(with_golds, tuple(sources), qrels, split, "again"))
    return parts


@settings(max_examples=60, deadline=None)
@given(parts=datasets())
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, parts: Any) -> None:
    folder = tmp_path_factory.mktemp("round") / "again"
    write_beir(parts, folder)
    for part in parts:
        read = load(folder, part.split)
        assert read == part
        assert read.fingerprint == part.fingerprint
        assert list(read.qrels.grades) == list(part.qrels.grades)


def small(split: str = "dev", claim: str = "q1") -> Dataset:
    qrels = Qrels({claim: {"p1": 1}})
    return Dataset((Claim(claim, "x", golds=("p1",)),), (Source("p1", "t"),), qrels, split)


def test_an_older_data_folder_is_moved_aside_and_nothing_else(tmp_path: Path) -> None:
    folder, backup = tmp_path / "set", tmp_path / "set.replaced"
    write_beir([small("dev"), small("train", "q2")], folder)
    with refused(UserError, folder, "--overwrite"):
        write_beir(small("dev"), folder)
    write_beir(small("dev"), folder, overwrite=True)
    assert sorted(p.name for p in (folder / "qrels").iterdir()) == ["dev.tsv"]
    assert sorted(p.name for p in (backup / "qrels").iterdir()) == ["dev.tsv", "train.tsv"]
    write_beir(small("test"), folder, overwrite=True)
    assert sorted(p.name for p in (backup / "qrels").iterdir()) == ["dev.tsv"]
    assert {p.name for p in tmp_path.iterdir()} == {"set", "set.replaced"}
    (backup / "qrels" / "notes.txt").write_text("mine")
    with refused(UserError, backup, "'notes.txt'"):
        write_beir(small("dev"), folder, overwrite=True)
    assert (backup / "qrels" / "notes.txt").read_text() == "mine"
    (folder / "notes.txt").write_text("mine")
    with refused(UserError, f"{folder}: ", "'notes.txt'"):
        write_beir(small("dev"), folder, overwrite=True)
    assert (folder / "notes.txt").read_text() == "mine"
    for target in (folder / "notes.txt", folder / "notes.txt" / "below"):
        with refused(UserError, target):
            write_beir(small("dev"), target)


def test_a_failed_write_leaves_the_old_folder(tmp_path: Path) -> None:
    write_beir(small(), tmp_path / "set")
    before = load(tmp_path / "set", "dev")
    broken = Dataset((Claim("q1", "\ud800", golds=("p1",)),), small().sources, small().qrels, "dev")
    with pytest.raises(UnicodeEncodeError):
        write_beir(broken, tmp_path / "set", overwrite=True)
    assert load(tmp_path / "set", "dev") == before
    assert os.listdir(tmp_path) == ["set"]


def test_splits_that_no_folder_can_hold(tmp_path: Path) -> None:
    for parts, *facts in [
        ([],),
        ([small(), small("dev", "q2")], "'dev'"),
        ([small("../up")], "'../up'"),
        ([small(), small("train")], "'q1'"),
    ]:
        with refused(ValueError, *facts):
            write_beir(parts, tmp_path / "set")
    assert not list(tmp_path.iterdir())
