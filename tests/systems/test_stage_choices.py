"""The mix of a re-ranker is chosen on the declared mix of seen and unseen papers."""

from __future__ import annotations

from pathlib import Path

import pytest
from claim2source.pipeline.systems import SystemConfig

from claim2source.pipeline.mixing import choose_mix
from claim2source.retrieve import BM25Config
from claim2source.systems.choose import weigh
from claim2source.systems.heldout import SelectionData
from claim2source.systems.system import RunSettings, SystemRunner
from tests.training.small import small_splits


def test_claims_of_seen_papers_weigh_as_declared(tiny_folder: Path) -> None:
    train, dev = small_splits()
    entry = {"rerank": "max_sim", "model": str(tiny_folder), "max_length": 32, "mix": 1.0}
    systems = {"R": SystemConfig(bm25=BM25Config(), stages=[entry])}
    bare = {"R": SystemConfig(bm25=BM25Config())}
    first = SystemRunner(bare, dev, RunSettings()).run("R", None, train).result.run
    values = weigh(train).of(first)
    # Seen are the claims that BM25 ranks well: the more they weigh, the higher the score.
    good = zip(weigh(train).claim_ids, values >= sorted(values)[len(values) // 2], strict=True)
    seen = frozenset(claim for claim, well in good if well)
    found = []
    for share in (0.1, 0.9):
        selection = SelectionData(train, train, "a note", seen, share)
        runner = SystemRunner(systems, dev, RunSettings())
        _, choice = choose_mix(runner, "R", None, selection, [1.0])
        assert (choice.seen_share, choice.note) == (share, "a note")
        assert choice.score == pytest.approx(selection.weighing().score(values))
        found.append(choice.score)
    assert found[0] < found[1] - 0.1
