"""Authors given as one string."""

from __future__ import annotations

import pytest

from claim2source.datasets.authors import author_names, turned_names
from claim2source.text import clean_authors


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Doe, Jane", ("Jane Doe",)),
        ("Doe, Jane; Ng, A. B.", ("Jane Doe", "A. B. Ng")),
        ("van der Berg, Jan;de la Cruz,Ana", ("Jan van der Berg", "Ana de la Cruz")),
        ("King, Martin Luther, Jr.", ("Martin Luther King Jr.",)),
        ("Consortium of  Everything", ("Consortium of Everything",)),
        ("Doe,", ("Doe",)),
        (", Jane", ("Jane",)),
        ("; ,;  ;", ()),
        ("", ()),
    ],
)
def test_turned_names(text: str, names: tuple[str, ...]) -> None:
    assert turned_names(text) == names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Doe, Jane; Roe, Richard", ("Jane Doe", "Richard Roe")),
        ("Jane Doe; Richard Roe", ("Jane Doe", "Richard Roe")),
        ("Jane Doe, Richard Roe", ("Jane Doe", "Richard Roe")),
        ("Jane Doe, Richard  Roe, Ng", ("Jane Doe", "Richard Roe", "Ng")),
        ("Jane Doe, Richard Roe, Jr., Ana Ng", ("Jane Doe", "Richard Roe Jr.", "Ana Ng")),
        ("Doe, Jane", ("Jane Doe",)),
        ("van der Berg, Jan", ("Jan van der Berg",)),
        ("Doe, Jane Mary", ("Jane Mary Doe",)),
        ("King, Martin, Jr.", ("Martin King Jr.",)),
        ("Jane Doe, PhD", ("Jane Doe PhD",)),
        ("Jane Doe", ("Jane Doe",)),
        ("Jane Doe,", ("Jane Doe",)),
        (" , ", ()),
        ("", ()),
    ],
)
def test_author_names(text: str, names: tuple[str, ...]) -> None:
    assert author_names(text) == names


def test_an_affiliation_is_not_taken_for_a_first_name() -> None:
    """It keeps its comma, by which the rendering cuts it off."""
    names = author_names("Jane Doe, Tongji Hospital; Roe, Richard, Leipzig University; & Wuhan")
    assert names == ("Jane Doe, Tongji Hospital", "Richard Roe, Leipzig University", "& Wuhan")
    assert clean_authors(names) == ("Jane Doe", "Richard Roe")
