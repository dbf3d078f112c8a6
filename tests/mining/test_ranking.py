"""Mining from a ranking: windows, margins, missed golds, stable draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Dataset, Source
from claim2source.core.run import Run
from claim2source.mining import MinedRow, MiningConfig, RankingMiner, check_ranked
from tests.refusals import refused
from tests.training.small import dataset_of

SOURCES = tuple(
    Source(f"s{i:02d}", f"title of number {'abcdefghijklmnopqrstuvwxyz'[i % 26] * 3} {i}", "text")
    for i in range(40)
)
# The first stage ranks s00 to s29, 100 points down to 71.
RANKED = [(f"s{i:02d}", 100.0 - i) for i in range(30)]


def dataset(*claims: Claim) -> Dataset:
    return dataset_of(claims, SOURCES)


ONE = dataset(Claim("c", "a claim", golds=("s04",)))


def miner(
    data: Dataset = ONE,
    depth: int = 20,
    scores: Callable[[float], float] = lambda score: score,
    **settings: Any,
) -> RankingMiner:
    defaults = {"random": 0, "max_share": None, "share_of": "above_last"}
    config = MiningConfig(**defaults | settings)
    ranked = [(source, scores(score)) for source, score in RANKED]
    run = Run.from_lists({claim.id: ranked for claim in data.claims})
    return RankingMiner(data, run, config, depth)


def rows(data: Dataset = ONE, depth: int = 20, **settings: Any) -> list[MinedRow]:
    return list(miner(data, depth, **settings).mine())


def names(row: MinedRow, origin: str = "first") -> list[str]:
    return [negative.source for negative in row.negatives if negative.origin == origin]


def test_the_window_is_of_ranks() -> None:
    (row,) = rows(hard=9, first_rank=3, last_rank=7)
    assert row.positive == "s04" and names(row) == ["s02", "s03", "s05", "s06"]
    assert [negative.score for negative in row.negatives] == [98.0, 97.0, 95.0, 94.0]
    assert names(rows(hard=2, first_rank=3, last_rank=7)[0]) == ["s02", "s03"]


def test_negatives_too_near_to_the_gold_are_left_out() -> None:
    # The gold scores 96.
    assert names(rows(hard=3, margin=5.0)[0]) == ["s09", "s10", "s11"]
    assert names(rows(hard=3, max_share=0.9, share_of="score")[0]) == ["s14", "s15", "s16"]
    # The last of its list scores 71: 0.9 of the 25 points above it are 22.5.
    assert names(rows(hard=3, max_share=0.9)[0]) == ["s07", "s08", "s09"]
    assert names(rows(hard=3, max_score=80.0)[0]) == ["s20", "s21", "s22"]
    # Without a score of the gold, only the absolute limit holds.
    missed = dataset(Claim("c", "a claim", golds=("s35",)))
    assert names(rows(missed, hard=1, margin=5.0)[0]) == ["s00"]
    assert names(rows(missed, hard=1, margin=5.0, max_score=80.0)[0]) == ["s20"]


@pytest.mark.parametrize(
    "scores",
    [
        lambda score: 0.8 + score / 1000,  # cosines that all lie close together
        lambda score: (score - 85.5) / 8.7,  # z-scores
        lambda score: score - 1000,
    ],
)
def test_a_share_means_the_same_of_any_first_stages_scores(
    scores: Callable[[float], float],
) -> None:
    expected = names(rows(hard=5, max_share=0.9)[0])
    (row,) = miner(scores=scores, hard=5, max_share=0.9).mine()
    assert names(row) == expected
    # A gold at the end of its list has nothing above it among its negatives.
    last = dataset(Claim("c", "a claim", golds=("s29",)))
    assert not list(miner(last, depth=30, scores=scores, hard=5, max_share=0.9).mine())


def test_short_pairs_are_counted_and_warned_of() -> None:
    """The retriever's 10 %: one pair of ten is no warning, one of nine is."""
    ninth = [Claim(f"c{i}", f"claim {i}", golds=(f"s{i:02d}",)) for i in range(9)]
    tenth, short = Claim("d", "d", golds=("s09",)), Claim("e", "e", golds=("s27",))

    def output_of(*claims: Claim, **settings: Any) -> str:
        mined = miner(dataset(*claims), depth=30, last_rank=30, **settings)
        assert list(mined.mine())
        return "; ".join(mined.counts.sentences())

    # Of the last gold's list, ranks 29 and 30 are left.
    extra: dict[str, Any] = {"hard": 5, "max_share": 1.0}
    output = output_of(*ninth, short, **extra)
    assert "1 pairs could not be filled: 3 hard and 0 random negatives are missing" in output
    assert "warning" not in output and "could not" not in output_of(*ninth, tenth, **extra)
    assert "warning: 11% of the pairs are short" in output_of(*ninth[1:], short, **extra)
    # A pair without any negative is also counted.
    nothing = Claim("f", "f", golds=("s29",))
    output = output_of(*ninth[:4], nothing, **extra)
    assert "warning: 20% of the pairs are short of negatives (20% have" in output
    assert "0 hard and 3 random" in output_of(*ninth[:1], hard=1, random=13)


def test_a_gold_that_was_missed_is_mined_for_or_left_out() -> None:
    data = dataset(Claim("c", "one", golds=("s04",)), Claim("d", "two", golds=("s25",)))
    assert [row.claim for row in rows(data, depth=20)] == ["c", "d"]
    assert [row.claim for row in rows(data, depth=20, missed_golds=False)] == ["c"]
    assert [row.claim for row in rows(data, depth=26, missed_golds=False)] == ["c", "d"]


def test_golds_of_the_same_text_and_the_same_paper_are_no_negatives() -> None:
    data = dataset(
        Claim("c", "The claim", golds=("s04",)), Claim("d", "the  claim", golds=("s01",))
    )
    assert names(rows(data, hard=4)[0]) == ["s00", "s02", "s03", "s05"]
    twin = Source("s05", SOURCES[4].title.upper(), "another abstract")
    sources = (*SOURCES[:5], twin, *SOURCES[6:])
    data = Dataset(ONE.claims, sources, ONE.qrels, "train")
    assert "s05" not in names(rows(data, hard=9)[0])


def test_only_golds_of_train_where_asked() -> None:
    data = dataset(Claim("c", "one", golds=("s04",)), Claim("d", "two", golds=("s25",)))
    mined_rows = rows(data, hard=9, last_rank=30, pool="train-golds", random=5)
    assert [names(row) for row in mined_rows] == [["s25"], ["s04"]]
    assert not names(mined_rows[0], "random")  # the other gold is listed, and there is no third


def test_random_picks_do_not_change_with_other_claims() -> None:
    extra: dict[str, Any] = {"hard": 12, "random": 9, "first_rank": 10, "last_rank": 29}
    (row,) = rows(pick="random", **extra)
    assert len(set(names(row))) == 12 and len(set(names(row, "random"))) == 9
    assert names(row) != sorted(names(row)) and set(names(row)) <= {s for s, _ in RANKED[9:29]}
    # Random negatives are not candidates of the first stage.
    assert set(names(row, "random")) <= {f"s{i:02d}" for i in range(20, 40)} - set(names(row))
    larger = dataset(Claim("b", "first", golds=("s07",)), *ONE.claims)
    assert rows(larger, pick="random", **extra)[1] == row
    (another,) = rows(pick="random", seed=14, **extra)
    assert another != row


def test_what_needs_a_models_vectors_is_refused() -> None:
    with refused(ConfigError, "mining.share_of: 'above_random'"):
        check_ranked(MiningConfig(max_share=0.9, share_of="above_random"))
