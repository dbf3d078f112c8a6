"""Notices of publishers and databases are removed from abstracts, a study's sentences are not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from claim2source.core.records import Source
from claim2source.data.boilerplate import cut_boilerplate, without_boilerplate
from claim2source.data.papers import Paper
from claim2source.text.clean import split_sentences
from tests.data.reading import read
from tests.shared_data import shared

STUDY = "Masks cut outbreaks in schools by 12%."
EBSCO = (
    "Copyright of Invented Studies is the property of Invented Press Ltd. and its content may not "
    "be copied or emailed to multiple sites or posted to a listserv without the copyright holder's "
    "express written permission. However, users may print, download, or email articles for "
    "individual use. This abstract may be abridged. No warranty is given about the accuracy of the "
    "copy. Users should refer to the original published version of the material for the full "
    "abstract. (Copyright applies to all Abstracts.)"
)
# They follow a study's sentence, and most of them may also come before it.
NOTICES = [
    "© 2020 Elsevier B.V. All rights reserved.",
    "Copyright © 2020 Elsevier Ltd. All rights reserved.",
    "Copyright © 2020 Elsevier B.V.",
    "© 2020 Elsevier Ltd",
    "Crown Copyright © 2020 Published by Elsevier B.V. All rights reserved.",
    "© 2020 The Authors. Published by Elsevier Ltd.",
    "(c) 2020 The Authors. Invented Journal published by Wiley Periodicals LLC.",
    "© 2020 The Authors. Journal of Invented Studies published by John Wiley & Sons Ltd on behalf "
    "of Invented Society.",
    "Copyright (C) 2004 John Wiley & Sons, Ltd.",
    "2004 Wiley-Liss, Inc.",
    "© The Author(s) 2020. Published by Oxford University Press on behalf of the Invented Society. "
    "All rights reserved. For permissions, please e-mail: journals.permissions@example.org.",
    "© 2020, The Author(s), under exclusive licence to Springer Nature Limited.",
    "© 2020. The Author(s), under exclusive license to Springer-Verlag GmbH Germany, part of "
    "Springer Nature.",
    "© Author(s) (or their employer(s)) 2020. Re-use permitted under CC BY-NC. No commercial "
    "re-use. See rights and permissions. Published by BMJ.",
    "Copyright © 2020 by the American Invented Society.",
    "Copyright 2020, Mary Ann Liebert, Inc., publishers.",
    "Copyright 2020 American Medical Association. All rights reserved.",
    "© 2020 S. Karger AG, Basel.",
    "© RSNA, 2020.",
    "© 2020 IEEE.",
    "Copyright © 2020 The Authors, some rights reserved; exclusive licensee Invented Association "
    "for the Advancement of Science. No claim to original U.S. Government Works. Distributed under "
    "a Creative Commons Attribution License 4.0 (CC BY).",
    "[Copyright Elsevier Ltd.]",
    "Copyright by Invented Press 2020.",
    "Published by Elsevier Inc.",
    "Production and hosting by Elsevier B.V.",
    "This article is protected by copyright. All rights reserved.",
    "This article is a U.S. Government work and is in the public domain in the USA.",
    "Reprinted by permission of Invented Press.",
    "(Reproduced with permission from Invented Press.)",
    "This is an open access article under the CC BY-NC-ND license "
    "(http://creativecommons.org/licenses/by-nc-nd/4.0/).",
    "This is an Open Access article distributed under the terms of the Creative Commons "
    "Attribution License, which permits unrestricted use.",
    "This article is licensed under a Creative Commons Attribution 4.0 International License.",
    "This article is published with open access at Springerlink.com.",
    "Open access under CC BY-NC-ND license.",
    "[ABSTRACT FROM AUTHOR]",
    "(Author abstract)",
    "(journal abstract)",
    "[PUBLICATION ABSTRACT]",
    "Adapted from the source document.",
    "(Contains 3 tables and 2 figures.)",
    "(As Provided).",
    f"[ABSTRACT FROM AUTHOR] {EBSCO}",
    EBSCO,
    "(PsycInfo Database Record (c) 2020 APA, all rights reserved).",
    "PsycINFO Database Record (c) 2012 APA, all rights reserved.",
    "Supplementary information: Supplementary data are available at Invented Journal online.",
    "ELECTRONIC SUPPLEMENTARY MATERIAL: The online version of this article (10.5555/s1-2) contains "
    "supplementary material, which is available to authorized users.",
    "The online version contains supplementary material available at 10.5555/s1-2.",
    "Supporting information for this article is available on the publisher's website.",
    "[Supplementary materials are available for this article. Go to the publisher's online edition "
    "of Invented Journal for the following: three tables.]",
    "Peer-review under responsibility of the organizing committee of the conference.",
    "This article is part of a Special Issue entitled: Invented Studies.",
    "Communicated by Jane Q. Doe.",
    "Graphical abstract:",
    "Graphical Abstract: [Image: see text].",
    # In German, French and other languages.
    "© 2020 Der/die Autor(en). Alle Rechte vorbehalten.",
    "© Georg Thieme Verlag KG Stuttgart · New York.",
    "Dieser Artikel ist urheberrechtlich geschützt. Alle Rechte vorbehalten.",
    "Ergänzendes Material ist in der Online-Version dieses Artikels verfügbar.",
    "© 2020 Les Auteurs. Publié par Elsevier Masson SAS. Tous droits réservés.",
    "© 2020 Société française de médecine inventée. Publié par Elsevier Masson SAS. Tous droits "
    "réservés.",
    "Cet article est protégé par le droit d'auteur. Tous droits réservés.",
    "[RÉSUMÉ D'AUTEUR]",
    "(DIPF/Orig.)",
    "© 2020 Elsevier España, S.L.U. Todos los derechos reservados.",
]
# A study's sentences with such words.
STAY = [
    "Copyright law in 2020 restricted text mining of abstracts.",
    "Copyright holders in 12 countries were asked about open access.",
    "Copyright notices see 84% of content removed.",
    "We compared (a) 2018, (b) 2019 and (c) 2020 seasons.",
    "Three arms were studied: (a) masks; (b) gel; (c) 2020 leaflets.",
    "The sign © was on 12 of 20 pages.",
    "All rights reserved for parents were read aloud in class.",
    "Published by WHO, the guideline changed practice.",
    "The guidelines published by Elsevier and WHO differ.",
    "Trial registration: ClinicalTrials.gov NCT01234567.",
    "TRIAL REGISTRATION NUMBER: NCT01234567. FUNDING: Invented Trust.",
    "Keywords: masks; schools; copyright.",
    "Supplementary oxygen was available at 12 hospitals.",
    "Supporting information needs of parents was difficult.",
    "Code is included in the supplementary material.",
    "This is an open access trial of masks.",
    "This article is about copyright and open access.",
    "This article is protected against nothing, say 12% of readers.",
    "Articles under a Creative Commons licence were cited more.",
    "Data are available under the MIT License at https://example.org.",
    "We used (abstract) properties of programs.",
    "The (author) names were hidden from reviewers.",
    "Permission to visit was given in 4 of 10 homes.",
    "No reuse of masks was seen.",
    "Reuse of N95 masks is safe after steam.",
    "Peer review under time pressure was worse.",
    "The special issue of supply was studied.",
    "2020 Elsevier journals were surveyed.",
    "Springer and Wiley published 12% of retracted papers in 2020.",
    "Graphical abstract: masks as drawn by children.",
    "The database records (c) of 2020 were merged.",
    "Alle Rechte der Kinder wurden 2020 erhoben.",
    "Zusätzliche Daten zu Masken wurden erhoben.",
    "Tous les droits des enfants ont été étudiés en 2020.",
]


@pytest.mark.parametrize("notice", NOTICES)
def test_notices_go(notice: str) -> None:
    assert without_boilerplate(f"{STUDY} {notice}") == STUDY
    assert without_boilerplate(notice) == ""


@pytest.mark.parametrize(
    "notice", [notice for notice in NOTICES if notice.startswith(("©", "Copyright"))]
)
def test_a_notice_before_the_study_goes_alone(notice: str) -> None:
    if notice.endswith((".", "]", ")")):
        for study in (STUDY, f"BACKGROUND: {STUDY}", "ClinicalTrials.gov NCT01234567."):
            assert without_boilerplate(f"{notice} {study}") == study


def test_a_notice_without_a_point_or_a_space() -> None:
    for text in (
        f"© 2015 Elsevier B.V.{STUDY}",
        f"© 2015 Elsevier Ltd {STUDY}",
        f"{STUDY}© 2015 Elsevier Ltd",
        f"{STUDY} © 2015 Elsevier Ltd",
    ):
        assert without_boilerplate(text) == STUDY


@pytest.mark.parametrize("sentence", STAY)
def test_what_a_study_says_stays(sentence: str) -> None:
    for text in (sentence, f"{STUDY} {sentence}", f"{sentence} {STUDY}"):
        if not (sentence.startswith("Graphical") and text is not sentence):
            assert without_boilerplate(text) == text
    assert without_boilerplate(f"{sentence} © 2020 Elsevier Ltd.") == sentence


def test_a_preprint_servers_declarations_go() -> None:
    tail = "### Competing Interest Statement None. ### Funding Statement None. ### Author Yes."
    assert without_boilerplate(f"{STUDY} {tail}") == STUDY


def test_forms_enough() -> None:
    assert len(NOTICES) + len(STAY) >= 60 and len(NOTICES) >= 40


def test_papers_are_read_without_notices_and_counted(tmp_path: Path) -> None:
    text = f"{STUDY} © 2020 Elsevier B.V. All rights reserved."
    ris = f"TY  - JOUR\nTI  - T\nID  - 1\nAB  - {text}\nER  - \n"
    bib = f"@article{{a, title={{T}}, abstract={{{text}}}}}"
    table = f'id,title,abstract\n1,T,"{text}"\n'
    row = json.dumps({"_id": "1", "title": "T", "text": text})
    for name, content in (("a.ris", ris), ("a.bib", bib), ("a.csv", table), ("a.jsonl", row)):
        papers, notes = read(tmp_path / name, content)
        assert [paper.source.abstract for paper in papers] == [STUDY]
        assert "removed: 1" in notes


def test_a_collection_of_a_benchmark_is_read_as_it_is(tmp_path: Path) -> None:
    from claim2source.data.paper_files import PaperFiles

    text = f"{STUDY} © 2020 Elsevier B.V."
    (tmp_path / "corpus.jsonl").write_text(json.dumps({"_id": "1", "title": "T", "text": text}))
    papers = list(PaperFiles.of(str(tmp_path)))
    assert [paper.source.abstract for paper in papers] == [text]


def test_a_paper_without_a_title_keeps_a_text() -> None:
    paper = Paper(Source("1", "", "© 2020 Elsevier B.V."))
    assert cut_boilerplate(paper) is paper


# Abstracts of each collection that lose something; every removal was read: all are notices.
CUT = {"ct25": 56, "preprints": 31, "papertweets": 0}


@pytest.mark.parametrize("name", CUT)
def test_no_sentence_of_a_study_is_lost(name: str) -> None:
    lines = (shared(name) / "corpus.jsonl").read_text().splitlines()
    cut = 0
    for line in lines:
        text = " ".join(json.loads(line)["text"].split())
        rest = without_boilerplate(text)
        if rest == text:
            continue
        cut += 1
        # The declarations that follow are one notice of many sentences.
        study = text.partition("### Competing Interest")[0]
        for sentence in split_sentences(study):
            if sentence not in rest:
                assert any(sign in sentence.lower() for sign in SIGNS), sentence
    assert cut == CUT[name]


SIGNS = (
    "protected by copyright",
    "all rights reserved",
    "visual abstract",
    "publisher's online edition",
    "communicated by",
    "sarma.",
    "©",
    "database record",
    "supplementary",
    "graphical abstract",
)


def test_time_is_linear() -> None:
    begin = time.process_time()
    for part in (
        "© 2020 ",
        "(c) 2020 (",
        "Copyright of ",
        "Published by ",
        "This is an open access ",
        "[(",
    ):
        without_boilerplate(part * 1_500)
    assert time.process_time() - begin < 10
