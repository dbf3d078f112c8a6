"""Score verdicts as the rumour verification task's scorer does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MACRO_F1 = "macro_f1"


def macro_f1(
    actual: Sequence[str],
    predicted: Sequence[str],
    evidenced: Sequence[bool] | None = None,
) -> float:
    """Average the F1 of the labels that occur, as the task's scorer does.

    A correct label that is not `evidenced` is a false positive of that label, not a false negative.
    """
    if evidenced is None:
        evidenced = [True] * len(actual)
    once = np.ones((1, len(actual)))
    return float(weighted_macro_f1(actual, predicted, evidenced, once)[0])


def weighted_macro_f1(
    actual: Sequence[str],
    verdicts: Sequence[str],
    evidenced: Sequence[bool],
    times: np.ndarray,
) -> np.ndarray:
    """Compute the macro-F1 [draws] of rumours that are repeated `times` [draws, rumours]."""
    gold = np.array(actual, dtype=object)
    predicted = np.array(verdicts, dtype=object)
    total = np.zeros(len(times))
    labels = np.zeros(len(times))
    for label in sorted(set(actual)):
        right = (gold == label) & (predicted == label) & np.array(evidenced)
        wrong = (predicted == label) & ~right
        missed = (gold == label) & (predicted != label)
        hits = 2 * (times @ right)
        total += hits / np.maximum(hits + times @ (wrong | missed), 1)
        labels += times @ (gold == label) > 0
    return total / np.maximum(labels, 1)
