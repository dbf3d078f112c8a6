"""Which temperatures are said not to fit."""

from __future__ import annotations

import re

import numpy as np
import pytest

from claim2source.mining.baseline import RandomBaseline
from claim2source.training.temperature import temperature_sentences


def said(deviation: float, temperature: float) -> str:
    return "".join(temperature_sentences(RandomBaseline(0.5, deviation, 99), temperature))


def test_what_models_were_trained_at_fits() -> None:
    """The last is E5 on the demo, whose papers are all of one field."""
    for deviation, temperature in ((0.1, 0.05), (0.02, 0.01), (0.06, 0.02), (0.014, 0.01)):
        assert said(deviation, temperature) == ""
    assert temperature_sentences(None, 0.02) == []
    assert temperature_sentences(RandomBaseline(0.0, 0.0, 0), 0.02) == []


def test_flat_and_sharp_ones_are_warned_of_with_one_that_fits() -> None:
    """E5's cosines at the temperature of others, and others' at E5's."""
    flat, sharp = said(0.02, 0.02), said(0.1, 0.01)
    assert "0.02 is flat" in flat and "61% of its batch" in flat and "about 0.01 would" in flat
    assert "0.01 is sharp" in sharp and "about 0.05 would" in sharp


@pytest.mark.parametrize("ratio", [0.5, 0.8, 1.1])
def test_the_share_is_that_of_the_perplexity(ratio: float) -> None:
    scores = np.random.default_rng(0).normal(0.8, 0.02, 100_000) / (0.02 / ratio)
    chances = np.exp(scores - scores.max())
    chances /= chances.sum()
    perplexity = float(np.exp(-(chances * np.log(chances)).sum()))
    percent = re.search(r"over (\d+)% of", said(0.02, 0.02 / ratio))
    assert percent is not None
    assert int(percent[1]) == pytest.approx(100 * perplexity / len(scores), abs=1)
