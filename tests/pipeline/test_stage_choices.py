"""The mix of a re-ranker is chosen on the declared mix of seen and unseen papers."""

from __future__ import annotations

from pathlib import Path

import pytest

from claim2source.pipeline.stage_choices import choose_mix
from claim2source.systems.choose import weigh
from claim2source.systems.heldout import SelectionData
from claim2source.systems.nodes import BM25Node
from claim2source.systems.system import System, SystemRunner, run_system
from tests.training.small import small_splits


def test_claims_of_seen_papers_weigh_as_declared(tiny_folder: Path) -> None:
    train, dev = small_splits()
    entry = {"rerank": "max_sim", "model": str(tiny_folder), "max_length": 32, "mix": 1.0}
    first = run_system(System("R", BM25Node()), train).result.run
    values = weigh(train).of(first)
    # Seen are the claims that BM25 ranks well: the more they weigh, the higher the score.
    good = zip(weigh(train).claim_ids, values >= sorted(values)[len(values) // 2], strict=True)
    seen = frozenset(claim for claim, well in good if well)
    found = []
    for share in (0.1, 0.9):
        selection = SelectionData(train, train, "a note", seen, share)
        system = System("R", BM25Node(), stages=(entry,))
        _, choice = choose_mix(SystemRunner(dev), system, None, selection, [1.0])
        assert (choice.seen_share, choice.note) == (share, "a note")
        assert choice.score == pytest.approx(selection.weighing().score(values))
        found.append(choice.score)
    assert found[0] < found[1] - 0.1
