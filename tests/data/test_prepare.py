"""`prepare` with the user's own task, by its dotted path."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.errors import ConfigError, InputError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.loading import load
from claim2source.data.prepare import PrepareConfig, prepare, read_options
from claim2source.data.split import seen_claims

MODULE = """
from dataclasses import dataclass, replace
from claim2source.core.records import Claim, Dataset, Qrels, Source

@dataclass(frozen=True)
class Notes:
    lang: str = "en"
    most: int = 2

    def read(self, folder):
        words = (folder / "notes.txt").read_text().split()[: self.most]
        claims = tuple(Claim(word, word, self.lang, golds=("s",)) for word in words)
        qrels = Qrels({word: {"s": 1} for word in words})
        sources = (Source("s", "title", "abstract"),)
        return [Dataset(claims, sources, qrels, split, notes=("once",)) for split in ("dev",)]

@dataclass(frozen=True)
class Nothing:
    def read(self, folder):
        return []

@dataclass(frozen=True)
class Twice(Notes):
    def read(self, folder):
        (dev,) = super().read(folder)
        return [dev, replace(dev, split="test")]

@dataclass(frozen=True)
class TwoPools(Notes):
    def read(self, folder):
        (dev,) = super().read(folder)
        return [dev, Dataset((), (), Qrels({}), "test")]

@dataclass(frozen=True)
class Unreadable:
    pass

class Plain:
    def read(self, folder):
        return []
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "tasks_of_prepare.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    own = tmp_path / "own"
    own.mkdir()
    (own / "notes.txt").write_text("tea masks sleep", encoding="utf-8")
    return own


def options(folder: Path, task: str, *words: str) -> PrepareConfig:
    output = folder.parent / "made"
    return read_options(
        [f"tasks_of_prepare.{task}", "--input", str(folder), "--output", str(output), *words]
    )


def test_settings_are_fields_of_the_class(folder: Path) -> None:
    config = options(folder, "Notes", "--settings.lang", "de", "--settings.most", "1")
    splits, notes = prepare(config)
    assert notes == ["once"]
    dev = load(config.output, "dev")
    assert dev.claims == splits[0].claims == (Claim("tea", "tea", "de", golds=("s",)),)
    assert dev.qrels == Qrels({"tea": {"s": 1}})
    assert dev.sources == (Source("s", "title", "abstract"),)
    assert isinstance(splits[0], Dataset)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        (["Notes", "--settings.least", "1"], "settings.least"),
        (["Notes", "--settings.most", "many"], "settings.most"),
        (["Notes", "--translations", "file"], "translations"),
        (["Notes", "--splits", "test"], "splits"),
        (["Absent"], "task"),
        (["Unreadable"], "task"),
        (["Plain"], "task"),
    ],
)
def test_a_wrong_key_is_named_and_nothing_is_written(
    folder: Path, words: list[str], key: str
) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(options(folder, *words))
    assert error.value.key == key
    assert not (folder.parent / "made").exists()


@pytest.mark.parametrize("task", ["checkthat2024", "absent_module.Task"])
def test_a_task_that_does_not_exist_is_refused(folder: Path, task: str) -> None:
    with pytest.raises(ConfigError) as error:
        prepare(PrepareConfig(task=task, input=folder, output=folder.parent / "made"))
    assert error.value.key == "task" and error.value.value == task


def test_settings_belong_to_a_task_of_ones_own(folder: Path) -> None:
    with pytest.raises(ConfigError) as error:
        PrepareConfig(task="news", input=folder, output=folder, settings={"lang": "de"})
    assert error.value.key == "settings"


@pytest.mark.parametrize("task", ["Nothing", "Twice", "TwoPools"])
def test_splits_that_cannot_be_written_are_refused(folder: Path, task: str) -> None:
    with pytest.raises(InputError):
        prepare(options(folder, task))
    assert not (folder.parent / "made").exists()


def test_val_at_a_declared_share_becomes_a_split(tmp_path: Path) -> None:
    output = tmp_path / "held_out"
    words = ["val", "--input", "demo", "--output", str(output), "--seen_share_expected"]
    _, (*_, note) = prepare(read_options([*words, "0.89"]))
    train, val, whole = load(output, "train"), load(output, "val"), load("demo", "train")
    assert sorted(claim.id for claim in (*train.claims, *val.claims)) == sorted(
        claim.id for claim in whole.claims
    )
    assert len(val.claims) == pytest.approx(0.2 * len(whole.claims), abs=3)
    known = seen_claims(train, val)
    assert len(known) / len(val.claims) == pytest.approx(0.89, abs=0.01)
    assert f"{len(known)} of val's {len(val.claims)} claims" in note
    assert load(output, "dev").claims == load("demo", "dev").claims
    again = PrepareConfig("val", tmp_path / "again", output)
    with pytest.raises(ConfigError) as error:  # it has a val
        prepare(again)
    assert error.value.key == "input" and not again.output.exists()
