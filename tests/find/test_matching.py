"""Words of a post and of papers that match: by terms and by names, each paper on its own."""

from __future__ import annotations

import pytest

from claim2source.core.records import Claim, Source
from claim2source.data.papers import Paper
from claim2source.find import matching as module
from claim2source.find.matching import MatchingWords
from claim2source.search.bm25 import BM25


@pytest.mark.parametrize("size", [200_000, 0])
def test_words_match_by_terms_and_names_and_are_analysed_once(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_WORDS", size)
    papers = [
        Paper(
            Source("a", "Masking in schools", "A masked trial. MASKED!", ("Ada Zola",), "Nature")
        ),
        Paper(Source("b", "Outbreaks", "Of ships", ("Emil Noether",))),
        Paper(Source("c", "Nothing alike")),
    ]
    claim = Claim("0", "Masks stop outbreaks at school, says Zola in Nature: outbreak!")
    of_a = ("Masks", "school", "Zola", "Nature"), ("Masking", "schools", "masked", "Zola", "Nature")
    of_b = ("outbreaks", "outbreak"), ("Outbreaks",)
    matching = MatchingWords(BM25())
    analysed: list[str] = []
    texts = matching._analyser.texts

    def note(words: list[str]) -> list[list[str]]:
        analysed.extend(words)
        return texts(words)

    monkeypatch.setattr(matching._analyser, "texts", note)
    assert matching.match(claim, papers) == [of_a, of_b, ((), ())]
    count = len(analysed)
    assert count == len(set(analysed))
    assert matching.match(claim, [papers[1], papers[0]]) == [of_b, of_a]
    # If the cache is too small, words are analysed again.
    assert (len(analysed) == count) is (size > 0)
    assert matching.match(claim, []) == []


def test_soft_hyphens_and_characters_without_width_are_not_part_of_a_word() -> None:
    papers = [
        Paper(Source("a", "Vac\u00adcines in scho\u200bols", "Of vaccines\u2069, type\u00ad1."))
    ]
    (found,) = MatchingWords(BM25()).match(Claim("0", "vaccine for \ufeffscho\u00adols"), papers)
    assert found == (("vaccine", "scho\u00adols"), ("Vac\u00adcines", "scho\u200bols"))
