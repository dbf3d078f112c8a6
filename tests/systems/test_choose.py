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
    claims = tuple(
        Claim(f"c{i}", "t", lang, golds=(gold,))
        for i, (gold, lang) in enumerate(zip(golds, langs or ["en"] * len(golds), strict=True))
    )
    qrels = Qrels({claim.id: dict.fromkeys(claim.golds, 1) for claim in claims})
    return Dataset(claims, tuple(Source(gold) for gold in dict.fromkeys(golds)), qrels, "val")


def papers(count: int) -> Weighing:
    """Claims of as many papers, in one language."""
    return weigh(claims_dataset([f"g{i}" for i in range(count)]))


ALPHAS = (0.5, *(round(step / 20, 2) for step in range(1, 20) if step != 10))


def away(alpha: float) -> float:
    return abs(alpha - 0.5)


NEAR, BEST = Preference(distance=away), Preference("best")


def by_alpha(seed: int, effect: float = 0) -> dict[float, np.ndarray]:
    """Reciprocal ranks of 150 claims by alpha, as a fusion's: each changes once, or never.

    A share `effect` of them gains at 0.85; all else is noise.
    """
    rng = np.random.default_rng(seed)
    levels = [0, 0.2, 0.25, 1 / 3, 0.5, 1]
    before, after = rng.choice(levels, 150), rng.choice(levels, 150)
    at = np.where(rng.random(150) < 0.2, rng.random(150), 2.0)
    gains = rng.random(150) < effect
    before[gains], after[gains], at[gains] = 0.5, 1.0, 0.85
    return {alpha: np.where(alpha < at, before, after) for alpha in ALPHAS}


def test_noise_moves_the_best_to_an_end_and_one_standard_error_stays_near_the_default() -> None:
    weighing = papers(150)
    best, kept_near = [], []
    for seed in range(30):
        values_of = by_alpha(seed)
        best.append(away(choose("a", values_of, weighing, by=BEST, **PLAIN)[0]))
        alpha, choice = choose("a", values_of, weighing, by=NEAR, **PLAIN)
        kept_near.append(away(alpha))
        assert choice.best_score is not None and choice.error is not None
        assert choice.best_score - choice.score <= choice.error + 1e-12
    assert sum(far > 0.25 for far in best) >= 18 and sum(far > 0.25 for far in kept_near) <= 7
    assert np.mean(kept_near) < 0.5 * np.mean(best)


def test_a_strong_effect_is_taken_and_the_reason_is_recorded() -> None:
    weighing = papers(150)
    alpha, choice = choose("fusion", by_alpha(1, 0.2), weighing, by=NEAR, **PLAIN)
    assert alpha == choice.settings["alpha"] >= 0.85 and choice.rule == "one_se"
    only = {0.5: np.full(150, 0.5), 0.85: np.full(150, 0.6)}
    choice = choose("fusion", only, weighing, by=NEAR, **PLAIN)[1]
    assert choice.settings == choice.best == {"alpha": 0.85}
    assert (choice.reason, choice.error) == ("", 0.0)
    alpha, choice = choose("fusion", by_alpha(1), weighing, by=NEAR, **PLAIN)
    assert alpha != choice.best["alpha"]
    assert choice.reason.startswith(f"alpha {choice.best['alpha']:g} is best with ")
    assert f"within one standard error ({choice.error:.4f})" in choice.reason


def test_many_claims_of_one_paper_are_one_observation() -> None:
    """Twelve claims of a paper gain, six of another lose; by claim the gain would be sure."""
    golds = ["gains"] * 12 + ["loses"] * 6 + [f"g{i}" for i in range(42)]
    change = np.array([0.5] * 12 + [-0.5] * 6 + [0.0] * 42)
    tried = {0: np.full(60, 0.5), 1: 0.5 + change}
    assert choose("a", tried, weigh(claims_dataset(golds)), **PLAIN)[0] == 0
    assert choose("a", tried, papers(60), **PLAIN)[0] == 1
    # One paper with many claims, or a language with one paper, does not decide either.
    values_of = {0: np.full(60, 0.5), 1: np.where(np.arange(60) < 40, 1.0, 0.5)}
    golds = ["big"] * 40 + [f"g{i}" for i in range(20)]
    for langs in (None, ["de"] * 40 + ["en"] * 20):
        assert choose("a", values_of, weigh(claims_dataset(golds, langs)), **PLAIN)[0] == 0


def test_the_declared_mix_decides_between_what_seen_and_unseen_papers_prefer() -> None:
    data = claims_dataset([f"g{i}" for i in range(40)])
    seen = [f"c{i}" for i in range(10)]
    of_seen = np.arange(40) < 10
    a, b = np.where(of_seen, 1.0, 0.5), np.where(of_seen, 0.5, 1.0)
    for share, expected in ((0.9, "a"), (0.1, "b")):
        weighing = weigh(data, seen, share)
        best, choice = choose("x", {"b": b, "a": a}, weighing, by=BEST, settings=lambda s: {})
        assert (best, choice.seen_share) == (expected, share)
        assert choice.score == pytest.approx(0.95)
    # Without a declared mix all claims weigh the same, and unseen ones are more.
    undeclared = weigh(data, seen)
    assert undeclared.seen_share is None and undeclared.score(a) == pytest.approx(0.625)


def test_a_language_that_lacks_a_part_uses_the_other() -> None:
    data = claims_dataset([f"g{i}" for i in range(6)], ["en"] * 4 + ["de"] * 2)
    values = np.array([1.0, 0.0, 0.5, 0.5, 0.2, 0.4])
    weighing = weigh(data, ["c0", "c1"], 0.75)
    assert weighing.score(values) == pytest.approx(((0.75 * 0.5 + 0.25 * 0.5) + 0.3) / 2)
    assert weighing.score(np.array([1.0, 1, 0, 0, 0, 0])) == pytest.approx(0.375)
    german = weigh(data, ["c0", "c1"], 0.75, language="de")
    assert german.score(values) == pytest.approx(0.3)


def test_what_is_below_the_floor_is_never_taken() -> None:
    """Nearest to the default and within a standard error, but worse than the base."""
    rng = np.random.default_rng(0)
    base, (first, second) = rng.random(50), rng.normal(0, 0.1, (2, 50))
    last, best = base + first - first.mean() - 0.001, base + second - second.mean() + 0.005
    values_of, weighing = {"last": last, "best": best, "base": base}, papers(50)
    assert choose("x", values_of, weighing, settings=lambda s: {})[0] == "last"
    chosen = choose("x", values_of, weighing, by=Preference(floor="base"), settings=lambda s: {})[0]
    assert weighing.score(values_of[chosen]) >= weighing.score(base)


def test_of_equal_settings_the_first_and_of_a_group_the_middle_is_the_best() -> None:
    weighing = papers(2)
    values_of = {a: np.full(2, 0.5 if a == 0.1 else 0.7) for a in (0.1, 0.2, 0.3, 0.4, 5.0)}
    best: Any = {"by": BEST, **PLAIN}
    grouped: Any = {"by": Preference("best", group=lambda value: value < 1), **PLAIN}
    assert choose("scale", values_of, weighing, **best)[0] == 0.2
    assert choose("scale", values_of, weighing, **grouped)[0] == 0.3
    # Averages of the same ranks in another order differ in their last digits.
    near = {1.0: np.full(2, 0.1 + 0.2), 0.5: np.full(2, 0.3)}
    assert choose("scale", near, weighing, **best)[0] == 1.0
    tables: Any = {a: {"en": {"mrr@5": a}} for a in values_of}
    _, choice = choose("scale", values_of, weighing, tables=tables, trials=True, note="n", **best)
    assert [trial.settings["alpha"] for trial in choice.tried] == list(values_of)
    assert (choice.tried[0].scores, choice.tried[0].score, choice.note) == (tables[0.1], 0.5, "n")
    assert choose("scale", values_of, weighing, **best)[1].tried == ()
    with refused(ValueError, "settings"):
        choose("scale", {}, weighing, **best)


def test_of_equally_near_settings_the_better_is_taken() -> None:
    values = {0: [0, 0, 0, 0], 1: [1, 1, 0, 0.8], -1: [1, 1, 0, 0.9], 5: [1, 1, 1, 0]}
    tried = {setting: np.array(row, dtype=float) for setting, row in values.items()}
    chosen, choice = choose("x", tried, papers(4), by=Preference(distance=abs), **PLAIN)
    assert chosen == -1 and choice.best == {"alpha": 5}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["en", "de"]), st.booleans()),
        min_size=1,
        max_size=25,
    ),
    st.integers(0, 10_000),
    st.sampled_from([None, 0.0, 0.3, 1.0]),
)
def test_what_is_chosen_is_within_its_standard_error_of_the_best_and_nothing_nearer_is(
    rows: list[tuple[int, str, bool]], seed: int, share: float | None
) -> None:
    data = claims_dataset([f"g{paper}" for paper, _, _ in rows], [lang for _, lang, _ in rows])
    seen = [f"c{i}" for i, row in enumerate(rows) if row[2]]
    weighing = weigh(data, seen, share)
    assert weighing.weights.sum() == pytest.approx(1) and (weighing.weights >= 0).all()
    rng = np.random.default_rng(seed)
    values_of = {i: rng.choice([0, 0.2, 0.25, 0.5, 1], len(rows)) for i in range(5)}
    best, choice = choose("x", values_of, weighing, by=Preference(floor=3), **PLAIN)
    scores = {i: weighing.score(values) for i, values in values_of.items()}
    assert scores[best] >= scores[3]
    assert choice.best_score == max(scores.values())
    assert max(scores.values()) - scores[best] <= (choice.error or 0) + 1e-9
    # The first is the default, unless it is below the floor or clearly worse.
    if scores[0] == max(scores.values()):
        assert best == 0
    # Alike by every claim: nothing is worse.
    equal_values = dict.fromkeys(range(3), values_of[0])
    assert choose("x", equal_values, weighing, **PLAIN)[0] == 0


def test_a_fusion_stays_at_the_default_unless_the_claims_are_many_and_sure() -> None:
    """One claim of many is found only by BM25; or half of them are."""
    count = 30
    data = claims_dataset([f"g{i}" for i in range(count)])

    def runs(count_alone: int) -> tuple[Run, Run]:
        sparse, dense = {}, {}
        for i in range(count):
            low = [("g0" if i else "g1", 0.4), ("x", 0.0)]
            sparse[f"c{i}"] = [(f"g{i}", 1.0), *low]
            if i < count_alone:
                dense[f"c{i}"] = [("z", 1.0), (f"g{i}", 0.2), ("x", 0.0)]
                sparse[f"c{i}"] = [(f"g{i}", 1.0), ("z", 0.5), ("x", 0.0)]
            else:
                dense[f"c{i}"] = [(f"g{i}", 1.0), *low]
        return Run.from_lists(sparse), Run.from_lists(dense)

    grid = [FusionConfig("rrf"), FusionConfig()]
    alpha = {
        rule: choose_fusion(*runs(1), data, grid, rule=rule)[0].alpha  # type: ignore[arg-type]
        for rule in ("best", "one_se")
    }
    assert alpha["best"] > 0.6 and alpha["one_se"] == 0.5
    best, choice = choose_fusion(*runs(15), data, grid)
    assert choice.score > 0.99 and (best.method, best.scale) == ("linear", "min-max")
    assert 0.5 < best.alpha < 0.7


def test_the_margin_is_chosen_by_hand() -> None:
    """Margins 0.05, 0.25, 0.6: the first claim gains, the second loses, the third gains."""
    scores = {"a": (1.0, 0.95, 0.0), "b": (1.0, 0.75, 0.0), "c": (1.0, 0.4, 0.0)}
    golds = {"a": "y", "b": "x", "c": "y"}
    claims = tuple(Claim(c, c, golds=(golds[c],)) for c in scores)
    data = Dataset(
        claims, tuple(map(Source, "xyz")), Qrels({c: {g: 1} for c, g in golds.items()}), "val"
    )
    before = Run.from_lists({c: list(zip("xyz", s, strict=True)) for c, s in scores.items()})
    after = Run.from_lists({c: [("y", 3.0), ("x", 2.0), ("z", 1.0)] for c in scores})
    # Of 3 claims: none 2/3; only a 5/6 (1 + 1 + 1/2); a and b 2/3; all 5/6 (1 + 1/2 + 1).
    margin, choice = choose_margin(before, after, data, margins=(0.0, 0.1, 0.3, 1.0), rule="best")
    assert margin == 0.1 and choice.score == pytest.approx(5 / 6)
    share, everywhere = choice.note.split(";")
    assert "33.3%" in share and "0.8" in everywhere
    # Within one standard error the margin with the fewest claims is chosen: none at all.
    assert choose_margin(before, after, data, margins=(1.0, 0.0, 0.1))[0] == 0.0
    # If the stage before changed the first source, the stage is applied anyway.
    earlier = Run.from_lists({c: [("y" if c == "c" else "x", 1.0)] for c in scores})
    condition = WhenConfig(0.5, disagree=True)
    margin, choice = choose_margin(
        before, after, data, condition, earlier, margins=(0.0, 0.1, 0.3), rule="best"
    )
    assert margin == 0.1 and choice.score == pytest.approx(1.0)


def test_a_mix_is_chosen_on_the_declared_mix_of_seen_and_unseen_papers(tiny_folder: Path) -> None:
    train = small_splits()[0]
    entry = {"rerank": "max_sim", "model": str(tiny_folder), "max_length": 32, "mix": "fit"}
    first = run_system(System("R", Retrieval(BM25())), train).result
    values = weigh(train).of(first.run)
    # Seen are the claims that BM25 ranks well: the more they weigh, the higher the score.
    good = zip(weigh(train).claim_ids, values >= sorted(values)[len(values) // 2], strict=True)
    seen = frozenset(claim for claim, well in good if well)
    scores = []
    for share in (0.1, 0.9):
        selection = SelectionData(train, train, "a note", seen, share)
        before = [("retrieve", first)]
        _, (choice,) = fit_stages([read_stage(entry)], before, train, selection, SystemRuntime())
        assert (choice.seen_share, choice.note) == (share, "a note")
        assert choice.compared == len(choice.tried) > 3
        scores.append(choice.score)
    assert scores[0] < scores[1] - 0.1
