"""Dictionaries of a dict server: headwords, senses, and damaged files."""

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.errors import InputError
from claim2source.text.dictd import _DIGITS, _number, read_articles
from claim2source.text.word_list import read_senses

ARTICLES = {
    "00databaseinfo": "00databaseinfo\nabout\n",
    "botte": "botte /bɔt/ <n, fem>\nboot\n",
    "bordel": "bordel /bɔʀdɛl/\n1. brothel (rare)\nunder a number: a note\n2. bawdy, house of ill fame\n",
    "bouchon de liège": "bouchon de liège\ncork\n",
    "bateau": "bateau\nboat, ship\nOuvrage flottant\n",
}


def digits(number: int) -> str:
    text = _DIGITS[number % 64]
    while number := number // 64:
        text = _DIGITS[number % 64] + text
    return text


@pytest.fixture
def dictionary(tmp_path: Path) -> Path:
    index, text = [], b""
    for word, article in ARTICLES.items():
        content = article.encode()
        index.append(f"{word}\t{digits(len(text))}\t{digits(len(content))}\n")
        text += content
    (tmp_path / "fra-eng.dict.dz").write_bytes(gzip.compress(text))
    path = tmp_path / "fra-eng.index"
    path.write_text("".join(index), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", ["fra-eng.index", "fra-eng.dict.dz"])
def test_senses_are_read_by_either_file_without_notes(dictionary: Path, name: str) -> None:
    assert read_senses(dictionary.with_name(name)) == {
        "botte": "boot",
        "bordel": "brothel",
        "bateau": "boat",
    }
    articles = dict(read_articles(dictionary))
    assert articles["bouchon de liège"] == ["cork"]
    assert articles["bordel"] == ["brothel", "bawdy", "house of ill fame"]


def test_what_is_damaged_is_refused_by_its_name_and_line(dictionary: Path) -> None:
    articles = dictionary.with_name("fra-eng.dict.dz")
    whole = articles.read_bytes()
    articles.write_bytes(whole[:40])
    with pytest.raises(InputError) as caught:
        read_senses(dictionary)
    assert caught.value.problems[0].file == str(articles)
    articles.write_bytes(whole)
    with dictionary.open("a", encoding="utf-8") as file:
        file.write("mot\tA\n")
    with pytest.raises(InputError) as caught:
        read_senses(dictionary)
    assert (caught.value.problems[0].file, caught.value.problems[0].line) == (
        str(dictionary),
        len(ARTICLES) + 1,
    )
    articles.unlink()
    with pytest.raises(InputError):
        read_senses(dictionary)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**40))
def test_numbers_of_an_index_have_64_digits(number: int) -> None:
    assert _number(digits(number)) == number
