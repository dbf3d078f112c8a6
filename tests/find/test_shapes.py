"""Shape of the lists: outstanding scores at any encoder's scale and collection's size."""

from __future__ import annotations

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.find.shapes import DEEPEST_SHAPE, NAMES, shape_features
from claim2source.search.bm25 import BM25

Scores = dict[str, float]
WORDS = [f"word{number}" for number in range(60)]


def make_run(scores: Scores) -> Run:
    claims = ["c"] * len(scores)
    sources = list(scores)
    values = list(scores.values())
    return Run.from_rows(claims, sources, values, claim_ids=["c"])


def describe(
    lexical: Scores,
    dense: Scores,
    foreign: bool = False,
) -> Scores:
    """Describe one claim, by the features' names."""
    ids = ["c"] if foreign else []
    lexical_run = make_run(lexical)
    dense_run = make_run(dense)
    rows = shape_features(
        ["c"],
        lexical_run,
        dense_run,
        ids,
    )
    row = rows[0].tolist()
    return dict(zip(NAMES, row, strict=True))


def numbered(prefix: str, scores: np.ndarray) -> Scores:
    """Give each score to a paper of its number."""
    papers: Scores = {}
    for number, score in enumerate(scores):
        papers[f"{prefix}{number}"] = float(score)
    return papers


def again(scores: Scores) -> Scores:
    """Return copies of the papers, with the same scores."""
    return {f"{paper} again": score for paper, score in scores.items()}


@pytest.fixture
def lexical() -> Scores:
    rng = np.random.default_rng(1)
    draws = rng.random(40)
    scores = numbered("p", 3 + 4 * draws)
    return scores | {"p2": 14.0}


@pytest.fixture
def dense() -> Scores:
    rng = np.random.default_rng(2)
    draws = rng.random(50)
    scores = numbered("p", 0.7 + 0.1 * draws)
    outstanding = {"p2": 0.83, "p7": 0.85}
    return scores | outstanding


def test_a_scale_a_shift_and_copies_change_nothing(lexical: Scores, dense: Scores) -> None:
    expected = describe(lexical, dense)
    values = list(expected.values())
    assert np.isfinite(values).all()
    scaled = {paper: 0.3 * score + 0.5 for paper, score in dense.items()}
    on_another_scale = describe(lexical, scaled)
    assert on_another_scale == pytest.approx(expected, abs=1e-4)
    # Another analysis of the same words: BM25 has no natural unit either.
    twice = {paper: 2 * score for paper, score in lexical.items()}
    in_another_unit = describe(twice, dense)
    assert in_another_unit == pytest.approx(expected, abs=1e-4)
    dense_twice = dense | again(dense)
    lexical_twice = lexical | again(lexical)
    with_copies = describe(lexical_twice, dense_twice)
    assert with_copies == pytest.approx(expected, abs=1e-4)


def test_papers_about_other_things_change_nothing(lexical: Scores, dense: Scores) -> None:
    expected = describe(lexical, dense)
    rng = np.random.default_rng(3)
    distances = 0.3 + 0.3 * rng.random(50)
    far = numbered("far", distances)
    below = numbered("far", rng.random(50))
    lexical_more = lexical | below
    dense_more = dense | far
    more = describe(lexical_more, dense_more)
    assert more == pytest.approx(expected, abs=1e-4)


def test_distractors_change_the_shape_of_bm25_little() -> None:
    rng = np.random.default_rng(4)
    sources: list[Source] = []
    for i in range(60):
        title = " ".join(rng.choice(WORDS, 12))
        abstract = " ".join(rng.choice(WORDS, 60))
        source = Source(f"p{i}", title, abstract)
        sources.append(source)

    first_words = sources[3].title.split()[:6]
    text = " ".join(first_words)
    claim = Claim("c", text, "en")

    others: list[Source] = []
    for i in range(1_200):
        title = f"other{i} thing{i}"
        numbers = range(i, i + 60)
        abstract = " ".join(f"far{n}" for n in numbers)
        other = Source(f"d{i}", title, abstract)
        others.append(other)

    dense = numbered("p", rng.random(60))
    dense["p3"] = 1.2
    described = []
    for pool in (sources, [*sources, *others]):
        bm25 = BM25().index(pool)
        run = bm25.search([claim], 100).run
        scores = run.scored("c")
        features = describe(scores, dense)
        described.append(features)
    small, large = described
    for name in NAMES:
        expected = pytest.approx(small[name], abs=0.25)
        assert large[name] == expected, name


def test_the_paper_that_stands_out_has_the_greater_leads(lexical: Scores, dense: Scores) -> None:
    outstanding = dense | {"p2": 0.9}
    clear = describe(lexical, outstanding)
    without = {paper: score for paper, score in lexical.items() if paper != "p2"}
    flat = {paper: score for paper, score in dense.items() if paper not in ("p2", "p7")}
    unclear = describe(without, flat)
    leads = ("lexical: lead", "dense: lead", "both")
    for name in NAMES:
        if name.startswith(leads):
            assert clear[name] > unclear[name], name

    rank = "dense: rank of the lexical first"
    assert clear[rank] == 0
    assert unclear[rank] > 0

    own = describe(lexical, dense)
    other = describe(lexical, dense, foreign=True)
    changed = [name for name in NAMES if own[name] != other[name]]
    assert changed == ["post in another language"]


def shape(lexical: Scores, dense: Scores) -> list[float]:
    """Return one claim's features without their names."""
    features = describe(lexical, dense)
    return list(features.values())


def test_too_few_papers_have_no_shape(lexical: Scores, dense: Scores) -> None:
    first = list(dense.items())[: DEEPEST_SHAPE - 1]
    few = dict(first)
    of_few = shape(lexical, few)
    assert np.isnan(of_few).all()
    # Copies are one paper.
    with_copies = few | again(few)
    of_copies = shape(lexical, with_copies)
    assert np.isnan(of_copies).all()
    # Posts without a term of any paper are compared only by vectors.
    by_vectors = shape({}, dense)
    assert np.isfinite(by_vectors).all()
