"""Papers under several ids, against comparing all sources with all."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.records import Source
from claim2source.data.grouping import connected_groups
from claim2source.mining.near_duplicates import distinct_words, jaccard, same_papers

# Few words, some frequent: texts of all degrees of similarity, equal and empty ones.
TEXTS = st.lists(
    st.lists(st.sampled_from("aaaabbbccdefghij"), max_size=12).map(" ".join),
    min_size=2,
    max_size=14,
)


@given(titles=TEXTS, limit=st.sampled_from([0.1, 0.5, 0.8, 0.9, 1.0]), text=st.booleans())
@settings(max_examples=60, deadline=None)
def test_papers_are_those_of_comparing_all_with_all(
    titles: list[str], limit: float, text: bool
) -> None:
    sources = [Source(str(i), *("x", t) if text else (t, "x")) for i, t in enumerate(titles)]
    words = [distinct_words(title) for title in titles]
    expected = [
        (str(i), str(j))
        for i, j in combinations(range(len(words)), 2)
        if jaccard(words[i], words[j]) > limit
    ]
    near = same_papers(sources, *(None, limit) if text else (limit, None))
    assert set(near) <= set(expected)
    singles: list[tuple[str, ...]] = [(source.id,) for source in sources]
    papers = [connected_groups([*singles, *pairs])[: len(singles)] for pairs in (near, expected)]
    assert papers[0] == papers[1]


def test_either_is_enough_and_none_compares_nothing() -> None:
    sources = [Source("1", "tea", "x y"), Source("2", "tea", "z"), Source("3", "", "x y")]
    assert same_papers(sources, 0.9, None) == [("1", "2")]
    assert same_papers(sources, None, 0.9) == [("1", "3")]
    assert same_papers(sources, 0.9, 0.9) == [("1", "2"), ("1", "3")]
    assert same_papers(sources, None, None) == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("Masks work", "WORK: masks!", 1.0),
        ("Masks work", "Masks", 0.5),
        ("Stra\u00dfe", "STRASSE", 1.0),
        ("e\u0301tude", "\u00e9tude", 1.0),
        ("SARS-CoV-2", "sars cov 2", 1.0),
        ("", "", 0.0),
        ("?", "masks", 0.0),
    ],
)
def test_jaccard(first: str, second: str, expected: float) -> None:
    words = distinct_words(first), distinct_words(second)
    assert jaccard(*words) == jaccard(*reversed(words)) == expected
