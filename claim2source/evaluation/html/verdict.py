"""Write in sentences which system is best, and which of the others it beats."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from claim2source.core.report import Comparison
from claim2source.datasets.grouping import gold_groups
from claim2source.evaluation.compare import ScoredRuns
from claim2source.evaluation.families import TOO_FEW, WITHIN_NOISE, Family, compare_family
from claim2source.evaluation.html.plots import Bar
from claim2source.metrics.metrics import language_masks, language_strata

_MOST_NAMED = 4  # comparisons that are listed; more are counted


def verdict(scored: ScoredRuns, best: Bar, repeats: int, seed: int) -> list[str]:
    """Describe the system with the best macro score, whose interval `best` is, in sentences.

    It was picked on the claims that it is tested on, so Holm is over all pairs of systems, not
    only over its own.
    """
    ranked = sorted(scored.macro, key=lambda name: -scored.macro[name])
    first, masks = ranked[0], language_masks(scored.dataset.claims, scored.claim_ids)
    of = f", the mean of {', '.join(masks)}" if len(masks) > 1 else ""
    score = f"{best.value:.3f} (95 % interval {best.low:.3f} to {best.high:.3f}){of}"
    if len(ranked) == 1:
        return [f"{first} has {scored.metric} {score}."]
    pairs = tuple(combinations(ranked, 2))
    result = compare_family(
        scored.values,
        Family("All pairs", pairs),
        gold_groups(scored.dataset.qrels, scored.claim_ids),
        language_strata(scored.dataset.claims, scored.claim_ids) if len(masks) > 1 else None,
        repeats=repeats,
        seed=seed,
    )
    own = [pair for pair in result.comparisons if pair.system == first]
    sentences = "; ".join(filter(None, [_wins(own), _ties(own)]))
    pairs_said = f"all {len(pairs)} pairs of systems" if len(pairs) > 1 else "one pair"
    return [
        f"{first} {sentences}.",
        f"Its {scored.metric} is {score}.",
        f"p is of a paired randomisation test by gold paper, after Holm over {pairs_said}"
        + (", because the best was picked on these claims." if len(pairs) > 1 else ".")
        + (
            " Inside the noise: these claims cannot tell the two apart, which does not say that "
            "they are equal."
            if any(pair.verdict == WITHIN_NOISE for pair in own)
            else ""
        ),
    ]


def p_text(p: float) -> str:
    """Write a p-value as papers do, in one piece."""
    text = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return text.replace(" ", "\N{NO-BREAK SPACE}")


def _wins(own: Sequence[Comparison]) -> str:
    better = [pair for pair in own if pair.verdict == "better"]
    if not better:
        return "has the highest score"
    if len(better) <= _MOST_NAMED:
        parts = (
            f"{test.baseline} by {test.difference:.3f}, {p_text(test.p_holm)}" for test in better
        )
        return f"beats {'; '.join(parts)}"
    whom = f"all {len(own)}" if len(better) == len(own) else f"{len(better)} of the {len(own)}"
    worst = max(pair.p_holm for pair in better)
    p_values = "all with p < 0.001" if worst < 0.001 else f"p at most {worst:.3f}"
    return (
        f"beats {whom} others by {min(test.difference for test in better):.3f} or more, {p_values}"
    )


def _ties(own: Sequence[Comparison]) -> str:
    parts = []
    for kind, words in ((WITHIN_NOISE, WITHIN_NOISE), (TOO_FEW, "too few papers differ to tell")):
        if names := [pair.baseline for pair in own if pair.verdict == kind]:
            remainder = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            parts.append(f"against {', '.join(names[:_MOST_NAMED])}{remainder} {words}")
    return "; ".join(parts)
