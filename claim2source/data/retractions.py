"""Read later notices about papers: retractions, expressions of concern, corrections."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from claim2source.core.errors import InputError, Problems
from claim2source.data.dates import first_day, iso_date
from claim2source.data.doi import plain_doi, plain_dois
from claim2source.data.text_files import any_lines

RETRACTED = "retracted"
WITHDRAWN = "withdrawn"
PARTIALLY = "partially retracted"
# Possible states of a paper after publication, the gravest first, with the names of such notices in
# registries. The first match is used; other notices do not affect the state.
_STATES = {
    PARTIALLY: re.compile(r"partial\w*[\W_]*(?:retract|withdraw|remov)", re.IGNORECASE),
    RETRACTED: re.compile("retract", re.IGNORECASE),
    WITHDRAWN: re.compile("withdraw|removal|removed", re.IGNORECASE),
    "expression of concern": re.compile("concern", re.IGNORECASE),
    "corrected": re.compile("correct|corrigend|errat", re.IGNORECASE),
}
_GRAVEST_FIRST = (
    RETRACTED,
    WITHDRAWN,
    PARTIALLY,
    "expression of concern",
    "corrected",
)
_NO = frozenset(("", "0", "0.0", "false", "no", "n", "none", "nan", "null", "na", "n/a", "-"))
_YES = frozenset(("1", "1.0", "true", "yes", "y", "x"))
# Separates a notice's state from the ids (DOI, PubMed, PMC) of the papers that it is about.
NOTICE = " notice of "
_KEY = r"(?:10\.[0-9.]+/\S+|(?:PMC)?[0-9]{1,9})"
_NOTICE = re.compile(rf"(?:^|; )({'|'.join(_GRAVEST_FIRST)}){NOTICE}({_KEY}(?: {_KEY})*)(?=; |$)")
_ARTICLE = r"(?:article|paper|chapter|preprint|manuscript|publication|study|title)"
# "RETRACTED ARTICLE: X", "[Withdrawn] X" and, of Web of Science, "X (Retracted article. ..)".
_TITLE_BEFORE = re.compile(
    rf"^\W*(?P<state>(?:partial(?:ly)? )?retracted|withdrawn|(?:temporarily )?removed|"
    rf"(?:temporary )?removal)(?: {_ARTICLE})?\s*(?:[\])]\s*[:.–—-]?|:|[–—]| - )\s*(?=\S)",
    re.IGNORECASE,
)
_TITLE_AFTER = re.compile(
    rf"\s*[(\[](?P<state>(?:partial(?:ly)? )?retracted|withdrawn)(?: {_ARTICLE})?"
    r"(?:[\s.,:;][^()\[\]]*)?[)\]]\W*$",
    re.IGNORECASE,
)
# "Retraction note to: X", "Author correction: X", "Statement of retraction", "Erratum".
_KINDS = (
    r"(?:partial )?retractions?|withdrawals?|(?:editorial |publisher's )?expressions? of concern|"
    r"correct(?:ions?|ed)|corrigend(?:um|a)|errat(?:um|a)|addend(?:um|a)|removal"
)
_NOTICE_TITLE = re.compile(
    r"\W*(?:(?:editorial|editor's|editors'|author|author's|publisher|publisher's|editorial office)"
    r"\W+)?(?:(?:notice|statement|note|letter|announcement|request) (?:of|for|on) (?:the )?)?"
    rf"(?P<kind>{_KINDS})(?: (?:and (?:{_KINDS}|replacement)))?"
    r"(?:\W+(?:note|notice|statement|letter))?"
    r"(?:\W*$|\s*[:.–—]|\s+-\s|\s+(?:to|of|for|on|regarding)\b\W*"
    r"(?:[\"“‘'«:]|(?:the )?article|the paper|vol\b|\d|doi\b|"
    r"(?:two|three|four|five|six|several)\b))",
    re.IGNORECASE,
)
# Columns of Retraction Watch's file, and PubMed ids in them: "123; 124.0".
_WATCH = (
    "RetractionNature",
    "OriginalPaperDOI",
    "OriginalPaperPubMedID",
)
_REINSTATED = "reinstatement"
_PMID = re.compile(r"(?<![0-9.])0*([1-9][0-9]{0,8})(?![0-9])")


def title_state(title: str) -> str:
    """Return the state in a paper's own title, such as "RETRACTED: X"; "" if it has none."""
    line = " ".join(title.split())
    match = _TITLE_BEFORE.match(line) or _TITLE_AFTER.search(line)
    if match is None:
        return ""
    return notice_state(match["state"])


def plain_title(title: str) -> str:
    """Remove the paper's state from its title."""
    line = " ".join(title.split())
    without_prefix = _TITLE_BEFORE.sub("", line, count=1)
    return _TITLE_AFTER.sub("", without_prefix)


def is_notice_title(title: str) -> bool:
    """Whether a title belongs to a notice: "Retraction: X", "Erratum to: X"."""
    line = " ".join(title.split())
    if _TITLE_BEFORE.match(line):
        return False
    return _NOTICE_TITLE.match(line) is not None


def with_title_state(title: str, retracted: str) -> str:
    """Add the state in a title; a mere flag on a notice is about the paper that it names."""
    if is_notice_title(title):
        return "" if retracted in _STATES else retracted
    own = title_state(title)
    return worst((retracted, own))


def notice_state(kind: str, *details: str) -> str:
    """Return our state for a notice's kind, with its day or DOI; "" for a harmless notice."""
    for state, sign in _STATES.items():
        if sign.search(kind):
            parts = filter(None, (state, *details))
            return ", ".join(parts)
    return ""


def notice_about(kind: str, keys: Iterable[str]) -> str:
    """Describe a notice that is itself a paper, with the ids of the papers that it is about."""
    state = notice_state(kind)
    distinct = dict.fromkeys(filter(None, keys))
    if not state or not distinct:
        return ""
    listed = " ".join(distinct)
    return f"{state}{NOTICE}{listed}"


def worst(states: Iterable[str]) -> str:
    """Choose the gravest of several states, and keep all notices about other papers."""
    own: list[str] = []
    notices: dict[str, dict[str, None]] = {}
    for text in states:
        for match in _NOTICE.finditer(text):
            keys = match[2].split()
            known_keys = notices.setdefault(match[1], {})
            known_keys.update(dict.fromkeys(keys))
        state = own_state(text)
        if state:
            own.append(state)

    parts: list[str] = []
    if own:
        gravest = min(own, key=_grade)
        parts.append(gravest)
    for state in sorted(notices, key=_grade):
        listed = " ".join(notices[state])
        parts.append(f"{state}{NOTICE}{listed}")
    return "; ".join(parts)


def _grade(state: str) -> list[bool]:
    return [not state.startswith(name) for name in _GRAVEST_FIRST]


def own_state(retracted: str) -> str:
    """Return the paper's own state, without its notices about other papers."""
    if NOTICE not in retracted:
        return retracted
    own = _NOTICE.sub("", retracted)
    return own.strip("; ")


def add_notice(notices: dict[str, str], retracted: str, doi: str) -> None:
    """Add a notice's state under the id of each paper that it is about."""
    for match in _NOTICE.finditer(retracted):
        parts = filter(None, (match[1], doi))
        state = ", ".join(parts)
        for key in match[2].split():
            before = notices.get(key, "")
            notices[key] = worst((before, state))


def noticed_state(notices: Mapping[str, str], id: str, doi: str) -> str:
    """Return a paper's state by the notices about it; "" if there are none."""
    key = plain_doi(doi) or doi
    by_doi = notices.get(key, "")
    by_id = notices.get(id, "")
    return worst((by_doi, by_id))


def cell_state(text: str) -> str:
    """Return the state in a cell `retracted`: yes or no, a day, or the notice."""
    line = " ".join(text.split())
    answer = line.lower()
    if answer in _NO:
        return ""
    if answer in _YES:
        return RETRACTED
    first, _, _ = line.partition(",")
    if first in _STATES or _NOTICE.search(line):
        return line
    return notice_state(line, line) or f"{RETRACTED}, {line}"


@dataclass(frozen=True)
class Notices:
    """States by DOI and by PubMed id; "" if a paper was reinstated."""

    by_doi: Mapping[str, str]
    by_pmid: Mapping[str, str]

    def of(self, id: str, doi: str) -> str | None:
        """Return the state of a paper; None if there is no notice about it."""
        notice = None
        if doi:
            key = plain_doi(doi) or doi
            notice = self.by_doi.get(key)
        if notice is None:
            notice = self.by_doi.get(id.lower())
        if notice is None:
            notice = self.by_pmid.get(id)
        return notice


def read_notices(path: Path) -> Notices:
    """Read a CSV file of Retraction Watch: the gravest notice after a reinstatement is used.

    Raises `InputError` if a column is missing.
    """
    by_doi: dict[str, str] = {}
    by_pmid: dict[str, str] = {}
    for row in _watch_rows(path):
        kind = row["RetractionNature"] or ""
        day = _iso_day(row.get("RetractionDate") or "")
        notice_doi = plain_doi(row.get("RetractionDOI") or "")
        state = notice_state(kind, day, notice_doi)
        is_reinstated = kind.strip().lower() == _REINSTATED
        if not state and not is_reinstated:
            continue

        dois = plain_dois(row["OriginalPaperDOI"] or "")
        for doi in dois:
            before = by_doi.get(doi, "")
            by_doi[doi] = state and worst((state, before))
        pmids = _PMID.findall(row["OriginalPaperPubMedID"] or "")
        for pmid in pmids:
            before = by_pmid.get(pmid, "")
            by_pmid[pmid] = state and worst((state, before))
    return Notices(by_doi, by_pmid)


def _watch_rows(path: Path) -> list[dict[str, str | None]]:
    """Read the rows of a file of Retraction Watch, sorted by date. Raises `InputError`."""
    problems = Problems()
    lines = (line for _, line in any_lines(path, problems))
    csv.field_size_limit(2**31 - 1)
    try:
        rows = csv.DictReader(lines)
        header = [name.strip() for name in rows.fieldnames or ()]
        problems.raise_if_any()
        for name in _WATCH:
            if name not in header:
                columns = ", ".join(header[:8]) or "none"
                reason = f"no such column; a file of Retraction Watch has it; there are: {columns}"
                raise InputError(path, field=name, reason=reason)
        rows.fieldnames = header
        ordered = sorted(rows, key=lambda row: _day_number(row.get("RetractionDate") or ""))
    except csv.Error as error:
        raise InputError(path, reason=f"is not a CSV file: {error}") from None
    problems.raise_if_any()
    return ordered


def _day_number(date: str) -> int:
    """Convert Retraction Watch's date, month first, to a number: "5/12/2020 0:00" is in May."""
    match = re.match(r"\s*([0-9]{1,2})/([0-9]{1,2})/([0-9]{4})", date)
    if match:
        month, day, year = (int(part) for part in match.groups())
        if month > 12:
            month, day = day, month
        return year * 10_000 + month * 100 + day
    return first_day(date)


def _iso_day(date: str) -> str:
    number = _day_number(date)
    if not number:
        return ""
    if not re.match(r"\s*[0-9]{1,2}/[0-9]{1,2}/", date):
        return iso_date(date)
    year = number // 10_000
    month = number // 100 % 100
    day = number % 100
    return f"{year:04}-{month:02}-{day:02}"
