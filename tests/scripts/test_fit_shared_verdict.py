"""The shipped verdict: a collection is measured with a fit on the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from claim2source.core.run import Result, Run
from claim2source.find.abstention import AbstainModel, Tenth
from claim2source.find.calibrate import Questions
from scripts import fit_shared_verdict as module
from scripts.fit_shared_verdict import COLLECTIONS, Asked, is_close, measure, summed

POSTS = 120


def make_result(ids: Sequence[str], leads: np.ndarray, seed: int) -> Result:
    """Make lists whose first paper is ahead by a lead, in spreads of the others."""
    rng = np.random.default_rng(seed)
    rows = []
    for claim, lead in zip(ids, leads, strict=True):
        others = rng.normal(size=40)
        first = others.max() + lead
        scores = np.append(others, first)
        for number, score in enumerate(scores):
            rows.append((claim, f"p{number}", 10 + score))

    columns = [list(column) for column in zip(*rows, strict=True)]
    run = Run.from_rows(*columns, claim_ids=list(ids))
    return Result(run)


def make_asked(number: int) -> Asked:
    """Make a collection's answers: half of the posts have their paper, which is mostly ahead."""
    rng = np.random.default_rng(number)
    parts = []
    mean_leads = {
        "here": 3.0,
        "gone": 0.3,
    }
    for half, lead in mean_leads.items():
        ids = [f"{half} {post}" for post in range(POSTS)]
        leads = rng.exponential(lead, POSTS)
        stages = {}
        for place, name in enumerate(("lexical", "dense")):
            seed = place + 2 * number
            stages[name] = make_result(ids, leads, seed)
        parts.append((ids, stages))

    claims = np.arange(2 * POSTS)
    right = claims < POSTS
    questions = Questions(tuple(parts), right, claims)
    collection = COLLECTIONS[number]
    return Asked(collection, questions, 50)


def test_a_collection_is_measured_by_a_fit_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}
    for number in range(4):
        part = make_asked(number)
        asked[part.collection.name] = part
    fitted_on: list[set[str]] = []
    fit_all = module.fit_all

    def track(parts: Sequence[Asked]) -> AbstainModel:
        names = {part.collection.name for part in parts}
        fitted_on.append(names)
        return fit_all(parts)

    monkeypatch.setattr(module, "fit_all", track)
    measured = measure("ct25", asked, asked)
    others = {*asked} - {"ct25"}
    answers = sum(tenth.answers for tenth in measured.tenths)
    assert measured.name == "ct25"
    assert measured.posts == POSTS
    assert fitted_on == [others]
    assert answers == 2 * POSTS
    assert measured.good >= 8
    assert measured.wrong <= 0.05
    assert measured.found > 0.2


def test_a_tenth_is_good_by_its_gap_or_its_interval() -> None:
    near = Tenth(1_000, 0.25, 340, 0)
    far = Tenth(1_000, 0.25, 360, 0)
    few = Tenth(10, 0.25, 5, 0)
    assert is_close(near)  # 0.09 off
    assert not is_close(far)
    assert is_close(few)  # 0.19 to 0.81
    assert is_close(Tenth())

    nothing = [Tenth()] * 9
    first = (Tenth(10, 0.1, 2, 1), *nothing)
    second = (Tenth(30, 0.3, 6, 5), *nothing)
    expected = Tenth(40, pytest.approx(0.25), 8, 6)  # type: ignore[arg-type]
    assert summed([first, second])[0] == expected
