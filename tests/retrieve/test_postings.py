"""Counting terms gives what a plain counter gives."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.retrieve.postings import Counts
from claim2source.retrieve.terms import Terms


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 5), max_size=7), max_size=6))
def test_counts_are_those_of_a_counter(texts: list[list[int]]) -> None:
    counts = Counts.of(Terms.joined([np.array(ids, np.int32) for ids in texts]), 6)
    for term in range(6):
        rows = slice(counts.indptr[term], counts.indptr[term + 1])
        found = list(
            zip(counts.documents[rows].tolist(), counts.frequencies[rows].tolist(), strict=True)
        )
        assert found == [(i, text.count(term)) for i, text in enumerate(texts) if term in text]
    assert counts.lengths.tolist() == [len(text) for text in texts]
