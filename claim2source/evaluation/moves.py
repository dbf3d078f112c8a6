"""Count what a re-ranking did to the golds: its ceiling, and the golds that rose and fell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass

from claim2source.core.records import Dataset
from claim2source.core.report import MACRO
from claim2source.core.run import Run
from claim2source.core.tables import Cell, TextTable
from claim2source.evaluation.slices import first_ranks
from claim2source.metrics.metrics import judged_claims, language_masks


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
    old, new = (first_ranks(run, dataset.qrels, judged)[1] for run in (before, after))
    found = {
        lang: Moves(
            claims=int(mine.sum()),
            ceiling=float((old[mine] <= depth).mean()),
            promoted=int((new < old)[mine].sum()),
            demoted=int((new > old)[mine].sum()),
            to_first=int(((new == 1) & (old > 1))[mine].sum()),
            from_first=int(((new > 1) & (old == 1))[mine].sum()),
        )
        for lang, mine in language_masks(dataset.claims, judged).items()
    }
    claims, ceilings, *counts = zip(*map(astuple, found.values()), strict=True)
    found[MACRO] = Moves(sum(claims), sum(ceilings) / len(ceilings), *map(sum, counts))
    return found


def moves_table(stages: Mapping[str, tuple[int, Mapping[str, Moves]]]) -> TextTable:
    """Tabulate the moves of stages: name -> (depth, language -> moves)."""
    columns = "stage depth language claims ceiling promoted demoted to-first from-first".split()
    rows: list[list[Cell]] = [
        [name, depth, language, *astuple(one)]
        for name, (depth, moves) in stages.items()
        for language, one in moves.items()
    ]
    return TextTable(columns, rows, numeric=[False, True, False, *[True] * 6])
