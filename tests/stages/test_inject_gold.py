"""Golds put among candidates, as the news paper does."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.records import Claim, Source
from claim2source.core.run import Run
from claim2source.stages.inject_gold import InjectGold


@given(st.integers(0, 8), st.integers(1, 6), st.sets(st.sampled_from("abcdefghij"), max_size=3))
def test_golds_replace_the_last_candidates_and_nothing_else_moves(
    found: int, depth: int, golds: set[str]
) -> None:
    before = [(source, 8.0 - rank // 2) for rank, source in enumerate("hgfedcba"[:found])]
    run = Run.from_lists({"1": before})
    claim = Claim("1", "q", golds=tuple(sorted(golds)))
    result = InjectGold(depth).apply([claim], [Source(s) for s in "abcdefghij"], run)
    after, first_ones = result.sources("1"), run.sources("1", depth)
    missing = [gold for gold in claim.golds if gold not in first_ones][:depth]
    first = first_ones[: depth - len(missing)] + missing
    assert after == first + [source for source in run.sources("1") if source not in first]
    assert (np.diff(list(result.scored("1").values())) < 0).all()
    assert ("1" in result.notes) == bool(missing)
