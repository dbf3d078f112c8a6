"""Records of the same paper, and the contents of merged ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from claim2source.core.records import Source
from claim2source.data.identity import Identity, merged
from claim2source.data.paper_files import Merge, PaperFiles
from claim2source.data.papers import Paper
from tests.data.reading import write

TITLE = "Masks in primary schools: a trial"


def paper(
    id: str = "1",
    title: str = TITLE,
    authors: Sequence[str] = ("Jane Doe",),
    date: str = "2020",
    **more: str,
) -> Paper:
    return Paper(Source(id, title, "", tuple(authors), "", date), **more)


SAME = [
    (paper(doi="10.5555/a"), paper("2", "Another title of it", doi="10.5555/a"), "doi"),
    (
        paper(url="https://pubmed.ncbi.nlm.nih.gov/7/"),
        paper("2", "Masken", url="https://www.ncbi.nlm.nih.gov/pubmed/7"),
        "id of PubMed or OpenAlex",
    ),
    (
        paper(url="https://openalex.org/W7"),
        paper("2", "Masken", url="https://openalex.org/works/w7"),
        "id of PubMed or OpenAlex",
    ),
    (paper(), paper("2"), "title"),
    (paper(), paper("2", "MASKS IN PRIMARY SCHOOLS - A Trial."), "title"),
    (paper(), paper("2", "Masks in <i>primary</i> schools: a trial"), "title"),
    (paper(), paper("2", f"RETRACTED: {TITLE}"), "title"),
    (
        paper(title="Étude des masques à l'école"),
        paper("2", "Etude des masques a l'ecole"),
        "title",
    ),
    (paper(), paper("2", authors=["Doe J"]), "title"),
    (paper(authors=["Émile Zola"]), paper("2", authors=["E. Zola"]), "title"),
    (paper(), paper("2", date="2020-03-05", doi="10.5555/a"), "title"),
    (paper(), paper("2", authors=[], date=""), "title"),
    (paper(title="Masks"), paper("2", "Masks"), "title"),
]
OTHER = [
    (paper(doi="10.5555/a"), paper(doi="10.5555/b")),
    (
        paper(url="https://pubmed.ncbi.nlm.nih.gov/7/"),
        paper(url="https://pubmed.ncbi.nlm.nih.gov/8/"),
    ),
    (paper(), paper(title="Rats find tuberculosis in samples")),
    (paper(), paper(title=f"{TITLE}, part II")),
    (paper(), paper("2", date="2021")),
    (paper(), paper("2", authors=["Richard Roe"])),
    # An "Editorial" by somebody in some year.
    (paper(title="Editorial"), paper("2", "Editorial", date="")),
    (paper(title=""), paper("2", "")),
]


@pytest.mark.parametrize(("first", "second", "reason"), SAME)
def test_records_of_one_paper(first: Paper, second: Paper, reason: str) -> None:
    assert Identity.read(first).common(Identity.read(second)) == reason
    assert Identity.read(second).common(Identity.read(first)) == reason


@pytest.mark.parametrize(("first", "second"), OTHER)
def test_records_of_two_papers(first: Paper, second: Paper) -> None:
    assert not Identity.read(first).common(Identity.read(second))


def test_the_fuller_record_is_filled_from_the_other() -> None:
    short = Paper(Source("a", "Masks", "", ("Jane Doe",), "", "2020-03"), "10.5555/a", lang="en")
    full = Paper(
        Source("b", "Masks", "They work.", (), "J Inv", ""),
        url="https://x.org",
        retracted="corrected",
    )
    source = Source("a", "Masks", "They work.", ("Jane Doe",), "J Inv", "2020-03")
    whole = Paper(source, "10.5555/a", "https://x.org", "en", "corrected")
    assert merged(short, full) == whole


def ris(*lines: str) -> str:
    return "\n".join(["TY  - JOUR", *lines, "ER  - ", ""])


def test_two_papers_with_one_id_of_two_libraries_are_two(tmp_path: Path) -> None:
    write(tmp_path / "a.ris", ris("ID  - 12", "TI  - Masks in schools", "PY  - 2020"))
    write(tmp_path / "b.ris", ris("ID  - 12", "TI  - Rats find it", "PY  - 2021"))
    write(tmp_path / "c.bib", "@article{12, title={Bats fly}, doi={10.5555/c}}")
    for _ in range(2):
        files = PaperFiles.of(str(tmp_path))
        first, second, third = files
        assert first.source.id == "12" and files.merged == 0
        assert len({first.source.id, second.source.id, third.source.id}) == 3


def test_one_paper_of_three_libraries_is_one(tmp_path: Path) -> None:
    write(tmp_path / "a.ris", ris("ID  - 7", f"TI  - {TITLE}", "AU  - Doe, Jane", "PY  - 2020"))
    write(
        tmp_path / "b.bib",
        "@article{doe, title={Masks in Primary Schools: {A} Trial}, author={Doe, J.}, "
        "year={2020}, doi={10.5555/a}, abstract={They work.}}",
    )
    write(tmp_path / "c.ris", ris("TI  - A title of Crossref", "DO  - 10.5555/A."))
    listed: list[Merge] = []
    files = PaperFiles.of(str(tmp_path))
    files.on_merge = listed.append
    (whole,) = files
    assert (whole.source.id, whole.doi) == ("7", "10.5555/a")
    assert whole.source.abstract == "They work." and whole.source.authors
    assert [(merge.kept, merge.by) for merge in listed] == [("7", "title"), ("7", "doi")]
    assert [Path(merge.file).name for merge in listed] == ["b.bib", "c.ris"]
    assert (files.records, len(files), files.merged, files.left_out) == (3, 1, 2, 0)


def test_a_record_that_links_two_others_makes_one_of_them(tmp_path: Path) -> None:
    write(
        tmp_path / "a.ris",
        ris("TI  - A short title of Crossref", "DO  - 10.5555/a")
        + ris("ID  - 9", f"TI  - {TITLE}", "PY  - 2020")
        + ris(f"TI  - {TITLE}", "DO  - 10.5555/a", "PY  - 2020"),
    )
    files = PaperFiles.of(str(tmp_path / "a.ris"))
    assert [paper.source.id for paper in files] == ["10.5555/a"]
    assert (files.records, len(files), files.merged) == (3, 1, 2)


def test_ids_of_a_data_set_are_kept(tmp_path: Path) -> None:
    rows = [{"_id": str(i), "title": TITLE, "text": "", "metadata": {}} for i in range(3)]
    path = write(tmp_path / "corpus.jsonl", "\n".join(map(json.dumps, rows)))
    files = PaperFiles.of(str(path))
    assert [paper.source.id for paper in files] == ["0", "1", "2"] and files.merged == 0


@st.composite
def libraries(draw: st.DrawFn) -> list[list[tuple[str, int, int, bool]]]:
    """Draw records of several libraries: label, paper, number of its DOI, whether it has a text."""
    record = st.tuples(
        st.sampled_from(["1", "2", "x"]), st.integers(0, 4), st.integers(0, 1), st.booleans()
    )
    return draw(st.lists(st.lists(record, max_size=6), min_size=1, max_size=3))


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(libraries())
def test_every_record_is_read_merged_or_left_out(
    tmp_path: Path, drawn: list[list[tuple[str, int, int, bool]]]
) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    papers: set[int] = set()
    count = 0
    for number, records in enumerate(drawn):
        texts = []
        for label, key, has_doi, has_text in records:
            count += 1
            lines = [f"ID  - {label}", "PY  - 2020"]
            if has_text:
                papers.add(key)
                lines.append(f"TI  - Study number {key} of masks in schools")
            if has_doi:
                lines.append(f"DO  - 10.5555/{key}")
            texts.append(ris(*lines))
        if texts:
            write(tmp_path / f"{number}.ris", "".join(texts))
    if not count:
        return
    files = PaperFiles.of(str(tmp_path), lenient=True)
    for _ in range(2):
        read = list(files)
        assert len(read) == len(files) == len(papers)
        assert len({paper.source.id for paper in read}) == len(read)
        assert len(read) + files.merged + files.left_out == files.records == count
    files.check = False
    assert len({paper.source.id for paper in files}) == len(papers)
    assert len(papers) + files.merged + files.left_out == files.records == count


def test_lines_that_cannot_be_read_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"_id": "1", "title": "T"}\n{broken\n{"_id": "2", "title": ""}\n{"_id": 3\n')
    files = PaperFiles.of(str(path), lenient=True)
    assert len(list(files)) == 1
    assert (files.records, files.merged, files.left_out) == (4, 0, 3)
