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
        scores = np.append(others, others.max() + lead)
        rows += [(claim, f"p{number}", 10 + score) for number, score in enumerate(scores)]
    run = Run.from_rows(*map(list, zip(*rows, strict=True)), claim_ids=list(ids))
    return Result(run)


def make_asked(number: int) -> Asked:
    """Make a collection's answers: half of the posts have their paper, which is mostly ahead."""
    rng = np.random.default_rng(number)
    parts = []
    for half, lead in (("here", 3.0), ("gone", 0.3)):
        ids = [f"{half} {post}" for post in range(POSTS)]
        leads = rng.exponential(lead, POSTS)
        stages = {
            name: make_result(ids, leads, place + 2 * number)
            for place, name in enumerate(("lexical", "dense"))
        }
        parts.append((ids, stages))
    right = np.arange(2 * POSTS) < POSTS
    questions = Questions(tuple(parts), right, np.arange(2 * POSTS))
    return Asked(COLLECTIONS[number], questions, 50)


def test_a_collection_is_measured_by_a_fit_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {part.collection.name: part for part in map(make_asked, range(4))}
    fitted_on: list[set[str]] = []
    fit_all = module.fit_all

    def track(parts: Sequence[Asked]) -> AbstainModel:
        fitted_on.append({part.collection.name for part in parts})
        return fit_all(parts)

    monkeypatch.setattr(module, "fit_all", track)
    measured = measure("ct25", asked, asked)
    assert measured.name == "ct25" and measured.posts == POSTS
    assert fitted_on == [{*asked} - {"ct25"}]
    assert sum(tenth.answers for tenth in measured.tenths) == 2 * POSTS
    assert measured.good >= 8 and measured.wrong <= 0.05 and measured.found > 0.2


def test_a_tenth_is_good_by_its_gap_or_its_interval() -> None:
    assert is_close(Tenth(1_000, 0.25, 340, 0))  # 0.09 off
    assert not is_close(Tenth(1_000, 0.25, 360, 0))
    assert is_close(Tenth(10, 0.25, 5, 0))  # 0.19 to 0.81
    assert is_close(Tenth())
    first = (Tenth(10, 0.1, 2, 1), *[Tenth()] * 9)
    second = (Tenth(30, 0.3, 6, 5), *[Tenth()] * 9)
    assert summed([first, second])[0] == Tenth(40, pytest.approx(0.25), 8, 6)  # type: ignore[arg-type]
