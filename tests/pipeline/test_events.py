"""Same-event sets: dates, headlines, named entities, judgements and readers' sheets."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from claim2source.core.errors import UserError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.io.trec import read_qrels
from claim2source.pipeline.events import EventsConfig, event_sets, with_events, write_events
from tests.text.small_pipeline import write_pipeline

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
HEAD = "Boris Johnson leaves hospital in London"


def article(key: str, day: str, title: str = HEAD, body: str = "") -> Source:
    return Source(key, title, body, date=day)


# Each differs from the linked article in one thing.
SOURCES = (
    article("linked", "2020-04-12", body="Cuomo said so."),
    article("same", "17 April 2020", "Boris Johnson out of hospital in London", "Cuomo"),
    article("early", "2020-04-06T23:00:00", body="Cuomo said so."),
    article("early enough", "2020-04-07", body="Cuomo said so."),
    article("late", "2020-04-18", body="Cuomo said so."),
    article("first day", "0001-01-01", body="Cuomo said so."),
    article("undated", "", body="Cuomo said so."),
    article("other headline", "2020-04-12", "Tea prices: Cuomo, Boris Johnson, London"),
    article("other names", "2020-04-12", "British prime minister leaves hospital", "New York"),
    article("no match", "2020-04-12", "=1+1 Otters sleep", "New York"),
)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> EventsConfig:
    pipeline = write_pipeline(tmp_path_factory.mktemp("spacy") / "pipeline")
    return EventsConfig(similarity=0.7, overlap=0.9, model=MINILM, pipeline=pipeline)


@pytest.fixture(scope="module")
def found(config: EventsConfig) -> dict:
    return event_sets(SOURCES, ["linked", "no match", "undated", "first day"], config, device="cpu")


def test_an_article_must_pass_all_three(found: dict) -> None:
    assert list(found) == ["linked"]
    assert {member.id for member in found["linked"]} == {"same", "early enough"}
    first, second = found["linked"]
    assert first.id == "early enough" and first.similarity == pytest.approx(1, abs=1e-5)
    assert 0.7 <= second.similarity < 1 and second.overlap == 1.0


def test_thresholds_are_settings(config: EventsConfig) -> None:
    def ids(**settings: float) -> set[str]:
        changed = EventsConfig(**{**vars(config), **settings})
        sets = event_sets(SOURCES, ["linked"], changed, device="cpu")
        return {member.id for member in sets.get("linked", ())}

    assert ids(days=6) == {"same", "early enough", "early", "late"}
    assert "other headline" in ids(similarity=0.0)
    # Without any entity in common there is no overlap, however low the threshold.
    assert ids(similarity=0.0, overlap=0.0) == {"same", "early enough", "other headline"}


def test_relevance_is_extended_to_the_set_and_candidates_bound_it(found: dict) -> None:
    claims = (
        Claim("1", "a", golds=("linked",)),
        Claim("2", "b", golds=("no match",)),
        Claim("3", "c", golds=("linked",), candidates=("linked", "same", "late")),
    )
    grades = {claim.id: {claim.golds[0]: 1, "late": 0} for claim in claims}
    data = Dataset(claims, SOURCES, Qrels(grades), "dev")
    more = with_events(data, found)
    assert [set(claim.golds) for claim in more.claims] == [
        {"linked", "same", "early enough"},
        {"no match"},
        {"linked", "same"},
    ]
    for claim in more.claims:
        assert set(more.qrels.golds(claim.id)) == set(claim.golds)
    assert more.qrels.grades["1"]["late"] == 0 and data.qrels.golds("1") == ("linked",)


def test_two_readers_get_the_same_sample(found: dict, config: EventsConfig, tmp_path: Path) -> None:
    claims = (Claim("1", "a", golds=("linked",)),)
    data = Dataset(claims, SOURCES, Qrels({"1": {"linked": 1}}), "dev")
    (member,) = found["linked"][:1]
    sets = {**found, "no match": (member,), "late": (member,)}
    two = EventsConfig(**{**vars(config), "sample": 2})
    write_events(sets, data, with_events(data, sets), two, tmp_path)
    sheets = []
    for reader in (1, 2):
        with open(tmp_path / f"reader_{reader}.csv", encoding="utf-8-sig", newline="") as file:
            sheets.append(list(csv.DictReader(file)))
    assert sheets[0] == sheets[1] and {row["set"] for row in sheets[0]} == {"1", "2"}
    assert [row["article"] for row in sheets[0]].count("linked") == 2
    assert all(row["same event?"] == "" for row in sheets[0])
    assert all(not row["title"].startswith("=") for row in sheets[0])
    lines = (tmp_path / "sets.jsonl").read_text().splitlines()
    assert len(lines) == 3 and json.loads(lines[0])["same_event"][0]["id"] == member.id
    assert set(read_qrels(tmp_path / "qrels.tsv").golds("1")) == {"linked", "same", "early enough"}


def test_without_dates_there_are_no_sets(config: EventsConfig) -> None:
    with pytest.raises(UserError, match="no linked article has a metadata.date"):
        event_sets([Source("a", "t", date="last week")], ["a"], config)
