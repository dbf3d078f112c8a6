"""Quirks of real exports that are missing from the descriptions of their formats."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from openpyxl import Workbook

from claim2source.core.errors import InputError
from claim2source.data.paper_files import PaperFiles
from tests.data.reading import read, refused, write
from tests.data.test_paper_tables import packed

NOTE = {"key": "N1", "version": 2, "itemType": "note", "note": "<p>x</p>"}
FILE = {"key": "A1", "version": 2, "itemType": "attachment", "title": "Full Text PDF"}
ITEM = {
    "key": "K1",
    "version": 2,
    "itemType": "preprint",
    "title": "Masks",
    "extra": "DOI: 10.5555/A",
}


def test_notes_and_attachments_are_left_out_by_their_type(tmp_path: Path) -> None:
    """They may be the majority of a library, and some have a title."""
    items = json.dumps([NOTE, FILE, {"data": FILE, "key": "A2"}, ITEM])
    csv = "Key,Item Type,Title,Abstract Note\nN1,note,,\nA1,attachment,Full Text PDF,\nK1,book,Masks,\n"
    for name, data, count in (("a.json", items, 3), ("a.csv", csv, 2)):
        files = PaperFiles.of(str(write(tmp_path / name, data)))
        assert [paper.source.title for paper in files] == ["Masks"]
        assert (files.left_out, files.without_text) == (count, 0)
        assert (
            f"notes and attachments of a reference manager, skipped: {count}" in files.omissions()
        )


def test_a_doi_in_zoteros_extra_field(tmp_path: Path) -> None:
    papers, _ = read(tmp_path / "a.json", json.dumps([ITEM]))
    assert (papers[0].doi, papers[0].source.id) == ("10.5555/a", "10.5555/a")


RECORDS = {
    "first author by another tag": (
        "a.ris",
        "TY  - JOUR\nTI  - T\nA1  - Doe, Jane\nAU  - Roe, Richard\nAU  - Doe, John\nER  - \n",
        ("Jane Doe", "Richard Roe"),
    ),
    "two authors of one initial": (
        "a.ris",
        "TY  - JOUR\nTI  - T\nAU  - Zhang, Wei\nAU  - Zhang, Wen\nER  - \n",
        ("Wei Zhang", "Wen Zhang"),
    ),
    "editors of a book": (
        "a.ris",
        "TY  - BOOK\nTI  - T\nA2  - Doe, Jane\nED  - Roe, Richard\nER  - \n",
        ("Jane Doe",),
    ),
    "numbered references of Ovid": (
        "ovid.txt",
        "1.\nTY  - JOUR\nTI  - T\nA1  - Doe, Jane\nER  - \nLink to the full text\n\n2.\n",
        ("Jane Doe",),
    ),
    "one space before the hyphen": (
        "a.txt",
        "TY - JOUR\nTI - T\nAU - Doe, Jane\nER -\n",
        ("Jane Doe",),
    ),
    "an e-mail of Web of Science": (
        "a.ciw",
        "FN x\nVR 1.0\nPT J\nTI T\nAU Doe, Jane (jane@example.org)\n   Roe, Richard\nCA The Group\nER\n",
        ("Jane Doe", "Richard Roe", "The Group"),
    ),
    "ERIC's, without a PMID": (
        "a.nbib",
        "\nOWN - ERIC\nTI  - T\nAU  - Doe, Jane\nOID - EJ12\nLID - http://eric.ed.gov/?id=EJ12\n",
        ("Jane Doe",),
    ),
    "two types of one reference": (
        "a.enw",
        "%0 Serial\n%0 Audio\n%A Doe, Jane\n%T T\n",
        ("Jane Doe",),
    ),
    "a reference without a type": ("a.enw", "%T T\n%A Doe, Jane\n\n%T U\n", ("Jane Doe",)),
    "an abstract with a blank line": (
        "a.enw",
        "%0 Report\n%X One.\n\nTwo.\n%T T\n%A Doe, Jane\n\n\n%0 Report\n%T U\n",
        ("Jane Doe",),
    ),
    "placeholders": (
        "a.ris",
        "TY  - JOUR\nTI  - T\nAU  - [No author name available]\nAB  - [No abstract available]\nER  - \n",
        (),
    ),
    "no author": ("a.csv", "Title,Authors,DOI\nT,[No author name available],\n", ()),
    "Springer's names": (
        "a.csv",
        "Item Title,Item DOI,Authors\nT,10.5555/a,Jane McDoeÅsa Roe-RiceXiao (Lu) ZhangJan LeRoy\n",
        ("Jane McDoe", "Åsa Roe-Rice", "Xiao (Lu) Zhang", "Jan LeRoy"),
    ),
    "Scopus's old names": (
        "a.csv",
        'Title,Authors,EID\nT,"Doe J., Roe R.",2-s2.0-1\n',
        ("Doe J.", "Roe R."),
    ),
    "groups of Web of Science": (
        "a.txt",
        'PT\tTI\tAF\tAU\tCA\tPY\tUT\nJ\t"Quoted" T\tDoe, Jane\tDoe, J\tThe Group\t2020\tWOS:1\n',
        ("Jane Doe", "The Group"),
    ),
}


@pytest.mark.parametrize("case", RECORDS)
def test_authors_of_real_exports(tmp_path: Path, case: str) -> None:
    name, data, authors = RECORDS[case]
    papers, _ = read(tmp_path / name, data)
    assert papers[0].source.title.endswith("T")
    assert papers[0].source.authors[: len(authors) or 1] == authors
    assert papers[0].source.abstract in ("", "One. Two.")


DATES = (
    ("a.ciw", "PT J\nTI T\nPD MAR-APR\nPY 2020\nER\n", "2020-03"),
    ("a.ciw", "PT J\nTI T\nPD SPR\nPY 2020\nER\n", "2020"),
    ("a.ciw", "PT J\nTI T\nEA FEB 2021\nER\n", "2021-02"),
    ("a.ris", "TY  - JOUR\nTI  - T\nPY  - 2020\nDA  - May 12\nER  - \n", "2020-05-12"),
    ("a.ris", "TY  - JOUR\nTI  - T\nY1  - 2019///\nER  - \n", "2019"),
    ("a.csv", "Title,Publication Year,Date\nT,2020,\n", "2020"),
    ("a.csv", "Title,Year,Publication Date\nT,2020,2020-05\n", "2020-05"),
)


@pytest.mark.parametrize(("name", "data", "date"), DATES)
def test_dates_are_as_exact_as_they_are_known(
    tmp_path: Path, name: str, data: str, date: str
) -> None:
    assert read(tmp_path / name, data)[0][0].source.date == date


LANCET = "Lancet (London) (2020) 395:10223 (497-506)"
EMBASE = (
    (f"{LANCET}. Date of Publication: 15 Feb 2020", "2020-02-15", ""),
    (f"{LANCET}. Date of Publication: 1 Dec 2019. DOI: 10.5555/B.", "2019-12-01", "10.5555/b"),
    (f"{LANCET}. Date of Publication: May 2020", "2020-05", ""),
    (f"{LANCET}. Date of Publication: 2020. Date of Publication: 2021", "2020", ""),
    (f"{LANCET}. DOI: 10.5555/b, 10.5555/c", "2020", ""),
    ("Lancet (London) (2020). Date of Publication: 15 Feb 2020", "2020-02-15", ""),
)


@pytest.mark.parametrize(("cell", "date", "doi"), EMBASE)
def test_the_source_of_embase(tmp_path: Path, cell: str, date: str, doi: str) -> None:
    header = "Title,Author Names,Source,Article Language,Embase Accession ID,Medline PMID"
    row = f'T,"Doe J.","{cell}",English,2004567,32000001'
    paper = read(tmp_path / "a.csv", f"{header}\n{row}\n")[0][0]
    assert (paper.source.venue, paper.source.date, paper.doi) == ("Lancet (London)", date, doi)
    assert (paper.source.id, paper.lang) == (doi or "32000001", "en")
    assert paper.url.endswith("/32000001/")


@pytest.mark.parametrize("others", ["", ',"Roe R."'])
def test_a_field_a_line_of_embase(tmp_path: Path, others: str) -> None:
    lines = ['"TITLE","Masks"', f'"AUTHOR NAMES","Doe J."{others}', f'"SOURCE","{LANCET}"']
    lines += ['"MEDLINE PMID","32000001"', '"ABSTRACT","Masks help."', ""]
    lines += ['"TITLE","Gel"', '"DOI","10.5555/b"']
    papers, _ = read(tmp_path / "a.csv", "\n".join(lines))
    assert [paper.source.title for paper in papers] == ["Masks", "Gel"]
    source = papers[0].source
    assert source.authors == (("Doe J.", "Roe R.") if others else ("Doe J.",))
    assert (source.abstract, source.venue, source.date) == (
        "Masks help.",
        "Lancet (London)",
        "2020",
    )
    assert (source.id, papers[1].doi) == ("32000001", "10.5555/b")


def test_cells_of_their_own_count_more_than_embases_source(tmp_path: Path) -> None:
    header = "Title,Source,Publication Year,DOI"
    row = f'T,"{LANCET}. Date of Publication: 15 Feb 2020. DOI: 10.5555/b",2019,10.5555/a'
    paper = read(tmp_path / "a.csv", f"{header}\n{row}\n")[0][0]
    assert (paper.source.date, paper.doi) == ("2019", "10.5555/a")
    other = read(tmp_path / "b.csv", "Title,Source\nT,Annals (2020)\n")[0][0].source
    assert (other.venue, other.date) == ("Annals (2020)", "")


def test_ids_of_tables_are_theirs_or_made(tmp_path: Path) -> None:
    rows = "id,Title,DOI,PMID,Key\n7,A,,,\nan id,B,10.5555/B,,\n,C,,12345678,k\n,D,,,k2\n,E,,,\n"
    papers, notes = read(tmp_path / "a.csv", rows)
    ids = [paper.source.id for paper in papers]
    assert ids[:4] == ["7", "10.5555/b", "12345678", "k2"] and len(ids[4]) == 16
    assert "references without an id" in notes
    assert papers[2].url == "https://pubmed.ncbi.nlm.nih.gov/12345678/"


@pytest.mark.parametrize("name", ["a.csv", "a.xlsx"])
def test_only_a_title_or_an_abstract_is_asked_for(tmp_path: Path, name: str) -> None:
    data: str | bytes = "Nummer,Ueberschrift,Year\n1,T,2020\n"
    if name == "a.xlsx":
        data = sheet(["Nummer", "Ueberschrift", "Year"], [1, "T", 2020])
    with pytest.raises(InputError) as error:
        read(tmp_path / name, data)
    problem = error.value.problems[0]
    assert problem.field == "title"
    assert "--columns title=COLUMN" in problem.reason and "Ueberschrift" in problem.reason
    papers, _ = read(tmp_path / name, data, {"title": "Ueberschrift"})
    assert [(paper.source.title, paper.source.date) for paper in papers] == [("T", "2020")]


def sheet(*rows: list[object]) -> bytes:
    book = Workbook()
    active = book.active
    assert active is not None
    for row in rows:
        active.append(row)
    buffer = io.BytesIO()
    book.save(buffer)
    return buffer.getvalue()


def test_a_workbook_is_known_by_what_is_in_it(tmp_path: Path) -> None:
    data = sheet([None, None], ["Title ", "Year"], ["T", 2020.0], [None, None], ["U", None])
    papers, _ = read(tmp_path / "table.xls", data)
    assert [(paper.source.title, paper.source.date) for paper in papers] == [
        ("T", "2020"),
        ("U", ""),
    ]
    refused(tmp_path / "empty.xlsx", sheet(), "empty")
    refused(tmp_path / "text.xlsx", "Title,Year\n", "Excel workbook")


def test_rows_of_a_workbook_whose_size_is_wrong_are_read(tmp_path: Path) -> None:
    """Some programs write that it has one cell."""
    import zipfile

    buffer = io.BytesIO()
    source = zipfile.ZipFile(io.BytesIO(sheet(["Title", "Year"], ["T", 2020], ["U", 2021])))
    with zipfile.ZipFile(buffer, "w") as archive:
        for item in source.namelist():
            content = source.read(item)
            archive.writestr(
                item, content.replace(b'<dimension ref="A1:B3"', b'<dimension ref="A1"')
            )
    assert len(read(tmp_path / "a.xlsx", buffer.getvalue())[0]) == 2


def test_rows_with_empty_cells_too_many_are_read(tmp_path: Path) -> None:
    assert len(read(tmp_path / "a.csv", "Title,Year\nT,2020,,\nU,2021\n")[0]) == 2
    refused(tmp_path / "a.csv", "Title,Year\nT,2020,x\n", "a.csv:2: 3 columns")


def test_authors_that_are_objects_in_parquet(tmp_path: Path) -> None:
    authors = pa.array([[{"name": "Jane Doe"}, {"name": "Richard Roe"}]])
    source = pa.array([{"title": "Journal"}])
    data = packed({"title": pa.array(["T"]), "authors": authors, "source": source})
    papers, _ = read(tmp_path / "a.parquet", data)
    assert papers[0].source.authors == ("Jane Doe", "Richard Roe")


JSON_RECORDS = (
    # A single key of Crossref does not make a work.
    ({"title": "T", "authors": ["Jane Doe"], "published": "2020-05", "journal": "J"}, "2020-05"),
    ({"title": "T", "authors": "Doe, Jane", "year": 2020, "journal": {"name": "J"}}, "2020"),
    (
        {
            "corpusid": 7,
            "externalids": {"doi": "10.5555/a"},
            "content": {
                "text": "T and more",
                "annotations": {"title": '[{"start": 0, "end": 1}]', "abstract": None},
            },
            "venue": "J",
            "year": 2020,
            "authors": [{"name": "Jane Doe"}],
        },
        "2020",
    ),
    (
        {
            "paper_id": "a1",
            "metadata": {"title": "T", "authors": [{"first": "Jane", "last": "Doe"}]},
            "abstract": [{"text": "One."}, {"text": "Two."}],
            "body_text": [],
            "venue": "J",
            "year": "2020",
        },
        "2020",
    ),
    (
        {
            "_id": {"$oid": "x"},
            "title": "T",
            "author": [{"family": "Doe", "given": "Jane"}],
            "container-title": "J",
            "issued": {"date-parts": [[2020]]},
        },
        "2020",
    ),
)


@pytest.mark.parametrize(("record", "date"), JSON_RECORDS)
def test_records_of_json_by_most_of_their_keys(
    tmp_path: Path, record: dict[str, object], date: str
) -> None:
    papers, _ = read(tmp_path / "a.json", json.dumps([record]))
    source = papers[0].source
    found = (source.title, source.authors, source.venue, source.date)
    assert found == ("T", ("Jane Doe",), "J", date)


def test_works_of_all_lists_of_an_answer(tmp_path: Path) -> None:
    answer = {"data": [{"citingPaper": {"paperId": "a", "title": "A"}}], "items": [{"title": "B"}]}
    papers, _ = read(tmp_path / "a.json", json.dumps(answer))
    assert sorted(paper.source.title for paper in papers) == ["A", "B"]


def test_addresses_of_several_are_the_first(tmp_path: Path) -> None:
    rows = "Title,Url\nA,https://a.org/1; https://a.org/2\nB,see https://b.org/x|https://b.org/y\n"
    papers, _ = read(tmp_path / "a.csv", rows)
    assert [paper.url for paper in papers] == ["https://a.org/1", "https://b.org/x"]
    ris = "TY  - RPRT\nTI  - T\nUR  - https://a.org/1\nUR  - https://a.org/2\nER  - \n"
    assert read(tmp_path / "a.ris", ris)[0][0].url == "https://a.org/1"


@pytest.mark.parametrize("name", ["a.ciw", "a.csv"])
def test_chapters_with_the_doi_of_their_book_stay_two(name: str, tmp_path: Path) -> None:
    data = "Article Title,Book DOI,Publication Year\nT,10.1000/book,2020\nU,10.1000/book,2020\n"
    if name == "a.ciw":
        chapter = "PT B\nTI {}\nAU Doe, J\nPY 2020\nD2 10.1000/book\nER\n"
        data = f"FN x\nVR 1.0\n{chapter.format('T')}{chapter.format('U')}EF\n"
    papers, _ = read(tmp_path / name, data)
    assert [(paper.source.title, paper.doi) for paper in papers] == [("T", ""), ("U", "")]
