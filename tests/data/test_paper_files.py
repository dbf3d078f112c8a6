"""Papers of every kind of file: what is read, what is left out, what is refused and where."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Source
from claim2source.data.loading import load
from claim2source.data.paper_files import PaperFiles
from claim2source.data.papers import Paper
from tests.data.reading import refused, write
from tests.data.test_paper_json import OPENALEX, WORK

INVERTED = {"cut": [1, 4], "Masks": [0], "outbreaks.": [2], "They": [3]}
WORKS = [
    {**WORK, "abstract": None, "abstract_inverted_index": INVERTED, "language": "en"},
    {"id": "https://openalex.org/W2", "title": None, "abstract_inverted_index": None},
    {"id": "https://openalex.org/W3", "display_name": "Nur Titel", "primary_location": None},
]
FIRST = replace(OPENALEX.source, abstract="Masks cut outbreaks. They cut")
READ = [
    replace(OPENALEX, source=FIRST, lang="en"),
    Paper(Source("W3", "Nur Titel"), url="https://openalex.org/W3"),
]
PUBMED = """<?xml version="1.0"?>
<!DOCTYPE PubmedArticleSet PUBLIC "-//NLM//DTD PubMedArticle//EN" "https://dtd.nlm.nih.gov/x.dtd">
<PubmedArticleSet>
<PubmedArticle><MedlineCitation><PMID Version="1">77</PMID><Article>
 <Journal><Title>The Lancet</Title><JournalIssue><PubDate><Year>2020</Year><Month>May</Month></PubDate></JournalIssue></Journal>
 <ArticleTitle>Masks &amp; <i>E. coli</i></ArticleTitle>
 <ELocationID EIdType="doi">10.1000/Loc</ELocationID>
 <Abstract><AbstractText Label="METHODS">We <b>ran</b>.</AbstractText><AbstractText>It
   worked.</AbstractText></Abstract>
 <AuthorList><Author><LastName>Doe</LastName><ForeName>Jane</ForeName></Author>
  <Author><CollectiveName>The Group</CollectiveName></Author></AuthorList>
 <Language>ger</Language></Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>78</PMID><Article><ArticleTitle/></Article></MedlineCitation></PubmedArticle>
<PubmedArticle><MedlineCitation><PMID>79</PMID><Article><ArticleTitle>T</ArticleTitle>
 <Journal><JournalIssue><PubDate><MedlineDate>1998 Dec-1999 Jan</MedlineDate></PubDate></JournalIssue></Journal>
 </Article></MedlineCitation><PubmedData><ArticleIdList><ArticleId IdType="doi">10.1000/own</ArticleId></ArticleIdList></PubmedData></PubmedArticle>
</PubmedArticleSet>
"""


def lines(records: list[dict[str, object]]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_a_data_set_is_read_as_it_is_loaded() -> None:
    assert [paper.source for paper in PaperFiles.of("demo")] == [*load("demo", "dev").sources]


@pytest.mark.parametrize("name", ["works.jsonl", "part_000.gz", "works.jsonl.gz"])
def test_works_of_openalex(tmp_path: Path, name: str) -> None:
    files = PaperFiles.of(str(write(tmp_path / name, lines(WORKS))))
    assert list(files) == READ and files.left_out == 1
    assert list(files) == READ and files.left_out == 1  # as often as asked


def test_articles_of_pubmed(tmp_path: Path) -> None:
    files = PaperFiles.of(str(write(tmp_path / "pubmed.xml.gz", PUBMED)))
    first, second = files
    assert first == Paper(
        Source(
            "77",
            "Masks & E. coli",
            "METHODS: We ran. It worked.",
            ("Jane Doe", "The Group"),
            "The Lancet",
            "2020-05",
        ),
        "10.1000/loc",
        "https://pubmed.ncbi.nlm.nih.gov/77/",
        "de",
    )
    assert (second.doi, second.source.date, second.lang) == ("10.1000/own", "1998-12", "")
    assert files.left_out == 1


def test_tables_with_a_map_of_columns(tmp_path: Path) -> None:
    expected = [
        Paper(
            Source("7", "A, b", "two\nlines", ("Jane Doe", "R. Roe"), "", "2020-05-01"), "10.1000/x"
        ),
        Paper(Source("8", "=cmd()", "", (), "", "")),
    ]
    rows = 'pmid,name,text,who,date,doi,other\n7,"A, b","two\nlines",Jane Doe; R. Roe,2020-05-01,10.1000/X,z\n8,=cmd(),,,,,\n'
    columns = {"id": "pmid", "title": "name", "authors": "who"}
    csv = write(tmp_path / "papers.csv.gz", "\ufeff" + rows)
    assert list(PaperFiles.of(str(csv), columns)) == expected
    with pytest.raises(
        InputError, match=r"title: no column 'nam'; did you mean name\? there are: pmid, name"
    ):
        list(PaperFiles.of(str(csv), {**columns, "title": "nam"}))
    with pytest.raises(
        ConfigError, match=r"columns: 'titel' is not allowed; did you mean title\? allowed: FIELD"
    ):
        PaperFiles.of(str(csv), {"titel": "name"})


def test_a_folder_is_all_its_files_and_says_which_it_leaves_out(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", "id,title\n5,T\n")
    write(tmp_path / "part_000.gz", lines(WORKS))
    write(tmp_path / "pubmed-set.txt", "PMID- 7\nTI  - T\n")
    write(tmp_path / "a.pdf", "%PDF")
    write(tmp_path / "notes.txt", "x")
    write(tmp_path / ".hidden", "x")
    files = PaperFiles.of(str(tmp_path))
    papers = list(files)
    assert papers[:3] == [Paper(Source("5", "T")), *READ] and papers[3].source.id == "7"
    assert "files of other kinds: 2 (first: a.pdf)" in files.omissions()


BROKEN: list[tuple[str, str, str]] = [
    ("a.jsonl", '{"_id": "1", "title": "T"}\n{"_id": "2"', r"a.jsonl:2: broken JSON"),
    (
        "a.jsonl",
        '{"id": "https://openalex.org/W1", "title": "T", "abstract_inverted_index": []}',
        r"abstract_inverted_index: is not an object",
    ),
    ("a.csv", "id,title\n1,T\n2\n", r"a.csv:3: 1 columns; the header has 2"),
    ("a.xml", PUBMED[:-30], r"a.xml:\d+: broken XML"),
    ("a.xml", PUBMED.replace("<PMID>78</PMID>", ""), r"PubmedArticle 2: has no PMID"),
    ("a.parquet", "PAR1", r"not Parquet that can be read"),
]


def test_what_is_broken_is_named_or_left_out(tmp_path: Path) -> None:
    for name, text, reason in BROKEN:
        write(tmp_path / name, text)
        with pytest.raises(UserError, match=reason):
            list(PaperFiles.of(str(tmp_path / name)))
        files = PaperFiles.of(str(tmp_path / name), lenient=True)
        assert all(paper.source.title for paper in files) and len(files.problems) == 1


def test_what_is_packed_badly_is_named(tmp_path: Path) -> None:
    content = write(tmp_path / "a.jsonl.gz", lines(WORKS)).read_bytes()
    for damaged in (content[:-12], b"no gzip", content[:20] + b"\0\0\0\0" + content[24:]):
        (tmp_path / "a.jsonl.gz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"a.jsonl.gz: cannot be read: \w+"):
            list(PaperFiles.of(str(tmp_path / "a.jsonl.gz")))
        (tmp_path / "a.xml.gz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"a.xml.gz:(\d+:)? (cannot be read|broken XML): \w+"):
            list(PaperFiles.of(str(tmp_path / "a.xml.gz")))


def test_entities_that_grow_are_refused(tmp_path: Path) -> None:
    bomb = '<!DOCTYPE a [<!ENTITY a "ha">' + "".join(
        f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 30}">' for i in range(8)
    )
    write(
        tmp_path / "a.xml",
        PUBMED.replace("<!DOCTYPE", bomb + "]><!--", 1)
        .replace('.dtd">', "-->", 1)
        .replace("<ArticleTitle/>", "<ArticleTitle>&i;</ArticleTitle>"),
    )
    with pytest.raises(InputError, match="broken XML"):
        list(PaperFiles.of(str(tmp_path / "a.xml")))


REPEATED = [
    {"_id": "1", "title": "T", "text": "short"},
    {"_id": "2", "title": "U"},
    {"_id": "1", "title": "T", "text": "the longest text"},
    {"_id": "1", "title": "T", "text": ""},
    {"_id": "1", "title": "T", "text": "the longest TEXT"},
]


def test_of_repeated_ids_the_record_with_the_most_text_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a" / "1.jsonl", lines(REPEATED))
    write(tmp_path / "a" / "2.csv", "id,title,abstract\n1,T,short\n2,U,now with a text\n")
    files = PaperFiles.of(str(tmp_path / "a"))
    for _ in range(2):
        read = [(file.source.id, file.source.abstract) for file in files]
        assert read == [("1", "the longest text"), ("2", "now with a text")]
        assert (files.records, len(files), files.merged, files.left_out) == (7, 2, 5, 0)
    paper_files = PaperFiles.of(str(path))
    paper_files.check = False
    assert [paper.source.abstract for paper in paper_files] == ["short", "", "the longest text"]


FOREIGN: list[tuple[str, bytes, str]] = [
    ("a.xlsx", b"PK\x03\x04x", "is not an Excel workbook that can be read"),
    ("a.docx", b"PK\x03\x04x", "is a Word file"),
    ("a.json", b"id,title\n1,T\n", "is not JSON, as its name says; read are"),
    ("a.jsonl", gzip.compress(b"{}", mtime=0), "let its name end in .gz"),
]


def test_files_of_other_kinds_are_refused_by_name(tmp_path: Path) -> None:
    for name, data, reason in FOREIGN:
        refused(tmp_path / name, data, reason)


@pytest.mark.slow
def test_few_papers_are_in_memory(tmp_path: Path) -> None:
    import tracemalloc

    text = "<PubmedArticleSet>" + "".join(
        f"<PubmedArticle><MedlineCitation><PMID>{i}</PMID><Article><ArticleTitle>{'t' * 2999}"
        "</ArticleTitle></Article></MedlineCitation></PubmedArticle>"
        for i in range(4000)
    )
    for path in (
        write(tmp_path / "a.xml", text + "</PubmedArticleSet>"),
        write(
            tmp_path / "a.jsonl", lines([{"_id": str(i), "title": "t" * 2999} for i in range(4000)])
        ),
    ):
        tracemalloc.start()
        assert sum(1 for _ in PaperFiles.of(str(path))) == 4000
        assert tracemalloc.get_traced_memory()[1] < 3_500_000
        tracemalloc.stop()
