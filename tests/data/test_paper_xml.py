"""PubMed's other abstracts, books and wrong DOIs; JATS; XML of other kinds."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.core.records import Source
from claim2source.data.papers import Paper
from tests.data.reading import read, refused

JATS = """<?xml version="1.0"?>
<!DOCTYPE article PUBLIC "-//NLM//DTD JATS//EN" "JATS.dtd">
<article xmlns:mml="http://www.w3.org/1998/Math/MathML" xml:lang="en"><front>
<journal-meta><journal-title-group><journal-title>PLOS</journal-title></journal-title-group></journal-meta>
<article-meta><article-id pub-id-type="pmc">123</article-id><article-id pub-id-type="doi">10.1371/J.x</article-id>
<title-group><article-title>Masks and <italic>E. coli</italic><xref>*</xref></article-title><subtitle>a trial</subtitle></title-group>
<contrib-group><contrib contrib-type="author"><name><surname>Doe</surname><given-names>Jane</given-names></name></contrib>
<contrib contrib-type="author"><collab>The Group</collab></contrib>
<contrib contrib-type="editor"><name><surname>Roe</surname><given-names>R</given-names></name></contrib></contrib-group>
<pub-date pub-type="collection"><year>2020</year></pub-date>
<pub-date pub-type="epub"><day>5</day><month>3</month><year>2020</year></pub-date>
<abstract><title>Abstract</title><sec><title>Methods</title><p>One <inline-formula><alternatives>
<tex-math>\\documentclass</tex-math><mml:math><mml:mi>x</mml:mi></mml:math></alternatives></inline-formula>.</p><p>Two.</p></sec></abstract>
<abstract abstract-type="graphical"><p>Short.</p></abstract></article-meta></front>
<body><p>A body.</p></body></article>"""
ARTICLE = Paper(
    Source(
        "PMC123",
        "Masks and E. coli: a trial",
        "Methods: One x. Two.",
        ("Jane Doe", "The Group"),
        "PLOS",
        "2020-03-05",
    ),
    "10.1371/j.x",
    "https://pmc.ncbi.nlm.nih.gov/articles/PMC123/",
    "en",
)


def test_jats_by_itself_and_in_answers(tmp_path: Path) -> None:
    papers, notes = read(tmp_path / "a.nxml", JATS)
    assert papers == [ARTICLE] and notes.startswith("graphical abstracts and teasers, skipped: 1")
    article = JATS[JATS.index("<article ") :]
    other = article.replace(">123<", ">124<").replace("J.x", "J.y")
    many = f"<pmc-articleset>{article}{other}</pmc-articleset>"
    assert [paper.source.id for paper in read(tmp_path / "b.xml", many)[0]] == ["PMC123", "PMC124"]
    spaced = article.replace("<article ", '<article xmlns="https://jats.nlm.nih.gov/ns" ', 1)
    answer = (
        f'<OAI-PMH xmlns="o"><ListRecords><metadata>{spaced}</metadata></ListRecords></OAI-PMH>'
    )
    assert read(tmp_path / "c.xml", answer)[0] == [ARTICLE]


def pubmed(article: str, citation: str = "", key: str = "1") -> str:
    return (
        f"<PubmedArticle><MedlineCitation><PMID>{key}</PMID><Article>{article}</Article>"
        f"{citation}</MedlineCitation></PubmedArticle>"
    )


def test_abstracts_and_titles_in_other_languages(tmp_path: Path) -> None:
    template = '<OtherAbstract Language="{}"><AbstractText>{}</AbstractText></OtherAbstract>'
    two = template.format("spa", "Texto.") + template.format("eng", "A text.")
    own = "<VernacularTitle>Masken.</VernacularTitle>"
    title = "<ArticleTitle>[Masks].</ArticleTitle>"
    abstract = "<Abstract><AbstractText>The text.</AbstractText></Abstract>"
    articles = [
        pubmed(title + own, two, "1"),
        pubmed(title + abstract, two, "2"),
        pubmed("<ArticleTitle>[Not Available].</ArticleTitle>" + own, "", "3"),
        pubmed("<ArticleTitle/>" + own, template.format("ger", "Ein Text."), "4"),
        pubmed("<ArticleTitle>[In Process Citation]</ArticleTitle>" + own, "", "5"),
    ]
    papers, notes = read(
        tmp_path / "a.xml", f"<PubmedArticleSet>{''.join(articles)}</PubmedArticleSet>"
    )
    assert [paper.source for paper in papers] == [
        Source("1", "[Masks].", "A text."),
        Source("2", "[Masks].", "The text."),
        Source("3", "Masken."),
        Source("4", "Masken.", "Ein Text."),
        Source("5", "Masken."),
    ]
    assert "additional abstracts, skipped: 3" in notes
    assert "language next to an English one, skipped: 1" in notes


def test_wrong_dois_books_and_deletions(tmp_path: Path) -> None:
    doi = '<ELocationID EIdType="doi" ValidYN="{}">10.1000/{}</ELocationID>'
    article = pubmed(
        "<ArticleTitle>T</ArticleTitle>" + doi.format("N", "bad") + doi.format("Y", "good")
    )
    only = pubmed("<ArticleTitle>T</ArticleTitle>" + doi.format("N", "bad"), key="2").replace(
        "</MedlineCitation>",
        '</MedlineCitation><PubmedData><ArticleIdList><ArticleId IdType="doi">10.1000/BAD'
        "</ArticleId></ArticleIdList></PubmedData>",
    )
    book = (
        "<PubmedBookArticle><BookDocument><PMID>3</PMID><Book><Publisher><PublisherName>NCBI</PublisherName>"
        "</Publisher><BookTitle>StatPearls</BookTitle><PubDate><Year>2021</Year></PubDate></Book>"
        '<ArticleTitle>Masks</ArticleTitle><Language>eng</Language><AuthorList Type="authors"><Author>'
        "<LastName>Doe</LastName><ForeName>Jane</ForeName></Author></AuthorList><Abstract><AbstractText>"
        "Text.</AbstractText></Abstract></BookDocument></PubmedBookArticle>"
    )
    deletion = "<DeleteCitation><PMID>9</PMID></DeleteCitation>"
    papers, notes = read(
        tmp_path / "a.xml", f"<PubmedArticleSet>{article}{only}{book}{deletion}</PubmedArticleSet>"
    )
    assert [paper.doi for paper in papers] == ["10.1000/good", "", ""]
    assert papers[2].source == Source("3", "Masks", "Text.", ("Jane Doe",), "StatPearls", "2021")
    assert "DOIs that are marked as wrong, skipped: 2" in notes and "deleted articles" in notes


LATIN = '<?xml version="1.0" encoding="{}"?><PubmedArticleSet>{}</PubmedArticleSet>'


def test_encodings_that_the_parser_knows_and_does_not(tmp_path: Path) -> None:
    title = pubmed("<ArticleTitle>Größe</ArticleTitle>")
    for name in ("windows-1252", "utf-16"):
        papers, _ = read(tmp_path / "a.xml", LATIN.format(name, title).encode(name))
        assert papers[0].source.title == "Größe"
    for name in ("shift_jis", "no-such"):
        refused(tmp_path / "a.xml", LATIN.format(name, ""), "UTF-8")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<foo><bar/></foo>", "<foo>"),
        ("<eSummaryResult><DocSum/></eSummaryResult>", "PubMed"),
        ("<MedlineCitationSet/>", "PubMed"),
        ("<article><front/></article>", "front/article-meta"),
        (
            '<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/hostname">]>'
            f"<PubmedArticleSet>{pubmed('<ArticleTitle>&x;</ArticleTitle>')}</PubmedArticleSet>",
            "undefined entity",
        ),
    ],
)
def test_xml_of_other_kinds_is_named(tmp_path: Path, text: str, reason: str) -> None:
    refused(tmp_path / "a.xml", text, reason)


@pytest.mark.parametrize("kind", ["graphical", "teaser"])
def test_pictures_and_captions_are_not_in_the_abstract(tmp_path: Path, kind: str) -> None:
    meta = (
        "<article-id pub-id-type='doi'>10.5555/a</article-id><title-group><article-title>T"
        "</article-title></title-group>"
    )
    picture = f"<abstract abstract-type='{kind}'><p>A drawn mask.</p></abstract>"
    figure = "<fig id='f'><label>1</label><caption><p>A worn mask.</p></caption></fig>"
    main = f"<abstract><p>Masks cut outbreaks.</p>{figure}<p>They do.</p><sec><title>Graphical abstract"
    main += "</title><p>A drawn mask.</p></sec></abstract>"
    for abstracts, expected in (
        (picture + main, "Masks cut outbreaks. They do."),
        (main + picture, "Masks cut outbreaks. They do."),
        (picture, ""),
        ("<abstract><title>Graphical Abstract</title><p>A mask.</p></abstract>", ""),
    ):
        article = (
            f"<article><front><article-meta>{meta}{abstracts}</article-meta></front></article>"
        )
        papers, notes = read(tmp_path / "a.xml", article)
        assert papers[0].source.abstract == expected
        assert "additional" not in notes
