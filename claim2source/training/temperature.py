"""Say where a temperature does not fit an encoder's scores."""

from __future__ import annotations

import math

from claim2source.mining.baseline import RandomBaseline

# Random scores' standard deviation in temperatures. At 1.18 a claim's softmax over a batch is
# spread over half of its sources; at 8 the hardest of thousands takes nearly all of the gradient.
FLATTEST, SHARPEST = 1.18, 8.0
# E5 at 0.01 and MiniLM at 0.05, as they were trained; less where all papers are of one field, as E5
# has 1.4 on the demo's.
USUAL = 2.0
# First losses above so many times that of a guess are warned of.
_FAR = 2.0


def temperature_sentences(baseline: RandomBaseline | None, temperature: float) -> list[str]:
    """Warn in a line where a claim's softmax over random sources is too flat or too sharp.

    Normally distributed scores spread it over exp(-(deviation / temperature)^2 / 2) of them, the
    perplexity's share. Nothing is said where the scores are not known.
    """
    if baseline is None or not baseline.deviation:
        return []
    ratio = baseline.deviation / temperature
    if FLATTEST <= ratio <= SHARPEST:
        return []
    share = math.exp(-(ratio**2) / 2)
    effect = (
        f"flat: a claim's softmax is spread over {share:.0%} of its batch's sources"
        if ratio < FLATTEST
        else "sharp: a claim's softmax sees little but the nearest source"
    )
    return [
        f"warning: optimisation.temperature {temperature:g} is {effect}, since this model's "
        f"scores of random pairs deviate by {baseline.deviation:.3f}; about "
        f"{baseline.deviation / USUAL:.1g} would fit"
    ]


def first_loss_sentences(loss: float, candidates: int, temperature: float) -> list[str]:
    """Warn in a line where the first InfoNCE is far above that of scores that are all alike.

    Random scores that deviate by `USUAL` temperatures lie 1.6 times above it with 8 candidates.
    """
    chance = math.log(max(candidates, 2))
    if math.isfinite(loss) and loss <= _FAR * chance:
        return []
    return [
        f"the first loss is {loss:.3g}, where a guess among {candidates} sources has {chance:.3g}: "
        f"this model's scores are too large for optimisation.temperature {temperature:g}, or rank "
        "golds last; a higher temperature, or model.normalize: true, brings them down"
    ]
