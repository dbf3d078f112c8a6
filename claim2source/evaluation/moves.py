"""Count what a re-ranking did to the golds: its ceiling, and the golds that rose and fell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from claim2source.core.records import Dataset
from claim2source.core.report import MACRO
from claim2source.core.run import Run
from claim2source.core.tables import Cell, TextTable
from claim2source.evaluation.metrics import judged_claims
from claim2source.evaluation.ranks import first_ranks


@dataclass(frozen=True)
class Moves:
    """Count claims by what became of their first gold.

    `ceiling` is the share of claims with a gold among the sources that were re-ranked: no
    re-ranking of these finds more. `promoted` and `demoted` golds have a better or worse rank
    than before; `to_first` and `from_first` reached or left rank 1.
    """

    claims: int
    ceiling: float
    promoted: int
    demoted: int
    to_first: int
    from_first: int


def gold_moves(before: Run, after: Run, dataset: Dataset, depth: int) -> dict[str, Moves]:
    """Compare two rankings by language; `macro` has the mean ceiling and the sums.

    Languages without a gold are left out; where no claim has one there is nothing.
    """
    judged = judged_claims(dataset.qrels)
    if not judged:
        return {}
    claims, old = first_ranks(before, dataset.qrels, judged)
    _, new = first_ranks(after, dataset.qrels, judged)
    language = {claim.id: claim.lang for claim in dataset.claims}
    langs = np.array([language[claim] for claim in claims])
    found = {}
    for lang in dataset.languages:
        mine = langs == lang
        if mine.any():
            first, second = old[mine], new[mine]
            found[lang] = Moves(
                len(first),
                float((first <= depth).mean()),
                int((second < first).sum()),
                int((second > first).sum()),
                int(((second == 1) & (first > 1)).sum()),
                int(((second > 1) & (first == 1)).sum()),
            )
    if found:
        parts = list(found.values())
        found[MACRO] = Moves(
            sum(part.claims for part in parts),
            sum(part.ceiling for part in parts) / len(parts),
            sum(part.promoted for part in parts),
            sum(part.demoted for part in parts),
            sum(part.to_first for part in parts),
            sum(part.from_first for part in parts),
        )
    return found


def moves_table(stages: Mapping[str, tuple[int, Mapping[str, Moves]]]) -> TextTable:
    """Tabulate the moves of stages: name -> (depth, language -> moves)."""
    columns = "stage depth language claims ceiling promoted demoted to-first from-first".split()
    rows: list[list[Cell]] = [
        [
            name,
            depth,
            language,
            one.claims,
            one.ceiling,
            one.promoted,
            one.demoted,
            one.to_first,
            one.from_first,
        ]
        for name, (depth, moves) in stages.items()
        for language, one in moves.items()
    ]
    return TextTable(columns, rows, numeric=[False, True, False, *[True] * 6])
