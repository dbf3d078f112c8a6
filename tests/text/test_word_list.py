"""Word lists in Ding's format: first senses, forms, compounds, and unknown words."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import InputError
from claim2source.text.word_list import WordList, parse_senses, read_senses

LINES = """\
# a comment :: is left out
Nager {m} [zool.]; Maus {f} :: rodent; mouse
Maus {f} [zool.] | Mäuse {pl} :: mouse | mice
Maus {f} [comp.] :: pointing device
Impfung {f} (Tätigkeit) [med.] :: vaccination; immunization
Schutz {m} :: protection
etw. messen {vt} {maß; gemessen} | er/sie misst :: to measure sth. {measured; measured} | he/she measures
mit Maß und Ziel :: in moderation
Gehirn {n} :: brain
""".splitlines()


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("Maus", "mouse"),
        ("MÄUSE", "mice"),
        ("mäuse messen", "mice measure"),
        ("Impfungen", "vaccination"),
        ("Impfschutz, Gehirne!", "Impfschutz, brain!"),
        ("Impfungsschutz", "vaccination protection"),
        ("Mäusegehirn", "mice brain"),
        ("#Maus @Maus https://maus.de/Maus 37 %", "#mouse @Maus https://maus.de/Maus 37 %"),
        ("Covid-Impfung", "Covid vaccination"),
        ("die Maus", "mouse"),
        ("xyz", ""),
    ],
)
def test_words_have_their_first_sense_and_compounds_are_divided(text: str, english: str) -> None:
    words = WordList(parse_senses(LINES), {"die"})
    assert words.translate(text) == english


def test_a_form_is_looked_up_by_its_stem_and_the_nearest_word_is_taken() -> None:
    senses = {"vaccination": "vaccination", "vaccin": "vaccine", "vacciner": "vaccinate"}
    words = WordList(senses, stem=lambda word: word[:6])
    assert words.translate("vaccinée vaccins") == "vaccinate vaccine"
    assert WordList(senses).translate("vaccinée") == ""


def test_a_file_without_a_word_is_refused(tmp_path) -> None:
    path = tmp_path / "list"
    path.write_text("# only this\nno separator\n", encoding="utf-8")
    with pytest.raises(InputError):
        read_senses(path)


WORDS = st.text("abcdefäöüß", min_size=1, max_size=8)
NOTES = st.sampled_from(["", " {f}", " [med.; zool.]", " (a | b)", " {x (y; z)}"])
BLOCKS = st.lists(st.tuples(WORDS, NOTES, WORDS, NOTES), min_size=1, max_size=4)


@settings(max_examples=40, deadline=None)
@given(BLOCKS)
def test_notes_change_no_word_and_the_first_block_of_a_word_counts(blocks) -> None:
    left = " | ".join(f"{own}{note}" for own, note, _, _ in blocks)
    right = " | ".join(f"{other}{note}; more" for _, _, other, note in blocks)
    senses = parse_senses([f"{left} :: {right}"])
    expected: dict[str, str] = {}
    for own, _, other, _ in blocks:
        expected.setdefault(own, other)
    assert senses == expected


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=200), st.lists(st.text(max_size=80), max_size=5))
def test_any_text_and_any_file_are_taken_and_digits_stay(text: str, lines: list[str]) -> None:
    parse_senses(lines)
    translated = WordList(parse_senses(LINES)).translate(f"Maus {text}")
    assert re.findall(r"\d+", translated) == re.findall(r"\d+", f"Maus {text}")
