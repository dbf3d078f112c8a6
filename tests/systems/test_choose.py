"""Choices are stable: on the declared mix of claims, and robust to noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.core.run import Run
from claim2source.search.bm25 import BM25
from claim2source.search.choose import Preference, Weighing, choose, weigh
from claim2source.search.fuse import FusionConfig, choose_fusion
from claim2source.systems.choose import choose_margin
from claim2source.systems.conditions import WhenConfig
from claim2source.systems.heldout import SelectionData
from claim2source.systems.read import read_stage
from claim2source.systems.retrieval import Retrieval
from claim2source.systems.runtime import SystemRuntime
from claim2source.systems.stages import fit_stages
from claim2source.systems.system import System, run_system
from tests.refusals import refused
from tests.training.small import small_splits

PLAIN: Any = {"settings": lambda value: {"alpha": value}}


def claims_dataset(golds: list[str], langs: list[str] | None = None) -> Dataset:
    languages = langs or ["en"] * len(golds)
    claims: list[Claim] = []
    relevant: dict[str, dict[str, int]] = {}
    for gold, lang in zip(golds, languages, strict=True):
        claim_id = f"c{len(claims)}"
        claim = Claim(claim_id, "t", lang, golds=(gold,))
        claims.append(claim)
        relevant[claim_id] = {gold: 1}
    sources = tuple(Source(gold) for gold in dict.fromkeys(golds))
    return Dataset(tuple(claims), sources, Qrels(relevant), "val")


def numbered_golds(count: int) -> list[str]:
    """Name as many papers."""
    return [f"g{i}" for i in range(count)]


def papers(count: int) -> Weighing:
    """Claims of as many papers, in one language."""
    data = claims_dataset(numbered_golds(count))
    return weigh(data)


def chosen_setting(
    what: str,
    tried: Any,
    weighing: Weighing,
    **options: Any,
) -> Any:
    """Choose, and return the setting without its reasons."""
    setting, _ = choose(what, tried, weighing, **options)
    return setting


ALPHAS = (
    0.5,
    *(round(step / 20, 2) for step in range(1, 20) if step != 10),
)


def away(alpha: float) -> float:
    return abs(alpha - 0.5)


NEAR = Preference(distance=away)
BEST = Preference("best")


def by_alpha(seed: int, effect: float = 0) -> dict[float, np.ndarray]:
    """Reciprocal ranks of 150 claims by alpha, as a fusion's: each changes once, or never.

    A share `effect` of them gains at 0.85; all else is noise.
    """
    rng = np.random.default_rng(seed)
    levels = [0, 0.2, 0.25, 1 / 3, 0.5, 1]
    before = rng.choice(levels, 150)
    after = rng.choice(levels, 150)

    changes = rng.random(150) < 0.2
    at = np.where(changes, rng.random(150), 2.0)
    gains = rng.random(150) < effect
    before[gains] = 0.5
    after[gains] = 1.0
    at[gains] = 0.85
    return {alpha: np.where(alpha < at, before, after) for alpha in ALPHAS}


def test_noise_moves_the_best_to_an_end_and_one_standard_error_stays_near_the_default() -> None:
    weighing = papers(150)
    best: list[float] = []
    kept_near: list[float] = []
    for seed in range(30):
        values_of = by_alpha(seed)
        best_alpha = chosen_setting("a", values_of, weighing, by=BEST, **PLAIN)
        best.append(away(best_alpha))
        alpha, choice = choose("a", values_of, weighing, by=NEAR, **PLAIN)
        kept_near.append(away(alpha))

        assert choice.best_score is not None
        assert choice.error is not None
        loss = choice.best_score - choice.score
        assert loss <= choice.error + 1e-12

    far_best = sum(far > 0.25 for far in best)
    far_kept = sum(far > 0.25 for far in kept_near)
    assert far_best >= 18
    assert far_kept <= 7
    assert np.mean(kept_near) < 0.5 * np.mean(best)


def test_a_strong_effect_is_taken_and_the_reason_is_recorded() -> None:
    weighing = papers(150)
    strong = by_alpha(1, 0.2)
    alpha, choice = choose("fusion", strong, weighing, by=NEAR, **PLAIN)
    assert alpha == choice.settings["alpha"]
    assert choice.settings["alpha"] >= 0.85
    assert choice.rule == "one_se"

    only = {
        0.5: np.full(150, 0.5),
        0.85: np.full(150, 0.6),
    }
    _, choice = choose("fusion", only, weighing, by=NEAR, **PLAIN)
    assert choice.settings == choice.best
    assert choice.best == {"alpha": 0.85}
    assert choice.reason == ""
    assert choice.error == 0.0

    noise = by_alpha(1)
    alpha, choice = choose("fusion", noise, weighing, by=NEAR, **PLAIN)
    best_alpha = choice.best["alpha"]
    assert alpha != best_alpha
    assert choice.reason.startswith(f"alpha {best_alpha:g} is best with ")
    assert f"within one standard error ({choice.error:.4f})" in choice.reason


def test_many_claims_of_one_paper_are_one_observation() -> None:
    """Twelve claims of a paper gain, six of another lose; by claim the gain would be sure."""
    golds = [
        *["gains"] * 12,
        *["loses"] * 6,
        *numbered_golds(42),
    ]
    change = np.array(
        [
            *[0.5] * 12,
            *[-0.5] * 6,
            *[0.0] * 42,
        ]
    )
    tried = {
        0: np.full(60, 0.5),
        1: 0.5 + change,
    }
    by_paper = weigh(claims_dataset(golds))
    assert chosen_setting("a", tried, by_paper, **PLAIN) == 0
    assert chosen_setting("a", tried, papers(60), **PLAIN) == 1

    # One paper with many claims, or a language with one paper, does not decide either.
    is_big = np.arange(60) < 40
    values_of = {
        0: np.full(60, 0.5),
        1: np.where(is_big, 1.0, 0.5),
    }
    golds = ["big"] * 40 + numbered_golds(20)
    two_languages = ["de"] * 40 + ["en"] * 20
    for langs in (None, two_languages):
        weighing = weigh(claims_dataset(golds, langs))
        assert chosen_setting("a", values_of, weighing, **PLAIN) == 0


def test_the_declared_mix_decides_between_what_seen_and_unseen_papers_prefer() -> None:
    data = claims_dataset(numbered_golds(40))
    seen = [f"c{i}" for i in range(10)]
    of_seen = np.arange(40) < 10
    a = np.where(of_seen, 1.0, 0.5)
    b = np.where(of_seen, 0.5, 1.0)
    tried = {"b": b, "a": a}
    for share, expected in ((0.9, "a"), (0.1, "b")):
        weighing = weigh(data, seen, share)
        best, choice = choose(
            "x",
            tried,
            weighing,
            by=BEST,
            settings=lambda s: {},
        )
        assert best == expected
        assert choice.seen_share == share
        assert choice.score == pytest.approx(0.95)

    # Without a declared mix all claims weigh the same, and unseen ones are more.
    undeclared = weigh(data, seen)
    assert undeclared.seen_share is None
    assert undeclared.score(a) == pytest.approx(0.625)


def test_a_language_that_lacks_a_part_uses_the_other() -> None:
    languages = ["en"] * 4 + ["de"] * 2
    data = claims_dataset(numbered_golds(6), languages)
    values = np.array([1.0, 0.0, 0.5, 0.5, 0.2, 0.4])
    seen = ["c0", "c1"]
    weighing = weigh(data, seen, 0.75)
    english_score = 0.75 * 0.5 + 0.25 * 0.5
    assert weighing.score(values) == pytest.approx((english_score + 0.3) / 2)

    only_seen = np.array([1.0, 1, 0, 0, 0, 0])
    assert weighing.score(only_seen) == pytest.approx(0.375)
    german = weigh(data, seen, 0.75, language="de")
    assert german.score(values) == pytest.approx(0.3)


def test_what_is_below_the_floor_is_never_taken() -> None:
    """Nearest to the default and within a standard error, but worse than the base."""
    rng = np.random.default_rng(0)
    base = rng.random(50)
    first, second = rng.normal(0, 0.1, (2, 50))
    last = base + first - first.mean() - 0.001
    best = base + second - second.mean() + 0.005
    values_of = {
        "last": last,
        "best": best,
        "base": base,
    }
    weighing = papers(50)
    nothing: Any = {"settings": lambda s: {}}
    assert chosen_setting("x", values_of, weighing, **nothing) == "last"

    floor = Preference(floor="base")
    chosen = chosen_setting("x", values_of, weighing, by=floor, **nothing)
    chosen_score = weighing.score(values_of[chosen])
    assert chosen_score >= weighing.score(base)


def test_of_equal_settings_the_first_and_of_a_group_the_middle_is_the_best() -> None:
    weighing = papers(2)
    scales = (0.1, 0.2, 0.3, 0.4, 5.0)
    values_of: dict[float, np.ndarray] = {}
    for scale in scales:
        value = 0.5 if scale == 0.1 else 0.7
        values_of[scale] = np.full(2, value)
    best: Any = {"by": BEST, **PLAIN}
    small_scales = Preference("best", group=lambda value: value < 1)
    grouped: Any = {"by": small_scales, **PLAIN}
    assert chosen_setting("scale", values_of, weighing, **best) == 0.2
    assert chosen_setting("scale", values_of, weighing, **grouped) == 0.3

    # Averages of the same ranks in another order differ in their last digits.
    near = {
        1.0: np.full(2, 0.1 + 0.2),
        0.5: np.full(2, 0.3),
    }
    assert chosen_setting("scale", near, weighing, **best) == 1.0

    tables: Any = {a: {"en": {"mrr@5": a}} for a in values_of}
    _, choice = choose(
        "scale",
        values_of,
        weighing,
        tables=tables,
        trials=True,
        note="n",
        **best,
    )
    alphas = [trial.settings["alpha"] for trial in choice.tried]
    assert alphas == list(values_of)
    first_trial = choice.tried[0]
    assert first_trial.scores == tables[0.1]
    assert first_trial.score == 0.5
    assert choice.note == "n"

    _, without_trials = choose("scale", values_of, weighing, **best)
    assert without_trials.tried == ()
    with refused(ValueError, "settings"):
        choose("scale", {}, weighing, **best)


def test_of_equally_near_settings_the_better_is_taken() -> None:
    values = {
        0: [0, 0, 0, 0],
        1: [1, 1, 0, 0.8],
        -1: [1, 1, 0, 0.9],
        5: [1, 1, 1, 0],
    }
    tried = {setting: np.array(row, dtype=float) for setting, row in values.items()}
    nearest = Preference(distance=abs)
    chosen, choice = choose("x", tried, papers(4), by=nearest, **PLAIN)
    assert chosen == -1
    assert choice.best == {"alpha": 5}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from(["en", "de"]),
            st.booleans(),
        ),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 10_000),
    st.sampled_from([None, 0.0, 0.3, 1.0]),
)
def test_what_is_chosen_is_within_its_standard_error_of_the_best_and_nothing_nearer_is(
    rows: list[tuple[int, str, bool]], seed: int, share: float | None
) -> None:
    golds = [f"g{paper}" for paper, _, _ in rows]
    languages = [lang for _, lang, _ in rows]
    data = claims_dataset(golds, languages)
    seen = [f"c{i}" for i, row in enumerate(rows) if row[2]]
    weighing = weigh(data, seen, share)
    assert weighing.weights.sum() == pytest.approx(1)
    assert (weighing.weights >= 0).all()

    rng = np.random.default_rng(seed)
    levels = [0, 0.2, 0.25, 0.5, 1]
    values_of = {i: rng.choice(levels, len(rows)) for i in range(5)}
    floor = Preference(floor=3)
    best, choice = choose("x", values_of, weighing, by=floor, **PLAIN)
    scores = {i: weighing.score(values) for i, values in values_of.items()}
    highest = max(scores.values())
    assert scores[best] >= scores[3]
    assert choice.best_score == highest
    loss = highest - scores[best]
    assert loss <= (choice.error or 0) + 1e-9
    # The first is the default, unless it is below the floor or clearly worse.
    if scores[0] == highest:
        assert best == 0

    # Alike by every claim: nothing is worse.
    equal_values = dict.fromkeys(range(3), values_of[0])
    assert chosen_setting("x", equal_values, weighing, **PLAIN) == 0


def test_a_fusion_stays_at_the_default_unless_the_claims_are_many_and_sure() -> None:
    """One claim of many is found only by BM25; or half of them are."""
    count = 30
    data = claims_dataset(numbered_golds(count))

    def runs(count_alone: int) -> tuple[Run, Run]:
        sparse = {}
        dense = {}
        for i in range(count):
            claim = f"c{i}"
            gold = f"g{i}"
            other = "g0" if i else "g1"
            low = [(other, 0.4), ("x", 0.0)]
            sparse[claim] = [(gold, 1.0), *low]
            if i < count_alone:
                dense[claim] = [
                    ("z", 1.0),
                    (gold, 0.2),
                    ("x", 0.0),
                ]
                sparse[claim] = [
                    (gold, 1.0),
                    ("z", 0.5),
                    ("x", 0.0),
                ]
            else:
                dense[claim] = [(gold, 1.0), *low]
        sparse_run = Run.from_lists(sparse)
        return sparse_run, Run.from_lists(dense)

    grid = [FusionConfig("rrf"), FusionConfig()]
    alpha = {}
    for rule in ("best", "one_se"):
        fusion, _ = choose_fusion(*runs(1), data, grid, rule=rule)  # type: ignore[arg-type]
        alpha[rule] = fusion.alpha
    assert alpha["best"] > 0.6
    assert alpha["one_se"] == 0.5

    best, choice = choose_fusion(*runs(15), data, grid)
    assert choice.score > 0.99
    assert best.method == "linear"
    assert best.scale == "min-max"
    assert 0.5 < best.alpha < 0.7


def test_the_margin_is_chosen_by_hand() -> None:
    """Margins 0.05, 0.25, 0.6: the first claim gains, the second loses, the third gains."""
    scores = {
        "a": (1.0, 0.95, 0.0),
        "b": (1.0, 0.75, 0.0),
        "c": (1.0, 0.4, 0.0),
    }
    golds = {"a": "y", "b": "x", "c": "y"}
    claims = tuple(Claim(c, c, golds=(gold,)) for c, gold in golds.items())
    sources = tuple(map(Source, "xyz"))
    qrels = Qrels({c: {g: 1} for c, g in golds.items()})
    data = Dataset(claims, sources, qrels, "val")

    lists_before: dict[str, list[tuple[str, float]]] = {}
    for claim, values in scores.items():
        lists_before[claim] = list(zip("xyz", values, strict=True))
    before = Run.from_lists(lists_before)
    order_after = [
        ("y", 3.0),
        ("x", 2.0),
        ("z", 1.0),
    ]
    after = Run.from_lists(dict.fromkeys(scores, order_after))
    # Of 3 claims: none 2/3; only a 5/6 (1 + 1 + 1/2); a and b 2/3; all 5/6 (1 + 1/2 + 1).
    margin, choice = choose_margin(
        before,
        after,
        data,
        margins=(0.0, 0.1, 0.3, 1.0),
        rule="best",
    )
    assert margin == 0.1
    assert choice.score == pytest.approx(5 / 6)
    share, everywhere = choice.note.split(";")
    assert "33.3%" in share
    assert "0.8" in everywhere

    # Within one standard error the margin with the fewest claims is chosen: none at all.
    margin, _ = choose_margin(before, after, data, margins=(1.0, 0.0, 0.1))
    assert margin == 0.0

    # If the stage before changed the first source, the stage is applied anyway.
    firsts = {
        "a": [("x", 1.0)],
        "b": [("x", 1.0)],
        "c": [("y", 1.0)],
    }
    earlier = Run.from_lists(firsts)
    condition = WhenConfig(0.5, disagree=True)
    margin, choice = choose_margin(
        before,
        after,
        data,
        condition,
        earlier,
        margins=(0.0, 0.1, 0.3),
        rule="best",
    )
    assert margin == 0.1
    assert choice.score == pytest.approx(1.0)


def test_a_mix_is_chosen_on_the_declared_mix_of_seen_and_unseen_papers(tiny_folder: Path) -> None:
    train = small_splits()[0]
    entry = {
        "rerank": "max_sim",
        "model": str(tiny_folder),
        "max_length": 32,
        "mix": "fit",
    }
    system = System("R", Retrieval(BM25()))
    first = run_system(system, train).result
    weighing = weigh(train)
    values = weighing.of(first.run)
    # Seen are the claims that BM25 ranks well: the more they weigh, the higher the score.
    median = sorted(values)[len(values) // 2]
    good = zip(weighing.claim_ids, values >= median, strict=True)
    seen = frozenset(claim for claim, well in good if well)
    scores: list[float] = []
    for share in (0.1, 0.9):
        selection = SelectionData(train, train, "a note", seen, share)
        before = [("retrieve", first)]
        stage = read_stage(entry)
        _, (choice,) = fit_stages(
            [stage],
            before,
            train,
            selection,
            SystemRuntime(),
        )
        assert choice.seen_share == share
        assert choice.note == "a note"
        assert choice.compared == len(choice.tried)
        assert len(choice.tried) > 3
        scores.append(choice.score)
    assert scores[0] < scores[1] - 0.1
