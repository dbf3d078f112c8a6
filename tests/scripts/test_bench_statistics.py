"""The benchmark runs every part and ends with its line of JSON; full size in a slow test."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scripts.bench_statistics import BenchConfig, made_up, main, peer_seconds
from tests.scripts.output import read_result


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    main(list(arguments))
    return read_result(capsys.readouterr().out)[1]


def test_every_part_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    found = report(capsys, "--systems=4", "--claims=60", "--repeats=200")
    parts = ["intervals", "family, micro", "family, macro", "ANOVA and Tukey"]
    assert list(found["parts"]) == parts
    assert found["seconds"] == pytest.approx(sum(found["parts"].values()))
    assert found["permutations"] == 599
    assert found["under_a_minute"] is (found["seconds"] < 60)
    assert found["repeats"] == 3
    assert set(found["versions"]) == {"python", "numpy", "scipy", "statsmodels"}


def test_what_takes_a_minute_is_not_under_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.bench_statistics.TARGET_SECONDS", 0.0)
    main(["--systems=4", "--claims=60", "--repeats=20"])
    said = capsys.readouterr().out
    assert "seconds: NOT under a minute" in said
    assert read_result(said)[1]["under_a_minute"] is False


def test_the_peer_computes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy import stats

    from claim2source.evaluation.families import Family, compare_family
    from claim2source.evaluation.significance import bootstrap_intervals

    found: dict[str, Any] = {}
    for name in ("bootstrap", "permutation_test"):
        whole = getattr(stats, name)

        def kept(*arguments: Any, _name: str = name, _whole: Any = whole, **options: Any) -> Any:
            found[_name] = _whole(*arguments, **options)
            return found[_name]

        monkeypatch.setattr(stats, name, kept)
    scores, papers, _ = made_up(BenchConfig(2, 300, peer_systems=1))
    assert len(peer_seconds(scores, papers, 4000, 4000, 1)) == 1
    names = list(scores)
    (ours,) = compare_family(
        scores, Family.against("all", names[0], [names[1]]), papers
    ).comparisons
    assert found["permutation_test"].pvalue == pytest.approx(ours.p, abs=0.03)
    interval = found["bootstrap"].confidence_interval
    low, high = bootstrap_intervals(scores[names[1]][None], papers, repeats=4000)[0]
    assert [interval.low, interval.high] == pytest.approx([low, high], abs=0.01)


def test_the_scores_are_those_of_the_seed() -> None:
    scores, papers, languages = made_up(BenchConfig(5, 400))
    again = made_up(BenchConfig(5, 400))[0]
    assert all((scores[name] == again[name]).all() for name in scores)
    assert len({tuple(values) for values in scores.values()}) == 5
    assert set(np.concatenate(list(scores.values()))) <= {0, 0.2, 0.25, 1 / 3, 0.5, 1}
    assert 100 < len(np.unique(papers)) < 200 and set(languages) == {0, 1, 2}


@pytest.mark.slow
def test_three_hundred_systems_at_full_size(capsys: pytest.CaptureFixture[str]) -> None:
    """That it ends: whether within a minute depends on the machine, and is the benchmark's to say."""
    found = report(capsys)
    assert (found["systems"], found["claims"]) == (300, 5_000)
    assert found["under_a_minute"] is (found["seconds"] < 60)
    assert all(seconds > 0 for seconds in found["parts"].values()) and len(found["parts"]) == 4
