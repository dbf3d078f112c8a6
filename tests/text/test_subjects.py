"""Places and populations: one name each, in three languages."""

from __future__ import annotations

import pytest

from claim2source.text.subjects import PLACES, POPULATIONS, subjects

SAME = [
    (["Belgian schools", "belgische Schulen", "écoles belges", "Belgium", "Belgien"], {"be"}, None),
    (["in the US", "U.S. data", "United States", "in den USA", "États-Unis"], {"us"}, None),
    (["South African", "südafrikanisch", "sud-africain"], {"za"}, None),
    (["Costa Rica", "costa-ricain"], {"cr"}, None),
    (["women", "Frauen", "des femmes"], None, {"women"}),
    (["pregnant", "schwanger", "enceinte"], None, {"pregnant"}),
    (["mice", "Mäuse", "souris"], None, {"mice"}),
    (["nursing homes", "im Pflegeheim", "en EHPAD"], None, {"residents"}),
    (["children", "Kinder", "enfants", "KIDS"], None, {"children"}),
]


@pytest.mark.parametrize(("texts", "places", "populations"), SAME)
def test_words_of_three_languages_name_one_subject(
    texts: list[str], places: set[str] | None, populations: set[str] | None
) -> None:
    for text in texts:
        read = subjects(text)
        assert read.places == (places or set()), text
        assert read.populations >= (populations or set()), text
        assert bool(read.populations) == bool(populations), text


def test_other_words_name_nothing() -> None:
    read = subjects("tell us: this kind of chat does not help the man at all, it manages")
    assert not read.places and not read.populations


def test_no_word_names_two_subjects() -> None:
    for groups in (PLACES, POPULATIONS):
        listed = [stem for stems in groups.values() for stem in stems.split()]
        assert len(listed) == len(set(listed))
    assert not PLACES.keys() & POPULATIONS.keys()
