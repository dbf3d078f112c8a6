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


def mined_of(gold: float, scores: Mapping[str, float], **limits: float | str | None) -> set[str]:
    """The hard and the random negatives that a limit allows (both must agree)."""
    dataset, encoder = scored({"gold": gold, **scores}, Claim("c", "text", golds=("gold",)))
    config = MiningConfig(alpha=0.0, hard=9, random=0, **limits)  # type: ignore[arg-type]
    (hard,), miner = mined(dataset, encoder, config)
    (random,), _ = mined(dataset, encoder, replace(config, hard=0, random=9))
    assert set(names(hard)) == set(names(random))
    assert miner.counts.left_out_close == len(scores) - len(names(hard))
    return set(names(hard))


def test_max_share_above_random_pairs_is_exact_at_the_border() -> None:
    step = 2.0**-10
    scores = {"above": 0.75 + step, "at": 0.75, "below": 0.75 - step, "low": -0.25}
    assert (MiningConfig().share_of, MiningConfig().max_share) == ("above_random", 0.9)
    assert mined_of(1.0, scores, max_share=0.5) == {"at", "below", "low"}
    assert mined_of(1.0, scores, max_share=1.0) == set(scores)


@pytest.mark.parametrize("gold", [-0.5, 0.125, 0.25])
def test_a_gold_no_nearer_than_a_random_source_lets_pass_what_is_as_far(gold: float) -> None:
    """It sets no limit for what is too near; a share of its score would leave nothing."""
    scores = {"high": 1.0, "near": 0.375, "mean": 0.25, "low": -0.625}
    assert mined_of(gold, scores, max_share=0.75) == {"mean", "low"}


def test_a_pool_without_random_pairs_has_no_baseline_to_speak_of() -> None:
    dataset, encoder = scored({"gold": 0.5}, Claim("c", "text", golds=("gold",)))
    (row,), miner = mined(dataset, encoder, MiningConfig(alpha=0.0))
    assert not row.negatives and miner.counts.baseline == RandomBaseline(0.0, 0.0, 0)


def squeezed(dataset: Dataset, table: Table, scale: float, shift: float) -> Table:
    """The same model with its cosines moved: one more dimension, the same for every text."""
    claims = {claim.text for claim in dataset.claims}
    return Table(
        {
            text: [*vector, 1.0] if text in claims else [*(scale * x for x in vector), shift]
            for text, vector in table.vectors.items()
        }
    )


def test_squeezed_cosines_mine_the_same_lists() -> None:
    draw = np.random.default_rng(3)
    words = [f"w{i}" for i in range(30)]
    sources = [Source(f"s{i}", " ".join(draw.choice(words, 4))) for i in range(300)]
    claims = [
        Claim(f"c{i}", " ".join(draw.choice(words, 5)), golds=(f"s{draw.integers(300)}",))
        for i in range(60)
    ]
    vectors = draw.normal(size=(360, 8)) + 1.0
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    texts = [*PLAIN.source_texts(sources), *(claim.text for claim in claims)]
    table = Table(dict(zip(texts, vectors.tolist(), strict=True)))
    dataset, config = data_of(claims, sources), MiningConfig(hard=6, random=2)
    rows, miner = mined(dataset, table, config)  # type: ignore[arg-type]
    squeezed_table = squeezed(dataset, table, 0.2, 0.8)
    rows_again, other_miner = mined(dataset, squeezed_table, config)  # type: ignore[arg-type]
    assert [names(row) for row in rows_again] == [names(row) for row in rows]
    assert miner.counts == other_miner.counts and miner.counts.left_out_close > 0
    before, after = miner.counts.baseline, other_miner.counts.baseline
    assert before is not None and after is not None
    assert after.mean == pytest.approx(0.8 + 0.2 * before.mean, abs=1e-6)
    assert after.deviation == pytest.approx(0.2 * before.deviation, abs=1e-6)
    assert f"random pairs score {after.mean:.3f} on average" in other_miner.counts.sentences()[2]
    # A share of the whole score leaves more than half of the pairs short.
    _, raw = mined(dataset, squeezed_table, replace(config, share_of="score"))  # type: ignore[arg-type]
    assert raw.counts.baseline is None
    assert raw.counts.short_rows > 30 > 3 > other_miner.counts.short_rows


def test_the_baseline_is_of_random_pairs_without_the_golds() -> None:
    """Half of the sources are golds of every claim and score 5: the mean is not theirs."""
    scores = np.random.default_rng(5).normal(0.3, 0.1, (400, 1))
    scores[:200] = 5.0
    scores = np.hstack([scores, np.ones((400, 1))])
    ids = [f"s{i}" for i in range(400)]
    claims = [Claim(f"c{i}", "text") for i in range(200)]
    golds = {claim.id: frozenset(ids[:200]) for claim in claims}

    def encoded(claims: Sequence[Claim]) -> np.ndarray:
        # Some claims are nearer to everything: their means vary, but not the scores of one claim.
        return np.array([[1.0, int(claim.id[1:]) % 5 - 2.0] for claim in claims])

    baseline = random_baseline(claims, encoded, scores, np.arange(400), ids, golds, 13)
    assert 1400 < baseline.pairs < 1800
    assert baseline.mean == pytest.approx(0.3, abs=0.02)
    assert baseline.deviation == pytest.approx(0.1, abs=0.01)
    assert baseline == random_baseline(claims, encoded, scores, np.arange(400), ids, golds, 13)
    # Sources that must not be mined are not drawn.
    outside = random_baseline(claims, encoded, scores, np.arange(200), ids, golds, 13)
    assert outside == RandomBaseline(0.0, 0.0, 0)


def test_the_stricter_of_two_limits_holds() -> None:
    scores = {"a": 0.45, "b": 0.4, "c": 0.3}
    extra: dict[str, Any] = {"share_of": "score"}
    at = {"above": 0.3751, "at": 0.375, "below": 0.3749}
    assert mined_of(0.5, at, max_share=0.75, **extra) == {"at", "below"}
    assert mined_of(0.5, at, max_share=None, margin=0.125) == {"at", "below"}
    assert mined_of(0.5, scores, max_share=0.9, margin=0.15, **extra) == {"c"}
    assert mined_of(0.5, scores, max_share=0.7, margin=0.01, **extra) == {"c"}
    # Random pairs score 0.383: half of the way to the gold is 0.442.
    assert mined_of(0.5, scores, max_share=0.5, margin=0.01) == {"b", "c"}
    assert mined_of(0.5, scores, max_share=0.5, margin=0.15) == {"c"}


def titled(titles: Mapping[str, str], *claims: Claim) -> tuple[Dataset, Encoder]:
    """Sources with these titles; the first scores highest, for every claim."""
    sources = [Source(name, title, f"abstract of {name}") for name, title in titles.items()]
    table: dict[str, list[float]] = {c.text: [1.0] for c in claims}
    for rank, source in enumerate(sources):
        table[render_source(source, "title_abstract")] = [1 - rank / 100]
    return data_of(list(claims), sources), Table(table)  # type: ignore[return-value]


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
    random_rows, _ = mined(dataset, encoder, replace(config, hard=0, random=20))
    for row, random_row in zip(rows, random_rows, strict=True):
        assert set(names(row)) == set(names(random_row)) == set(names(rows[0]))
    return set(names(rows[0])), miner


def test_a_golds_near_duplicate_by_title_is_left_out_by_default_and_counted() -> None:
    claim = Claim("c", "text", golds=("gold",))
    names_left, miner = without_duplicates(TITLES, claim)
    assert names_left == {"other", "none", "marks"}
    assert miner.counts.left_out_duplicate == 4 and miner.counts.left_out_close == 0
    assert "4 near-duplicates of a gold" in miner.counts.sentences()[1]
    off, miner = without_duplicates(TITLES, claim, max_title_similarity=None)
    assert off == set(TITLES) - {"gold"} and miner.counts.left_out_duplicate == 0


def test_the_limit_of_titles_is_what_may_be_shared() -> None:
    claim = Claim("c", "text", golds=("gold",))
    # Ten words of eleven: 0.909; eight of twelve: 0.667; the limit itself is allowed.
    assert "longer" in without_duplicates(TITLES, claim, max_title_similarity=10 / 11)[0]
    assert "other" in without_duplicates(TITLES, claim, max_title_similarity=2 / 3)[0]
    assert "other" not in without_duplicates(TITLES, claim, max_title_similarity=0.66)[0]


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
    claims = [Claim("c", "text", golds=("gold",)), Claim("d", "post", golds=("none",))]
    sources = [Source(name, f"{name} title", text) for name, text in ABSTRACTS.items()]
    table = dict.fromkeys(["text", "post", *PLAIN.source_texts(sources)], [1.0, 0.0])
    dataset = data_of(claims, sources)
    config = replace(FREE, max_title_similarity=None, max_text_similarity=limit)
    for settings in ({"hard": 20, "random": 0}, {"hard": 0, "random": 20}):
        rows, miner = mined(dataset, Table(table), replace(config, **settings))  # type: ignore[arg-type]
        assert set(names(rows[0])) == ABSTRACTS.keys() - {"gold"} - left_out
        # A gold without an abstract has no near-duplicate, and is not one of another without.
        assert set(names(rows[1])) == ABSTRACTS.keys() - {"none"}
        assert miner.counts.left_out_duplicate == (len(left_out) if settings["hard"] else 0)
