"""Data sets are joined: claims, golds and sources stay together."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import ConfigError, UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.beir import write_beir
from claim2source.data.loading import load
from claim2source.data.prepare import PrepareConfig, main, prepare
from tests.refusals import refused


def write_set(folder: Path, lang: str, splits: str) -> Path:
    """A set in which every split has a claim "c" with the gold "b"; it differs by language."""
    sources: list[Source] = []
    for key in "ab":
        title = f"{lang} {key}"
        source = Source(key, title, f"of {title}", ("A. Writer",))
        sources.append(source)

    parts = []
    for split in splits.split():
        claim = Claim(
            f"{split}-c",
            f"{lang} {split}",
            lang,
            "in English",
            ("b",),
            ("a", "b"),
        )
        qrels = Qrels({claim.id: {"b": 2, "a": 0}})
        part = Dataset((claim,), tuple(sources), qrels, split)
        parts.append(part)
    write_beir(parts, folder)
    return folder


def test_sets_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_set(tmp_path / "one", "de", "train dev")
    two = write_set(tmp_path / "two", "fr", "train test")
    out = tmp_path / "both"
    words = [
        "mixed",
        "--sets",
        str(first),
        str(two),
        "--output",
        str(out),
    ]
    main(words)
    printed = capsys.readouterr().out
    assert "4 sources" in printed

    train = load(out, "train")
    claim_ids = [claim.id for claim in train.claims]
    assert claim_ids == ["one/train-c", "two/train-c"]
    second = train.claims[1]
    assert second.lang == "fr"
    assert second.translation == "in English"
    assert second.golds == ("two/b",)
    assert second.candidates == ("two/a", "two/b")
    grades = train.qrels.grades[second.id]
    assert grades == {"two/b": 2, "two/a": 0}

    by_id = {source.id: source for source in train.sources}
    assert list(by_id) == ["one/a", "one/b", "two/a", "two/b"]
    expected = Source("two/b", "fr b", "of fr b", ("A. Writer",))
    assert by_id["two/b"] == expected
    others = (
        ("dev", "one/dev-c"),
        ("test", "two/test-c"),
    )
    for split, claim_id in others:
        part = load(out, split)
        assert [claim.id for claim in part.claims] == [claim_id]
        assert part.sources == train.sources


def test_some_distractors_are_drawn_and_every_gold_stays(tmp_path: Path) -> None:
    sources = tuple(Source(f"s{i}", f"title {i}", "text") for i in range(9))
    folders: list[str] = []
    for name, gold in (("one", "s3"), ("two", "s7")):
        claim = Claim("c", "post", golds=(gold,))
        grades = {source.id: int(source.id == gold) for source in sources}
        qrels = Qrels({"c": grades})
        data = Dataset((claim,), sources, qrels, "train")
        folder = tmp_path / name
        write_beir(data, folder)
        folders.append(str(folder))

    pools = []
    for distractors in (2, 3, 0):
        out = tmp_path / str(distractors)
        config = PrepareConfig(
            "mixed",
            out,
            sets=list(folders),
            distractors=distractors,
        )
        prepare(config)
        train = load(out, "train")
        ids = [source.id for source in train.sources]
        pool = set(ids)
        assert {"one/s3", "two/s7"} <= pool
        assert len(ids) == 2 * (distractors + 1)
        for graded in train.qrels.grades.values():
            assert set(graded) <= pool
        pools.append(pool)
    assert pools[2] < pools[0]
    assert pools[0] < pools[1]
    first_ones = {"one/s0", "one/s1", "two/s0", "two/s1"}
    assert not first_ones <= pools[0]  # not the first ones


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = write_set(tmp_path / "one", "de", "train")
    namesake = write_set(tmp_path / "other" / "one", "fr", "train")
    alone = [str(first)]
    both = [str(first), str(namesake)]
    for sets in (alone, both):
        with refused(ConfigError) as error:
            prepare(PrepareConfig("mixed", out, sets=sets))
        assert error.value.key == "sets"

    second = write_set(tmp_path / "two", "en", "dev")
    sets = [str(first), str(second)]
    with refused(UserError, first):
        prepare(PrepareConfig("mixed", first, sets=sets, overwrite=True))

    without_sets = ["mixed"]
    with_other_sets = [
        "news",
        "--sets",
        str(first),
        "--input",
        str(first),
    ]
    for words in (without_sets, with_other_sets):
        with refused(ConfigError) as error:
            main([*words, "--output", str(out)])
        assert error.value.key == "sets"
    assert not out.exists()
    train = load(first, "train")
    assert len(train.sources) == 2
