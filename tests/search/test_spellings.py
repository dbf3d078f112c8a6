"""Words match however Unicode writes them: accents apart, ligatures, subscripts, full width."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.records import Claim, Source, nfkc
from claim2source.data.grouping import golds_by_text
from claim2source.data.news import names_one
from claim2source.data.store import Store
from claim2source.search import bm25
from claim2source.search.bm25 import BM25, Analyser, BM25Index
from claim2source.search.fielded import Fielded, Timeline
from claim2source.search.names import plain_words
from claim2source.stages.facts import matched
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.text.quality import numbers_in_words

# Each with another way to write it, which is not the same string.
SPELLINGS = [
    ("protéine kinase", unicodedata.normalize("NFD", "protéine kinase")),
    ("fibrosis", "ﬁbrosis"),
    ("CO2 uptake", "CO₂ uptake"),
    ("COVID vaccine", "ＣＯＶＩＤ vaccine"),
    ("Vaxil trial", "Vaxil™ trial"),
]


@pytest.mark.parametrize("field", ["title", "abstract", "venue"])
def test_either_side_may_be_written_either_way(field: str) -> None:
    one, other = map(" ".join, zip(*SPELLINGS, strict=True))
    scores = set()
    for source, claim in ((one, one), (one, other), (other, one), (other, other)):
        # A second source keeps lengths apart from what matches.
        pool = [replace(Source("p"), **{field: source}), Source("q", abstract="other things here")]
        index = BM25Index(pool, BM25(metadata=True))
        scores_of_post = index.rank([Claim("c", f"they say {claim}!")], 5).scored("c")
        assert list(scores_of_post) == ["p"], (source, claim)
        scores.add(scores_of_post["p"])
    assert len(scores) == 1


SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
LETTER = r"[^\W\d_]"
# Ways to write a word that change none of its letters.
WAYS: dict[str, Callable[[str], str]] = {
    "decomposed": lambda word: unicodedata.normalize("NFD", word),
    "compatible": lambda word: unicodedata.normalize("NFKD", word),
    "wide": lambda word: "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in word),
    "subscripts": lambda word: word.translate(SUBSCRIPTS),
    "ligatures": lambda word: word.replace("ffi", "ﬃ").replace("fi", "ﬁ").replace("fl", "ﬂ"),
    "soft hyphens": lambda word: re.sub(f"(?<={LETTER})(?={LETTER})", "\u00ad", word),
    "zero width": lambda word: "\u200b".join(word),
    "signs": lambda word: f"{word}™",
}
WORDS = "protéine CO2 fibrosis Ångström efficient Müller SARS2 reflux étude naïve Ödem 37 Çelik"


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(WORDS.split()), st.sampled_from(sorted(WAYS))), min_size=1),
    st.sampled_from(["en", "de", "fr"]),
)
def test_terms_are_those_of_the_plain_spelling(words: list[tuple[str, str]], language: str) -> None:
    plain = " ".join(word for word, _ in words)
    text = " ".join(WAYS[way](word) for word, way in words)
    terms = Analyser(BM25(language=language)).texts([plain, text])  # type: ignore[arg-type]
    assert terms[0] == terms[1] and len(terms[0]) == len(words)
    assert plain_words(text) == plain_words(plain)
    # Once more changes nothing, as for an index of texts that are plain already.
    assert nfkc(nfkc(text)) == nfkc(text)


def test_the_papers_white_space_is_left_as_it_is() -> None:
    index = BM25Index([Source("p", abstract="ﬁbrosis"), Source("q")], BM25("whitespace"))
    assert [
        len(terms) for terms in index.terms([Claim("a", "fibrosis"), Claim("b", "ﬁbrosis")]).split()
    ] == [0, 1]
    assert BM25("whitespace").format == 3 < BM25().format


def test_a_cleaned_post_loses_handles_and_signs_in_any_spelling() -> None:
    source = Source("p", abstract="José studied vaccine safety, as the vaccine trial says")
    index = BM25Index([source], BM25(clean=True, stop_words=False, stemmer=False))
    cleaned = index.terms([Claim("c", "@José vaccine #vaccine")]).split()[0]
    assert len(cleaned) == 2  # the handle is gone
    for post in (
        unicodedata.normalize("NFD", "@José vaccine #vaccine"),
        "＠José vaccine ＃vaccine",
    ):
        assert list(index.terms([Claim("c", post)]).split()[0]) == list(cleaned), post


def test_hashtags_of_tweets_are_whole_in_any_spelling() -> None:
    tweets = ["la #Santé publique", "rien du tout"]
    index = Timeline(
        [Source(f"t{i}", abstract=text) for i, text in enumerate(tweets)], Fielded(), "fr"
    )
    decomposed = unicodedata.normalize("NFD", "voici #Santé")
    scores = [index.field_scores(Claim("c", text, "fr")) for text in ("voici #Santé", decomposed)]
    assert np.array_equal(*scores) and scores[0][1, 0] > 0


@pytest.mark.parametrize("terms", ["words", "bigrams", "characters"])
def test_the_fusions_words_match_in_any_spelling(terms: str) -> None:
    pool = [
        Source("p", "CO₂ uptake rises", "ﬁbrosis study"),
        Source("q", "no such thing", "at all"),
    ]
    view = ViewConfig(terms=terms)  # type: ignore[arg-type]
    claims = [
        Claim("a", "CO2 uptake and fibrosis study"),
        Claim("b", "CO₂ uptake and ﬁbrosis study"),
    ]
    first, second = Scorer(pool).scores(view, claims, [["p", "q"]] * 2)
    assert first[0] > 0 and np.array_equal(first, second)


def test_another_analysis_is_not_read_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    sources, claims = [Source("p", abstract="ﬁbrosis")], [Claim("c", "fibrosis")]
    own = bm25.FORMATS
    with monkeypatch.context() as old:
        old.setattr(bm25, "FORMATS", {**own, "terms": 3})
        BM25(store=store).index(sources).search(claims)
        before = Analyser(BM25()).versions
    result = BM25(store=store).index(sources).search(claims)
    assert result.run.sources("c") == ["p"] and not result.stored
    assert before != Analyser(BM25()).versions


def test_other_comparisons_of_words_know_the_spellings_too() -> None:
    for first, second in SPELLINGS:
        claims = [Claim("a", first, golds=("p",)), Claim("b", second, golds=("q",))]
        assert golds_by_text(claims)["a"] == {"p", "q"}
        assert names_one(f"so: {second}!", [first])
        answer = {"query_entities": [first], "documents": [{"document": 1, "entities": [second]}]}
        assert matched(answer, 1)[0] == 1
    assert (
        numbers_in_words("fünf") == numbers_in_words(unicodedata.normalize("NFD", "fünf")) == {"5"}
    )
