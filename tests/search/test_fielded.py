"""BM25 over text and hashtags: sums computed by hand, one index for each rumour."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.data.rumors import load_rumors
from claim2source.search.bm25 import BM25
from claim2source.search.fielded import Fielded, FieldedIndex, Timeline
from tests.rumor_files import DENIED, RUMORS, rumor, write_rumors
from tests.search.test_bm25 import slow_bm25

TWEETS = [
    "dam burst dam #Basra",
    "dam opened #Mosul #Basra",
    "school opened today",
    "#Basra",
]
SOURCES = [Source(f"s{i}", abstract=tweet) for i, tweet in enumerate(TWEETS)]
PLAIN = Fielded(
    k1=1.2,
    b=0.75,
    hashtag_words=False,
    stop_words=False,
    stemmer=False,
)


def searched(
    claim: Claim,
    config: Fielded | None = None,
    k: int = 9,
    sources: Sequence[Source] = SOURCES,
) -> dict[str, float]:
    index = FieldedIndex(sources, config)
    result = index.search([claim], k)
    return result.scored(claim.id)


def test_raw_scores_of_both_queries_are_summed_the_hashtags_boosted() -> None:
    claim = Claim("c", "the dam opened? #Basra https://t.co/dam")
    texts = [
        ["dam", "burst", "dam"],
        ["dam", "opened"],
        ["school", "opened", "today"],
        [],
    ]
    tags = [
        ["basra"],
        ["mosul", "basra"],
        [],
        ["basra"],
    ]
    by_text = slow_bm25(texts, ["the", "dam", "opened"], 1.2, 0.75)
    by_tag = slow_bm25(tags, ["basra"], 1.2, 0.75)
    expected = np.array(by_text) + 1.7 * np.array(by_tag)
    boosted = replace(PLAIN, boost=1.7)
    scores = searched(claim, boosted, k=10)
    order = sorted(range(4), key=lambda i: -expected[i])
    names = [f"s{i}" for i in order]
    assert list(scores) == names
    in_order = [expected[i] for i in order]
    assert list(scores.values()) == pytest.approx(in_order, abs=1e-6)

    # The dam of the address is not a word of the query.
    without_tags = replace(PLAIN, boost=0)
    assert len(searched(claim, without_tags, k=10)) == 3
    two = searched(claim, PLAIN, k=2)
    assert list(two) == names[:2]


def test_settings_of_the_analysis_are_heeded() -> None:
    claim = Claim("c", "Basra opens at no")

    def matches(**settings: object) -> set[str]:
        config = replace(PLAIN, **settings)  # type: ignore[arg-type]
        sources = [
            *SOURCES,
            Source("s4", abstract="at no time"),
        ]
        found = searched(claim, config, sources=sources)
        return set(found)

    assert matches() == {"s4"}
    assert matches(stop_words=True) == set()
    assert matches(stemmer=True) == {"s1", "s2", "s4"}
    assert matches(hashtag_words=True) == {"s0", "s1", "s3", "s4"}
    assert matches(shortest=3) == set()


def test_another_weighting_is_that_of_a_new_index() -> None:
    claim = Claim("c", "dam opened #Basra")
    config = replace(PLAIN, k1=0.5, b=0.2)
    timeline = Timeline(SOURCES, PLAIN)
    reweighted = timeline.reweighted(0.5, 0.2)
    scores = dict(reweighted.search(claim, 9))
    assert scores == searched(claim, config)
    assert scores != searched(claim, PLAIN)


def test_tweets_of_other_rumours_change_no_score(tmp_path: Path) -> None:
    """The dam of r1 would be a common word, and its tweets short ones, among r9's."""
    long_tweet = "dam Basra burst news " * 9 + "#Basra"
    crowd = {str(90 + i): long_tweet for i in range(6)}
    crowd |= {"11": "another text under an id of r1"}
    crowded = rumor("r9", "x", crowd, "NOT ENOUGH INFO")
    single_file = write_rumors(tmp_path / "a.json", [DENIED])
    single = load_rumors(single_file)
    among_file = write_rumors(tmp_path / "b.json", [crowded, *RUMORS])
    among = load_rumors(among_file)
    score_sets = []
    for rumors in (single, among):
        data = rumors.dataset
        index = FieldedIndex(data.sources)
        result = index.search(data.claims)
        score_sets.append(result.scored("r1"))
    alone, in_a_crowd = score_sets
    assert alone == in_a_crowd
    assert len(alone) > 1

    # In one index of all they do.
    (claim,) = (claim for claim in data.claims if claim.id == "r1")
    free = replace(claim, candidates=None)
    scores = searched(free, sources=data.sources)
    in_one = {source: scores.get(source) for source in alone}
    assert in_one != alone


def test_claims_without_a_common_term_are_failures() -> None:
    claims = [
        Claim("c", "star"),
        Claim("d", "school"),
        Claim("e", "school", candidates=()),
    ]
    result = FieldedIndex(SOURCES).search(claims)
    ranked = [result.sources(claim.id) for claim in claims]
    assert ranked == [[], ["s2"], []]
    assert result.failure_counts() == {"no term in common with any source": 2}
    assert result.cost.items == 3


def test_arabic_words_match_however_they_are_spelled() -> None:
    sources = [
        Source("a", abstract="افتتاح مَدْرَسَةٍ في الإمارات"),
        Source("b", abstract="كتـــاب في المكتبة"),
    ]
    index = BM25(language="ar").index(sources)
    claims = [
        Claim("1", "المدرسة", "ar"),
        Claim("2", "الامارات", "ar"),
        Claim("3", "كتاب", "ar"),
        Claim("4", "في", "ar"),
    ]
    run = index.search(claims).run
    ranked = [run.sources(claim.id) for claim in claims]
    assert ranked == [["a"], ["a"], ["b"], []]

    # An English analysis finds none of the first three.
    english = BM25().index(sources)
    run = english.search(claims).run
    ranked = [run.sources(claim.id) for claim in claims[:3]]
    assert ranked == [[], [], []]
