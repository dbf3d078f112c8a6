"""Later notices about papers, in every format, and from Retraction Watch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from claim2source.core.errors import InputError
from claim2source.data.paper_files import PaperFiles
from claim2source.data.papers import cell_state, read_notices
from tests.refusals import refused

WORK = {"id": "https://openalex.org/W1", "title": "T", "doi": "https://doi.org/10.1000/a"}
DOI = {"DOI": "10.1000/a", "title": ["T"]}
DAY = {"date-parts": [[2021, 3, 4]]}


def article(*options: str, types: str = "Journal Article") -> str:
    notices = "".join(options)
    return (
        "<PubmedArticleSet><PubmedArticle><MedlineCitation><PMID>1</PMID><Article><ArticleTitle>T"
        f"</ArticleTitle><PublicationTypeList><PublicationType>{types}</PublicationType>"
        "</PublicationTypeList></Article><CommentsCorrectionsList>"
        f"{notices}</CommentsCorrectionsList></MedlineCitation></PubmedArticle></PubmedArticleSet>"
    )


def notice(kind: str) -> str:
    return f'<CommentsCorrections RefType="{kind}"><RefSource>J. 2021.</RefSource></CommentsCorrections>'


def update(kind: str) -> dict[str, object]:
    return {"type": kind, "DOI": "10.1000/N", "updated": DAY}


CASES: list[tuple[str, object, str]] = [
    ("json", {**WORK, "is_retracted": True}, "retracted"),
    ("json", {**DOI, "updated-by": [update("retraction")]}, "retracted, 2021-03-04, 10.1000/n"),
    (
        "json",
        {**DOI, "updated-by": [update("correction"), update("expression_of_concern")]},
        "expression of concern, 2021-03-04, 10.1000/n",
    ),
    ("json", {**DOI, "update-to": [update("retraction")]}, "retracted notice of 10.1000/n"),
    ("xml", article(notice("RetractionIn")), "retracted, J. 2021"),
    ("xml", article(notice("ErratumIn"), notice("CommentIn")), "corrected, J. 2021"),
    ("xml", article(notice("RetractionOf")), ""),
    ("xml", article(types="Retracted Publication"), "retracted"),
    ("nbib", "PMID- 1\nTI  - T\nPT  - Retracted Publication\n", "retracted"),
    ("csv", "id,title,retracted\n1,T,yes\n", "retracted"),
    ("jsonl", {"_id": "1", "title": "T", "text": "", "metadata": {"retracted": True}}, "retracted"),
]


@pytest.mark.parametrize(("kind", "content", "state"), CASES)
def test_every_format_says_what_became_of_a_paper(
    tmp_path: Path, kind: str, content: object, state: str
) -> None:
    path = tmp_path / f"papers.{kind}"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    (paper,) = PaperFiles.of(str(path))
    assert paper.retracted == state
    assert paper.is_retracted == state.startswith("retracted") - (" notice of " in state)


def test_a_cell_is_yes_no_a_day_or_a_state() -> None:
    for cell, state in {
        "": "",
        "0": "",
        "1.0": "retracted",
        "2021-03-04": "retracted, 2021-03-04",
        "Withdrawn by authors": "withdrawn, Withdrawn by authors",
        "corrected, 2020": "corrected, 2020",
    }.items():
        assert cell_state(cell) == state


def test_of_several_notices_of_retraction_watch_the_gravest_counts(tmp_path: Path) -> None:
    path = tmp_path / "watch.csv"
    path.write_text(
        "\ufeffRecord ID,RetractionDate,RetractionDOI,OriginalPaperDOI,OriginalPaperPubMedID,"
        "RetractionNature,Notes\n"
        '1,5/12/2020 0:00,10.1000/N,10.1000/A,0,Retraction,"two\nlines"\n'
        "2,4/1/2020 0:00,,10.1000/a,0,Expression of concern,\n"
        "2,6/1/2020 0:00,,10.1000/a,0,Correction,\n"
        "4,1/3/2021 0:00,,10.1000/b,77,Reinstatement,\n"
        "3,1/2/2021 0:00,,10.1000/b,77,Retraction,\n"
        "5,1/3/2021 0:00,,unavailable,88,Correction,\n"
        "6,1/1/2021 0:00,,unavailable,99,Retraction,\n"
        "6,1/2/2021 0:00,,unavailable,99,Correction,\n"
    )
    notices = read_notices(path)
    assert notices.of("W9", "10.1000/a") == "retracted, 2020-05-12, 10.1000/n"
    assert notices.of("10.1000/A", "") == notices.of("W9", "10.1000/a")
    assert notices.of("W9", "10.1000/b") == notices.of("77", "") == ""
    assert notices.of("88", "10.1000/c") == "corrected, 2021-01-03"
    assert notices.of("99", "") == "retracted, 2021-01-01"
    assert notices.of("W9", "10.1000/c") is None and notices.of("0", "") is None
    path.write_text("DOI,Title\n")
    with refused(InputError, "watch.csv: RetractionNature: "):
        read_notices(path)
    with refused(InputError, "absent.csv: "):
        read_notices(tmp_path / "absent.csv")
