"""Shape of the lists: outstanding scores at any encoder's scale and collection's size."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.find.shapes import DEEPEST_SHAPE, NAMES, shape_features
from claim2source.search.bm25 import BM25

Scores = Mapping[str, float]
WORDS = [f"word{number}" for number in range(60)]


def make_run(scores: Scores) -> Run:
    return Run.from_rows(["c"] * len(scores), list(scores), list(scores.values()), claim_ids=["c"])


def describe(lexical: Scores, dense: Scores, foreign: bool = False) -> dict[str, float]:
    """Describe one claim, by the features' names."""
    ids = ["c"] if foreign else []
    row = shape_features(["c"], make_run(lexical), make_run(dense), ids)[0]
    return dict(zip(NAMES, row.tolist(), strict=True))


@pytest.fixture
def lexical() -> dict[str, float]:
    rng = np.random.default_rng(1)
    scores = {f"p{i}": float(score) for i, score in enumerate(3 + 4 * rng.random(40))}
    return scores | {"p2": 14.0}


@pytest.fixture
def dense() -> dict[str, float]:
    rng = np.random.default_rng(2)
    scores = {f"p{i}": float(score) for i, score in enumerate(0.7 + 0.1 * rng.random(50))}
    return scores | {"p2": 0.83, "p7": 0.85}


def test_a_scale_a_shift_and_copies_change_nothing(
    lexical: dict[str, float], dense: dict[str, float]
) -> None:
    expected = describe(lexical, dense)
    assert all(np.isfinite(value) for value in expected.values())
    scaled = {paper: 0.3 * score + 0.5 for paper, score in dense.items()}
    assert describe(lexical, scaled) == pytest.approx(expected, abs=1e-4)
    # Another analysis of the same words: BM25 has no natural unit either.
    twice = {paper: 2 * score for paper, score in lexical.items()}
    assert describe(twice, dense) == pytest.approx(expected, abs=1e-4)
    copies = {f"{paper} again": score for paper, score in dense.items()}
    lexical_copies = {f"{paper} again": score for paper, score in lexical.items()}
    both = describe(lexical | lexical_copies, dense | copies)
    assert both == pytest.approx(expected, abs=1e-4)


def test_papers_about_other_things_change_nothing(
    lexical: dict[str, float], dense: dict[str, float]
) -> None:
    expected = describe(lexical, dense)
    rng = np.random.default_rng(3)
    far = {f"far{i}": float(score) for i, score in enumerate(0.3 + 0.3 * rng.random(50))}
    below = {f"far{i}": float(score) for i, score in enumerate(rng.random(50))}
    assert describe(lexical | below, dense | far) == pytest.approx(expected, abs=1e-4)


def test_distractors_change_the_shape_of_bm25_little() -> None:
    rng = np.random.default_rng(4)
    sources = [
        Source(f"p{i}", " ".join(rng.choice(WORDS, 12)), " ".join(rng.choice(WORDS, 60)))
        for i in range(60)
    ]
    claim = Claim("c", " ".join(sources[3].title.split()[:6]), "en")
    others = [
        Source(f"d{i}", f"other{i} thing{i}", " ".join(f"far{n}" for n in range(i, i + 60)))
        for i in range(1_200)
    ]
    dense = {f"p{i}": float(score) for i, score in enumerate(rng.random(60))}
    dense["p3"] = 1.2
    described = []
    for pool in (sources, [*sources, *others]):
        run = BM25().index(pool).search([claim], 100).run
        described.append(describe(run.scored("c"), dense))
    small, large = described
    for name in NAMES:
        assert large[name] == pytest.approx(small[name], abs=0.25), name


def test_the_paper_that_stands_out_has_the_greater_leads(
    lexical: dict[str, float], dense: dict[str, float]
) -> None:
    clear = describe(lexical, dense | {"p2": 0.9})
    without = {paper: score for paper, score in lexical.items() if paper != "p2"}
    flat = {paper: score for paper, score in dense.items() if paper not in ("p2", "p7")}
    unclear = describe(without, flat)
    for name in NAMES:
        if name.startswith(("lexical: lead", "dense: lead", "both")):
            assert clear[name] > unclear[name], name
    assert clear["dense: rank of the lexical first"] == 0
    assert unclear["dense: rank of the lexical first"] > 0
    own, other = describe(lexical, dense), describe(lexical, dense, foreign=True)
    assert [name for name in NAMES if own[name] != other[name]] == ["post in another language"]


def test_too_few_papers_have_no_shape(lexical: dict[str, float], dense: dict[str, float]) -> None:
    few = dict(list(dense.items())[: DEEPEST_SHAPE - 1])
    assert np.isnan(list(describe(lexical, few).values())).all()
    # Copies are one paper.
    copies = {f"{paper} again": score for paper, score in few.items()}
    assert np.isnan(list(describe(lexical, few | copies).values())).all()
    # Posts without a term of any paper are compared only by vectors.
    assert np.isfinite(list(describe({}, dense).values())).all()
