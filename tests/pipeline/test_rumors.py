"""Systems for rumours: verdicts by hand, and settings that never see what they are scored on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.run import Run
from claim2source.datasets.rumors import LABELS, Rumors, load_rumors
from claim2source.pipeline.rumor_choices import (
    RumorGrid,
    choose_bm25,
    choose_threshold,
    cross_validated_bm25,
    cross_validated_threshold,
    folds_of,
    try_bm25,
)
from claim2source.pipeline.rumors import (
    RerankConfig,
    RumorResult,
    RumorSystem,
    StanceConfig,
    mean_stance,
    run_rumors,
    verdict_of,
)
from claim2source.retrieve.fielded import FieldedConfig
from tests.rumor_files import RUMORS, rumor, write_rumors

YES, NO, OPEN = LABELS
NAN = float("nan")


@pytest.mark.parametrize(
    ("stances", "scores", "weights", "mean"),
    [
        ([2, -1], [3, 1], "raw", (2 * 3 - 1) / 4),
        ([2, -1], [3, 1], "equal", 0.5),
        ([2, -1, 1], [3, 1, 2], "min_max", (2 * 1 + 1 * 0.5) / 1.5),
        ([-2, -2], [4, 4], "min_max", -2),
        ([2, NAN], [1, 100], "raw", 2),
        ([NAN, 2], [5, 1], "min_max", 2),
        ([NAN, 2, -1], [9, 3, 1], "min_max", 2),
        ([NAN, 2, -1], [0, 3, 1], "equal", 0.5),
        # The paper's formula as it stands: a weight below 0 turns its stance round.
        ([2, -1], [3, -1], "raw", (2 * 3 + 1) / 2),
        ([2, -1], [1, -2], "raw", (2 + 2) / -1),
        ([2, -1], [3, -1], "positive", 2),
        ([2, -1, -2], [-1, -2, -3], "positive", None),
        ([2, 1, -2], [-3, -2, -1], "min_max", -1),
        ([2, -1], [1, -1], "raw", None),
        ([NAN], [1], "raw", None),
        ([1], [0], "raw", None),
        ([], [], "min_max", None),
    ],
)
def test_the_mean_is_weighted_by_the_scores(stances, scores, weights, mean) -> None:
    assert mean_stance(stances, scores, weights) == (mean if mean is None else pytest.approx(mean))


@pytest.mark.parametrize(
    ("mean", "label"),
    [(0.4, YES), (0.39, OPEN), (0.0, OPEN), (-0.39, OPEN), (-0.4, NO), (2, YES), (None, OPEN)],
)
def test_verdicts_begin_at_the_threshold(mean: float | None, label: str) -> None:
    assert verdict_of(mean, 0.4) == label


def test_settings_are_refused_before_anything_runs() -> None:
    for settings, key in (
        ({"depth": 3}, "keep"),
        ({"name": "a\tb"}, "name: 'a.tb' is not allowed; allowed: some text, in one line"),
        ({"name": " "}, "name"),
        ({"rerank": RerankConfig("llm")}, "llm.model"),
        ({"stance": StanceConfig("llm")}, "llm.model"),
    ):
        with pytest.raises(ConfigError, match=key):
            RumorSystem(**settings)


def test_a_rumour_without_a_common_term_is_counted_and_open(tmp_path: Path) -> None:
    rumors = load_rumors(
        write_rumors(tmp_path / "dev.json", [*RUMORS[:2], rumor("r4", "x", {"1": "y"}, OPEN)])
    )
    found = run_rumors(RumorSystem(), rumors)
    assert found.run.sources("r4") == [] and found.stages[0].failures == {
        "no term in common with any source": 1
    }
    assert set(found.verdicts(0.4).values()) == {None}
    assert replace(found, judged=True).verdicts(0.4) == dict.fromkeys(("r1", "r2", "r4"), OPEN)


# --- settings chosen off what is scored ---------------------------------------------------

GRID = RumorGrid(folds=4, k1=(1.2,), b=(0.75,), boost=(0.0, 3.0), shortest=(2,), rule="best")


def with_tags(evidence_by_tag: list[bool]) -> list[dict]:
    """Rumours whose evidence a high boost finds first, or which it hides."""
    return [
        rumor(
            f"r{i}",
            "dam news #Basra",
            {"1": "other things #Basra", "2": "dam news of today", "3": "no word"},
            NO,
            ["1" if by_tag else "2"],
        )
        for i, by_tag in enumerate(evidence_by_tag)
    ]


def read(tmp_path: Path, records: list[dict]) -> Rumors:
    return load_rumors(write_rumors(tmp_path / "dev.json", records))


def test_folds_part_the_rumours_with_alike_labels(tmp_path: Path) -> None:
    records = [
        rumor(f"r{i}", "x", {"1": "y"}, OPEN if i % 2 else NO, [] if i % 2 else ["1"])
        for i in range(10)
    ]
    rumors = read(tmp_path, records)
    folds = folds_of(rumors, 5, 0)
    assert sorted(rumor for fold in folds for rumor in fold) == sorted(r["id"] for r in records)
    labels = {r["id"]: r["label"] for r in records}
    assert all(sorted(labels[one] for one in fold) == [OPEN, NO] for fold in folds)
    assert folds != folds_of(rumors, 5, 1)
    with pytest.raises(ConfigError, match="grid.folds"):
        folds_of(rumors, 11, 0)


def test_no_rumour_is_ranked_by_a_setting_that_was_chosen_on_it(tmp_path: Path) -> None:
    """Seven rumours want the tags boosted, one wants them off: it would get that alone."""
    rumors = read(tmp_path, with_tags([True] * 7 + [False]))
    tried = try_bm25(rumors, FieldedConfig(boost=0), GRID)
    assert all(len(values) == 8 for values in tried.values()) and len(tried) == 2 * 2**3
    chosen, choice = choose_bm25(rumors, tried, "best")
    assert chosen.boost == 3 and choice.metric == "map" and choice.score == pytest.approx(7.5 / 8)
    of, on_all, said = cross_validated_bm25(rumors, FieldedConfig(boost=0), GRID)
    assert (
        on_all.boost == 3
        and set(of) == {f"r{i}" for i in range(8)}
        and {one.boost for one in of.values()} == {3}
    )
    assert "cross-validated: 4 folds" in said.note
    # What a fold's own rumours say changes nothing for them.
    fold = next(fold for fold in folds_of(rumors, 4, 0) if "r7" in fold)
    other = read(tmp_path, with_tags([i != 7 and f"r{i}" not in fold for i in range(8)]))
    assert folds_of(other, 4, 0) == folds_of(rumors, 4, 0)
    assert cross_validated_bm25(other, FieldedConfig(boost=0), GRID)[0]["r7"] == of["r7"]
    # Two rumours, each wanting what the other does not: chosen on the other, both are wrong.
    pair = read(tmp_path, with_tags([True, False]))
    crossed, *_ = cross_validated_bm25(pair, FieldedConfig(boost=0), replace(GRID, folds=2))
    assert (crossed["r0"].boost, crossed["r1"].boost) == (0, 3)


def judged(means: dict[str, float | None]) -> RumorResult:
    return RumorResult(Run.from_lists({}), (), {}, means, True)


def test_thresholds_are_chosen_on_the_other_folds(tmp_path: Path) -> None:
    records = [
        rumor(f"r{i}", "x", {"1": "y"}, label, [] if label == OPEN else ["1"])
        for i, label in enumerate([YES, OPEN, NO, YES, OPEN, NO])
    ]
    rumors = read(tmp_path, records)
    means = {"r0": 1.5, "r1": 0.6, "r2": -1.4, "r3": 1.2, "r4": -0.7, "r5": -1.1}
    best, choice = choose_threshold(rumors, judged(means), 0.4)
    # All right from 0.75 to 1.1: of these, the nearest to 0.4.
    assert best == 0.75 and choice.score == 1 and choice.metric == "macro_f1"
    assert choose_threshold(rumors, judged(means), 1.0)[0] == 1.0
    grid = RumorGrid(folds=3)
    of, _ = cross_validated_threshold(rumors, lambda _: judged(means), 0.4, grid)
    for fold in folds_of(rumors, 3, 0):
        wild = means | dict.fromkeys(fold, 0.05)
        again, _ = cross_validated_threshold(rumors, lambda _, m=wild: judged(m), 0.4, grid)
        assert {r: again[r] for r in fold} == {r: of[r] for r in fold}
    # Each fold has the means of a system that has not seen it, and the record those of all.
    scale = {fold: 1 + i / 2 for i, fold in enumerate([frozenset(), *folds_of(rumors, 3, 0)])}
    of, said = cross_validated_threshold(
        rumors, lambda fold: judged({r: m * scale[fold] for r, m in means.items()}), 0.4, grid
    )
    for fold, times in scale.items():
        scaled = judged({r: m * times for r, m in means.items()})
        expected, _ = choose_threshold(rumors, scaled, 0.4, fold)
        assert {of[r] for r in fold} <= {expected}
    assert said.settings == {"threshold": 0.75} and len(set(of.values())) > 1
    assert judged(means).verdicts({**dict.fromkeys(means, 1.0), "r0": 1.6})["r0"] == OPEN
    assert np.isclose(choice.settings["threshold"], 0.75)
