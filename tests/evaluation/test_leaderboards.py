"""Leaderboards of the labs: what is known of them, and the places of our test scores."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from claim2source.core.errors import InputError
from claim2source.core.report import Report, SystemReport
from claim2source.core.tables import TextTable, render
from claim2source.evaluation.published.leaderboards import Leaderboard, load_leaderboards
from claim2source.evaluation.published.scores import published_parts, with_published
from claim2source.evaluation.published.tables import load_published
from claim2source.evaluation.summary import summary_parts

BOARDS = {board.id: board for board in load_leaderboards()}
BOARD = BOARDS["2026-leaderboard"]
TEST = {"en": 6076, "de": 876, "fr": 1220}
PRINTED = {"en": 0.7819, "de": 0.7153, "fr": 0.7912}


def row(name: str, scores: dict[str, float], **options: object) -> SystemReport:
    languages = {}
    for lang, score in scores.items():
        languages[lang] = {"mrr@5": score, "queries": TEST[lang]}
    mean = sum(scores.values()) / len(scores)
    queries = sum(TEST[lang] for lang in scores)
    report = SystemReport(
        name,
        model="mine",
        system=name,
        languages=languages,
        macro={"mrr@5": mean, "queries": queries},
    )
    return replace(report, **options)  # type: ignore[arg-type]


def test_a_better_score_never_has_a_higher_rank() -> None:
    for board in BOARDS.values():
        for language in board.languages:
            teams = [team for team in board.known if language in team.ranks]
            for team in teams:
                assert 1 <= team.ranks[language] <= board.teams
                for other in teams:
                    if team.scores[language] > other.scores[language]:
                        assert team.ranks[language] < other.ranks[language]


def test_the_winner_has_the_places_and_differences_that_its_paper_prints() -> None:
    tables = {table.id: table for table in load_published()}
    table = tables["2026-place"]
    scores = {**PRINTED, "macro": 0.7628}
    languages = {"EN": "en", "DE": "de", "FR": "fr", "AVG": "macro"}
    for column, language in languages.items():
        score = scores[language]
        place = BOARD.place(language, score)
        assert place is not None
        assert place.best == place.worst
        assert str(place.best) == table.value("place", column)
        lead = table.value("lead over the next, or behind the first", column)
        assert place.lead == pytest.approx(lead, abs=1e-9)


@pytest.mark.parametrize(
    ("language", "score", "best", "worst", "lead"),
    [
        ("macro", 0.8000, 1, 1, 0.0372),
        ("macro", 0.7600, 2, 2, -0.0028),
        ("macro", 0.7200, 3, 5, -0.0428),
        ("macro", 0.7000, 6, 38, -0.0628),
        ("en", 0.7000, 4, 38, -0.0819),
        ("macro", 0.57412, 6, 38, -0.18868),
    ],
)
def test_a_place_is_as_narrow_as_what_is_known(
    language: str,
    score: float,
    best: int,
    worst: int,
    lead: float,
) -> None:
    place = BOARD.place(language, score)
    assert place is not None
    assert place.best == best
    assert place.worst == worst
    assert place.lead == pytest.approx(lead)


def test_a_score_printed_with_two_digits_is_compared_by_two() -> None:
    board = BOARDS["2025-leaderboard"]
    place = board.place("en", 0.5931)
    assert place is not None
    assert place.best == 12
    assert place.worst == 12


def test_a_report_of_the_whole_test_has_places_and_shows_them(tmp_path: Path) -> None:
    mine = row("mine", PRINTED)
    short = {}
    for lang, cells in mine.languages.items():
        short[lang] = {**cells, "queries": 5}
    rows = {
        "mine": mine,
        "part": row("part", {"en": 0.7}),
        "made": row("made", PRINTED, simulated=True),
        "other": replace(mine, name="other", languages=short),
    }
    report = Report("any", "test", rows)
    placed = with_published(report, rows.values())
    places = {}
    for name, system in placed.systems.items():
        places[name] = {place.language: place.text for place in system.places}
    assert places["mine"] == {
        "en": "1",
        "de": "2",
        "fr": "1",
        "macro": "1",
    }
    # One language is not an average; simulated systems and parts of the test have no place.
    assert places["part"] == {"en": "4 to 38"}
    assert places["made"] == places["other"]
    assert places["other"] == {}

    parts = published_parts(placed.systems)
    table = next(p for p in parts if isinstance(p, TextTable))
    shown = [line[1] for line in table.rows]
    assert shown == ["en", "de", "fr", "macro", "en"]
    summary = render(summary_parts(placed, tmp_path))
    assert "2026-leaderboard" in summary
    # The places are kept, and no other split has any.
    placed.write(tmp_path)
    kept = Report.read(tmp_path).systems["mine"]
    assert kept.places == placed.systems["mine"].places
    dev_report = replace(report, split="dev")
    dev = with_published(dev_report, rows.values())
    assert not any(system.places for system in dev.systems.values())


def test_a_wrong_leaderboard_is_refused(tmp_path: Path) -> None:
    board = {
        "id": "b",
        "title": "t",
        "source": "s",
        "splits": ["test"],
        "queries": {"en": 2},
        "metric": "mrr@5",
        "teams": "many",
        "known": {"A": {"scores": {"en": 0.5}}},
    }
    paper = {
        "paper": "p",
        "names": ["p"],
        "tables": [],
        "leaderboards": [board],
    }
    file = tmp_path / "p.yaml"
    file.write_text(yaml.safe_dump(paper))
    with pytest.raises(InputError) as error:
        load_leaderboards(tmp_path)
    assert "teams" in str(error.value)
    board["teams"] = 3
    file.write_text(yaml.safe_dump(paper))
    (read,) = load_leaderboards(tmp_path)
    assert isinstance(read, Leaderboard)
    assert read.known[0].scores == {"en": 0.5}
