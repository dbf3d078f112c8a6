"""Forty forms of notices about retractions, withdrawals, doubts and corrections in registries.

The forms are those of real records; names, titles and DOIs are invented.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from claim2source.data.retractions import (
    add_notice,
    is_notice_title,
    noticed_state,
    own_state,
    plain_title,
    read_notices,
    title_state,
    worst,
)
from tests.data.reading import read

DAY = {"date-parts": [[2021, 3, 4]]}
RETRACTED, WITHDRAWN, PARTIAL = "retracted", "withdrawn", "partially retracted"
CONCERN, CORRECTED = "expression of concern", "corrected"


def crossref(title: str = "Masks in schools", **fields: object) -> str:
    keys = {name.replace("_", "-"): value for name, value in fields.items()}
    return json.dumps({"DOI": "10.5555/a", "title": [title], **keys})


def update(kind: str, doi: str = "10.5555/n", **more: object) -> dict[str, object]:
    return {"type": kind, "DOI": doi, "updated": DAY, **more}


def openalex(title: str = "Masks in schools", **fields: object) -> str:
    return json.dumps({"id": "https://openalex.org/W1", "title": title, **fields})


def pubmed(links: str = "", types: str = "Journal Article", title: str = "Masks") -> str:
    return (
        "<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>7000001</PMID><Article>"
        f"<ArticleTitle>{title}</ArticleTitle><PublicationTypeList><PublicationType>{types}"
        f"</PublicationType></PublicationTypeList></Article><CommentsCorrectionsList>{links}"
        "</CommentsCorrectionsList></MedlineCitation></PubmedArticle></PubmedArticleSet>"
    )


def link(kind: str, source: str = "J Inv. 2021 Mar;3(1):5.", pmid: str = "7000002") -> str:
    return (
        f'<CommentsCorrections RefType="{kind}"><RefSource>{source}</RefSource>'
        f'<PMID Version="1">{pmid}</PMID></CommentsCorrections>'
    )


def jats(kind: str, related: str = "", title: str = "Masks") -> str:
    return (
        f'<article article-type="{kind}" xmlns:xlink="http://www.w3.org/1999/xlink"><front>'
        '<article-meta><article-id pub-id-type="doi">10.5555/a</article-id><title-group>'
        f"<article-title>{title}</article-title></title-group>{related}</article-meta></front>"
        "</article>"
    )


def related(kind: str, href: str = "10.5555/b", link_type: str = "doi", inner: str = "") -> str:
    return (
        f'<related-article related-article-type="{kind}" id="r1" ext-link-type="{link_type}" '
        f'xlink:href="{href}">{inner}</related-article>'
    )


def nbib(*lines: str) -> str:
    return "\n".join(["PMID- 7000001", "TI  - Masks in schools", *lines, ""])


# Format, content, the paper's own state, and its notices about other papers.
CASES: list[tuple[str, str, str, Mapping[str, str]]] = [
    # Crossref
    ("json", crossref(updated_by=[update("retraction")]), RETRACTED, {}),
    ("json", crossref(updated_by=[update("correction"), update("retraction")]), RETRACTED, {}),
    ("json", crossref(updated_by=[update("withdrawal", label="Withdrawal")]), WITHDRAWN, {}),
    ("json", crossref(updated_by=[update("removal", label="Removal")]), WITHDRAWN, {}),
    ("json", crossref(updated_by=[update("partial_retraction")]), PARTIAL, {}),
    ("json", crossref(updated_by=[update("expression_of_concern")]), CONCERN, {}),
    ("json", crossref(updated_by=[update("erratum"), update("addendum")]), CORRECTED, {}),
    ("json", crossref(updated_by=[update("new_version"), update("clarification")]), "", {}),
    ("json", crossref(updated_by=[update("other", label="Retraction")]), RETRACTED, {}),
    (
        "json",
        crossref(
            "Retraction of three articles",
            update_to=[update("retraction", f"10.5555/M{i}") for i in (1, 2, 3)],
        ),
        "",
        dict.fromkeys(("10.5555/m1", "10.5555/m2", "10.5555/m3"), RETRACTED),
    ),
    (
        "json",
        crossref(
            "Corrigendum and retraction",
            update_to=[update("corrigendum", "10.5555/o"), update("retraction", "10.5555/m")],
        ),
        "",
        {"10.5555/o": CORRECTED, "10.5555/m": RETRACTED},
    ),
    # A corrected notice remains a notice.
    (
        "json",
        crossref(
            update_to=[update("retraction", "10.5555/m")],
            updated_by=[update("correction")],
        ),
        CORRECTED,
        {"10.5555/m": RETRACTED},
    ),
    # Withdrawn under its own DOI.
    (
        "json",
        crossref("WITHDRAWN: A", update_to=[update("withdrawal", "10.5555/A")]),
        WITHDRAWN,
        {},
    ),
    ("json", crossref("RETRACTED ARTICLE: Masks in schools"), RETRACTED, {}),
    # OpenAlex
    ("json", openalex(is_retracted=True), RETRACTED, {}),
    ("json", openalex(is_retracted=False), "", {}),
    ("json", openalex("Retraction: Masks in schools", is_retracted=True), "", {}),
    ("json", openalex("Retraction Note to: Masks in schools", is_retracted=True), "", {}),
    ("json", openalex("[RETRACTED] Masks in schools", is_retracted=False), RETRACTED, {}),
    (
        "json",
        openalex("Masks in schools (Retracted article. See vol. 3, pg. 5, 2021)"),
        RETRACTED,
        {},
    ),
    # PubMed
    ("xml", pubmed(link("RetractionIn")), RETRACTED, {}),
    ("xml", pubmed(types="Retracted Publication"), RETRACTED, {}),
    ("xml", pubmed(link("PartialRetractionIn")), PARTIAL, {}),
    ("xml", pubmed(link("ExpressionOfConcernIn"), title="Masks"), CONCERN, {}),
    ("xml", pubmed(link("ErratumIn") + link("RetractedandRepublishedIn")), RETRACTED, {}),
    ("xml", pubmed(link("RetractionOf"), "Retraction Notice"), "", {"7000002": RETRACTED}),
    (
        "xml",
        pubmed(
            link("RetractionOf", "J Inv. 2019. doi: 10.5555/M.", "7000002")
            + link("RetractionOf", "J Inv. 2020.", "7000003")
            + link("ErratumFor", "J Inv. 2018.", "7000004"),
            "Retraction of Publication",
        ),
        "",
        {
            "10.5555/m": RETRACTED,
            "7000002": RETRACTED,
            "7000003": RETRACTED,
            "7000004": CORRECTED,
        },
    ),
    ("xml", pubmed(link("ExpressionOfConcernFor")), "", {"7000002": CONCERN}),
    ("xml", pubmed(link("CommentIn") + link("UpdateIn") + link("CommentOn")), "", {}),
    ("nbib", nbib("PT  - Journal Article", "RIN - J Inv. 2021. PMID: 7000002"), RETRACTED, {}),
    (
        "nbib",
        nbib("ROF - J Inv. 2019. doi: 10.5555/m. PMID: 7000002"),
        "",
        {"10.5555/m": RETRACTED, "7000002": RETRACTED},
    ),
    # JATS
    ("xml", jats("retraction", related("retracted-article")), "", {"10.5555/b": RETRACTED}),
    (
        "xml",
        jats(
            "retraction",
            related("retracted-article", "https://doi.org/10.5555/B", "uri")
            + related("retracted-article", "PMC7000009", "pmc"),
        ),
        "",
        {"10.5555/b": RETRACTED, "PMC7000009": RETRACTED},
    ),
    ("xml", jats("partial-retraction", related("partial-retraction")), "", {"10.5555/b": PARTIAL}),
    ("xml", jats("research-article", related("retraction-forward")), RETRACTED, {}),
    (
        "xml",
        jats("research-article", related("correction-forward") + related("commentary-article")),
        CORRECTED,
        {},
    ),
    (
        "xml",
        jats("expression-of-concern", related("object-of-concern")),
        "",
        {"10.5555/b": CONCERN},
    ),
    ("xml", jats("correction", related("corrected-article")), "", {"10.5555/b": CORRECTED}),
    ("xml", jats("retracted-article"), RETRACTED, {}),
    (
        "xml",
        jats(
            "research-article",
            related(
                "retraction-forward", "PMC9", "pmc", '<pub-id pub-id-type="doi">10.5555/n</pub-id>'
            ),
            "Retracted: Masks",
        ),
        RETRACTED,
        {},
    ),
]


@pytest.mark.parametrize(("kind", "content", "own", "others"), CASES)
def test_every_form_of_a_notice_is_read(
    tmp_path: Path, kind: str, content: str, own: str, others: Mapping[str, str]
) -> None:
    ((paper,), _) = read(tmp_path / f"papers.{kind}", content)
    assert own_state(paper.retracted).partition(",")[0] == own
    assert paper.is_retracted == (own in (RETRACTED, WITHDRAWN))
    notices: dict[str, str] = {}
    add_notice(notices, paper.retracted, paper.doi)
    told = {key: noticed_state(notices, key, key).partition(",")[0] for key in notices}
    assert told == others


def test_there_are_forty_forms() -> None:
    assert len(CASES) == 40


def test_rows_of_retraction_watch_may_name_several_papers(tmp_path: Path) -> None:
    path = tmp_path / "watch.csv"
    path.write_text(
        "RetractionDate,RetractionDOI,OriginalPaperDOI,OriginalPaperPubMedID,RetractionNature\n"
        "5/12/2020 0:00,10.5555/N.,10.5555/A; https://doi.org/10.5555/B,7000001; 7000002,Retraction\n"
        "25/12/2020 0:00,unavailable,10.5555/c</a>,7000003.0,Expression of concern\n"
        "1/2/2021,,10.5555/D.,0,Partial retraction\n"
        "1/3/2021,,unavailable,unavailable,Retraction\n"
    )
    notices = read_notices(path)
    for id, doi in (("1", "10.5555/a"), ("1", "10.5555/b"), ("7000001", ""), ("7000002", "")):
        assert notices.of(id, doi) == "retracted, 2020-05-12, 10.5555/n"
    # An index of 1.0 may contain text after a DOI.
    assert notices.of("1", "10.5555/a.") == "retracted, 2020-05-12, 10.5555/n"
    assert notices.of("7000003", "") == "expression of concern, 2020-12-25"
    assert notices.of("1", "10.5555/c") == notices.of("7000003", "")
    assert notices.of("1", "10.5555/d") == "partially retracted, 2021-01-02"
    assert set(notices.by_pmid) == {"7000001", "7000002", "7000003"}


@pytest.mark.parametrize(
    ("title", "state", "plain"),
    [
        ("RETRACTED: Masks in schools", RETRACTED, "Masks in schools"),
        ("Retracted article: Masks", RETRACTED, "Masks"),
        ("[Retracted] Masks", RETRACTED, "Masks"),
        ("WITHDRAWN: Masks", WITHDRAWN, "Masks"),
        ("TEMPORARY REMOVAL: Masks", WITHDRAWN, "Masks"),
        ("Partially retracted: Masks", PARTIAL, "Masks"),
        ("Masks [RETRACTED]", RETRACTED, "Masks"),
        ("Masks (Withdrawn)", WITHDRAWN, "Masks"),
        # None of these is about the paper itself.
        ("Retracted articles in surgery", "", "Retracted articles in surgery"),
        ("Withdrawn patients: a survey", "", "Withdrawn patients: a survey"),
        ("Why papers are retracted: a study", "", "Why papers are retracted: a study"),
        ("Tissue (not retracted fully) heals", "", "Tissue (not retracted fully) heals"),
    ],
)
def test_a_title_tells_what_became_of_its_paper(title: str, state: str, plain: str) -> None:
    assert title_state(title) == state
    assert plain_title(title) == plain
    assert not is_notice_title(title)


@pytest.mark.parametrize(
    "title",
    [
        "Retraction",
        "Retraction: Masks in schools",
        "Retraction of: Masks in schools",
        "Retraction of “Masks in schools”",
        "Retraction note to: Masks",
        "Notice of retraction: Masks",
        "Statement of Retraction",
        "Withdrawal: Masks",
        "Author Correction: Masks",
        "Erratum to: Masks",
        "Corrigendum",
        "Editorial expression of concern: Masks",
        "Retraction of two articles",
    ],
)
def test_a_notice_is_known_by_its_title(title: str) -> None:
    assert is_notice_title(title) and title_state(title) == ""


@pytest.mark.parametrize(
    "title",
    [
        "Retraction of the tongue in infants",
        "Correction of myopia with lenses",
        "Withdrawal of treatment in intensive care",
        "Corrections officers and infection",
        "Removal of arsenic from water",
    ],
)
def test_a_study_is_not_taken_for_a_notice(title: str) -> None:
    assert not is_notice_title(title)


def test_what_notices_say_is_kept_beside_a_papers_own_state() -> None:
    notice = "corrected notice of 10.5555/a 10.5555/b"
    both = worst(("corrected, 2020", notice, "retracted, 2021, 10.5555/n;2"))
    assert both == f"retracted, 2021, 10.5555/n;2; {notice}"
    assert worst((both, notice, "retracted notice of 10.5555/c")) == (
        "retracted, 2021, 10.5555/n;2; retracted notice of 10.5555/c; " + notice
    )
    assert own_state(both) == "retracted, 2021, 10.5555/n;2" and own_state(notice) == ""
