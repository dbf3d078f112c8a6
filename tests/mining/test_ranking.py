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

LETTERS = "abcdefghijklmnopqrstuvwxyz"


def source_number(i: int) -> Source:
    """A source whose title has a word of its own."""
    word = LETTERS[i % 26] * 3
    return Source(f"s{i:02d}", f"title of number {word} {i}", "text")


SOURCES = tuple(source_number(i) for i in range(40))
# The first stage ranks s00 to s29, 100 points down to 71.
RANKED = [(f"s{i:02d}", 100.0 - i) for i in range(30)]


def dataset(*claims: Claim) -> Dataset:
    return dataset_of(claims, SOURCES)


def about(name: str, text: str, gold: str) -> Claim:
    """A claim with one gold."""
    return Claim(name, text, golds=(gold,))


ONE = dataset(about("c", "a claim", "s04"))


def miner(
    data: Dataset = ONE,
    depth: int = 20,
    scores: Callable[[float], float] = lambda score: score,
    **settings: Any,
) -> RankingMiner:
    defaults = {
        "random": 0,
        "max_share": None,
        "share_of": "above_last",
    }
    config = MiningConfig(**defaults | settings)
    ranked = [(source, scores(score)) for source, score in RANKED]
    lists = {claim.id: ranked for claim in data.claims}
    run = Run.from_lists(lists)
    return RankingMiner(data, run, config, depth)


def rows(data: Dataset = ONE, depth: int = 20, **settings: Any) -> list[MinedRow]:
    ranking_miner = miner(data, depth, **settings)
    return list(ranking_miner.mine())


def names(row: MinedRow, origin: str = "first") -> list[str]:
    found = []
    for negative in row.negatives:
        if negative.origin == origin:
            found.append(negative.source)
    return found


def first_names(data: Dataset = ONE, **settings: Any) -> list[str]:
    """The hard negatives of the first row."""
    mined_rows = rows(data, **settings)
    return names(mined_rows[0])


def test_the_window_is_of_ranks() -> None:
    window: dict[str, Any] = {
        "first_rank": 3,
        "last_rank": 7,
    }
    (row,) = rows(hard=9, **window)
    scores = [negative.score for negative in row.negatives]
    assert row.positive == "s04"
    assert names(row) == ["s02", "s03", "s05", "s06"]
    assert scores == [98.0, 97.0, 95.0, 94.0]

    two = first_names(hard=2, **window)
    assert two == ["s02", "s03"]


def test_negatives_too_near_to_the_gold_are_left_out() -> None:
    # The gold scores 96.
    by_margin = first_names(hard=3, margin=5.0)
    by_score = first_names(hard=3, max_share=0.9, share_of="score")
    assert by_margin == ["s09", "s10", "s11"]
    assert by_score == ["s14", "s15", "s16"]
    # The last of its list scores 71: 0.9 of the 25 points above it are 22.5.
    by_share = first_names(hard=3, max_share=0.9)
    absolute = first_names(hard=3, max_score=80.0)
    assert by_share == ["s07", "s08", "s09"]
    assert absolute == ["s20", "s21", "s22"]

    # Without a score of the gold, only the absolute limit holds.
    missed = dataset(about("c", "a claim", "s35"))
    margin_alone = first_names(missed, hard=1, margin=5.0)
    with_limit = first_names(
        missed,
        hard=1,
        margin=5.0,
        max_score=80.0,
    )
    assert margin_alone == ["s00"]
    assert with_limit == ["s20"]


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
    limits: dict[str, Any] = {"hard": 5, "max_share": 0.9}
    expected = first_names(**limits)
    moved = miner(scores=scores, **limits)
    (row,) = moved.mine()
    assert names(row) == expected
    # A gold at the end of its list has nothing above it among its negatives.
    last = dataset(about("c", "a claim", "s29"))
    miner_of_last = miner(last, depth=30, scores=scores, **limits)
    assert not list(miner_of_last.mine())


def test_short_pairs_are_counted_and_warned_of() -> None:
    """The retriever's 10 %: one pair of ten is no warning, one of nine is."""
    ninth = [about(f"c{i}", f"claim {i}", f"s{i:02d}") for i in range(9)]
    tenth = about("d", "d", "s09")
    short = about("e", "e", "s27")

    def output_of(*claims: Claim, **settings: Any) -> str:
        data = dataset(*claims)
        mined = miner(data, depth=30, last_rank=30, **settings)
        assert list(mined.mine())
        return "; ".join(mined.counts.sentences())

    # Of the last gold's list, ranks 29 and 30 are left.
    extra: dict[str, Any] = {"hard": 5, "max_share": 1.0}
    output = output_of(*ninth, short, **extra)
    filled = output_of(*ninth, tenth, **extra)
    one_of_nine = output_of(*ninth[1:], short, **extra)
    assert "1 pairs could not be filled: 3 hard and 0 random negatives are missing" in output
    assert "warning" not in output
    assert "could not" not in filled
    assert "warning: 11% of the pairs are short" in one_of_nine

    # A pair without any negative is also counted.
    nothing = about("f", "f", "s29")
    output = output_of(*ninth[:4], nothing, **extra)
    assert "warning: 20% of the pairs are short of negatives (20% have" in output
    without_random = output_of(*ninth[:1], hard=1, random=13)
    assert "0 hard and 3 random" in without_random


def test_a_gold_that_was_missed_is_mined_for_or_left_out() -> None:
    found = about("c", "one", "s04")
    missed = about("d", "two", "s25")
    data = dataset(found, missed)

    def claims_mined(depth: int, **settings: Any) -> list[str]:
        mined_rows = rows(data, depth=depth, **settings)
        return [row.claim for row in mined_rows]

    assert claims_mined(20) == ["c", "d"]
    assert claims_mined(20, missed_golds=False) == ["c"]
    assert claims_mined(26, missed_golds=False) == ["c", "d"]


def test_golds_of_the_same_text_and_the_same_paper_are_no_negatives() -> None:
    claim = about("c", "The claim", "s04")
    repeated = about("d", "the  claim", "s01")
    data = dataset(claim, repeated)
    found = first_names(data, hard=4)
    assert found == ["s00", "s02", "s03", "s05"]

    title = SOURCES[4].title.upper()
    twin = Source("s05", title, "another abstract")
    sources = (*SOURCES[:5], twin, *SOURCES[6:])
    data = Dataset(ONE.claims, sources, ONE.qrels, "train")
    assert "s05" not in first_names(data, hard=9)


def test_only_golds_of_train_where_asked() -> None:
    first = about("c", "one", "s04")
    second = about("d", "two", "s25")
    data = dataset(first, second)
    mined_rows = rows(
        data,
        hard=9,
        last_rank=30,
        pool="train-golds",
        random=5,
    )
    hard = [names(row) for row in mined_rows]
    assert hard == [["s25"], ["s04"]]
    assert not names(mined_rows[0], "random")  # the other gold is listed, and there is no third


def test_random_picks_do_not_change_with_other_claims() -> None:
    extra: dict[str, Any] = {
        "pick": "random",
        "hard": 12,
        "random": 9,
        "first_rank": 10,
        "last_rank": 29,
    }
    (row,) = rows(**extra)
    hard = names(row)
    at_random = set(names(row, "random"))
    window = {source for source, _ in RANKED[9:29]}
    assert len(set(hard)) == 12
    assert len(at_random) == 9
    assert hard != sorted(hard)
    assert set(hard) <= window

    # Random negatives are not candidates of the first stage.
    below = {f"s{i:02d}" for i in range(20, 40)}
    assert at_random <= below - set(hard)

    other = about("b", "first", "s07")
    larger = dataset(other, *ONE.claims)
    assert rows(larger, **extra)[1] == row
    (another,) = rows(seed=14, **extra)
    assert another != row


def test_what_needs_a_models_vectors_is_refused() -> None:
    limits = {
        "max_share": 0.9,
        "share_of": "above_random",
    }
    with refused(ConfigError, "mining.share_of: 'above_random'"):
        check_ranked(MiningConfig(**limits))
