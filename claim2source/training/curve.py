"""Tabulate the scores on val between the base and the trained weights."""

from __future__ import annotations

from collections.abc import Sequence

from claim2source.core.report import MAIN_METRIC, Trial
from claim2source.core.tables import Cell, TextTable

TO_CHOOSE_BY = "to choose by"


def curve_table(curve: Sequence[Trial], what: str = "scale") -> TextTable:
    """Tabulate MRR@5 on val: a row for each scale or checkpoint, a column for each language.

    The last column is the score to choose by: the macro average on the declared mix.
    """
    names = list(curve[0].scores)
    rows: list[list[Cell]] = [
        [
            shown if isinstance(shown := at.settings[what], str) else f"{shown:.12g}",
            *(at.scores[name][MAIN_METRIC] for name in names),
            at.score,
        ]
        for at in curve
    ]
    return TextTable([what, *names, TO_CHOOSE_BY], rows)
