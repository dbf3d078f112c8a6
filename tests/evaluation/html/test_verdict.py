"""The sentence at the top of the page: what the best system beats, after Holm over all pairs."""

from __future__ import annotations

import numpy as np

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.evaluation.compare import ScoredRuns
from claim2source.evaluation.html.page import verdict
from claim2source.evaluation.html.plots import Bar
from claim2source.metrics.families import Family, compare_family
from claim2source.metrics.metrics import Scores

CLAIMS = 60
BEST = Bar(0.5, 0.4, 0.6)


def scored(values: dict[str, np.ndarray], languages: tuple[str, ...] = ("en",)) -> ScoredRuns:
    """Systems with these scores, each claim of a paper of its own."""
    claims = []
    sources = []
    judged = {}
    for i in range(CLAIMS):
        place = i % len(languages)
        lang = languages[place]
        gold = f"p{i}"
        claim = Claim(f"c{i}", "post", lang, golds=(gold,))
        claims.append(claim)
        sources.append(Source(gold, "Title"))
        judged[claim.id] = {gold: 1}
    dataset = Dataset(
        tuple(claims),
        tuple(sources),
        Qrels(judged),
        "dev",
    )

    ids = tuple(claim.id for claim in claims)
    scores = {}
    for name, ranks in values.items():
        by_claim = np.asarray(ranks, float)
        scores[name] = Scores(ids, {"mrr@5": by_claim})
    baseline = next(iter(values))
    return ScoredRuns(
        dataset,
        "mrr@5",
        baseline,
        {},
        scores,
    )


def wins(number: int) -> np.ndarray:
    """Scores of 1 on the first claims, 0 on the others."""
    won = np.arange(CLAIMS) < number
    return won.astype(float)


def test_the_best_beats_one_and_is_inside_the_noise_of_another() -> None:
    values = {
        "bm25": wins(10),
        "hybrid": wins(40),
        "dense": wins(40),
    }
    values["dense"][:9] = 0.0
    values["dense"][45:53] = 1.0
    first, score, how = verdict(scored(values), BEST, 2_000, 0)
    sentence = first.replace("\N{NO-BREAK SPACE}", " ")
    assert sentence == "hybrid beats bm25 by 0.500, p = 0.001; against dense inside the noise."
    assert score == "Its mrr@5 is 0.500 (95 % interval 0.400 to 0.600)."
    assert "Holm over all 3 pairs" in how
    assert "Inside the noise" in how


def test_p_is_after_holm_over_all_pairs() -> None:
    """A difference that is significant only among the best system's own tests is not reported."""
    others = [f"s{n}" for n in range(5)]
    values = {name: wins(30) for name in others}
    values["best"] = wins(30)
    values["best"][30:38] = 1.0  # eight claims that no other has: p is 2 / 2 ** 8
    pairs = tuple(("best", name) for name in others)
    family = Family("own", pairs)
    groups = np.arange(CLAIMS)
    own = compare_family(values, family, groups, repeats=2_000)
    verdicts = {c.verdict for c in own.comparisons}
    assert verdicts == {"better"}

    first, *_ = verdict(scored(values), BEST, 2_000, 0)
    assert first.startswith("best has the highest score; against s0, s1, s2, s3 and 1 more ")
    assert "beats" not in first


def test_one_system_and_two_languages() -> None:
    languages = ("en", "de")
    alone = scored({"bm25": wins(10)}, languages)
    (only,) = verdict(alone, BEST, 50, 0)
    assert only == "bm25 has mrr@5 0.500 (95 % interval 0.400 to 0.600), the mean of en, de."
    # The best is the best on the macro average: half of each language counts, not of all claims.
    values = {
        "first": wins(30),
        "second": wins(31),
    }
    both = scored(values, languages)
    sentences = verdict(both, BEST, 50, 0)
    assert sentences[0].startswith("second")
    assert "over one pair." in sentences[2]


def test_systems_that_share_the_highest_score_are_said_to_share_it() -> None:
    values = {
        "a": wins(30),
        "b": wins(30)[::-1].copy(),
        "c": wins(0),
    }
    shared = scored(values)
    first, score, *_ = verdict(shared, BEST, 500, 0)
    assert first.startswith("a, b share the highest score")
    assert "c by" in first
    assert score.startswith("Their")
    (note,) = [note for note in scored(values).notes if "share" in note]
    assert "a, b" in note
    before, _, _ = note.partition("share")
    assert "c" not in before

    values["b"] = wins(29)
    sentences = verdict(scored(values), BEST, 500, 0)
    assert not any("share" in text for text in sentences)
    notes = scored(values).notes
    assert not any("share" in note for note in notes)
