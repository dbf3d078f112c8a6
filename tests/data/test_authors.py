"""Authors given as one string."""

from __future__ import annotations

import pytest

from claim2source.data.authors import author_names, in_reading_order, turned_names
from claim2source.text import clean_authors


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Doe, Jane", ("Jane Doe",)),
        ("Doe, Jane; Ng, A. B.", ("Jane Doe", "A. B. Ng")),
        ("van der Berg, Jan;de la Cruz,Ana", ("Jan van der Berg", "Ana de la Cruz")),
        ("King, Martin Luther, Jr.", ("Martin Luther King Jr.",)),
        # The 2025 task's lists: two words before the comma are a surname there.
        ("García López, María", ("María García López",)),
        ("Rahman Khan, Md", ("Md Rahman Khan",)),
        ("", ()),
    ],
)
def test_turned_names(text: str, names: tuple[str, ...]) -> None:
    assert turned_names(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Jane Doe; Richard Roe", ("Jane Doe", "Richard Roe")),
        ("Jane Doe, Richard  Roe, Ng", ("Jane Doe", "Richard Roe", "Ng")),
        ("Jane Doe, Richard Roe, Jr., Ana Ng", ("Jane Doe", "Richard Roe Jr.", "Ana Ng")),
        ("Doe, Jane", ("Jane Doe",)),
        ("Jane Doe, PhD", ("Jane Doe PhD",)),
        ("Jane Doe", ("Jane Doe",)),
        # Lists of Python, numpy, JSON and objects; and other separators.
        ("['Marx, Karl', 'Lindgren, Astrid']", ("Karl Marx", "Astrid Lindgren")),
        ('["Jane Doe", "Richard O\'Roe"]', ("Jane Doe", "Richard O'Roe")),
        ("['Jane Doe' 'Richard Roe']", ("Jane Doe", "Richard Roe")),
        ("[nan, 'Jane Doe']", ("Jane Doe",)),
        ('[null, {"given": "Jane", "family": "Doe"}]', ("Jane Doe",)),
        ("Jane Doe and Richard Roe", ("Jane Doe", "Richard Roe")),
        ("Doe, Jane &amp; Roe, Richard et al.", ("Jane Doe", "Richard Roe")),
        ("Doe, J., Ng, A. B., & Roe, R.", ("J. Doe", "A. B. Ng", "R. Roe")),
        # It splits nothing in the name of an institution.
        (
            "Centers for Disease Control and Prevention",
            ("Centers for Disease Control and Prevention",),
        ),
        ("{'Roe, Richard', 'Doe, Jane'}", ("Richard Roe", "Jane Doe")),
        ("['Doe, Jane', 'nan', None]", ("Jane Doe",)),
        ("", ()),
    ],
)
def test_author_names(text: str, names: tuple[str, ...]) -> None:
    assert author_names(text) == names


ONE_AFFILIATED = [
    "Jane Doe, Wuhan, China",
    "Jane Doe, Hôpital Cochin, Paris, France",
    "Jane Doe, Département de X, Lyon",
]


@pytest.mark.parametrize("entry", ONE_AFFILIATED)
def test_a_name_before_its_affiliation_is_kept_whole(entry: str) -> None:
    """As one string, in a list by semicolons, as a list, and in the form of the 2025 task."""
    assert clean_authors(author_names(entry)) == ("Jane Doe",)
    assert clean_authors(turned_names(entry)) == ("Jane Doe",)
    assert clean_authors([entry]) == ("Jane Doe",)
    two = clean_authors(author_names(f"{entry}; Richard Roe, Paris, France"))
    assert two == ("Jane Doe", "Richard Roe")
    assert clean_authors([entry, "Richard Roe, Paris"]) == two


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Doe, Jane; van der Berg, Anna; Ng, A.", ("Jane Doe", "Anna van der Berg", "A. Ng")),
        ("Doe, Jane, Jr.; Ng, A.", ("Jane Doe Jr.", "A. Ng")),
        # Surnames first by most: one of two words is turned with them, before a given name only.
        ("Doe, Jane; García López, María José", ("Jane Doe", "María José García López")),
        ("Doe, Jane; Ng, A.; Richard Roe, Ward of X", ("Jane Doe", "A. Ng", "Richard Roe")),
        # Reading order by most: nothing is turned, though the second part looks like a name.
        ("Jane Doe, Wuhan; Richard Roe, Paris; Ng, A.", ("Jane Doe", "Richard Roe", "Ng")),
        # More than two parts: the name is what the released code takes.
        ("Doe, Jane; Ng, Wuhan, China", ("Jane Doe", "Ng")),
        ("Rahman, Md; Doe, MD", ("Md Rahman", "MD Doe")),
        # Separated only by commas.
        ("Jane Doe, Ng", ("Jane Doe",)),  # as "Jane Doe, Wuhan"
        ("Jane Doe, Richard Roe, Leipzig University", ("Jane Doe", "Richard Roe")),
    ],
)
def test_a_string_and_a_list_give_the_same_names(text: str, names: tuple[str, ...]) -> None:
    entries = [entry.strip() for entry in text.split(";")]
    assert clean_authors(author_names(text)) == names
    if ";" in text:
        assert clean_authors(entries) == names
    once = in_reading_order(entries)
    assert in_reading_order(once) == once
