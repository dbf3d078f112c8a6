"""Read notices about a paper: that it was retracted, corrected, or is doubted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import CountedProblems, InputError
from claim2source.datasets.papers import (
    CONCERN,
    CORRECTED,
    RETRACTED,
    WITHDRAWN,
    first_day,
    plain_doi,
)
from claim2source.io.text_files import any_lines, tsv_rows

# What registries call a notice; the first that fits counts, and others say nothing of the paper.
_KINDS = (
    (re.compile("retract", re.IGNORECASE), RETRACTED),
    (re.compile("withdraw|removal|removed", re.IGNORECASE), WITHDRAWN),
    (re.compile("concern", re.IGNORECASE), CONCERN),
    (re.compile("correct|corrigend|errat", re.IGNORECASE), CORRECTED),
)
_STATES = tuple(state for _, state in _KINDS)
_NO = frozenset(("", "0", "0.0", "false", "no", "n", "none", "nan", "null", "na", "n/a", "-"))
_YES = frozenset(("1", "1.0", "true", "yes", "y", "x"))
# Between the state and the DOI that a notice, which is itself a paper, is about.
NOTICE = " notice of "
# Columns of Retraction Watch's file.
_WATCH = (
    *("RetractionNature", "RetractionDate", "RetractionDOI"),
    *("OriginalPaperDOI", "OriginalPaperPubMedID"),
)
_REINSTATED = "reinstatement"


def state_of(kind: str, *details: str) -> str:
    """Write a notice's kind as ours, with its day or DOI; "" for one that says nothing bad."""
    label = next((state for sign, state in _KINDS if sign.search(kind)), "")
    return ", ".join(filter(None, (label, *details))) if label else ""


def worst(states: Iterable[str]) -> str:
    """Choose the gravest of several states; "" where there is none."""
    non_empty = [state for state in states if state]
    return min(non_empty, key=lambda state: _STATES.index(state.partition(",")[0]), default="")


def state_of_cell(text: str) -> str:
    """Read a cell `retracted`: yes or no, a day, or the notice."""
    line = " ".join(text.split())
    if line.lower() in _NO:
        return ""
    if line.lower() in _YES:
        return RETRACTED
    if line.startswith(_STATES) and line.partition(",")[0] in _STATES:
        return line
    return state_of(line, line) or f"{RETRACTED}, {line}"


@dataclass(frozen=True)
class Notices:
    """Hold states by DOI and PubMed's id, which differ; "" where a paper was reinstated."""

    states: Mapping[str, str]

    def of(self, id: str, doi: str) -> str | None:
        """Return the state of a paper; None where nothing is said about it."""
        return self.states.get(doi, self.states.get(id.lower()))


def read_notices(path: Path) -> Notices:
    """Read a CSV file of Retraction Watch: of several notices of a paper the last one counts.

    Raises `InputError` where it lacks its columns.
    """
    problems = CountedProblems()
    lines = (line for _, line in any_lines(path, problems))
    rows = [cells for _, cells in tsv_rows(path, _WATCH, problems, lines=lines, delimiter=",")]
    problems.raise_if_any()
    if not rows:
        raise InputError(path, why="holds no notices of Retraction Watch")
    states: dict[str, str] = {}
    for kind, day, notice, paper, pmid in sorted(rows, key=lambda cells: _day_number(cells[1])):
        state = state_of(kind, _day(day), plain_doi(notice))
        if not state and kind.strip().lower() != _REINSTATED:
            continue
        if doi := plain_doi(paper):
            states[doi] = state
        if pmid.strip().strip("0"):
            states[pmid.strip()] = state
    return Notices(states)


def _day_number(date: str) -> int:
    """Number a day as Retraction Watch writes it, month first: "5/12/2020 0:00" is in May."""
    match = re.match(r"\s*(\d{1,2})/(\d{1,2})/(\d{4})", date)
    if match:
        month, day, year = (int(part) for part in match.groups())
        return year * 10_000 + month * 100 + day
    return first_day(date)


def _day(date: str) -> str:
    number = _day_number(date)
    return f"{number // 10_000:04}-{number // 100 % 100:02}-{number % 100:02}" if number else ""
