"""Groups of pairs: what an epoch takes of the mined negatives, and what a teacher's scores leave."""

from __future__ import annotations

from claim2source.core.records import Claim, Source
from claim2source.mining import MinedRow, Negative
from claim2source.text import Rendering
from claim2source.training.reranker_data import RerankerPairs
from tests.training.small import dataset_of

SOURCES = tuple(Source(f"s{i:02d}", f"title {i}", "text") for i in range(40))
ONE = dataset_of([Claim("c", "a claim", golds=("s04",))], SOURCES)


def test_each_epoch_takes_the_next_in_the_files_proportion() -> None:
    """Hard ones first, then random ones; a list that is not longer is used whole."""
    negatives = tuple(Negative(f"s{i:02d}", 1.0, "first") for i in range(10, 16))
    negatives += tuple(Negative(f"s{i}", 0.0, "random") for i in range(30, 33))
    row = MinedRow("c", "s04", negatives)
    pairs = RerankerPairs(ONE, [row], Rendering(), 3)
    groups = [pairs.sources(0, epoch) for epoch in range(4)]
    assert groups[:3] == [
        ["s04", "s10", "s11", "s30"], ["s04", "s12", "s13", "s31"], ["s04", "s14", "s15", "s32"]
    ]  # fmt: skip
    assert groups[3] == groups[0]
    reranker_pairs = RerankerPairs(ONE, [row], Rendering(), 9)
    assert (
        reranker_pairs.sources(0, 0) == reranker_pairs.sources(0, 1)
        and len(reranker_pairs.sources(0, 0)) == 10
    )
    (claim, text), *_ = pairs.pairs(0, ["s04"])
    assert claim == "a claim" and SOURCES[4].title in text


def test_a_teacher_decides_what_is_compared() -> None:
    negatives = tuple(Negative(f"s{i:02d}", 1.0, "first") for i in range(4))
    row = MinedRow("c", "s04", negatives)

    def pairs(scores: dict[str, float]) -> RerankerPairs:
        return RerankerPairs(ONE, [row], Rendering(), 2, {"c": scores})

    reranker_pairs = pairs({"s04": 0.5, "s01": 0.9, "s03": 0.1})
    assert reranker_pairs.sources(0, 0) == ["s04", "s01", "s03"]
    assert reranker_pairs.taught(0, ["s04", "s01", "s03"]) == [0.5, 0.9, 0.1]
    # Without a score of the gold the candidates are compared with each other.
    assert pairs({"s00": 3.0, "s01": 2.0, "s03": 1.0}).sources(0, 0) == ["s00", "s01", "s03"]
    assert not pairs({"s04": 1.0}).rows and pairs({"s01": 1.0}).untaught == 1
