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
from claim2source.search.analyser import Analyser
from claim2source.search.bm25 import BM25, BM25Index
from claim2source.search.fielded import Fielded, Timeline
from claim2source.search.names import plain_words
from claim2source.stages.facts import matched
from claim2source.stages.similarities import Scorer, ViewConfig
from claim2source.text.quality import numbers_in_words


def decomposed(text: str) -> str:
    """Write accents as signs of their own."""
    return unicodedata.normalize("NFD", text)


# Each with another way to write it, which is not the same string.
SPELLINGS = [
    ("protéine kinase", decomposed("protéine kinase")),
    ("fibrosis", "ﬁbrosis"),
    ("CO2 uptake", "CO₂ uptake"),
    ("COVID vaccine", "ＣＯＶＩＤ vaccine"),
    ("Vaxil trial", "Vaxil™ trial"),
]


@pytest.mark.parametrize("field", ["title", "abstract", "venue"])
def test_either_side_may_be_written_either_way(field: str) -> None:
    one, other = map(" ".join, zip(*SPELLINGS, strict=True))
    pairs = (
        (one, one),
        (one, other),
        (other, one),
        (other, other),
    )
    scores = set()
    for source, claim in pairs:
        # A second source keeps lengths apart from what matches.
        pool = [
            replace(Source("p"), **{field: source}),
            Source("q", abstract="other things here"),
        ]
        index = BM25Index(pool, BM25(metadata=True))
        post = Claim("c", f"they say {claim}!")
        scored = index.rank([post], 5).scored("c")
        assert list(scored) == ["p"], (source, claim)
        scores.add(scored["p"])
    assert len(scores) == 1


SUBSCRIPTS = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")
LETTER = r"[^\W\d_]"


def wide(word: str) -> str:
    """Write the signs of ASCII in full width."""
    signs = []
    for sign in word:
        is_ascii = "!" <= sign <= "~"
        signs.append(chr(ord(sign) + 0xFEE0) if is_ascii else sign)
    return "".join(signs)


def with_ligatures(word: str) -> str:
    """Join the letters that have a common sign."""
    word = word.replace("ffi", "ﬃ")
    word = word.replace("fi", "ﬁ")
    return word.replace("fl", "ﬂ")


def with_soft_hyphens(word: str) -> str:
    """Allow a break between any two letters."""
    between = f"(?<={LETTER})(?={LETTER})"
    return re.sub(between, "\u00ad", word)


# Ways to write a word that change none of its letters.
WAYS: dict[str, Callable[[str], str]] = {
    "decomposed": decomposed,
    "compatible": lambda word: unicodedata.normalize("NFKD", word),
    "wide": wide,
    "subscripts": lambda word: word.translate(SUBSCRIPTS),
    "ligatures": with_ligatures,
    "soft hyphens": with_soft_hyphens,
    "zero width": lambda word: "\u200b".join(word),
    "signs": lambda word: f"{word}™",
}
WORDS = "protéine CO2 fibrosis Ångström efficient Müller SARS2 reflux étude naïve Ödem 37 Çelik"


words_and_ways = st.tuples(
    st.sampled_from(WORDS.split()),
    st.sampled_from(sorted(WAYS)),
)


@settings(max_examples=60)
@given(
    st.lists(words_and_ways, min_size=1),
    st.sampled_from(["en", "de", "fr"]),
)
def test_terms_are_those_of_the_plain_spelling(
    words: list[tuple[str, str]],
    language: str,
) -> None:
    plain = " ".join(word for word, _ in words)
    text = " ".join(WAYS[way](word) for word, way in words)
    config = BM25(language=language)  # type: ignore[arg-type]
    plain_terms, terms = Analyser(config).texts([plain, text])
    assert plain_terms == terms
    assert len(plain_terms) == len(words)
    assert plain_words(text) == plain_words(plain)
    # Once more changes nothing, as for an index of texts that are plain already.
    assert nfkc(nfkc(text)) == nfkc(text)


def test_the_papers_white_space_is_left_as_it_is() -> None:
    sources = [
        Source("p", abstract="ﬁbrosis"),
        Source("q"),
    ]
    index = BM25Index(sources, BM25("whitespace"))
    claims = [
        Claim("a", "fibrosis"),
        Claim("b", "ﬁbrosis"),
    ]
    listed = index.terms(claims).split()
    assert [len(terms) for terms in listed] == [0, 1]
    assert BM25("whitespace").format == 3 < BM25().format


def test_a_cleaned_post_loses_handles_and_signs_in_any_spelling() -> None:
    source = Source("p", abstract="José studied vaccine safety, as the vaccine trial says")
    config = BM25(
        clean=True,
        stop_words=False,
        stemmer=False,
    )
    index = BM25Index([source], config)
    claim = Claim("c", "@José vaccine #vaccine")
    cleaned = index.terms([claim]).split()[0]
    assert len(cleaned) == 2  # the handle is gone
    spellings = (
        decomposed("@José vaccine #vaccine"),
        "＠José vaccine ＃vaccine",
    )
    for post in spellings:
        claim = Claim("c", post)
        terms = index.terms([claim]).split()[0]
        assert list(terms) == list(cleaned), post


def test_hashtags_of_tweets_are_whole_in_any_spelling() -> None:
    tweets = ["la #Santé publique", "rien du tout"]
    sources = [Source(f"t{i}", abstract=text) for i, text in enumerate(tweets)]
    index = Timeline(sources, Fielded(), "fr")
    composed = "voici #Santé"
    claims = [
        Claim("c", composed, "fr"),
        Claim("c", decomposed(composed), "fr"),
    ]
    first, second = [index.field_scores(claim) for claim in claims]
    assert np.array_equal(first, second)
    assert first[1, 0] > 0


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
    candidates = [["p", "q"]] * 2
    first, second = Scorer(pool).scores(view, claims, candidates)
    assert first[0] > 0
    assert np.array_equal(first, second)


def test_another_analysis_is_not_read_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path / "store")
    sources = [Source("p", abstract="ﬁbrosis")]
    claims = [Claim("c", "fibrosis")]
    own = bm25.FORMATS
    with monkeypatch.context() as old:
        old.setattr(bm25, "FORMATS", {**own, "terms": 3})
        BM25(store=store).index(sources).search(claims)
        before = Analyser(BM25()).versions
    index = BM25(store=store).index(sources)
    result = index.search(claims)
    assert result.run.sources("c") == ["p"]
    assert not result.stored
    assert before != Analyser(BM25()).versions


def test_other_comparisons_of_words_know_the_spellings_too() -> None:
    for first, second in SPELLINGS:
        claims = [
            Claim("a", first, golds=("p",)),
            Claim("b", second, golds=("q",)),
        ]
        golds = golds_by_text(claims)
        assert golds["a"] == {"p", "q"}
        assert names_one(f"so: {second}!", [first])
        document = {"document": 1, "entities": [second]}
        answer = {
            "query_entities": [first],
            "documents": [document],
        }
        assert matched(answer, 1)[0] == 1
    assert numbers_in_words("fünf") == {"5"}
    assert numbers_in_words(decomposed("fünf")) == {"5"}
