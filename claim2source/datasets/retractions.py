"""Read notices about a paper: that it was retracted, corrected, or is doubted."""

from __future__ import annotations

import csv
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
from claim2source.io.text_files import any_lines

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
_WATCH = ("RetractionNature", "OriginalPaperDOI", "OriginalPaperPubMedID")
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


def notice_of(state: str, doi: str) -> str:
    """Describe a paper that is itself a notice of another one."""
    return f"{state}{NOTICE}{doi}"


@dataclass(frozen=True)
class Notices:
    """Hold states by DOI and by PubMed's id; "" where a paper was reinstated."""

    by_doi: Mapping[str, str]
    by_pmid: Mapping[str, str]

    def of(self, id: str, doi: str) -> str | None:
        """Return the state of a paper; None where nothing is said about it."""
        notice = self.by_doi.get(doi) if doi else None
        notice = self.by_doi.get(id.lower()) if notice is None else notice
        return self.by_pmid.get(id) if notice is None else notice


def read_notices(path: Path) -> Notices:
    """Read a CSV file of Retraction Watch: of several notices of a paper the last one counts.

    Raises `InputError` where it lacks its columns.
    """
    problems = CountedProblems()
    lines = (line for _, line in any_lines(path, problems))
    csv.field_size_limit(2**31 - 1)
    try:
        rows = csv.DictReader(lines)
        header = [name.strip() for name in rows.fieldnames or ()]
        for name in _WATCH:
            if name not in header:
                columns = ", ".join(header[:8]) or "none"
                why = f"no such column; a file of Retraction Watch has it; there are: {columns}"
                raise InputError(path, field=name, why=why)
        rows.fieldnames = header
        listed = [
            (
                day,
                kind.strip(),
                state_of(kind, _day(day), plain_doi(row.get("RetractionDOI") or "")),
                row,
            )
            for row in rows
            for kind, day in [(row["RetractionNature"] or "", row.get("RetractionDate") or "")]
        ]
    except csv.Error as error:
        raise InputError(path, why=f"is not a CSV file: {error}") from None
    problems.raise_if_any()
    dois, pmids = dict[str, str](), dict[str, str]()
    for _, kind, state, row in sorted(listed, key=lambda entry: _day_number(entry[0])):
        if not state and kind.lower() != _REINSTATED:
            continue
        if doi := plain_doi(row["OriginalPaperDOI"] or ""):
            dois[doi] = state
        if (pmid := (row["OriginalPaperPubMedID"] or "").strip()).strip("0"):
            pmids[pmid] = state
    return Notices(dois, pmids)


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
