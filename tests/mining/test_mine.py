"""What is mined, what is never mined, and what is reported of the rest."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from claim2source.core.records import Claim, Dataset, Source
from claim2source.data.grouping import golds_by_text
from claim2source.mining import MinedRow, Miner, MiningConfig, MiningCounts, Negative, mine
from claim2source.mining import candidates as candidates_module
from claim2source.mining.near_duplicates import distinct_words, jaccard
from claim2source.models import Encoder
from claim2source.search import bm25
from claim2source.search.bm25 import BM25Index
from claim2source.search.faiss_index import VectorIndex
from claim2source.search.fuse import FusionConfig, fuse
from tests.mining.tables import FREE, PLAIN, Table, data_of, ladder, mined, names, scored


def test_six_hard_and_two_other_random_ones_by_default() -> None:
    assert (MiningConfig().hard, MiningConfig().random) == (6, 2)
    scores = ladder(9)
    (row,), _ = mined(*scored(scores, Claim("c", "text", golds=("s08",))), FREE)
    assert (row.claim, row.positive) == ("c", "s08")
    assert names(row, "dense") == [f"s{i:02d}" for i in range(6)]
    assert set(names(row, "random")) == {"s06", "s07"}
    assert [n.origin for n in row.negatives] == ["dense"] * 6 + ["random"] * 2
    assert [n.score for n in row.negatives] == pytest.approx([scores[s] for s in names(row)])


def test_the_gold_of_a_claim_with_the_same_text_is_never_a_negative() -> None:
    claim = Claim("a", "Wow,  MASKS work\n", golds=("s00", "s03"))
    twin = Claim("b", "wow, masks work", golds=("s01",))
    rival = Claim("x", "wow, masks work!", golds=("s02",))
    dataset, encoder = scored(ladder(8), claim, twin, rival)
    rows, _ = mined(dataset, encoder, replace(FREE, random=8))
    by_claim = {row.claim: set(names(row)) for row in rows}
    everything = set(ladder(8))
    assert by_claim["a"] == by_claim["b"] == everything - {"s00", "s01", "s03"}
    assert all(len(names(row)) == len(set(names(row))) for row in rows)
    assert by_claim["x"] == everything - {"s02"}


def test_the_pool_of_train_golds_holds_no_other_source() -> None:
    claims = [Claim(f"c{i}", f"text {i}", golds=(f"s{i:02d}",)) for i in range(5)]
    dataset, encoder = scored(ladder(20), *claims)
    rows, miner = mined(dataset, encoder, replace(FREE, random=9, pool="train-golds"))
    golds = {f"s{i:02d}" for i in range(5)}
    for row in rows:
        assert set(names(row)) == golds - {row.positive}
    assert miner.counts.left_out_pool == 5 * 15
    free, _ = mined(dataset, encoder, replace(FREE, random=20))
    assert all(len(names(row)) == 19 for row in free)


def draws(dataset: Dataset, encoder: Encoder, **settings: Any) -> dict[str, list[str]]:
    rows, _ = mined(dataset, encoder, replace(FREE, **settings))
    return {row.claim: names(row, "random") for row in rows}


def test_a_draw_depends_on_its_claim_and_the_seed_alone() -> None:
    claims = [Claim(f"c{i}", f"text {i}", golds=(f"s{i:02d}",)) for i in range(8)]
    dataset, encoder = scored(ladder(90), *claims)
    draws_of_all = draws(dataset, encoder)
    backwards = dataset.with_claims(reversed(dataset.claims))
    assert draws(backwards, encoder) == draws_of_all
    for claim in claims:
        assert draws(dataset.with_claims([claim]), encoder)[claim.id] == draws_of_all[claim.id]
    assert draws(dataset, encoder, seed=14) != draws_of_all
    assert len({tuple(ids) for ids in draws_of_all.values()}) > 4


def test_more_random_ones_begin_with_the_same() -> None:
    claim = Claim("c", "text", golds=("s00",))
    dataset, encoder = scored(ladder(90), claim)
    fewer = draws(dataset, encoder, hard=0, random=3)["c"]
    many = draws(dataset, encoder, hard=0, random=40)["c"]
    assert many[:3] == fewer
    # The scores of hard negatives do not change the draws either.
    after_hard = draws(dataset, encoder, hard=6, random=40)["c"]
    remaining = [s for s in many if s not in {f"s{i:02d}" for i in range(1, 7)}]
    assert remaining == after_hard[: len(remaining)]


def test_random_ones_come_from_the_whole_pool() -> None:
    claims = [Claim(f"c{i}", f"text {i}", golds=("s00",)) for i in range(300)]
    picks = draws(*scored(ladder(40), *claims), hard=0, random=2)
    assert all(len(set(sources)) == 2 for sources in picks.values())
    counts = Counter(source for sources in picks.values() for source in sources)
    assert counts.keys() == ladder(40).keys() - {"s00"}
    assert min(counts.values()) >= 3 and max(counts.values()) <= 40  # 15.4 expected


def test_a_pool_with_few_that_may_be_taken_is_searched_to_its_end() -> None:
    """Two of 3,000 lie below the limit: a sample would not find them."""
    scores = {f"s{i:04d}": 0.9 for i in range(3000)} | {"low1": 0.1, "low2": 0.2, "gold": 0.5}
    limited = replace(FREE, hard=0, random=2, max_share=0.9, share_of="score")
    dataset, encoder = scored(scores, Claim("c", "text", golds=("gold",)))
    (row,), miner = mined(dataset, encoder, limited)
    assert set(names(row)) == {"low1", "low2"}
    assert miner.counts.short_rows == 0


FEW = ["masks", "otters", "tea", "sleep"]
LIMITS = [
    *((candidates_module, name) for name in ("CELLS", "PIECE", "BLOCK")),
    *((mine, name) for name in ("CHUNK", "PICKED")),
    (bm25, "_CELLS"),
]


def one_by_one(
    dataset: Dataset, sources: np.ndarray, claims: np.ndarray, config: MiningConfig, mean: float
) -> tuple[list[MinedRow], MiningCounts]:
    """Hard negatives equal those of the retrievers' runs, their fusion and a plain loop."""
    ids, depth, counts = [s.id for s in dataset.sources], config.last_rank, MiningCounts()
    dense = VectorIndex(ids, sources).rank(dataset.claims, claims, depth)
    sparse = BM25Index(dataset.sources).rank(dataset.claims, depth)
    fusion = FusionConfig("linear", config.alpha, depth=depth)
    ends = {0.0: dense, 1.0: sparse}
    run = ends[config.alpha] if config.alpha in ends else fuse(sparse, dense, fusion)
    row_of = {name: i for i, name in enumerate(ids)}
    words = {s.id: distinct_words(s.title) for s in dataset.sources}
    golds, of_training = golds_by_text(dataset.claims), dataset.golds
    rows = []
    for i, claim in enumerate(dataset.claims):
        near = {name: float(claims[i] @ sources[row_of[name]]) for name in ids}
        listed = list(run.scored(claim.id).items())[config.first_rank - 1 : depth]
        for gold in claim.golds:
            limit = float("inf")
            if config.max_share is not None and config.share_of == "score":
                share = config.max_share if near[gold] >= 0 else 2 - config.max_share
                limit = near[gold] * share
            elif config.max_share is not None:
                limit = mean + config.max_share * max(near[gold] - mean, 0)
            if config.margin is not None:
                limit = min(limit, near[gold] - config.margin)
            negatives: list[Negative] = []
            for name, score in listed:
                most = config.max_title_similarity
                twin = most is not None and any(
                    jaccard(words[name], words[g]) > most for g in golds[claim.id]
                )
                if len(negatives) == config.hard:
                    break
                if name in golds[claim.id]:
                    counts.left_out_gold += 1
                elif config.pool == "train-golds" and name not in of_training:
                    counts.left_out_pool += 1
                elif twin:
                    counts.left_out_duplicate += 1
                elif near[name] > limit:
                    counts.left_out_close += 1
                else:
                    in_dense, in_sparse = (name in r.sources(claim.id) for r in (dense, sparse))
                    in_sparse &= config.alpha > 0
                    origin = "both" if in_dense and in_sparse else "bm25" if in_sparse else "dense"
                    lexical = sparse.scored(claim.id)[name] if in_sparse else None
                    parts = near[name], lexical
                    negatives.append(Negative(name, score, origin, *parts))  # type: ignore[arg-type]
            missing = config.hard - len(negatives)
            counts.rows, counts.hard = counts.rows + 1, counts.hard + len(negatives)
            counts.missing_hard += missing
            counts.short_rows += missing > 0
            counts.rows_without_hard += config.hard > 0 and not negatives
            rows.append(MinedRow(claim.id, gold, tuple(negatives)))
    return rows, counts


CONFIGS = st.builds(
    MiningConfig,
    hard=st.integers(0, 4),
    random=st.just(0),
    first_rank=st.integers(1, 3),
    last_rank=st.integers(3, 12),
    alpha=st.sampled_from([0.0, 0.5, 1.0]),
    max_share=st.sampled_from([None, 0.75]),
    share_of=st.sampled_from(["above_random", "score"]),
    margin=st.sampled_from([None, 1.0]),
    max_title_similarity=st.sampled_from([None, 0.9]),
    pool=st.sampled_from(["all", "train-golds"]),
)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 30),
    config=CONFIGS,
    limit=st.sampled_from(LIMITS),
    size=st.integers(1, 90),
)
def test_blocks_of_pairs_are_picked_as_they_are_one_by_one(
    seed: int, n: int, config: MiningConfig, limit: tuple[Any, str], size: int
) -> None:
    """Whatever the size of one of the blocks that the work is cut into."""
    draw = np.random.default_rng(seed)
    # Few words and small whole numbers: scores are exact, many tie, titles repeat.
    sources = [
        Source(f"s{draw.integers(10**6)}-{i}", " ".join(draw.choice(FEW, 2)), f"a{i}")
        for i in range(n)
    ]
    claims = []
    for i in range(8):
        candidates, golds = (
            tuple(str(s) for s in draw.choice([s.id for s in sources], size=min(size, n)))
            for size in (draw.integers(0, 7), draw.integers(0, 4))
        )
        text = " ".join(draw.choice([*FEW, "unknown"], 2))
        pool_ids = candidates if draw.random() < 0.3 else None
        claims.append(Claim(f"c{i}", text, golds=tuple(dict.fromkeys(golds)), candidates=pool_ids))
    dataset = data_of(claims, sources)
    of_sources = draw.integers(-2, 3, (n, 3)).astype(np.float32)
    texts = sorted({claim.text for claim in claims})
    by_text = {text: draw.integers(-2, 3, 3).astype(np.float32) for text in texts}
    of_claims = np.array([by_text[claim.text] for claim in claims])
    encoder = Table({**by_text, **dict(zip(PLAIN.source_texts(sources), of_sources, strict=True))})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*limit, size)
        mined_rows, miner = mined(dataset, encoder, config)  # type: ignore[arg-type]
    # The mean of a sample of random pairs has its own test.
    sample = miner.counts.baseline
    mean = sample.mean if sample is not None else 0.0
    expected, counts = one_by_one(dataset, of_sources, of_claims, config, mean)
    assert mined_rows == expected
    assert replace(miner.counts, baseline=None) == counts


def test_the_limit_is_not_rounded() -> None:
    """As for random negatives: 0.95 of the gold's score, however near the other one is."""
    gold, rival = np.float32(0.637), np.float32(0.60515004)
    assert np.float32(float(gold) * 0.95) == rival and float(rival) > float(gold) * 0.95
    scores = {"other": float(rival), "low": 0.1, "gold": float(gold)}
    config = replace(FREE, max_share=0.95, share_of="score", hard=2, random=0)
    (row,), _ = mined(*scored(scores, Claim("c", "text", golds=("gold",))), config)
    assert names(row) == ["low"]


def test_claims_of_one_text_share_what_is_kept_of_their_golds() -> None:
    texts = [" ".join(f"w{n}" for n in range(i, i + 400)) for i in range(0, 8000, 40)]
    sources = [Source(f"s{i}", f"t{i}", text) for i, text in enumerate(texts)]
    claims = [Claim(f"c{i}", "same", golds=(f"s{i}",)) for i in range(len(sources))]
    table = Table(dict.fromkeys(["same", *PLAIN.source_texts(sources)], [1.0]))
    config = replace(FREE, hard=1, random=0, max_text_similarity=0.9)
    tracemalloc.start()
    mined(data_of(claims, sources), table, config)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # One set of marks is 1.6 MB here; one for each of the 200 claims would be 320 MB.
    assert peak < 40 * 2**20


def test_counts_add_up_and_what_is_missing_is_said() -> None:
    golds = {"full": ("s19",), "low": ("s17",), "two": ("s00", "s18"), "none": ()}
    claims = [Claim(name, f"about {name}", golds=golds_of) for name, golds_of in golds.items()]
    dataset, encoder = scored(ladder(20), *claims)
    config = replace(FREE, hard=6, random=2, last_rank=8, max_share=0.95, share_of="score")
    rows, miner = mined(dataset, encoder, config)
    # Below s19 (0.05) there is nothing; below s17 (0.15) two sources, too deep for the window;
    # s00 has all below it; of s18 the gold s00 is left out and only s19 is lower.
    counts = [(r.positive, len(names(r, "hard")), len(names(r, "random"))) for r in rows]
    assert counts == [("s19", 0, 0), ("s17", 0, 2), ("s00", 6, 2), ("s18", 0, 1)]
    assert [row.claim for row in rows] == ["full", "low", "two", "two"]
    sentences = miner.counts.sentences()
    assert "6 hard and 5 random negatives for 4 pairs" in sentences[0]
    assert "2 golds, 0 outside the pool, 23 too close" in sentences[1]
    assert "3 pairs could not be filled: 18 hard and 3 random" in sentences[2]


def many_claims(n: int) -> tuple[Dataset, Encoder]:
    return scored(ladder(60), *(Claim(f"c{i}", f"text {i}", golds=("s00",)) for i in range(n)))


def test_memory_does_not_grow_with_the_number_of_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mine, "CHUNK", 50)

    def peak(n: int) -> int:
        dataset, encoder = many_claims(n)
        tracemalloc.start()
        config = replace(FREE, alpha=0.5, hard=1, random=0)
        for _ in Miner(dataset, encoder, PLAIN, config).mine():
            pass
        _, maximum = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return maximum

    peak(50)  # what is imported and cached at first use
    # Only the golds by text remain: some 500 bytes a claim, not its list of scores.
    assert peak(1000) - peak(100) < 900 * 1500


def test_rows_come_while_mining_goes_on() -> None:
    miner = Miner(*many_claims(30), PLAIN, FREE)
    assert next(miner.mine()).claim == "c0" and miner.counts.rows == 1
