"""The logistic model of abstention: features by hand, its fit, its file, the stage."""

import json
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import ConfigError, InputError, UserError
from claim2source.core.records import Claim
from claim2source.core.run import Result, Run
from claim2source.stages.abstain import Abstain, AbstainModel, Design, abstained, fit, margin_shares

FIRST = Run.from_lists({"a": [("p", 9.0), ("q", 5.0), ("r", 1.0)], "b": [("q", 2.0)], "c": []})
SECOND = Run.from_lists({"a": [("p", 0.5), ("q", 0.5)], "b": [("p", 0.9), ("q", 0.1)], "c": []})
STAGES = {
    "one": Result(FIRST),
    "two": Result(SECOND, details={"a": {"none": 0.2, "asks": 1}, "b": {"asks": 1}}),
}


def test_features_by_hand() -> None:
    design = Design(("one", "two"), 2, none=True)
    assert design.names == [
        *("one: score 1", "one: score 2", "two: score 1", "two: score 2"),
        *("one: margin", "two: margin", "one = two", "none"),
    ]
    features = design.features(["a", "b", "c"], STAGES)
    # Tied sources are ordered by id, descending: q is second's first for a.
    assert features[:, :7] == pytest.approx(
        np.array([[9, 5, 0.5, 0.5, 0.5, 0, 0], [2, 2, 0.9, 0.1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 1]])
    )
    assert features[0, 7] == pytest.approx(np.log(0.25)) and np.isnan(features[1:, 7]).all()
    assert margin_shares(FIRST, ["c", "a"]).tolist() == [0, 0.5]
    deep = Run.from_lists({"a": [(f"{i:03}", 200.0 - i) for i in range(150)]})
    assert margin_shares(deep, ["a"]) == margin_shares(deep.top(100), ["a"]) == [1 / 99]
    assert Design(("one", "two"), 2).features(["a"], STAGES).shape == (1, 7)


def test_the_fit_solves_the_equations_of_a_penalised_logistic_model() -> None:
    rng = np.random.default_rng(0)
    design = Design(("s",), 2)
    features = rng.normal(size=(300, 3)) * [1, 20, 0.1] + [0, 5, 3]
    present = rng.random(300) < 1 / (1 + np.exp(-(features @ [1.0, 0.05, -4.0] + 11.5)))
    standard = (features - features.mean(axis=0)) / features.std(axis=0)
    for penalty in (1e-9, 1.0, 50.0):
        ours = fit(design, features, present, penalty)
        left = present - ours.probabilities(features)
        assert standard.T @ left == pytest.approx(penalty * np.array(ours.weights), abs=1e-3)
        assert left.sum() == pytest.approx(0, abs=1e-3)
    # A penalty draws weights to 0, never the bias: the mean probability stays.
    tight = fit(design, features, present, 1e6)
    assert max(map(abs, tight.weights)) < 1e-3
    assert tight.probabilities(features).mean() == pytest.approx(present.mean(), abs=1e-3)
    # What is not known counts as its mean, and a constant feature as nothing.
    holes = features.copy()
    holes[:150, 0], holes[:, 1] = np.nan, 7.0
    known = fit(design, holes, present, 1.0)
    assert known.mean[0] == pytest.approx(features[150:, 0].mean()) and known.weights[1] == 0
    assert np.isfinite(known.probabilities(holes)).all()
    with pytest.raises(ValueError, match="with and without"):
        fit(design, features, np.ones(300, bool), 1.0)


def model(threshold: float = 0.5) -> AbstainModel:
    """Odds: first score of the stage `one`, less 3."""
    design = Design(("one",), 1)
    return AbstainModel(
        design, tuple(design.names), (0.0, 0.0), (1.0, 1.0), (1.0, 0.0), -3.0, threshold, "by hand"
    )


def test_the_stage_marks_claims_and_leaves_the_ranking(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    model().write(path)
    claims = [Claim(id, id) for id in "abc"]
    stage = Abstain(model=str(path)).with_history(STAGES)
    result = stage.apply(claims, [], SECOND)
    assert list(result.run) == list(SECOND) and not result.failures
    assert abstained(result) == ["b", "c"]
    assert result.notes == {
        "a": f"present {1 / (1 + np.exp(-6)):.4f}",
        "b": f"none of these: present {1 / (1 + np.exp(1)):.4f}",
        "c": f"none of these: present {1 / (1 + np.exp(3)):.4f}",
    }
    lax = Abstain(model=str(path), threshold=0.1).with_history(STAGES)
    assert abstained(lax.apply(claims, [], SECOND)) == ["c"]
    # The store knows a result by the file's content and by all earlier stages' scores.
    identity = stage.identity
    run = Run.from_lists({**{c: list(FIRST.scored(c).items()) for c in "bc"}, "a": [("p", 8.0)]})
    assert stage.with_history({**STAGES, "one": Result(run)}).identity != identity
    model(0.7).write(path)
    assert stage.identity != identity
    with pytest.raises(UserError, match="fitted on the stage 'one'; the stages before are two"):
        Abstain(model=str(path)).with_history({"two": Result(SECOND)}).apply(claims, [], SECOND)
    with pytest.raises(ConfigError, match="model"):
        Abstain(model=" ")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"format": 2}, "format"),
        ({"bias": None}, "bias"),
        ({"threshold": 2}, "threshold from 0 to 1"),
        ({"weights": [1]}, "a number for each feature"),
        ({"features": ["one: margin", "one: score 1"]}, "not those of the design"),
        ({"design": {"stages": ["one"], "scores": 0, "none": False}}, "scores must be from 1"),
    ],
)
def test_a_damaged_file_is_refused_by_its_field(tmp_path: Path, changed, why) -> None:
    path = tmp_path / "m.json"
    model().write(path)
    assert AbstainModel.read(path) == model() and [*tmp_path.iterdir()] == [path]
    values = json.loads(path.read_text())
    path.write_text(json.dumps({**values, **changed}))
    with pytest.raises(InputError, match=why) as error:
        AbstainModel.read(path)
    for text in ("", "[]", '{"bias": NaN}', '{"bias": 1e999}', "[" * 9999):
        (tmp_path / "other.json").write_text(text)
        with pytest.raises(InputError):
            AbstainModel.read(tmp_path / "other.json")
    assert str(path) in str(error.value) and "\n" not in str(error.value)
