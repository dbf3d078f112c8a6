"""Posts are cleaned and split; lemmas."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.errors import UserError
from claim2source.text.clean import (
    STOP_WORDS,
    clean_post,
    lemma_texts,
    normalise_arabic,
    pipeline_identity,
    tweet_fields,
    without_unseen,
)
from tests.refusals import refused
from tests.text.small_pipeline import write_pipeline


@pytest.mark.parametrize(
    ("post", "clean"),
    [
        ("#quarantine works, says @WHO", "quarantine works, says"),
        ("masks \U0001f637\U0001f3fd work\u2764\ufe0f!", "masks work !"),
        ("a \U0001f469\u200d\U0001f52c found it \U0001f1fa\U0001f1f8", "a found it"),
        ("end pic.twitter.com/3S32De8ekP", "end"),
        # An address is not a handle, a number sign alone not a hashtag; letters of all scripts are kept.
        ("mail a@b.org, # 1, C#", "mail a@b.org, # 1, C#"),
        ("\u0646\u0645\u06cc\u200c caf\u00e9 5 \u20ac \u2013 3.7x", None),
    ],
)
def test_what_goes_and_what_stays(post: str, clean: str | None) -> None:
    assert clean_post(post) == (post if clean is None else clean)


@given(st.text())
def test_a_cleaned_post_has_none_of_it_and_keeps_hashtags_words(text: str) -> None:
    fields = clean_post(f"{text} #tag @handle \U0001f637 https://t.co/x")
    assert fields.endswith("tag") and "@handle" not in fields and "\U0001f637" not in fields
    assert clean_post(fields) == fields or "@" in fields or "#" in fields


def test_addresses_and_emojis_go_and_hashtags_are_apart() -> None:
    tweet = "RT @WHO: ❌ News #Know_the_facts#COVID19 🇱🇾https://t.co/a1 &#39;said&#39;"
    text, hashtags = tweet_fields(tweet)
    assert text == "RT @WHO: News Know the facts COVID19 &#39;said&#39;"
    assert hashtags == ("Know_the_facts", "COVID19")
    short = tweet_fields(tweet, keep_words=False)
    assert short == ("RT @WHO: News &#39;said&#39;", hashtags)


def test_short_words_leave_the_text_only() -> None:
    text, hashtags = tweet_fields("It is a #EU rule, at last", shortest=3)
    assert text.split() == ["rule,", "last"] and hashtags == ("EU",)


@given(st.text(alphabet="ab#_ 😀é1&", max_size=30))
def test_no_tag_is_lost_and_nothing_is_made_up(text: str) -> None:
    rest, hashtags = tweet_fields(text, keep_words=False)
    assert len(rest) <= len(text) and "😀" not in rest
    words = set(tweet_fields(text)[0].split())
    for tag in hashtags:
        assert f"#{tag}" in text and set(tag.replace("_", " ").split()) <= words


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("مَدْرَسَةٌ", "مدرسة"),
        ("الإمارات أحمد آخر ٱسم", "الامارات احمد اخر اسم"),
        ("٢٠٢٣ ۱۹", "2023 19"),
        ("COVID-19 é", "COVID-19 é"),
    ],
)
def test_arabic_is_spelled_in_one_way(text: str, spelling: str) -> None:
    assert normalise_arabic(text) == spelling == normalise_arabic(spelling)


def test_stop_words_are_spelled_alike() -> None:
    assert {"في", "الى", "ان", "هذا"} <= STOP_WORDS
    assert all(normalise_arabic(word) == word and len(word.split()) == 1 for word in STOP_WORDS)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_pipeline(tmp_path_factory.mktemp("spacy") / "pipeline")


def test_lemmas_are_lower_case_without_stop_words_and_signs(pipeline: str) -> None:
    texts = ["The masks worked!", "#quarantine @WHO 1,200 \U0001f637 Tests co-op", ""]
    # Commas are removed before the text is tokenised; a handle is not a word, a hashtag's word is.
    assert lemma_texts(texts, pipeline) == ["mask work", "quarantine 1200 test co op", ""]
    assert pipeline_identity(pipeline)["pipeline"].startswith("en_pipeline-")


def test_a_pipeline_that_is_not_here_is_said_in_one_line(tmp_path: Path) -> None:
    with refused(UserError, "python -m spacy download en_core_web_xx") as error:
        lemma_texts(["a"], "en_core_web_xx")
    assert len(error.value.lines) == 1
    (tmp_path / "empty").mkdir()
    with refused(UserError, tmp_path / "empty"):
        lemma_texts(["a"], str(tmp_path / "empty"))


def test_a_pipeline_that_gives_no_lemmas_is_refused(tmp_path: Path) -> None:
    """Every text would be empty."""
    spacy = pytest.importorskip("spacy")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with refused(UserError, tmp_path / "blank") as error:
        lemma_texts(["masks work"], str(tmp_path / "blank"))
    assert len(error.value.lines) == 1


def test_without_spacy_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['spacy'] = None\n"
        "from claim2source.text.clean import lemma_texts\n"
        "from claim2source.core.errors import UserError\n"
        "try: lemma_texts(['a'])\n"
        "except UserError as error: print(error)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "pip install 'claim2source[spacy]'\n" in process.stdout


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("vac\u00adcine", "vaccine"),
        ("\ufeffMasks\u200b cut\u2060 out\u200d\u00adbreaks\u200f", "Masks cut outbreaks"),
        ("5\u00ad10, type\u00ad1", "5\u00ad10, type\u00ad1"),
        ("Müller-Lüdenscheidt − 5 %", "Müller-Lüdenscheidt − 5 %"),
    ],
)
def test_what_is_not_seen_is_no_part_of_a_word(text: str, plain: str) -> None:
    assert without_unseen(text) == plain
