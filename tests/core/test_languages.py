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
    {"_id": "p1", "title": "Masken und Ausbrüche", "text": "Masken senken Ausbrüche."},
    {"_id": "p2", "title": "Die und der", "text": "Die, der, das und nicht mit der"},
]
POSTS = [
    {"_id": "a", "text": "die und der Masken mit der", "lang": "de-AT"},
    {"_id": "b", "text": "die und der Masken mit der", "lang": "DE"},
    {"_id": "c", "text": "die und der Masken mit der", "lang": "ger"},
    {"_id": "d", "text": "die und der Masken mit der", "lang": "de"},
    {"_id": "e", "text": "masks", "lang": "en-US"},
]
PAIRS = [{"claim": post["_id"], "source": "p1"} for post in POSTS]


@pytest.fixture
def dataset() -> c2s.Dataset:
    return c2s.load(papers=PAPERS, posts=POSTS, pairs=PAIRS)


@pytest.mark.parametrize(
    ("tag", "code"),
    [
        *(
            (tag, "de")
            for tag in ("de", "DE", "de-AT", "de_CH", "ger", "deu", "GER", "deu-Latn-AT")
        ),
        *((tag, "fr") for tag in ("fre", "fra", "fr-CA")),
        *((tag, "en") for tag in ("eng", "en-GB-oed")),
        *(("iw", "he"), ("cmn-Hans", "zh"), ("gsw", "gsw"), ("xx", "xx"), ("", "")),
        *(("all", "all"), ("default", "default"), ("auto", "auto"), ("und", "und")),
    ],
)
def test_the_primary_subtag_of_a_tag(tag: str, code: str) -> None:
    assert primary_language(tag) == code


def test_a_tag_is_in_its_language_and_in_its_own_region() -> None:
    assert is_in_language("de-AT", "ger") and is_in_language("deu-at", "de_AT")
    assert not is_in_language("de", "de-AT") and not is_in_language("de-AT", "de-CH")
    assert not is_in_language("de-AT", "de-A")


def test_two_keys_of_one_language_are_refused() -> None:
    assert by_primary_language({"ger": 1, "en": 2}, "routes") == {"de": 1, "en": 2}
    with pytest.raises(ConfigError) as error:
        by_primary_language({"de": 1, "de-AT": 2}, "routes")
    assert error.value.key == "routes.de-AT"


def test_a_claim_has_the_primary_subtag_and_keeps_its_own_tag() -> None:
    claim = c2s.Claim("1", "ja", "de_AT")
    assert (claim.lang, claim.tag) == ("de", "de-at")
    moved = replace(claim, text="nein")
    assert (moved.lang, moved.tag) == ("de", "de-at")
    english = replace(claim, lang="en")
    assert (english.lang, english.tag) == ("en", "en")


def test_tags_of_one_language_are_one_language_of_the_macro_average(dataset: c2s.Dataset) -> None:
    assert dataset.languages == ("en", "de")
    ids = [claim.id for claim in dataset.claims]
    masks = language_masks(dataset.claims, ids)
    assert masks["de"].tolist() == [True] * 4 + [False]
    assert len(np.unique(language_strata(dataset.claims, ids))) == 2
    report = c2s.evaluate(
        c2s.BM25(language="de").index(dataset.sources).search(dataset.claims), dataset
    )
    assert list(report.languages) == ["en", "de"] and report.languages["de"]["queries"] == 4


def test_tags_of_one_language_have_its_stop_words(dataset: c2s.Dataset) -> None:
    found = c2s.BM25().index(dataset.sources).search(dataset.claims)
    assert found.sources("d") == ["p1"]
    for claim in "abc":
        assert found.scored(claim) == found.scored("d")


def test_languages_are_named_as_the_file_does_or_by_the_primary_subtag() -> None:
    def ids(*languages: str) -> list[str]:
        data = c2s.load(papers=PAPERS, posts=POSTS, pairs=PAIRS, languages=list(languages))
        return [claim.id for claim in data.claims]

    assert ids("de") == ids("ger") == ids("DE") == ["a", "b", "c", "d"]
    assert ids("de-AT") == ids("de_at") == ["a"]
    assert ids("en", "de-AT") == ["a", "e"]
    with pytest.raises(ConfigError) as error:
        ids("de-CH")
    assert error.value.key == "languages" and "de-at" in error.value.allowed


def test_files_keep_their_tags(dataset: c2s.Dataset, tmp_path: Path) -> None:
    write_beir([dataset], tmp_path / "written")
    read = c2s.load(tmp_path / "written", "test")
    assert [claim.tag for claim in read.claims] == ["de-at", "de", "ger", "de", "en-us"]
    assert read.fingerprint == dataset.fingerprint


def test_the_fingerprint_is_of_what_the_file_says() -> None:
    plain = c2s.load(papers=PAPERS, posts=[POSTS[3]], pairs=[PAIRS[3]])
    assert plain.fingerprint == "f8eff4756caf3436831d44cad581b3f4b52eede75f0c4f43dffd499e1918fa78"
    regional = [{**POSTS[3], "lang": "de-at"}]
    other = c2s.load(papers=PAPERS, posts=regional, pairs=[PAIRS[3]])
    assert other.fingerprint == "1aa8be68f64e9fc85bcc81ef877cbf527925e3a53261217f8e946cbc21327547"


def test_what_is_translated_goes_by_the_primary_subtag(
    dataset: c2s.Dataset, tmp_path: Path
) -> None:
    write_beir([dataset], tmp_path / "data")
    folder = tmp_path / "data"
    assert [text.id for text in foreign_claims(folder)] == ["a", "b", "c", "d"]
    assert [text.id for text in foreign_claims(folder, ["ger"])] == ["a", "b", "c", "d"]
    assert [text.id for text in foreign_claims(folder, ["de-AT"])] == ["a"]
    assert language_name("ger") == language_name("de_AT") == "German"


def test_a_filter_takes_every_tag() -> None:
    for tag in ("de", "ger", "de-AT", "DE"):
        Where(language=tag)
    with pytest.raises(ConfigError):
        Where(language="german!")


def test_a_code_of_two_letters_is_looked_up_as_one() -> None:
    assert {len(primary_language(code)) for code in CODES} == {2}
    assert {primary_language(code) for code in CODES} <= CODES
