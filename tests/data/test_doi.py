"""DOIs as registries, libraries, web pages and people write them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.data.doi import plain_doi, plain_dois

SICI = "10.1002/(sici)1097-0258(19980815/30)17:15/16<1661::aid-sim968>3.0.co;2-2"
SICIS = [
    SICI,
    "10.1002/(sici)1097-4636(199823)43:4<422::aid-jbm9>3.0.co;2-#",
    "10.1175/1520-0442(2004)017<2441:tncepa>2.0.co;2",
    "10.1641/0006-3568(2001)051[0933:teotwa]2.0.co;2",
    "10.1002/1521-3951(200009)221:1<453::aid-pssb453>3.0.co;2-q",
]


@pytest.mark.parametrize(
    "text",
    [
        "10.5555/ab",
        "10.5555/AB",
        "10.5555/ab.",
        "10.5555/ab,",
        "10.5555/ab;",
        "(10.5555/ab)",
        "[10.5555/ab]",
        "10.5555/ab).",
        "{10.5555/ab}",
        "10.5555/ab</a>",
        "<b>10.5555/ab</b>",
        "10.5555/ab<br/>",
        "https://doi.org/10.5555/ab?nosfx=y",
        "10.5555/ab#section",
        "10.5555%2Fab",
        "10.5555%252Fab",
        "10.5555/ab%20",
        "doi:10.5555/ab",
        "DOI: 10.5555/ab",
        "info:doi/10.5555/ab",
        "http://dx.doi.org/10.5555/ab",
        "http://dx.doi.org.proxy.example.edu/10.5555/ab",
        "https://doi-org.ezproxy.example.edu/10.5555/ab",
        "https://example.org/login?url=https%3A%2F%2Fdoi.org%2F10.5555%2Fab",
        "https://example.org/x?doi=10.5555/ab&page=2",
        "10.5555/ab&quot;",
        "\u201c10.5555/ab\u201d",
        "10.5555/ab\u200b",
        "10.55\u00ad55/ab\ufeff",
        "10.5555/AB [doi]",
        "https://www.example.com/doi/full/10.5555/ab?src=x",
        "https://www.example.com/content/pdf/10.5555/ab.pdf",
        "https://www.example.com/articles/10.5555/ab/full",
        "10.5555/ab/",
    ],
)
def test_what_stands_around_a_doi_is_no_part_of_it(text: str) -> None:
    assert plain_doi(text) == "10.5555/ab"


@pytest.mark.parametrize("doi", SICIS)
def test_old_dois_stay_whole(doi: str) -> None:
    coded = doi.replace("<", "%3C").replace(">", "%3E").replace("#", "%23")
    entities = doi.replace("<", "&lt;").replace(">", "&gt;")
    for text in (doi, doi.upper(), f"({doi})", f"{doi}.", f"https://doi.org/{coded}", entities):
        assert plain_dois(text) == [doi]
    assert plain_dois(f"{doi}; 10.5555/ab") == [doi, "10.5555/ab"]


def test_brackets_of_a_doi_stay() -> None:
    assert plain_doi("(10.1016/S0140-6736(05)67489-9)") == "10.1016/s0140-6736(05)67489-9"
    assert plain_doi("10.5555/a(b)") == "10.5555/a(b)"
    assert plain_doi("10.5555/a[b]c]") == "10.5555/a[b]c"


def test_a_preprint_has_one_doi_with_its_versions_and_full_texts() -> None:
    for end in ("", "v2", "v2.full.pdf", "v1.abstract"):
        text = f"https://www.biorxiv.org/content/10.1101/2020.01.01.123456{end}"
        assert plain_doi(text) == "10.1101/2020.01.01.123456"


@pytest.mark.parametrize(
    "separator", ["; ", ";", ",", ", ", " ", "|", "\n", " and ", "; https://doi.org/", " doi:"]
)
def test_several_dois_are_several(separator: str) -> None:
    assert plain_dois(f"10.5555/ab{separator}10.5555/CD") == ["10.5555/ab", "10.5555/cd"]


def test_what_is_no_doi() -> None:
    for text in ("see arXiv", "", "10.5555/", "10.5555", "10.12/ab", "210.5555/ab", "10.5555/."):
        assert plain_doi(text) == ""


# As a regular expression they would take ten times as long to draw.
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
ENDS = st.sampled_from(LETTERS)
NAMES = st.one_of(
    ENDS, st.builds("{}{}{}".format, ENDS, st.text(f"{LETTERS}._-", max_size=12), ENDS)
)
DOIS = st.one_of(
    st.builds("10.{}/{}".format, st.integers(1000, 99999), NAMES),
    st.builds("10.{}/{}({}){}".format, st.integers(1000, 99999), NAMES, NAMES, NAMES),
    st.sampled_from(SICIS),
)
DECORATIONS = st.lists(
    st.sampled_from(
        [
            "({})",
            "[{}]",
            "{}.",
            "{},",
            "{};",
            "{}</a>",
            "<p>{}</p>",
            '"{}"',
            "doi: {}",
            "{}\u200b",
            "\ufeff{}",
            "  {} ",
            "{}:",
        ]
    ),
    max_size=4,
)


@settings(deadline=None, max_examples=100)
@given(DOIS, DECORATIONS, st.booleans())
def test_a_decorated_doi_is_the_doi(doi: str, decorations: list[str], capital: bool) -> None:
    text = doi.upper() if capital else doi
    for form in decorations:
        text = form.replace("{}", text)
    assert plain_doi(text) == doi


@settings(deadline=None, max_examples=80)
@given(
    st.one_of(
        st.text(max_size=60),
        st.builds("10.5555/{}".format, st.text(max_size=40)),
        st.builds(
            "10.5555/{}".format,
            st.text("ab1./-_()[]{}<>;:,?#%&\"' 2F3Cv\u200b\uff0f\u2013", max_size=40),
        ),
    )
)
def test_cleaning_what_is_clean_changes_nothing(text: str) -> None:
    found = plain_dois(text)
    assert plain_doi(text) == (found[0] if found else "")
    for doi in found:
        assert plain_doi(doi) == doi and plain_dois(doi) == [doi]


def test_a_hostile_text_takes_linear_time() -> None:
    begin = time.perf_counter()
    for part in ("10.5555/a;", "%25", "(10.5555/", "&amp;", "<10.1/", "10.5555/a<b>"):
        plain_dois(part * 30_000)
    assert time.perf_counter() - begin < 5
