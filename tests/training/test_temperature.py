"""Which temperatures are said not to fit."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from claim2source.mining.baseline import RandomBaseline
from claim2source.training.finetune import finetune
from claim2source.training.negatives import first_loss_sentences, temperature_sentences
from tests.training.small import small_config


def warning_of(deviation: float, temperature: float) -> str:
    return "".join(temperature_sentences(RandomBaseline(0.5, deviation, 99), temperature))


def test_flat_and_sharp_ones_are_warned_of_with_one_that_fits() -> None:
    """E5's cosines at the temperature of others, and others' at E5's; each at its own is fine."""
    flat, sharp = warning_of(0.02, 0.02), warning_of(0.1, 0.01)
    assert "0.02 is flat" in flat and "about 0.01 would" in flat
    assert "0.01 is sharp" in sharp and "about 0.05 would" in sharp
    for deviation, temperature in ((0.1, 0.05), (0.02, 0.01), (0.06, 0.02), (0.014, 0.01)):
        assert warning_of(deviation, temperature) == ""
    assert temperature_sentences(None, 0.02) == []
    assert temperature_sentences(RandomBaseline(0.0, 0.0, 0), 0.02) == []


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.1])
def test_the_share_is_that_of_the_perplexity(ratio: float) -> None:
    scores = np.random.default_rng(0).normal(0.8, 0.02, 100_000) / (0.02 / ratio)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    perplexity = float(np.exp(-(chances * np.log(chances)).sum()))
    percent = re.search(r"over (\d+)% of", warning_of(0.02, 0.02 / ratio))
    assert percent is not None
    assert int(percent[1]) == pytest.approx(100 * perplexity / len(scores), abs=1)


def test_a_first_loss_far_above_chance_is_warned_of() -> None:
    assert first_loss_sentences(2.08, 8, 0.05) == first_loss_sentences(3.5, 8, 0.05) == []
    for loss in (322.0, float("inf"), float("nan")):
        (line,) = first_loss_sentences(loss, 8, 0.05)
        assert f"{loss:.3g}" in line and "2.08" in line and "temperature 0.05" in line
    # More sources are a harder guess, and one alone is none.
    assert first_loss_sentences(8.0, 512, 0.05) == []
    assert first_loss_sentences(0.0, 1, 0.05) == []


@pytest.mark.parametrize(
    "case", ["no negatives", "a mined file", "mined here, by shares of scores"]
)
def test_every_run_looks_at_random_pairs_and_at_its_first_loss(
    case: str,
    setup: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Dot products of a random BERT's vectors, whose length is no 1."""
    extra: dict[str, Any] = {
        "no negatives": {"optimisation__negatives": 0},
        "a mined file": {"mined": tmp_path / "mined.jsonl"},
        "mined here, by shares of scores": {},
    }[case]
    extra |= {"optimisation__epochs": 1, "optimisation__save_every": 0, "optimisation__seed": 1}
    if "mined" in extra:
        finetune(small_config(*setup, tmp_path / "before", **extra | {"mined": "null"}))
        (tmp_path / "before" / "mined.jsonl").rename(tmp_path / "mined.jsonl")
        capsys.readouterr()
        caplog.clear()
    for normalize in (False, True)[: 2 if case == "no negatives" else 1]:
        config = small_config(
            *setup, tmp_path / str(normalize), model__normalize=str(normalize).lower(),
            optimisation__temperature=0.002 if not normalize else 0.05, **extra,
        )  # fmt: skip
        finetune(config)
        wrong = not normalize
        assert ("optimisation.temperature 0.002 is sharp" in capsys.readouterr().out) is wrong
        assert any("the first loss is" in line for line in caplog.messages) is wrong
        caplog.clear()
