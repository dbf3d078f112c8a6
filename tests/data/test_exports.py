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
NAME = st.lists(LETTER, min_size=4, max_size=9).map(lambda letters: "".join(letters).capitalize())
PERSON = st.tuples(NAME, st.one_of(NAME, st.tuples(NAME, NAME).map(" ".join)))
WORD = st.text(LETTERS + "0123456789%+=*#'\"(),;:|-", min_size=1, max_size=8)
DATE = st.one_of(
    st.tuples(st.integers(1950, 2024)),
    st.tuples(st.integers(1950, 2024), st.integers(1, 12)),
    st.tuples(st.integers(1950, 2024), st.integers(1, 12), st.integers(1, 28)),
)
CODE = st.text("abcdefgh0123456789", min_size=2, max_size=8)


def sentence(start: str) -> st.SearchStrategy[str]:
    words = st.lists(WORD, min_size=1, max_size=9)
    return words.map(lambda drawn: " ".join([start, *drawn, "end"]))


@st.composite
def drawn_records(draw: st.DrawFn) -> list[Drawn]:
    records: list[Drawn] = []
    for number in range(draw(st.integers(1, 4))):
        record = Drawn(
            title=draw(sentence(f"Masks{number}")),
            abstract=draw(st.one_of(st.just(""), sentence("Outbreaks"))),
            people=tuple(draw(st.lists(PERSON, min_size=1, max_size=4, unique=True))),
            venue=f"Journal of {draw(NAME)} Studies",
            date=draw(DATE),
            doi=draw(st.sampled_from(["", f"10.5555/n{number}.{draw(CODE)}"])),
            pmid=str(10_000_000 + 7 * number + draw(st.integers(0, 6))),
            lang=draw(st.sampled_from(sorted(LANGUAGES))),
            url=f"https://example.org/{draw(CODE)}",
            is_retracted=draw(st.booleans()),
        )
        records.append(record)
    return records


def read(
    export: Export, records: Sequence[Drawn], lenient: bool = False
) -> tuple[list[Paper], PaperFiles]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / export.name
        path.write_bytes(export.write(records))
        files = PaperFiles.of(str(path), lenient=lenient)
        return list(files), files


def check(paper: Paper, record: Drawn, export: Export) -> None:
    """Compare a paper with the record, field by field."""
    source = paper.source
    expected = {
        "title": record.title,
        "abstract": "" if "abstract" in export.lacks else record.abstract,
        "venue": record.venue,
    }
    assert {name: getattr(source, name) for name in expected} == expected
    if export.name == "pubmed.csv":
        assert source.authors == tuple(f"{family} {first[0]}" for family, first in record.people)
    else:
        assert source.authors == tuple(record.names)
    date = replace(record, date=record.date[: export.date_parts]).iso
    if "day" in export.lacks:
        assert first_day(source.date) == first_day(record.iso)
    else:
        assert (first_day(source.date), last_day(source.date)) == (first_day(date), last_day(date))
    assert paper.doi == ("" if "doi" in export.lacks else record.doi)
    assert paper.lang == ("" if "lang" in export.lacks else record.lang)
    if "url" not in export.lacks:
        assert paper.url == record.url
    assert paper.is_retracted == ("retracted" not in export.lacks and record.is_retracted)


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
@settings(max_examples=5, deadline=None)
@given(records=drawn_records())
def test_every_field_of_every_export_is_read(export: Export, records: list[Drawn]) -> None:
    papers, files = read(export, records)
    assert len(papers) == len(records) and files.left_out == 0
    for paper, record in zip(papers, records, strict=True):
        check(paper, record, export)


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
@settings(max_examples=3, deadline=None)
@given(records=drawn_records(), blanks=st.integers(0, 3))
def test_records_in_are_those_read_and_left_out(
    export: Export, records: list[Drawn], blanks: int
) -> None:
    blank = replace(records[0], title="", abstract="", doi="")
    papers, files = read(export, [*records, *[blank] * blanks], lenient=True)
    assert len(papers) == len(records) and files.left_out == blanks
    assert len(files.problems) == 0


@pytest.mark.parametrize("export", EXPORTS, ids=lambda export: export.name)
def test_one_empty_record_refuses_nothing_and_more_than_a_tenth_are_an_error(
    export: Export,
) -> None:
    people = (("Doe", "Jane"),)
    record = Drawn("Masks", "", people, "Journal", (2020,), "", "1", "en", "https://a.org", False)
    records = [replace(record, title=f"Masks {n}", pmid=str(n)) for n in range(1, 11)]
    blank = replace(record, title="", people=())
    papers, files = read(export, [*records[:2], blank])
    assert (len(papers), files.left_out) == (2, 1)
    papers, files = read(export, [*records, blank])
    assert (len(papers), files.left_out) == (10, 1)
    with refused(InputError, "2 of 12", "--lenient"):
        read(export, [*records, blank, blank])
