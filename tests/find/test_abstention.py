"""The logistic model of abstention: features by hand, its fit, its JSON values."""

import json
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import InputError
from claim2source.core.run import Result, Run
from claim2source.core.validate import validated
from claim2source.find.abstention import AbstainModel, Design, fit
from tests.refusals import refused

FIRST = Run.from_lists(
    {
        "a": [("p", 9.0), ("q", 5.0), ("r", 1.0)],
        "b": [("q", 2.0)],
        "c": [],
    }
)
SECOND = Run.from_lists(
    {
        "a": [("p", 0.5), ("q", 0.5)],
        "b": [("p", 0.9), ("q", 0.1)],
        "c": [],
    }
)
STAGES = {
    "one": Result(FIRST),
    "two": Result(SECOND),
}


def test_features_by_hand() -> None:
    design = Design(("one", "two"), 2)
    assert design.names == [
        *("one: score 1", "one: score 2", "two: score 1", "two: score 2"),
        *("one: margin", "two: margin", "one = two"),
    ]
    # Tied sources are ordered by id, descending: q is second's first for a.
    expected = [
        [9, 5, 0.5, 0.5, 0.5, 0, 0],
        [2, 2, 0.9, 0.1, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]
    features = design.features(["a", "b", "c"], STAGES)
    assert features == pytest.approx(np.array(expected))
    # How deep a list is depends on what else is run: no feature does.
    ranked = [(f"{i:03}", 200.0 - i) for i in range(150)]
    deep = Run.from_lists({"a": ranked})
    margins = []
    for run in (deep, deep.top(100)):
        single = Design(("s",), 1)
        features = single.features(["a"], {"s": Result(run)})
        margins.append(features[0, 1])
    assert margins == [1 / 99, 1 / 99]

    usual = Design(
        ("one",),
        1,
        of_usual="one",
        usual=(1.0, 2.0, 3.0),
    )
    features = usual.features(["b"], STAGES)
    assert features[0, -1] == pytest.approx(np.log(1.5 / 2.5))


def test_the_fit_solves_the_equations_of_a_penalised_logistic_model() -> None:
    rng = np.random.default_rng(0)
    design = Design(("s",), 2)
    scales = [1, 20, 0.1]
    shifts = [0, 5, 3]
    features = rng.normal(size=(300, 3)) * scales + shifts
    draws = rng.random(300)
    odds = features @ [1.0, 0.05, -4.0] + 11.5
    present = draws < 1 / (1 + np.exp(-odds))
    centred = features - features.mean(axis=0)
    standard = centred / features.std(axis=0)
    for penalty in (1e-9, 1.0, 50.0):
        ours = fit(design, features, present, penalty)
        left = present - ours.probabilities(features)
        pull = penalty * np.array(ours.weights)
        assert standard.T @ left == pytest.approx(pull, abs=1e-3)
        assert left.sum() == pytest.approx(0, abs=1e-3)
    # A penalty draws weights to 0, never the bias: the mean probability stays.
    tight = fit(design, features, present, 1e6)
    largest = max(map(abs, tight.weights))
    assert largest < 1e-3
    mean = tight.probabilities(features).mean()
    assert mean == pytest.approx(present.mean(), abs=1e-3)
    # A constant feature counts as nothing.
    flat = features.copy()
    flat[:, 1] = 7.0
    flat_model = fit(design, flat, present, 1.0)
    assert flat_model.weights[1] == 0
    all_present = np.ones(300, bool)
    with refused(ValueError, "claims"):
        fit(design, features, all_present, 1.0)


def model(threshold: float = 0.5) -> AbstainModel:
    """Odds: first score of the stage `one`, less 3."""
    design = Design(("one",), 1)
    names = tuple(design.names)
    mean = (0.0, 0.0)
    scale = (1.0, 1.0)
    weights = (1.0, 0.0)
    bias = -3.0
    return AbstainModel(
        design,
        names,
        mean,
        scale,
        weights,
        bias,
        threshold,
        "by hand",
    )


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        (
            {"format": 2},
            "format",
        ),
        (
            {"bias": None},
            "bias",
        ),
        (
            {"design": {"stages": ["one"], "of_usual": "two", "usual": [1.0]}},
            "of_usual",
        ),
        (
            {"threshold": 2},
            "threshold",
        ),
        (
            {"weights": [1]},
            "weights",
        ),
        (
            {"features": ["one: margin", "one: score 1"]},
            "features",
        ),
        (
            {"design": {"stages": ["one"], "scores": 0}},
            "scores",
        ),
    ],
)
def test_damaged_values_are_refused_by_their_field(tmp_path: Path, changed, field) -> None:
    path = tmp_path / "manifest.json"
    values = model().as_json()
    whole = json.dumps(values)
    assert validated(AbstainModel, whole, path) == model()
    damaged = json.dumps({**values, **changed})
    with refused(InputError, path, field) as error:
        validated(AbstainModel, damaged, path)
    assert "\n" not in str(error.value)
