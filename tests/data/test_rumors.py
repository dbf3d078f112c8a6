"""Rumours of CheckThat! 2024 Task 5: their files, and the submissions of systems."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from claim2source.core.errors import InputError
from claim2source.core.run import Run
from claim2source.data.rumors import (
    Rumors,
    load_rumors,
    read_evidence,
    read_verification,
    write_evidence,
    write_verification,
)
from tests.refusals import refused
from tests.rumor_files import DENIED, RUMORS, rumor, write_rumors

Record = dict[str, Any]
Change = Callable[[list[Record]], object]


def test_a_list_and_lines_are_read_alike(tmp_path: Path) -> None:
    path = write_rumors(tmp_path / "English_dev.json")
    found = load_rumors(path)
    assert found.name == "English_dev"
    assert found.split == "dev"
    assert found.language == "en"
    assert [one.id for one in found.rumors] == ["r1", "r2", "r3"]
    assert found.is_labelled
    first = found.rumors[0]
    second = found.rumors[1]
    assert second.label == "SUPPORTS"
    assert second.evidence == ("21", "22")
    tweet = first.tweets["12"]
    assert tweet.text == "The minister opened a school in Mosul"

    lines = tmp_path / "all_AuRED.json"
    content = "\n\n".join(map(json.dumps, RUMORS))
    lines.write_text("\ufeff" + content + "\n", encoding="utf-8")
    as_dev = load_rumors(lines, "dev")
    assert as_dev.rumors == found.rumors
    unnamed = load_rumors(lines)
    assert unnamed.split == "all_AuRED"


def test_a_blind_test_set_and_arabic(tmp_path: Path) -> None:
    blind = [
        rumor("r1", "خبر عاجل COVID", {"1": "لا صحة للخبر"}),
        rumor("r2", "خبر", {"1": "نص"}),
    ]
    path = write_rumors(tmp_path / "Arabic_test.json", blind)
    found = load_rumors(path)
    assert not found.is_labelled
    assert found.rumors[0].label is None
    assert found.split == "test"
    assert found.language == "ar"
    # A tweet in two timelines, with different texts, is two sources.
    data = found.dataset
    texts = {source.id: source.abstract for source in data.sources}
    assert texts == {
        "r1/1": "لا صحة للخبر",
        "r2/1": "نص",
    }
    assert data.claims[0].lang == "ar"
    assert not data.golds


def spoilt(change: Change) -> list[Record]:
    rumors: list[Record] = json.loads(json.dumps(RUMORS))
    change(rumors)
    return rumors


CHANGES: dict[str, Change] = {
    "1.rumor: ": lambda r: r[1].pop("rumor"),
    "2.id: 'r1' ": lambda r: r[2].update(id="r1"),
    "2.id: 'a/b' ": lambda r: r[2].update(id="a/b"),
    "0.label: 'FALSE' ": lambda r: r[0].update(label="FALSE"),
    "0.label: NOT ENOUGH INFO": lambda r: r[0].update(label="NOT ENOUGH INFO"),
    "0.timeline.2.id: ": lambda r: r[0]["timeline"][2].__setitem__(1, "1 2"),
    "0.timeline.2.id: '11' ": lambda r: r[0]["timeline"][2].__setitem__(1, "11"),
    "0.evidence.0.id: '99' ": lambda r: r[0]["evidence"][0].__setitem__(1, "99"),
}


def test_what_is_wrong_is_one_line_with_its_place(tmp_path: Path) -> None:
    for error, change in CHANGES.items():
        rumors = spoilt(change)
        path = write_rumors(tmp_path / "dev.json", rumors)
        with pytest.raises(InputError) as error_info:
            load_rumors(path)
        lines = error_info.value.lines
        assert len(lines) == 1, lines
        message = str(error_info.value)
        assert message.startswith(f"{path}: {error}")

    broken = [
        ("[]", "dev.json: "),
        ('{"id": "r1"}\n{"id": ', "dev.json:2: "),
    ]
    for text, place in broken:
        path.write_text(text, encoding="utf-8")
        with refused(InputError, place):
            load_rumors(path)


@pytest.fixture
def rumors(tmp_path: Path) -> Rumors:
    path = write_rumors(tmp_path / "dev.json")
    return load_rumors(path)


RANKED = {
    "r1": [("r1/11", 2.5), ("r1/13", 0.5)],
    "r2": [("r2/22", 1.0)],
    "r3": [],
}
RUN = Run.from_lists(RANKED)
LABELS = {
    "r1": "REFUTES",
    "r2": "SUPPORTS",
    "r3": "NOT ENOUGH INFO",
}


def test_outputs_are_those_of_the_task_and_read_back(rumors: Rumors, tmp_path: Path) -> None:
    pairs = [(f"r/{i}", float(-i)) for i in range(8)]
    deep = Run.from_lists({"r": pairs})
    path = tmp_path / "deep.trec"
    write_evidence(deep, path, "tag")
    lines = path.read_text().splitlines()
    rows = [line.split("\t") for line in lines]
    assert rows[4] == ["r", "Q0", "4", "5", "-4", "tag"]
    assert len(lines) == 5

    evidence = tmp_path / "e.trec"
    verification = tmp_path / "v.json"
    write_evidence(RUN, evidence, "tag")
    run = read_evidence(evidence, rumors)
    assert list(run) == list(RUN)
    write_verification(rumors, RUN, LABELS, verification)
    entries = json.loads(verification.read_text())
    entry = entries[0]
    assert list(entry) == ["id", "predicted_label", "predicted_evidence"]
    first = DENIED["timeline"][0]
    assert entry["predicted_evidence"][0] == [*first, 2.5]
    read, run = read_verification(verification, rumors)
    assert read == LABELS
    assert list(run) == list(RUN)
    # So are those of a system without verdicts.
    write_verification(rumors, RUN, {}, verification)
    read, run = read_verification(verification, rumors)
    assert read == dict.fromkeys(LABELS)
    assert list(run) == list(RUN)


def test_evidence_that_the_task_would_refuse(rumors: Rumors, tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    wrong = [
        ("r9 Q0 11 1 1.0 t", "r9: "),
        ("r1 Q0 31 1 1.0 t", "r1: tweet '31' "),
        ("r1 Q0 11 1 1.0 t\nr1 Q0 11 2 0.5 t", "authority_tweet_id: 1 rows"),
        ("r1 Q0 -1 1 1.0 t\nr1 Q0 11 2 0.5 t", "r1: tweet '-1' "),
    ]
    for lines, error in wrong:
        path.write_text(lines)
        with pytest.raises(InputError) as error_info:
            read_evidence(path, rumors)
        assert error in str(error_info.value)
        assert len(error_info.value.lines) == 1

    path.write_text("r1 Q0 -1 1 1.0 t\n")
    run = read_evidence(path, rumors)
    assert run.sources("r1") == []

    tweets = {str(i): f"tweet {i}" for i in range(6)}
    many = rumor("r1", "text", tweets)
    rows = [f"r1\tQ0\t{i}\t{i + 1}\t{9 - i}\tt\n" for i in range(6)]
    path.write_text("".join(rows))
    many_path = write_rumors(tmp_path / "many.json", [many])
    rumors_with_many = load_rumors(many_path)
    with refused(InputError, "r1: 6 tweets", "5"):
        read_evidence(path, rumors_with_many)


VERDICTS: dict[str, Change] = {
    "0.predicted_label: 'TRUE' ": lambda v: v[0].update(predicted_label="TRUE"),
    "'r3'": lambda v: v.pop(),
    "r1: tweet '31' ": (lambda v: v[0]["predicted_evidence"][1].__setitem__(1, "31")),
    "r1: tweet '11' ": (lambda v: v[0]["predicted_evidence"][1].__setitem__(1, "11")),
}


def test_verdicts_that_the_task_would_refuse(rumors: Rumors, tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    for error, change in VERDICTS.items():
        write_verification(rumors, RUN, LABELS, path)
        entries = json.loads(path.read_text())
        change(entries)
        content = json.dumps(entries)
        path.write_text(content)
        with pytest.raises(InputError) as error_info:
            read_verification(path, rumors)
        assert error in str(error_info.value)
        assert len(error_info.value.lines) == 1
