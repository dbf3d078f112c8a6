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
    claims = tuple(
        Claim(f"c{i}", "post", languages[i % len(languages)], golds=(f"p{i}",))
        for i in range(CLAIMS)
    )
    sources = tuple(Source(f"p{i}", "Title") for i in range(CLAIMS))
    dataset = Dataset(claims, sources, Qrels({c.id: {c.golds[0]: 1} for c in claims}), "dev")
    scores = {
        name: Scores(tuple(c.id for c in claims), {"mrr@5": np.asarray(ranks, float)})
        for name, ranks in values.items()
    }
    return ScoredRuns(dataset, "mrr@5", next(iter(values)), {}, scores)


def wins(number: int) -> np.ndarray:
    """Scores of 1 on the first claims, 0 on the others."""
    return (np.arange(CLAIMS) < number).astype(float)


def test_the_best_beats_one_and_is_inside_the_noise_of_another() -> None:
    values = {"bm25": wins(10), "hybrid": wins(40), "dense": wins(40)}
    values["dense"][:9] = 0.0
    values["dense"][45:53] = 1.0
    first, score, how = verdict(scored(values), BEST, 2_000, 0)
    sentence = first.replace("\N{NO-BREAK SPACE}", " ")
    assert sentence == "hybrid beats bm25 by 0.500, p = 0.001; against dense inside the noise."
    assert score == "Its mrr@5 is 0.500 (95 % interval 0.400 to 0.600)."
    assert "Holm over all 3 pairs" in how and "Inside the noise" in how


def test_p_is_after_holm_over_all_pairs() -> None:
    """A difference that is significant only among the best system's own tests is not reported."""
    values = {f"s{n}": wins(30) for n in range(5)}
    values["best"] = wins(30)
    values["best"][30:38] = 1.0  # eight claims that no other has: p is 2 / 2 ** 8
    pairs = tuple(("best", f"s{n}") for n in range(5))
    own = compare_family(values, Family("own", pairs), np.arange(CLAIMS), repeats=2_000)
    assert {c.verdict for c in own.comparisons} == {"better"}
    first, *_ = verdict(scored(values), BEST, 2_000, 0)
    assert first.startswith("best has the highest score; against s0, s1, s2, s3 and 1 more ")
    assert "beats" not in first


def test_one_system_and_two_languages() -> None:
    (only,) = verdict(scored({"bm25": wins(10)}, ("en", "de")), BEST, 50, 0)
    assert only == "bm25 has mrr@5 0.500 (95 % interval 0.400 to 0.600), the mean of en, de."
    # The best is the best on the macro average: half of each language counts, not of all claims.
    values = {"first": wins(30), "second": wins(31)}
    sentences = verdict(scored(values, ("en", "de")), BEST, 50, 0)
    assert sentences[0].startswith("second") and "over one pair." in sentences[2]


def test_systems_that_share_the_highest_score_are_said_to_share_it() -> None:
    values = {"a": wins(30), "b": wins(30)[::-1].copy(), "c": wins(0)}
    first, score, *_ = verdict(scored(values), BEST, 500, 0)
    assert first.startswith("a, b share the highest score")
    assert "c by" in first and score.startswith("Their")
    (note,) = (note for note in scored(values).notes if "share" in note)
    assert "a, b" in note and "c" not in note.partition("share")[0]
    values["b"] = wins(29)
    assert not any("share" in text for text in verdict(scored(values), BEST, 500, 0))
    assert not any("share" in note for note in scored(values).notes)
