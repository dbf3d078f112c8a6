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
    sources = tuple(Source(s, f"{lang} {s}", f"of {lang} {s}", ("A. Writer",)) for s in "ab")
    parts = []
    for split in splits.split():
        claim = Claim(f"{split}-c", f"{lang} {split}", lang, "in English", ("b",), ("a", "b"))
        parts.append(Dataset((claim,), sources, Qrels({claim.id: {"b": 2, "a": 0}}), split))
    write_beir(parts, folder)
    return folder


def test_sets_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_set(tmp_path / "one", "de", "train dev")
    two = write_set(tmp_path / "two", "fr", "train test")
    out = tmp_path / "both"
    main(["mixed", "--sets", str(first), str(two), "--output", str(out)])
    assert "4 sources" in capsys.readouterr().out
    train = load(out, "train")
    assert [claim.id for claim in train.claims] == ["one/train-c", "two/train-c"]
    second = train.claims[1]
    assert (second.lang, second.translation) == ("fr", "in English")
    assert second.golds == ("two/b",) and second.candidates == ("two/a", "two/b")
    assert train.qrels.grades[second.id] == {"two/b": 2, "two/a": 0}
    by_id = {source.id: source for source in train.sources}
    assert list(by_id) == ["one/a", "one/b", "two/a", "two/b"]
    assert by_id["two/b"] == Source("two/b", "fr b", "of fr b", ("A. Writer",))
    for split, claim in (("dev", "one/dev-c"), ("test", "two/test-c")):
        part = load(out, split)
        assert [c.id for c in part.claims] == [claim] and part.sources == train.sources


def test_some_distractors_are_drawn_and_every_gold_stays(tmp_path: Path) -> None:
    sources = tuple(Source(f"s{i}", f"title {i}", "text") for i in range(9))
    for name, gold in (("one", "s3"), ("two", "s7")):
        claim = Claim("c", "post", golds=(gold,))
        qrels = Qrels({"c": {s.id: int(s.id == gold) for s in sources}})
        write_beir(Dataset((claim,), sources, qrels, "train"), tmp_path / name)
    pools = []
    for distractors in (2, 3, 0):
        out = tmp_path / str(distractors)
        sets = [str(tmp_path / "one"), str(tmp_path / "two")]
        prepare(PrepareConfig("mixed", out, sets=sets, distractors=distractors))
        train = load(out, "train")
        ids = [source.id for source in train.sources]
        assert {"one/s3", "two/s7"} <= set(ids) and len(ids) == 2 * (distractors + 1)
        assert all(set(graded) <= set(ids) for graded in train.qrels.grades.values())
        pools.append(set(ids))
    assert pools[2] < pools[0] < pools[1]
    assert not {"one/s0", "one/s1", "two/s0", "two/s1"} <= pools[0]  # not the first ones


def test_what_cannot_be_joined(tmp_path: Path) -> None:
    first = write_set(tmp_path / "one", "de", "train")
    namesake = write_set(tmp_path / "other" / "one", "fr", "train")
    for sets in ([str(first)], [str(first), str(namesake)]):
        with refused(ConfigError) as error:
            prepare(PrepareConfig("mixed", tmp_path / "out", sets=sets))
        assert error.value.key == "sets"
    with refused(UserError, first):
        sets = [str(first), str(write_set(tmp_path / "two", "en", "dev"))]
        prepare(PrepareConfig("mixed", first, sets=sets, overwrite=True))
    for words in (["mixed"], ["news", "--sets", str(first), "--input", str(first)]):
        with refused(ConfigError) as error:
            main([*words, "--output", str(tmp_path / "out")])
        assert error.value.key == "sets"
    assert not (tmp_path / "out").exists()
    assert len(load(first, "train").sources) == 2
