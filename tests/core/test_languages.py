"""Languages are looked up by the primary subtag, whatever their spelling in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import claim2source as c2s
from claim2source.core.errors import ConfigError
from claim2source.core.languages import by_primary_language, is_in_language, primary_language
from claim2source.data.beir import write_beir
from claim2source.metrics.metrics import language_masks, language_strata
from claim2source.search.rows import Where
from claim2source.text.language import CODES, language_name
from claim2source.text.translate import foreign_claims

PAPERS = [
    {
        "_id": "p1",
        "title": "Masken und Ausbrüche",
        "text": "Masken senken Ausbrüche.",
    },
    {
        "_id": "p2",
        "title": "Die und der",
        "text": "Die, der, das und nicht mit der",
    },
]
GERMAN = "die und der Masken mit der"
POSTS = [
    {"_id": "a", "text": GERMAN, "lang": "de-AT"},
    {"_id": "b", "text": GERMAN, "lang": "DE"},
    {"_id": "c", "text": GERMAN, "lang": "ger"},
    {"_id": "d", "text": GERMAN, "lang": "de"},
    {"_id": "e", "text": "masks", "lang": "en-US"},
]
PAIRS = [{"claim": post["_id"], "source": "p1"} for post in POSTS]


@pytest.fixture
def dataset() -> c2s.Dataset:
    return c2s.load(papers=PAPERS, posts=POSTS, pairs=PAIRS)


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        ("de", "de"),
        ("DE", "de"),
        ("de-AT", "de"),
        ("de_CH", "de"),
        ("ger", "de"),
        ("deu", "de"),
        ("GER", "de"),
        ("deu-Latn-AT", "de"),
        ("fre", "fr"),
        ("fra", "fr"),
        ("fr-CA", "fr"),
        ("eng", "en"),
        ("en-GB-oed", "en"),
        ("iw", "he"),
        ("cmn-Hans", "zh"),
        ("gsw", "gsw"),
        ("xx", "xx"),
        ("", ""),
        ("all", "all"),
        ("default", "default"),
        ("auto", "auto"),
        ("und", "und"),
    ],
)
def test_the_primary_subtag_of_a_tag(tag: str, code: str) -> None:
    assert primary_language(tag) == code


def test_a_tag_is_in_its_language_and_in_its_own_region() -> None:
    assert is_in_language("de-AT", "ger")
    assert is_in_language("deu-at", "de_AT")
    assert not is_in_language("de", "de-AT")
    assert not is_in_language("de-AT", "de-CH")
    assert not is_in_language("de-AT", "de-A")


def test_two_keys_of_one_language_are_refused() -> None:
    routes = {"ger": 1, "en": 2}
    by_language = by_primary_language(routes, "routes")
    assert by_language == {"de": 1, "en": 2}
    twice = {"de": 1, "de-AT": 2}
    with pytest.raises(ConfigError) as error:
        by_primary_language(twice, "routes")
    assert error.value.key == "routes.de-AT"


def test_a_claim_has_the_primary_subtag_and_keeps_its_own_tag() -> None:
    claim = c2s.Claim("1", "ja", "de_AT")
    assert claim.lang == "de"
    assert claim.tag == "de-at"
    moved = replace(claim, text="nein")
    assert moved.lang == "de"
    assert moved.tag == "de-at"
    english = replace(claim, lang="en")
    assert english.lang == "en"
    assert english.tag == "en"


def test_tags_of_one_language_are_one_language_of_the_macro_average(dataset: c2s.Dataset) -> None:
    assert dataset.languages == ("en", "de")
    ids = [claim.id for claim in dataset.claims]
    masks = language_masks(dataset.claims, ids)
    german = masks["de"].tolist()
    assert german == [True, True, True, True, False]
    strata = language_strata(dataset.claims, ids)
    assert len(np.unique(strata)) == 2
    index = c2s.BM25(language="de").index(dataset.sources)
    result = index.search(dataset.claims)
    report = c2s.evaluate(result, dataset)
    assert list(report.languages) == ["en", "de"]
    row = report.languages["de"]
    assert row["queries"] == 4


def test_tags_of_one_language_have_its_stop_words(dataset: c2s.Dataset) -> None:
    index = c2s.BM25().index(dataset.sources)
    found = index.search(dataset.claims)
    assert found.sources("d") == ["p1"]
    for claim in "abc":
        assert found.scored(claim) == found.scored("d")


def test_languages_are_named_as_the_file_does_or_by_the_primary_subtag() -> None:
    def ids(*languages: str) -> list[str]:
        data = c2s.load(
            papers=PAPERS,
            posts=POSTS,
            pairs=PAIRS,
            languages=list(languages),
        )
        return [claim.id for claim in data.claims]

    for language in ("de", "ger", "DE"):
        assert ids(language) == ["a", "b", "c", "d"]
    for language in ("de-AT", "de_at"):
        assert ids(language) == ["a"]
    assert ids("en", "de-AT") == ["a", "e"]
    with pytest.raises(ConfigError) as error:
        ids("de-CH")
    assert error.value.key == "languages"
    assert "de-at" in error.value.allowed


def test_files_keep_their_tags(dataset: c2s.Dataset, tmp_path: Path) -> None:
    folder = tmp_path / "written"
    write_beir([dataset], folder)
    read = c2s.load(folder, "test")
    tags = [claim.tag for claim in read.claims]
    assert tags == ["de-at", "de", "ger", "de", "en-us"]
    assert read.fingerprint == dataset.fingerprint


def test_the_fingerprint_is_of_what_the_file_says() -> None:
    post = POSTS[3]
    pairs = [PAIRS[3]]
    plain = c2s.load(papers=PAPERS, posts=[post], pairs=pairs)
    assert plain.fingerprint == "f8eff4756caf3436831d44cad581b3f4b52eede75f0c4f43dffd499e1918fa78"
    regional = {**post, "lang": "de-at"}
    other = c2s.load(papers=PAPERS, posts=[regional], pairs=pairs)
    assert other.fingerprint == "1aa8be68f64e9fc85bcc81ef877cbf527925e3a53261217f8e946cbc21327547"


def test_what_is_translated_goes_by_the_primary_subtag(
    dataset: c2s.Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    write_beir([dataset], folder)
    every = foreign_claims(folder)
    assert [text.id for text in every] == ["a", "b", "c", "d"]
    german = foreign_claims(folder, ["ger"])
    assert [text.id for text in german] == ["a", "b", "c", "d"]
    austrian = foreign_claims(folder, ["de-AT"])
    assert [text.id for text in austrian] == ["a"]
    assert language_name("ger") == "German"
    assert language_name("de_AT") == "German"


def test_a_filter_takes_every_tag() -> None:
    for tag in ("de", "ger", "de-AT", "DE"):
        Where(language=tag)
    with pytest.raises(ConfigError):
        Where(language="german!")


def test_a_code_of_two_letters_is_looked_up_as_one() -> None:
    looked_up = {primary_language(code) for code in CODES}
    assert {len(code) for code in looked_up} == {2}
    assert looked_up <= CODES
