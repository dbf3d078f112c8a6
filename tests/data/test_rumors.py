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


def test_a_list_and_lines_are_read_alike(tmp_path: Path) -> None:
    found = load_rumors(write_rumors(tmp_path / "English_dev.json"))
    assert (found.name, found.split, found.language) == ("English_dev", "dev", "en")
    assert [r.id for r in found.rumors] == ["r1", "r2", "r3"] and found.is_labelled
    assert found.rumors[1].label == "SUPPORTS" and found.rumors[1].evidence == ("21", "22")
    assert found.rumors[0].tweets["12"].text == "The minister opened a school in Mosul"
    lines = tmp_path / "all_AuRED.json"
    lines.write_text("\ufeff" + "\n\n".join(map(json.dumps, RUMORS)) + "\n", encoding="utf-8")
    assert load_rumors(lines, "dev").rumors == found.rumors
    assert load_rumors(lines).split == "all_AuRED"


def test_a_blind_test_set_and_arabic(tmp_path: Path) -> None:
    blind = [rumor("r1", "خبر عاجل COVID", {"1": "لا صحة للخبر"}), rumor("r2", "خبر", {"1": "نص"})]
    found = load_rumors(write_rumors(tmp_path / "Arabic_test.json", blind))
    assert not found.is_labelled and found.rumors[0].label is None
    assert (found.split, found.language) == ("test", "ar")
    # A tweet in two timelines, with different texts, is two sources.
    texts = {source.id: source.abstract for source in found.dataset.sources}
    assert texts == {"r1/1": "لا صحة للخبر", "r2/1": "نص"}
    assert found.dataset.claims[0].lang == "ar" and not found.dataset.golds


def spoilt(change: Callable[[list[dict[str, Any]]], object]) -> list[dict[str, Any]]:
    rumors: list[dict[str, Any]] = json.loads(json.dumps(RUMORS))
    change(rumors)
    return rumors


CHANGES: dict[str, Callable[[list[dict[str, Any]]], object]] = {
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
        path = write_rumors(tmp_path / "dev.json", spoilt(change))
        with pytest.raises(InputError) as error_info:
            load_rumors(path)
        assert len(error_info.value.lines) == 1, error_info.value.lines
        assert str(error_info.value).startswith(f"{path}: {error}")
    for text, place in [("[]", "dev.json: "), ('{"id": "r1"}\n{"id": ', "dev.json:2: ")]:
        path.write_text(text, encoding="utf-8")
        with refused(InputError, place):
            load_rumors(path)


@pytest.fixture
def rumors(tmp_path: Path) -> Rumors:
    return load_rumors(write_rumors(tmp_path / "dev.json"))


RUN = Run.from_lists({"r1": [("r1/11", 2.5), ("r1/13", 0.5)], "r2": [("r2/22", 1.0)], "r3": []})


def test_outputs_are_those_of_the_task_and_read_back(rumors: Rumors, tmp_path: Path) -> None:
    deep = Run.from_lists({"r": [(f"r/{i}", float(-i)) for i in range(8)]})
    write_evidence(deep, tmp_path / "deep.trec", "tag")
    lines = (tmp_path / "deep.trec").read_text().splitlines()
    assert [line.split("\t") for line in lines][4] == ["r", "Q0", "4", "5", "-4", "tag"]
    assert len(lines) == 5
    evidence, verification = tmp_path / "e.trec", tmp_path / "v.json"
    write_evidence(RUN, evidence, "tag")
    assert list(read_evidence(evidence, rumors)) == list(RUN)
    labels = {"r1": "REFUTES", "r2": "SUPPORTS", "r3": "NOT ENOUGH INFO"}
    write_verification(rumors, RUN, labels, verification)
    entry = json.loads(verification.read_text())[0]
    assert list(entry) == ["id", "predicted_label", "predicted_evidence"]
    assert entry["predicted_evidence"][0] == [*DENIED["timeline"][0], 2.5]
    read, run = read_verification(verification, rumors)
    assert read == labels and list(run) == list(RUN)
    # So are those of a system without verdicts.
    write_verification(rumors, RUN, {}, verification)
    read, run = read_verification(verification, rumors)
    assert read == dict.fromkeys(labels) and list(run) == list(RUN)


def test_evidence_that_the_task_would_refuse(rumors: Rumors, tmp_path: Path) -> None:
    path = tmp_path / "run.txt"
    for lines, error in [
        ("r9 Q0 11 1 1.0 t", "r9: "),
        ("r1 Q0 31 1 1.0 t", "r1: tweet '31' "),
        ("r1 Q0 11 1 1.0 t\nr1 Q0 11 2 0.5 t", "authority_tweet_id: 1 rows"),
        ("r1 Q0 -1 1 1.0 t\nr1 Q0 11 2 0.5 t", "r1: tweet '-1' "),
    ]:
        path.write_text(lines)
        with pytest.raises(InputError) as error_info:
            read_evidence(path, rumors)
        assert error in str(error_info.value) and len(error_info.value.lines) == 1
    path.write_text("r1 Q0 -1 1 1.0 t\n")
    assert read_evidence(path, rumors).sources("r1") == []
    many = rumor("r1", "text", {str(i): f"tweet {i}" for i in range(6)})
    path.write_text("".join(f"r1\tQ0\t{i}\t{i + 1}\t{9 - i}\tt\n" for i in range(6)))
    with refused(InputError, "r1: 6 tweets", "5"):
        read_evidence(path, load_rumors(write_rumors(tmp_path / "many.json", [many])))


VERDICTS: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "0.predicted_label: 'TRUE' ": lambda v: v[0].update(predicted_label="TRUE"),
    "'r3'": lambda v: v.pop(),
    "r1: tweet '31' ": (lambda v: v[0]["predicted_evidence"][1].__setitem__(1, "31")),
    "r1: tweet '11' ": (lambda v: v[0]["predicted_evidence"][1].__setitem__(1, "11")),
}


def test_verdicts_that_the_task_would_refuse(rumors: Rumors, tmp_path: Path) -> None:
    path = tmp_path / "v.json"
    for error, change in VERDICTS.items():
        labels = {"r1": "REFUTES", "r2": "SUPPORTS", "r3": "NOT ENOUGH INFO"}
        write_verification(rumors, RUN, labels, path)
        entries = json.loads(path.read_text())
        change(entries)
        path.write_text(json.dumps(entries))
        with pytest.raises(InputError) as error_info:
            read_verification(path, rumors)
        assert error in str(error_info.value) and len(error_info.value.lines) == 1
