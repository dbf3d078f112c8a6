"""Records drawn at random, written as databases and reference managers do, and read back."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import InputError
from claim2source.data.paper_files import PaperFiles
from claim2source.data.papers import Paper, first_day, last_day
from tests.data.export_writers import EXPORTS, LANGUAGES, Drawn, Export
from tests.refusals import refused

LETTERS = "abcdefghijklmnopqrstuvwxyzäöüßéñøžřжяαβ漢字"
# By letters, because hypothesis would use words of the code, such as School, as texts.
LETTER = st.sampled_from("abcdefghijklmnoprstuvwxyzäöéøžř")
DRAWN_LETTERS = st.lists(LETTER, min_size=4, max_size=9)
NAME = DRAWN_LETTERS.map(lambda letters: "".join(letters).capitalize())
TWO_NAMES = st.tuples(NAME, NAME)
FIRST_NAME = st.one_of(NAME, TWO_NAMES.map(" ".join))
PERSON = st.tuples(NAME, FIRST_NAME)
PEOPLE = st.lists(
    PERSON,
    min_size=1,
    max_size=4,
    unique=True,
)
WORD = st.text(
    LETTERS + "0123456789%+=*#'\"(),;:|-",
    min_size=1,
    max_size=8,
)
YEAR = st.integers(1950, 2024)
MONTH = st.integers(1, 12)
DAY = st.integers(1, 28)
DATE = st.one_of(
    st.tuples(YEAR),
    st.tuples(YEAR, MONTH),
    st.tuples(YEAR, MONTH, DAY),
)
CODE = st.text(
    "abcdefgh0123456789",
    min_size=2,
    max_size=8,
)


def sentence(start: str) -> st.SearchStrategy[str]:
    words = st.lists(WORD, min_size=1, max_size=9)
    return words.map(lambda drawn: " ".join([start, *drawn, "end"]))


ABSTRACT = st.one_of(st.just(""), sentence("Outbreaks"))
LANGUAGE = st.sampled_from(sorted(LANGUAGES))


@st.composite
def drawn_records(draw: st.DrawFn) -> list[Drawn]:
    records: list[Drawn] = []
    count = draw(st.integers(1, 4))
    for number in range(count):
        title = draw(sentence(f"Masks{number}"))
        abstract = draw(ABSTRACT)
        people = draw(PEOPLE)
        venue = f"Journal of {draw(NAME)} Studies"
        date = draw(DATE)
        doi = f"10.5555/n{number}.{draw(CODE)}"
        drawn_doi = draw(st.sampled_from(["", doi]))
        first_pmid = 10_000_000 + 7 * number
        pmid = first_pmid + draw(st.integers(0, 6))
        record = Drawn(
            title=title,
            abstract=abstract,
            people=tuple(people),
            venue=venue,
            date=date,
            doi=drawn_doi,
            pmid=str(pmid),
            lang=draw(LANGUAGE),
            url=f"https://example.org/{draw(CODE)}",
            is_retracted=draw(st.booleans()),
        )
        records.append(record)
    return records


def read(
    export: Export,
    records: Sequence[Drawn],
    lenient: bool = False,
) -> tuple[list[Paper], PaperFiles]:
    content = export.write(records)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / export.name
        path.write_bytes(content)
        files = PaperFiles.of(str(path), lenient=lenient)
        papers = list(files)
        return papers, files


def check(paper: Paper, record: Drawn, export: Export) -> None:
    """Compare a paper with the record, field by field."""
    lacks = export.lacks
    source = paper.source
    assert source.title == record.title
    assert source.abstract == ("" if "abstract" in lacks else record.abstract)
    assert source.venue == record.venue
    if export.name == "pubmed.csv":
        names = [f"{family} {first[0]}" for family, first in record.people]
        assert source.authors == tuple(names)
    else:
        assert source.authors == tuple(record.names)

    date_parts = record.date[: export.date_parts]
    date = replace(record, date=date_parts).iso
    if "day" in lacks:
        assert first_day(source.date) == first_day(record.iso)
    else:
        assert first_day(source.date) == first_day(date)
        assert last_day(source.date) == last_day(date)

    assert paper.doi == ("" if "doi" in lacks else record.doi)
    assert paper.lang == ("" if "lang" in lacks else record.lang)
    if "url" not in lacks:
        assert paper.url == record.url
    is_known_as_retracted = "retracted" not in lacks and record.is_retracted
    assert paper.is_retracted == is_known_as_retracted


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
@settings(max_examples=5, deadline=None)
@given(records=drawn_records())
def test_every_field_of_every_export_is_read(export: Export, records: list[Drawn]) -> None:
    papers, files = read(export, records)
    assert len(papers) == len(records)
    assert files.left_out == 0
    for paper, record in zip(papers, records, strict=True):
        check(paper, record, export)


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
@settings(max_examples=3, deadline=None)
@given(records=drawn_records(), blanks=st.integers(0, 3))
def test_records_in_are_those_read_and_left_out(
    export: Export,
    records: list[Drawn],
    blanks: int,
) -> None:
    blank = replace(
        records[0],
        title="",
        abstract="",
        doi="",
    )
    with_blanks = [*records, *[blank] * blanks]
    papers, files = read(export, with_blanks, lenient=True)
    assert len(papers) == len(records)
    assert files.left_out == blanks
    assert len(files.problems) == 0


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_one_empty_record_refuses_nothing_and_more_than_a_tenth_are_an_error(
    export: Export,
) -> None:
    record = Drawn(
        title="Masks",
        abstract="",
        people=(("Doe", "Jane"),),
        venue="Journal",
        date=(2020,),
        doi="",
        pmid="1",
        lang="en",
        url="https://a.org",
        is_retracted=False,
    )
    records: list[Drawn] = []
    for number in range(1, 11):
        numbered = replace(
            record,
            title=f"Masks {number}",
            pmid=str(number),
        )
        records.append(numbered)
    blank = replace(record, title="", people=())
    papers, files = read(export, [*records[:2], blank])
    assert len(papers) == 2
    assert files.left_out == 1
    papers, files = read(export, [*records, blank])
    assert len(papers) == 10
    assert files.left_out == 1
    with refused(InputError, "2 of 12", "--lenient"):
        read(export, [*records, blank, blank])
