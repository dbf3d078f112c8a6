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

text_characters = st.characters(
    exclude_categories=["Cs"],
    exclude_characters="\0",
)
texts = st.text(text_characters)
filled = texts.filter(lambda text: text.strip())
id_characters = st.characters(
    exclude_categories=["Cs"],
    exclude_characters="\0\t\r\n",
)
short_texts = st.text(id_characters, min_size=1, max_size=8)
ids = short_texts.filter(lambda text: text.split() == [text])
languages = st.sampled_from(["en", "de", "fr", "pt-br", "yue"])


@st.composite
def datasets(draw: st.DrawFn) -> list[Dataset]:
    """Splits of one data set: any text, golds of any grade, some claims without any."""
    authors = st.lists(filled, max_size=3).map(tuple)
    source = st.builds(
        Source,
        ids,
        filled,
        texts,
        authors,
        texts,
        texts,
    )
    source_lists = st.lists(
        source,
        min_size=1,
        max_size=5,
        unique_by=lambda source: source.id,
    )
    sources = draw(source_lists)
    pool = [source.id for source in sources]
    subsets = st.lists(st.sampled_from(pool), unique=True, max_size=3)
    claim = st.builds(
        Claim,
        ids,
        filled,
        languages,
        st.none() | filled,
        candidates=st.none() | subsets.map(tuple),
    )
    claim_lists = st.lists(
        claim,
        min_size=1,
        max_size=6,
        unique_by=lambda claim: claim.id,
    )
    claims = draw(claim_lists)
    middle = draw(st.integers(1, len(claims)))
    claims_by_split = (
        ("train", claims[:middle]),
        ("dev", claims[middle:]),
    )
    parts = []
    for split, own in claims_by_split:
        grades = {}
        for claim in own:
            judged = draw(subsets)
            if judged:
                grades[claim.id] = {s: draw(st.integers(-1, 3)) for s in judged}
        qrels = Qrels(grades)
        with_golds: list[Claim] = []
        for claim in own:
            golds = qrels.golds(claim.id)
            excluded = {claim.id} & {*pool} - {*golds}
            graded = replace(claim, golds=golds, excluded=tuple(excluded))
            with_golds.append(graded)
        if own:
            part = Dataset(
                tuple(with_golds),
                tuple(sources),
                qrels,
                split,
                "again",
            )
            parts.append(part)
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
    one = Claim(claim, "x", golds=("p1",))
    source = Source("p1", "t")
    qrels = Qrels({claim: {"p1": 1}})
    return Dataset((one,), (source,), qrels, split)


def names(folder: Path) -> list[str]:
    """Return the names of the files of a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())


def test_an_older_data_folder_is_moved_aside_and_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    backup = tmp_path / "set.replaced"
    dev = small("dev")
    write_beir([dev, small("train", "q2")], folder)
    with refused(UserError, folder, "--overwrite"):
        write_beir(dev, folder)
    write_beir(dev, folder, overwrite=True)
    assert names(folder / "qrels") == ["dev.tsv"]
    assert names(backup / "qrels") == ["dev.tsv", "train.tsv"]
    write_beir(small("test"), folder, overwrite=True)
    assert names(backup / "qrels") == ["dev.tsv"]
    assert names(tmp_path) == ["set", "set.replaced"]

    backup_notes = backup / "qrels" / "notes.txt"
    backup_notes.write_text("mine")
    with refused(UserError, backup, "'notes.txt'"):
        write_beir(dev, folder, overwrite=True)
    assert backup_notes.read_text() == "mine"

    notes = folder / "notes.txt"
    notes.write_text("mine")
    with refused(UserError, f"{folder}: ", "'notes.txt'"):
        write_beir(dev, folder, overwrite=True)
    assert notes.read_text() == "mine"
    for target in (notes, notes / "below"):
        with refused(UserError, target):
            write_beir(dev, target)


def test_a_failed_write_leaves_the_old_folder(tmp_path: Path) -> None:
    folder = tmp_path / "set"
    write_beir(small(), folder)
    before = load(folder, "dev")
    unpaired = Claim("q1", "\ud800", golds=("p1",))
    valid = small()
    broken = Dataset(
        (unpaired,),
        valid.sources,
        valid.qrels,
        "dev",
    )
    with pytest.raises(UnicodeEncodeError):
        write_beir(broken, folder, overwrite=True)
    assert load(folder, "dev") == before
    assert os.listdir(tmp_path) == ["set"]


def test_splits_that_no_folder_can_hold(tmp_path: Path) -> None:
    impossible = [
        ([],),
        ([small(), small("dev", "q2")], "'dev'"),
        ([small("../up")], "'../up'"),
        ([small(), small("train")], "'q1'"),
    ]
    for parts, *facts in impossible:
        with refused(ValueError, *facts):
            write_beir(parts, tmp_path / "set")
    assert not list(tmp_path.iterdir())
