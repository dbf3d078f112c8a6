"""Rank our test scores on the labs' leaderboards, which are known in part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from claim2source.core.config import as_plain, read_yaml
from claim2source.core.report import MACRO, Place, Report, SystemReport
from claim2source.core.tables import Cell, Part, TextTable
from claim2source.core.validate import Strict, validated
from claim2source.evaluation.published.tables import FOLDER
from claim2source.evaluation.reports import LoadedSystem


@dataclass(frozen=True)
class Team(Strict):
    """Known results of one team: scores and ranks by language or `macro`.

    `digits` is the number of decimals of its printed scores.
    """

    name: str
    scores: Mapping[str, float]
    ranks: Mapping[str, int] = field(default_factory=dict)
    digits: int = 4
    source: str = ""


@dataclass(frozen=True)
class Leaderboard(Strict):
    """Lab's official results, as far as they are known.

    Args:
        id: name in reports.
        title: title of the test.
        source: origin of the numbers.
        splits: names that the test may have in a report of ours.
        queries: language -> claims of the test; a report over other claims gets no place.
        metric: name in our reports.
        teams: number of participating teams.
        known: teams with known results.
        note: remark on the numbers.
    """

    id: str
    title: str
    source: str
    splits: tuple[str, ...]
    queries: Mapping[str, int]
    metric: str
    teams: int
    known: tuple[Team, ...]
    note: str = ""

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages that have places, and `macro` if there are several."""
        languages = tuple(self.queries)
        if len(languages) > 1:
            return (*languages, MACRO)
        return languages

    def place(self, language: str, score: float) -> Place | None:
        """Rank a score as if it were one more submission; equal scores share a place.

        The lead is over the next known score if the score is the best, else behind the best.
        """
        above: list[Team] = []
        ties: list[Team] = []
        below: list[Team] = []
        for team in self.known:
            if language not in team.scores:
                continue
            ours = round(score, team.digits)
            theirs = team.scores[language]
            if ours == theirs:
                ties.append(team)
            elif theirs > ours:
                above.append(team)
            else:
                below.append(team)
        if not above and not below:
            return None

        known_above = _ranks(above, language)
        known_below = _ranks(below, language)
        known_ties = _ranks(ties, language)
        best = max([len(above), *known_above]) + 1
        worst = min(known_below, default=self.teams + 1)
        if known_ties:
            best = min(known_ties)
            worst = best
        others = above or below
        nearest = max(team.scores[language] for team in others)
        return Place(
            board=self.id,
            language=language,
            score=score,
            best=best,
            worst=max(best, worst),
            teams=self.teams,
            lead=score - nearest,
        )


def _ranks(teams: Iterable[Team], language: str) -> list[int]:
    return [team.ranks[language] for team in teams if language in team.ranks]


@cache
def load_leaderboards(folder: Path = FOLDER) -> tuple[Leaderboard, ...]:
    """Read the leaderboards of every file; raises `InputError` with file and field."""
    boards = []
    for path in sorted(folder.glob("*.yaml")):
        paper = as_plain(read_yaml(path))
        for raw in paper.get("leaderboards", ()):
            values: dict[str, Any] = {**raw}
            values["known"] = _teams(raw.get("known", {}))
            note = raw.get("note", "")
            values["note"] = " ".join(note.split())
            board = validated(Leaderboard, values, path, str(raw.get("id")))
            boards.append(board)
    return tuple(boards)


def _teams(known: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{"name": str(name), **values} for name, values in known.items()]


def places(system: LoadedSystem) -> tuple[Place, ...]:
    """Rank a system on the leaderboards of its test, in languages in which it has all claims."""
    report = system.report
    if report.simulated:
        return ()
    found = []
    for board in load_leaderboards():
        if system.split not in board.splits:
            continue
        for language in board.languages:
            scores = report.table.get(language, {})
            score = scores.get(board.metric)
            if score is None or not _is_whole(board, report, language):
                continue
            place = board.place(language, float(score))
            if place is not None:
                found.append(place)
    return tuple(found)


def _is_whole(board: Leaderboard, report: SystemReport, language: str) -> bool:
    """Whether a report scores as many claims as the test has."""
    needed = board.queries
    if language != MACRO:
        needed = {language: board.queries[language]}
    for lang, claims in needed.items():
        if report.queries.get(lang) != claims:
            return False
    if language != MACRO:
        return True
    return report.queries.keys() == needed.keys()


def with_places(report: Report, systems: Iterable[SystemReport]) -> Report:
    """Add places on leaderboards to every row of a report on a lab's test."""
    rows = dict(report.systems)
    for system in systems:
        loaded = LoadedSystem(system, Path(), report.dataset, report.split)
        found = places(loaded)
        if found:
            row = rows[system.name]
            rows[system.name] = replace(row, places=found)
    return replace(report, systems=rows)


def places_parts(placed: Sequence[tuple[str, Place]]) -> list[Part]:
    """Tabulate places by system, and explain them; [] if there are none."""
    if not placed:
        return []
    rows: list[list[Cell]] = []
    for system, place in placed:
        rows.append(
            [
                place.board,
                place.language,
                f"{place.score:.4f}",
                place.text,
                place.teams,
                f"{place.lead:+.4f}",
                system,
            ]
        )
    columns = ["leaderboard", "language", "ours", "place", "teams", "lead", "system"]
    numeric = [False, False, True, True, True, True, False]
    table = TextTable(columns, rows, numeric=numeric)

    used = set()
    for _, place in placed:
        used.add(place.board)
    boards = []
    for board in load_leaderboards():
        if board.id in used:
            boards.append(board)
    notes = []
    for board in boards:
        notes.append(f"{board.id}: {board.title} ({board.source}). {board.note}")
    meaning = (
        "place: as one more submission, a range if teams in between are not known; lead: over the "
        "next known score if it is the first, else behind the best."
    )
    return ["Places on official tests:", table, meaning, *notes]
