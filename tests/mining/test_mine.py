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


def about(name: str, text: str, *golds: str) -> Claim:
    """A claim with these golds."""
    return Claim(name, text, golds=golds)


def of_own_golds(count: int) -> list[Claim]:
    """Claims of which each has a gold of its own."""
    return [about(f"c{i}", f"text {i}", f"s{i:02d}") for i in range(count)]


def test_six_hard_and_two_other_random_ones_by_default() -> None:
    default = MiningConfig()
    assert default.hard == 6
    assert default.random == 2

    scores = ladder(9)
    claim = about("c", "text", "s08")
    dataset, encoder = scored(scores, claim)
    (row,), _ = mined(dataset, encoder, FREE)
    first_six = [f"s{i:02d}" for i in range(6)]
    at_random = names(row, "random")
    origins = [negative.origin for negative in row.negatives]
    assert row.claim == "c"
    assert row.positive == "s08"
    assert names(row, "dense") == first_six
    assert set(at_random) == {"s06", "s07"}
    assert origins == ["dense"] * 6 + ["random"] * 2

    found = [negative.score for negative in row.negatives]
    expected = [scores[name] for name in names(row)]
    assert found == pytest.approx(expected)


def test_the_gold_of_a_claim_with_the_same_text_is_never_a_negative() -> None:
    claim = about("a", "Wow,  MASKS work\n", "s00", "s03")
    twin = about("b", "wow, masks work", "s01")
    rival = about("x", "wow, masks work!", "s02")
    dataset, encoder = scored(ladder(8), claim, twin, rival)
    config = replace(FREE, random=8)
    rows, _ = mined(dataset, encoder, config)
    by_claim = {row.claim: set(names(row)) for row in rows}
    everything = set(ladder(8))
    without_golds = everything - {"s00", "s01", "s03"}
    assert by_claim["a"] == without_golds
    assert by_claim["b"] == without_golds
    for row in rows:
        found = names(row)
        assert len(found) == len(set(found))
    assert by_claim["x"] == everything - {"s02"}


def test_the_pool_of_train_golds_holds_no_other_source() -> None:
    claims = of_own_golds(5)
    dataset, encoder = scored(ladder(20), *claims)
    of_golds = replace(FREE, random=9, pool="train-golds")
    rows, miner = mined(dataset, encoder, of_golds)
    golds = {f"s{i:02d}" for i in range(5)}
    for row in rows:
        assert set(names(row)) == golds - {row.positive}
    assert miner.counts.left_out_pool == 5 * 15

    of_all = replace(FREE, random=20)
    free, _ = mined(dataset, encoder, of_all)
    for row in free:
        assert len(names(row)) == 19


def draws(dataset: Dataset, encoder: Encoder, **settings: Any) -> dict[str, list[str]]:
    config = replace(FREE, **settings)
    rows, _ = mined(dataset, encoder, config)
    return {row.claim: names(row, "random") for row in rows}


def test_a_draw_depends_on_its_claim_and_the_seed_alone() -> None:
    claims = of_own_golds(8)
    dataset, encoder = scored(ladder(90), *claims)
    draws_of_all = draws(dataset, encoder)
    backwards = dataset.with_claims(reversed(dataset.claims))
    assert draws(backwards, encoder) == draws_of_all
    for claim in claims:
        single = dataset.with_claims([claim])
        alone = draws(single, encoder)
        assert alone[claim.id] == draws_of_all[claim.id]
    assert draws(dataset, encoder, seed=14) != draws_of_all
    distinct = {tuple(ids) for ids in draws_of_all.values()}
    assert len(distinct) > 4


def test_more_random_ones_begin_with_the_same() -> None:
    claim = about("c", "text", "s00")
    dataset, encoder = scored(ladder(90), claim)

    def drawn(hard: int, random: int) -> list[str]:
        by_claim = draws(dataset, encoder, hard=hard, random=random)
        return by_claim["c"]

    fewer = drawn(hard=0, random=3)
    many = drawn(hard=0, random=40)
    assert many[:3] == fewer
    # The scores of hard negatives do not change the draws either.
    after_hard = drawn(hard=6, random=40)
    hard_ones = {f"s{i:02d}" for i in range(1, 7)}
    remaining = [name for name in many if name not in hard_ones]
    assert remaining == after_hard[: len(remaining)]


def test_random_ones_come_from_the_whole_pool() -> None:
    claims = [about(f"c{i}", f"text {i}", "s00") for i in range(300)]
    dataset, encoder = scored(ladder(40), *claims)
    picks = draws(dataset, encoder, hard=0, random=2)
    counts: Counter[str] = Counter()
    for sources in picks.values():
        assert len(set(sources)) == 2
        counts.update(sources)
    assert counts.keys() == ladder(40).keys() - {"s00"}
    # 15.4 expected
    assert min(counts.values()) >= 3
    assert max(counts.values()) <= 40


def test_a_pool_with_few_that_may_be_taken_is_searched_to_its_end() -> None:
    """Two of 3,000 lie below the limit: a sample would not find them."""
    high = {f"s{i:04d}": 0.9 for i in range(3000)}
    scores = high | {"low1": 0.1, "low2": 0.2, "gold": 0.5}
    limited = replace(
        FREE,
        hard=0,
        random=2,
        max_share=0.9,
        share_of="score",
    )
    claim = about("c", "text", "gold")
    dataset, encoder = scored(scores, claim)
    (row,), miner = mined(dataset, encoder, limited)
    assert set(names(row)) == {"low1", "low2"}
    assert miner.counts.short_rows == 0


FEW = ["masks", "otters", "tea", "sleep"]
LIMITS = [
    *((candidates_module, name) for name in ("CELLS", "PIECE", "BLOCK")),
    *((mine, name) for name in ("CHUNK", "PICKED")),
    (bm25, "_CELLS"),
]


def highest(near: float, mean: float, config: MiningConfig) -> float:
    """The score that a negative may have at most, of a gold that scores `near`."""
    limit = float("inf")
    share = config.max_share
    if share is not None and config.share_of == "score":
        factor = share if near >= 0 else 2 - share
        limit = near * factor
    elif share is not None:
        above = max(near - mean, 0)
        limit = mean + share * above
    if config.margin is not None:
        limit = min(limit, near - config.margin)
    return limit


def count_row(counts: MiningCounts, found: int, wanted: int) -> None:
    """Count a pair and its hard negatives."""
    missing = wanted - found
    counts.rows += 1
    counts.hard += found
    counts.missing_hard += missing
    counts.short_rows += missing > 0
    counts.rows_without_hard += wanted > 0 and not found


def one_by_one(
    dataset: Dataset, sources: np.ndarray, claims: np.ndarray, config: MiningConfig, mean: float
) -> tuple[list[MinedRow], MiningCounts]:
    """Hard negatives equal those of the retrievers' runs, their fusion and a plain loop."""
    ids = [source.id for source in dataset.sources]
    depth = config.last_rank
    counts = MiningCounts()
    dense = VectorIndex(ids, sources).rank(dataset.claims, claims, depth)
    sparse = BM25Index(dataset.sources).rank(dataset.claims, depth)
    fusion = FusionConfig("linear", config.alpha, depth=depth)
    ends = {0.0: dense, 1.0: sparse}
    run = ends[config.alpha] if config.alpha in ends else fuse(sparse, dense, fusion)
    row_of = {name: i for i, name in enumerate(ids)}
    words = {source.id: distinct_words(source.title) for source in dataset.sources}
    golds = golds_by_text(dataset.claims)
    of_training = dataset.golds
    most = config.max_title_similarity

    def is_twin(name: str, claim: Claim) -> bool:
        if most is None:
            return False
        return any(jaccard(words[name], words[gold]) > most for gold in golds[claim.id])

    def negative(name: str, score: float, claim: Claim, near: float) -> Negative:
        in_dense = name in dense.sources(claim.id)
        in_sparse = name in sparse.sources(claim.id)
        in_sparse &= config.alpha > 0
        lexical = sparse.scored(claim.id)[name] if in_sparse else None
        origin = "dense"
        if in_sparse:
            origin = "both" if in_dense else "bm25"
        return Negative(name, score, origin, near, lexical)  # type: ignore[arg-type]

    rows = []
    for i, claim in enumerate(dataset.claims):
        near = {name: float(claims[i] @ sources[row_of[name]]) for name in ids}
        ranking = list(run.scored(claim.id).items())
        listed = ranking[config.first_rank - 1 : depth]
        for gold in claim.golds:
            limit = highest(near[gold], mean, config)
            negatives: list[Negative] = []
            for name, score in listed:
                twin = is_twin(name, claim)
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
                    allowed = negative(name, score, claim, near[name])
                    negatives.append(allowed)

            count_row(counts, len(negatives), config.hard)
            row = MinedRow(claim.id, gold, tuple(negatives))
            rows.append(row)
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


def drawn_claims(draw: np.random.Generator, sources: list[Source]) -> list[Claim]:
    """Eight claims with up to three golds, and some with candidates."""
    n = len(sources)
    ids = [source.id for source in sources]

    def some(size: int) -> tuple[str, ...]:
        chosen = draw.choice(ids, size=min(size, n))
        return tuple(str(name) for name in chosen)

    claims = []
    for i in range(8):
        candidate_count = draw.integers(0, 7)
        gold_count = draw.integers(0, 4)
        candidates = some(candidate_count)
        golds = some(gold_count)
        text = " ".join(draw.choice([*FEW, "unknown"], 2))
        pool_ids = candidates if draw.random() < 0.3 else None
        distinct = tuple(dict.fromkeys(golds))
        claim = Claim(f"c{i}", text, golds=distinct, candidates=pool_ids)
        claims.append(claim)
    return claims


@pytest.mark.slow
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
    sources = []
    for i in range(n):
        name = f"s{draw.integers(10**6)}-{i}"
        title = " ".join(draw.choice(FEW, 2))
        sources.append(Source(name, title, f"a{i}"))
    claims = drawn_claims(draw, sources)
    dataset = data_of(claims, sources)

    of_sources = draw.integers(-2, 3, (n, 3)).astype(np.float32)
    texts = sorted({claim.text for claim in claims})
    by_text = {}
    for text in texts:
        values = draw.integers(-2, 3, 3)
        by_text[text] = values.astype(np.float32)
    of_claims = np.array([by_text[claim.text] for claim in claims])
    source_texts = PLAIN.source_texts(sources)
    by_source_text = dict(zip(source_texts, of_sources, strict=True))
    encoder = Table({**by_text, **by_source_text})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*limit, size)
        mined_rows, miner = mined(dataset, encoder, config)  # type: ignore[arg-type]
    # The mean of a sample of random pairs has its own test.
    sample = miner.counts.baseline
    mean = sample.mean if sample is not None else 0.0
    expected, counts = one_by_one(dataset, of_sources, of_claims, config, mean)
    assert mined_rows == expected
    found_counts = replace(miner.counts, baseline=None)
    assert found_counts == counts


def test_the_limit_is_not_rounded() -> None:
    """As for random negatives: 0.95 of the gold's score, however near the other one is."""
    gold = np.float32(0.637)
    rival = np.float32(0.60515004)
    limit = float(gold) * 0.95
    assert np.float32(limit) == rival
    assert float(rival) > limit

    scores = {
        "other": float(rival),
        "low": 0.1,
        "gold": float(gold),
    }
    config = replace(
        FREE,
        max_share=0.95,
        share_of="score",
        hard=2,
        random=0,
    )
    claim = about("c", "text", "gold")
    dataset, encoder = scored(scores, claim)
    (row,), _ = mined(dataset, encoder, config)
    assert names(row) == ["low"]


def test_claims_of_one_text_share_what_is_kept_of_their_golds() -> None:
    texts = []
    for i in range(0, 8000, 40):
        words = [f"w{n}" for n in range(i, i + 400)]
        texts.append(" ".join(words))
    sources = [Source(f"s{i}", f"t{i}", text) for i, text in enumerate(texts)]
    claims = [about(f"c{i}", "same", f"s{i}") for i in range(len(sources))]
    all_texts = ["same", *PLAIN.source_texts(sources)]
    table = Table(dict.fromkeys(all_texts, [1.0]))
    config = replace(
        FREE,
        hard=1,
        random=0,
        max_text_similarity=0.9,
    )
    tracemalloc.start()
    mined(data_of(claims, sources), table, config)  # type: ignore[arg-type]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # One set of marks is 1.6 MB here; one for each of the 200 claims would be 320 MB.
    assert peak < 40 * 2**20


def test_counts_add_up_and_what_is_missing_is_said() -> None:
    golds = {
        "full": ("s19",),
        "low": ("s17",),
        "two": ("s00", "s18"),
        "none": (),
    }
    claims = []
    for name, of_claim in golds.items():
        claim = Claim(name, f"about {name}", golds=of_claim)
        claims.append(claim)
    dataset, encoder = scored(ladder(20), *claims)
    config = replace(
        FREE,
        hard=6,
        random=2,
        last_rank=8,
        max_share=0.95,
        share_of="score",
    )
    rows, miner = mined(dataset, encoder, config)
    # Below s19 (0.05) there is nothing; below s17 (0.15) two sources, too deep for the window;
    # s00 has all below it; of s18 the gold s00 is left out and only s19 is lower.
    counts = []
    for row in rows:
        hard = names(row, "hard")
        at_random = names(row, "random")
        counts.append((row.positive, len(hard), len(at_random)))
    assert counts == [
        ("s19", 0, 0),
        ("s17", 0, 2),
        ("s00", 6, 2),
        ("s18", 0, 1),
    ]
    mined_claims = [row.claim for row in rows]
    assert mined_claims == ["full", "low", "two", "two"]

    sentences = miner.counts.sentences()
    assert "6 hard and 5 random negatives for 4 pairs" in sentences[0]
    assert "2 golds, 0 outside the pool, 23 too close" in sentences[1]
    assert "3 pairs could not be filled: 18 hard and 3 random" in sentences[2]


def many_claims(n: int) -> tuple[Dataset, Encoder]:
    claims = [about(f"c{i}", f"text {i}", "s00") for i in range(n)]
    return scored(ladder(60), *claims)


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
    growth = peak(1000) - peak(100)
    assert growth < 900 * 1500


def test_rows_come_while_mining_goes_on() -> None:
    dataset, encoder = many_claims(30)
    miner = Miner(dataset, encoder, PLAIN, FREE)
    first = next(miner.mine())
    assert first.claim == "c0"
    assert miner.counts.rows == 1
