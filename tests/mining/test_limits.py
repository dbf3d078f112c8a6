"""Which hard negatives are too near a gold to be mined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from claim2source.core.records import Claim, Dataset, Source
from claim2source.mining import Miner, MiningConfig
from claim2source.mining.baseline import RandomBaseline, random_baseline
from claim2source.models import Encoder
from claim2source.text import render_source
from tests.mining.tables import FREE, PLAIN, Table, data_of, mined, names, scored

CLAIM = Claim("c", "text", golds=("gold",))


def mined_of(gold: float, scores: Mapping[str, float], **limits: float | str | None) -> set[str]:
    """The hard and the random negatives that a limit allows (both must agree)."""
    all_scores = {"gold": gold, **scores}
    dataset, encoder = scored(all_scores, CLAIM)
    config = MiningConfig(alpha=0.0, hard=9, random=0, **limits)  # type: ignore[arg-type]
    (hard,), miner = mined(dataset, encoder, config)
    random_config = replace(config, hard=0, random=9)
    (random,), _ = mined(dataset, encoder, random_config)
    allowed = names(hard)
    assert set(allowed) == set(names(random))
    left_out = len(scores) - len(allowed)
    assert miner.counts.left_out_close == left_out
    return set(allowed)


def test_max_share_above_random_pairs_is_exact_at_the_border() -> None:
    step = 2.0**-10
    scores = {
        "above": 0.75 + step,
        "at": 0.75,
        "below": 0.75 - step,
        "low": -0.25,
    }
    default = MiningConfig()
    assert default.share_of == "above_random"
    assert default.max_share == 0.9
    half = mined_of(1.0, scores, max_share=0.5)
    whole = mined_of(1.0, scores, max_share=1.0)
    assert half == {"at", "below", "low"}
    assert whole == set(scores)


@pytest.mark.parametrize("gold", [-0.5, 0.125, 0.25])
def test_a_gold_no_nearer_than_a_random_source_lets_pass_what_is_as_far(gold: float) -> None:
    """It sets no limit for what is too near; a share of its score would leave nothing."""
    scores = {
        "high": 1.0,
        "near": 0.375,
        "mean": 0.25,
        "low": -0.625,
    }
    allowed = mined_of(gold, scores, max_share=0.75)
    assert allowed == {"mean", "low"}


def test_a_pool_without_random_pairs_has_no_baseline_to_speak_of() -> None:
    dataset, encoder = scored({"gold": 0.5}, CLAIM)
    config = MiningConfig(alpha=0.0)
    (row,), miner = mined(dataset, encoder, config)
    nothing = RandomBaseline(0.0, 0.0, 0)
    assert not row.negatives
    assert miner.counts.baseline == nothing


def squeezed(dataset: Dataset, table: Table, scale: float, shift: float) -> Table:
    """The same model with its cosines moved: one more dimension, the same for every text."""
    claims = {claim.text for claim in dataset.claims}
    moved: dict[str, list[float]] = {}
    for text, vector in table.vectors.items():
        if text in claims:
            moved[text] = [*vector, 1.0]
        else:
            scaled = [scale * x for x in vector]
            moved[text] = [*scaled, shift]
    return Table(moved)


def test_squeezed_cosines_mine_the_same_lists() -> None:
    draw = np.random.default_rng(3)
    words = [f"w{i}" for i in range(30)]
    sources = []
    for i in range(300):
        title = " ".join(draw.choice(words, 4))
        sources.append(Source(f"s{i}", title))
    claims = []
    for i in range(60):
        text = " ".join(draw.choice(words, 5))
        gold = f"s{draw.integers(300)}"
        claims.append(Claim(f"c{i}", text, golds=(gold,)))
    vectors = draw.normal(size=(360, 8)) + 1.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

    claim_texts = [claim.text for claim in claims]
    texts = [*PLAIN.source_texts(sources), *claim_texts]
    by_text = dict(zip(texts, vectors.tolist(), strict=True))
    table = Table(by_text)
    dataset = data_of(claims, sources)
    config = MiningConfig(hard=6, random=2)
    rows, miner = mined(dataset, table, config)  # type: ignore[arg-type]
    squeezed_table = squeezed(dataset, table, 0.2, 0.8)
    rows_again, other_miner = mined(dataset, squeezed_table, config)  # type: ignore[arg-type]
    counts = miner.counts
    other_counts = other_miner.counts
    expected = [names(row) for row in rows]
    assert [names(row) for row in rows_again] == expected
    assert counts == other_counts
    assert counts.left_out_close > 0

    before = counts.baseline
    after = other_counts.baseline
    assert before is not None
    assert after is not None
    mean = 0.8 + 0.2 * before.mean
    deviation = 0.2 * before.deviation
    assert after.mean == pytest.approx(mean, abs=1e-6)
    assert after.deviation == pytest.approx(deviation, abs=1e-6)
    sentence = other_counts.sentences()[2]
    assert f"random pairs score {after.mean:.3f} on average" in sentence

    # A share of the whole score leaves more than half of the pairs short.
    of_score = replace(config, share_of="score")
    _, raw = mined(dataset, squeezed_table, of_score)  # type: ignore[arg-type]
    assert raw.counts.baseline is None
    assert raw.counts.short_rows > 30 > 3 > other_counts.short_rows


def test_the_baseline_is_of_random_pairs_without_the_golds() -> None:
    """Half of the sources are golds of every claim and score 5: the mean is not theirs."""
    rng = np.random.default_rng(5)
    scores = rng.normal(0.3, 0.1, (400, 1))
    scores[:200] = 5.0
    ones = np.ones((400, 1))
    scores = np.hstack([scores, ones])
    ids = [f"s{i}" for i in range(400)]
    claims = [Claim(f"c{i}", "text") for i in range(200)]
    golds = {claim.id: frozenset(ids[:200]) for claim in claims}

    def encoded(claims: Sequence[Claim]) -> np.ndarray:
        # Some claims are nearer to everything: their means vary, but not the scores of one claim.
        vectors = []
        for claim in claims:
            number = int(claim.id[1:])
            vectors.append([1.0, number % 5 - 2.0])
        return np.array(vectors)

    def baseline_of(sources: int) -> RandomBaseline:
        return random_baseline(
            claims,
            encoded,
            scores,
            np.arange(sources),
            ids,
            golds,
            13,
        )

    baseline = baseline_of(400)
    assert 1400 < baseline.pairs < 1800
    assert baseline.mean == pytest.approx(0.3, abs=0.02)
    assert baseline.deviation == pytest.approx(0.1, abs=0.01)
    assert baseline == baseline_of(400)
    # Sources that must not be mined are not drawn.
    outside = baseline_of(200)
    assert outside == RandomBaseline(0.0, 0.0, 0)


def test_the_stricter_of_two_limits_holds() -> None:
    scores = {"a": 0.45, "b": 0.4, "c": 0.3}
    extra: dict[str, Any] = {"share_of": "score"}
    at = {
        "above": 0.3751,
        "at": 0.375,
        "below": 0.3749,
    }
    by_share = mined_of(0.5, at, max_share=0.75, **extra)
    by_margin = mined_of(0.5, at, max_share=None, margin=0.125)
    assert by_share == {"at", "below"}
    assert by_margin == {"at", "below"}

    def both(share: float, margin: float, **extra: Any) -> set[str]:
        return mined_of(
            0.5,
            scores,
            max_share=share,
            margin=margin,
            **extra,
        )

    assert both(0.9, 0.15, **extra) == {"c"}
    assert both(0.7, 0.01, **extra) == {"c"}
    # Random pairs score 0.383: half of the way to the gold is 0.442.
    assert both(0.5, 0.01) == {"b", "c"}
    assert both(0.5, 0.15) == {"c"}


def titled(titles: Mapping[str, str], *claims: Claim) -> tuple[Dataset, Encoder]:
    """Sources with these titles; the first scores highest, for every claim."""
    sources = [Source(name, title, f"abstract of {name}") for name, title in titles.items()]
    table: dict[str, list[float]] = {c.text: [1.0] for c in claims}
    for rank, source in enumerate(sources):
        text = render_source(source, "title_abstract")
        table[text] = [1 - rank / 100]
    dataset = data_of(list(claims), sources)
    return dataset, Table(table)  # type: ignore[return-value]


TITLE = "Masks and the spread of droplets in ten closed rooms"
TITLES = {
    "same": TITLE,
    "typed": "MASKS, and the spread of droplets in ten closed rooms.",
    "turned": "In ten closed rooms: masks and the spread of droplets",
    "longer": f"{TITLE}: trial",
    "other": "Masks and the spread of pollen in ten open rooms",
    "none": "",
    "marks": "?!",
    "gold": TITLE,
}


def without_duplicates(
    titles: Mapping[str, str], claim: Claim, **options: Any
) -> tuple[set[str], Miner]:
    dataset, encoder = titled(titles, claim)
    config = replace(FREE, hard=20, random=0, **options)
    rows, miner = mined(dataset, encoder, config)
    random_config = replace(config, hard=0, random=20)
    random_rows, _ = mined(dataset, encoder, random_config)
    first = set(names(rows[0]))
    for row, random_row in zip(rows, random_rows, strict=True):
        assert set(names(row)) == first
        assert set(names(random_row)) == first
    return first, miner


def test_a_golds_near_duplicate_by_title_is_left_out_by_default_and_counted() -> None:
    names_left, miner = without_duplicates(TITLES, CLAIM)
    counts = miner.counts
    assert names_left == {"other", "none", "marks"}
    assert counts.left_out_duplicate == 4
    assert counts.left_out_close == 0
    assert "4 near-duplicates of a gold" in counts.sentences()[1]

    off, miner = without_duplicates(TITLES, CLAIM, max_title_similarity=None)
    assert off == set(TITLES) - {"gold"}
    assert miner.counts.left_out_duplicate == 0


def test_the_limit_of_titles_is_what_may_be_shared() -> None:
    def left(limit: float) -> set[str]:
        found, _ = without_duplicates(TITLES, CLAIM, max_title_similarity=limit)
        return found

    # Ten words of eleven: 0.909; eight of twelve: 0.667; the limit itself is allowed.
    assert "longer" in left(10 / 11)
    assert "other" in left(2 / 3)
    assert "other" not in left(0.66)


ABSTRACT = "We gave masks to half of a hundred nurses and counted who fell ill."
ABSTRACTS = {
    "same": ABSTRACT,
    "turned": "Who fell ill? We counted, and gave masks to half of a HUNDRED nurses",
    "longer": f"{ABSTRACT} Few did.",
    "other": "We gave apples to half of a hundred nurses",
    "none": "",
    "gold": ABSTRACT,
}


@pytest.mark.parametrize(
    ("limit", "left_out"),
    [
        (None, set()),
        # Fourteen words of sixteen, and eight of fifteen; the limit itself is allowed.
        (14 / 16, {"same", "turned"}),
        (8 / 15, {"same", "turned", "longer"}),
        (0.53, {"same", "turned", "longer", "other"}),
    ],
)
def test_a_golds_near_duplicate_by_abstract_is_left_out_and_counted(
    limit: float | None, left_out: set[str]
) -> None:
    claims = [CLAIM, Claim("d", "post", golds=("none",))]
    sources = [Source(name, f"{name} title", text) for name, text in ABSTRACTS.items()]
    texts = ["text", "post", *PLAIN.source_texts(sources)]
    table = Table(dict.fromkeys(texts, [1.0, 0.0]))
    dataset = data_of(claims, sources)
    config = replace(FREE, max_title_similarity=None, max_text_similarity=limit)
    hard = {"hard": 20, "random": 0}
    at_random = {"hard": 0, "random": 20}
    for settings in (hard, at_random):
        rows, miner = mined(dataset, table, replace(config, **settings))  # type: ignore[arg-type]
        first = rows[0]
        second = rows[1]
        assert set(names(first)) == ABSTRACTS.keys() - {"gold"} - left_out
        # A gold without an abstract has no near-duplicate, and is not one of another without.
        assert set(names(second)) == ABSTRACTS.keys() - {"none"}
        duplicates = len(left_out) if settings["hard"] else 0
        assert miner.counts.left_out_duplicate == duplicates
