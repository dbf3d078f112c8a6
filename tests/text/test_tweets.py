"""Tweets taken apart, and Arabic spelled in one way."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.text.arabic import STOP_WORDS, spelled
from claim2source.text.tweets import tweet_fields


def test_addresses_and_emojis_go_and_hashtags_are_apart() -> None:
    tweet = "RT @WHO: ❌ News #Know_the_facts#COVID19 🇱🇾https://t.co/a1 &#39;said&#39;"
    found = tweet_fields(tweet)
    assert found.text == "RT @WHO: News Know the facts COVID19 &#39;said&#39;"
    assert found.hashtags == ("Know_the_facts", "COVID19")
    bare = tweet_fields(tweet, keep_words=False)
    assert bare.text == "RT @WHO: News &#39;said&#39;" and bare.hashtags == found.hashtags


def test_short_words_leave_the_text_only() -> None:
    found = tweet_fields("It is a #EU rule, at last", shortest=3)
    assert found.text.split() == ["rule,", "last"] and found.hashtags == ("EU",)


@given(st.text(alphabet="ab#_ 😀é1&", max_size=30))
def test_no_tag_is_lost_and_nothing_is_made_up(text: str) -> None:
    fields = tweet_fields(text, keep_words=False)
    assert len(fields.text) <= len(text) and "😀" not in fields.text
    words = set(tweet_fields(text).text.split())
    for tag in fields.hashtags:
        assert f"#{tag}" in text and set(tag.replace("_", " ").split()) <= words


@pytest.mark.parametrize(
    ("written", "plain"),
    [
        ("مَدْرَسَةٌ", "مدرسة"),
        ("الإمارات أحمد آخر ٱسم", "الامارات احمد اخر اسم"),
        ("٢٠٢٣ ۱۹", "2023 19"),
        ("COVID-19 é", "COVID-19 é"),
    ],
)
def test_arabic_is_spelled_in_one_way(written: str, plain: str) -> None:
    assert spelled(written) == plain == spelled(plain)


def test_stop_words_are_spelled_alike() -> None:
    assert {"في", "الى", "ان", "هذا"} <= STOP_WORDS
    assert all(spelled(word) == word and len(word.split()) == 1 for word in STOP_WORDS)
