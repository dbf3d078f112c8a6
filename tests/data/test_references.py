"""RIS and NBIB as reference managers and PubMed export them."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from tests.data.reading import read, refused
from tests.data.test_bibtex import BIBTEX

RIS = """TY  - JOUR
TI  - Masks and
 outbreaks
AU  - Doe, Jane
A1  - Roe, Richard
T2  - The Lancet
AB  - First line.
second - line.
DA  - in press
Y1  - 2019/10//undefined
PY  - 2019
ID  - 7
DO  - https://doi.org/10.1000/ABC
UR  - https://example.org/x
LA  - English
ER  -

TY  - BOOK
T1  - No id
Y1  - soon
"""
READ = [
    Paper(
        Source(
            "10.1000/abc",
            "Masks and outbreaks",
            "First line. second - line.",
            ("Jane Doe", "Richard Roe"),
            "The Lancet",
            "2019-10",
        ),
        "10.1000/abc",
        "https://example.org/x",
        "en",
    ),
]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.ris", RIS.encode()),
        ("a.txt", ("\ufeff" + RIS).replace("\n", "\r\n").encode()),
        ("a.ris", RIS.replace("\n", "\r").encode()),
        ("a.ris", RIS.encode("utf-16")),
    ],
)
def test_ris(tmp_path: Path, name: str, data: bytes) -> None:
    papers, notes = read(tmp_path / name, data)
    assert papers[:1] == READ
    # The last one, without an end, is read; its id does not change.
    assert papers[1].source.title == "No id" and papers[1].source.id == "650b80e5979c28b7"
    assert "references without an id" in notes and "unreadable dates: 1" in notes


NBIB = """
PMID- 111
OWN - NLM
DP  - 2020 May 12
TI  - Masks and
      outbreaks.
LID - S1 [pii]
LID - 10.1000/xyz [doi]
AB  - One
      two - three.
OAB - Otro.
FAU - Doe, Jane
AU  - Doe J
CN  - The Group
LA  - eng
JT  - The Lancet

PMID- 112
TI  - [Not Available].
TT  - Masken.
OAB - Ein Text.
"""


@pytest.mark.parametrize("name", ["a.nbib", "pubmed-masks-set.txt"])
def test_nbib(tmp_path: Path, name: str) -> None:
    papers, notes = read(tmp_path / name, NBIB)
    assert papers == [
        Paper(
            Source(
                "111",
                "Masks and outbreaks.",
                "One two - three.",
                ("Jane Doe", "The Group"),
                "The Lancet",
                "2020-05-12",
            ),
            "10.1000/xyz",
            "https://pubmed.ncbi.nlm.nih.gov/111/",
            "en",
        ),
        Paper(Source("112", "Masken.", "Ein Text."), url="https://pubmed.ncbi.nlm.nih.gov/112/"),
    ]
    assert "abstracts" in notes and notes.endswith(f": 1 (first: {name}:2)")


REFWORKS = """Exported from RefWorks

RT Book, Section
SR Print(0)
ID 12
A1 Doe,Jane
A1 Roe,Richard
A2 Poe,Edgar
T1 Masks in
UK schools
T2 Handbook of Outbreaks
YR 2020
FD Mar 15
AB First line.

WE found none.
NO DOI: 10.5555/ABC
LK https://example.org/x
RT Journal Article
ID 12
A2 Poe,Edgar
T2 No other title
YR 2021
"""


@pytest.mark.parametrize("name", ["a.txt", "a.ris", "a.csv", "a.json"])
def test_refworks(tmp_path: Path, name: str) -> None:
    papers, _ = read(tmp_path / name, REFWORKS)
    source = papers[0].source
    assert (source.title, source.abstract) == ("Masks in UK schools", "First line. WE found none.")
    assert source.authors == ("Jane Doe", "Richard Roe")
    assert (source.venue, source.date) == ("Handbook of Outbreaks", "2020-03-15")
    assert (papers[0].doi, papers[0].url) == ("10.5555/abc", "https://example.org/x")
    other = papers[1].source
    assert (other.title, other.authors) == ("No other title", ("Edgar Poe",))
    assert (other.date, other.venue) == ("2021", "")
    assert other.id != source.id


def test_references_are_known_by_how_they_begin(tmp_path: Path) -> None:
    for name, text in (("a.json", BIBTEX), ("b.ris", BIBTEX), ("c.bib", RIS), ("d.jsonl", NBIB)):
        assert len(read(tmp_path / name, text)[0]) == (1 if text is BIBTEX else 2)


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.bib", "words", "BibTeX"),
        ("a.ris", "words", "TY"),
    ],
)
def test_what_is_broken_is_one_line(tmp_path: Path, name: str, text: str, reason: str) -> None:
    refused(tmp_path / name, text, reason)
