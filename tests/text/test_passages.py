"""Sources cut into passages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError
from claim2source.core.records import Source
from claim2source.text.passages import PassageConfig, cut_sources


@given(st.integers(0, 60), st.integers(1, 12), st.data())
def test_every_word_is_in_a_passage_and_passages_overlap_as_asked(
    count: int, words: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, words - 1))
    source = Source("a", "Title", " ".join(map(str, range(count))), venue="V")
    (parts,) = cut_sources([source], PassageConfig(words, overlap))
    cut = [[int(word) for word in part.abstract.split()] for part in parts]
    assert {part.id for part in parts} == {"a"} and {part.title for part in parts} == {"Title"}
    assert {part.venue for part in parts} == {"V"}
    assert all(len(part) == words for part in cut[:-1]) and len(cut[-1]) <= words
    assert sorted({word for part in cut for word in part}) == list(range(count))
    for one, other in zip(cut, cut[1:], strict=False):
        assert one[len(one) - overlap :] == other[:overlap]
        assert other[-1] > one[-1]  # no passage lies within the one before it


def test_passages_overlap_by_less_than_their_length() -> None:
    with pytest.raises(ConfigError, match=r"passages\."):
        PassageConfig(words=5, overlap=5)
