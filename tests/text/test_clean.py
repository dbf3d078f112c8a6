"""Posts cleaned for retrieval by words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.text.clean import clean_post


@pytest.mark.parametrize(
    ("post", "clean"),
    [
        ("#quarantine works, says @WHO", "quarantine works, says"),
        ("masks \U0001f637\U0001f3fd work\u2764\ufe0f!", "masks work !"),
        ("a \U0001f469\u200d\U0001f52c found it \U0001f1fa\U0001f1f8", "a found it"),
        ("end pic.twitter.com/3S32De8ekP", "end"),
        # An address is no handle; a number sign alone is no hashtag; letters of scripts stay.
        ("mail a@b.org, # 1, C#", "mail a@b.org, # 1, C#"),
        ("\u0646\u0645\u06cc\u200c caf\u00e9 5 \u20ac \u2013 3.7x", None),
    ],
)
def test_what_goes_and_what_stays(post: str, clean: str | None) -> None:
    assert clean_post(post) == (post if clean is None else clean)


@given(st.text())
def test_a_cleaned_post_has_none_of_it_and_keeps_hashtags_words(text: str) -> None:
    found = clean_post(f"{text} #tag @handle \U0001f637 https://t.co/x")
    assert found.endswith("tag") and "@handle" not in found and "\U0001f637" not in found
    assert clean_post(found) == found or "@" in found or "#" in found
