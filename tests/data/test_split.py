"""`val` is carved out of train by gold paper, language and seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from claim2source.core.errors import ConfigError
from claim2source.core.records import Claim, Dataset, Qrels, Source
from claim2source.data.grouping import plain_text
from claim2source.data.loading import load
from claim2source.data.split import carve_val, expected_seen_share, seen_claims
from tests.refusals import refused
from tests.shared_data import shared

Golds = tuple[str, ...]
Row = tuple[Golds, str, str]


def dataset(
    golds: Mapping[str, Golds],
    langs: dict[str, str] | None = None,
) -> Dataset:
    known = langs or {}
    claims: list[Claim] = []
    pool = {"spare"}
    grades: dict[str, dict[str, int]] = {}
    for key, gold_ids in golds.items():
        lang = known.get(key, "en")
        claim = Claim(key, f"text {key}", lang, golds=gold_ids)
        claims.append(claim)
        pool.update(gold_ids)
        if gold_ids:
            grades[key] = dict.fromkeys(gold_ids, 1)
    sources = [Source(gold, gold) for gold in sorted(pool)]
    return Dataset(
        tuple(claims),
        tuple(sources),
        Qrels(grades),
        "train",
        "set",
    )


def singles(count: int, lang: str = "en", prefix: str = "q") -> Dataset:
    golds: dict[str, Golds] = {}
    for i in range(count):
        golds[f"{prefix}{i}"] = (f"{prefix}p{i}",)
    langs = dict.fromkeys(golds, lang)
    return dataset(golds, langs)


def alike(count: int, prefix: str, *golds: str) -> Dataset:
    """Return claims that all have the same golds."""
    keys = [f"{prefix}{i}" for i in range(count)]
    return dataset(dict.fromkeys(keys, golds))


def joined(*parts: Dataset) -> Dataset:
    golds: dict[str, Golds] = {}
    langs: dict[str, str] = {}
    for part in parts:
        for claim in part.claims:
            golds[claim.id] = claim.golds
            langs[claim.id] = claim.lang
    return dataset(golds, langs)


def ids(part: Dataset) -> list[str]:
    return [claim.id for claim in part.claims]


def languages(part: Dataset) -> Counter[str]:
    """Count the claims of each language."""
    return Counter(claim.lang for claim in part.claims)


def sizes(*parts: Dataset) -> tuple[int, ...]:
    """Return the number of claims of each part."""
    return tuple(len(part.claims) for part in parts)


def test_share_counts_for_each_language() -> None:
    train = joined(
        singles(200, "en", "e"),
        singles(50, "de", "d"),
        singles(20, "fr", "f"),
    )
    _, val = carve_val(train, share=0.2)
    assert languages(val) == {"en": 40, "de": 10, "fr": 4}
    # A small language loses one claim, and a language with a single paper none.
    of_one = dataset(
        {"f0": ("f",), "f1": ("f",)},
        {"f0": "fr", "f1": "fr"},
    )
    train = joined(
        singles(100),
        singles(3, "de", "d"),
        of_one,
    )
    rest, val = carve_val(train)
    assert languages(val) == {"en": 10, "de": 1}
    assert languages(rest) == {"en": 90, "de": 2, "fr": 2}


def test_another_seed_carves_other_claims() -> None:
    train = singles(100)
    carved: set[tuple[str, ...]] = set()
    for seed in range(10):
        _, val = carve_val(train, seed=seed)
        in_order = sorted(ids(val))
        carved.add(tuple(in_order))
    assert len(carved) == 10
    # Must never change, so that runs of different years can be compared.
    small = singles(20)
    _, val = carve_val(small)
    assert ids(val) == ["q13", "q19"]


def test_a_paper_with_very_many_claims_stays_in_train() -> None:
    big = alike(11, "b", "big")
    edge = alike(10, "m", "middle")
    train = joined(big, edge, singles(100))
    middle = set()
    for seed in range(40):
        _, val = carve_val(train, share=0.3, seed=seed)
        assert "big" not in val.golds
        has_middle = "middle" in val.golds
        middle.add(has_middle)
    assert middle == {True, False}

    seen: list[bool] = []
    for seed in range(40):
        _, val = carve_val(
            train,
            share=0.3,
            seed=seed,
            most_claims=11,
        )
        has_big = "big" in val.golds
        seen.append(has_big)
    assert any(seen)


def test_claims_without_golds_are_alone_also_where_named_like_a_gold() -> None:
    without_golds = alike(20, "q")
    rest, val = carve_val(without_golds)
    assert sizes(rest, val) == (18, 2)

    namesakes = dataset({"x": (), "y": ("x",)})
    train = joined(namesakes, singles(18))
    sides: set[tuple[bool, bool]] = set()
    for seed in range(60):
        _, val = carve_val(train, seed=seed)
        carved = ids(val)
        sides.add(("x" in carved, "y" in carved))
    assert (True, False) in sides
    assert (False, True) in sides


def test_a_share_out_of_bounds_or_that_leaves_a_side_empty() -> None:
    ten = singles(10)
    for share in (0.0, 1.0, float("nan")):
        with refused(ConfigError) as error:
            carve_val(ten, share=share)
        assert error.value.key == "share"

    of_one_paper = alike(5, "q", "one")
    too_small = (
        singles(1),
        of_one_paper,
        dataset({}),
    )
    for train in too_small:
        with refused(ConfigError, "val claims") as error:
            carve_val(train, share=0.5)
        assert error.value.key == "share"

    three = singles(3)
    with refused(ConfigError, "train claims") as error:
        carve_val(three, share=0.9)
    assert error.value.key == "share"


GOLDS = st.lists(
    st.sampled_from("pqrstu"),
    unique=True,
    max_size=2,
)
ROWS = st.tuples(
    GOLDS.map(tuple),
    st.sampled_from(["en", "de"]),
    st.sampled_from(["x", "X ", "y", "", "", ""]),
)


@settings(max_examples=200, deadline=None)
@given(
    golds=st.lists(ROWS, min_size=3, max_size=40),
    seed=st.integers(0, 1000),
    seen_share=st.floats(0.05, 0.8),
    mix=st.floats(0, 1),
)
def test_no_gold_or_text_is_on_both_sides_and_papers_of_the_second_part_keep_a_claim(
    golds: list[Row],
    seed: int,
    seen_share: float,
    mix: float,
) -> None:
    train, texts = drawn_train(golds)
    try:
        alone, unseen = carve_val(train, 0.2, seed)
        rest, val = carve_val(train, 0.2, seed, seen_share=seen_share)
    except ConfigError:
        assume(False)
    # The same whatever the order of the claims.
    backwards = train.with_claims(reversed(train.claims))
    turned = carve_val(backwards, 0.2, seed, seen_share=seen_share)
    turned_ids = [ids(part)[::-1] for part in turned]
    assert turned_ids == [ids(rest), ids(val)]

    assert not alone.golds & unseen.golds
    all_by_paper = sorted(ids(alone) + ids(unseen))
    all_by_share = sorted(ids(rest) + ids(val))
    assert all_by_paper == all_by_share
    assert all_by_share == sorted(texts)

    unseen_ids = set(ids(unseen))
    seen = [claim for claim in val.claims if claim.id not in unseen_ids]
    assert {claim.id for claim in seen} == seen_claims(rest, val)
    for claim in seen:
        assert claim.golds
        assert set(claim.golds) <= rest.golds
    assert alone.golds == rest.golds
    rest_texts = {folded(claim) for claim in rest.claims}
    texts_of_seen = {folded(claim) for claim in seen}
    assert not texts_of_seen & rest_texts

    with suppress(ConfigError):
        kept, mixed = carve_val(train, 0.2, seed, seen_share=0.2, mix=mix)
        check_mixed(kept, mixed, mix)

    total = Counter(lang for _, lang, _ in golds)
    bounds = (
        (unseen.claims, 0.2, 1),
        (seen, seen_share, 0),
    )
    for claims, share, minimum in bounds:
        counter = Counter(claim.lang for claim in claims)
        for lang in total:
            largest = round(share * total[lang])
            assert counter[lang] <= max(minimum, largest)


def drawn_train(rows: list[Row]) -> tuple[Dataset, dict[str, str]]:
    """Return train of the rows drawn, and the text of each claim by its id."""
    golds: dict[str, Golds] = {}
    langs: dict[str, str] = {}
    texts: dict[str, str] = {}
    for i, (gold_ids, lang, text) in enumerate(rows):
        key = f"c{i}"
        golds[key] = gold_ids
        langs[key] = lang
        texts[key] = text or f"text {i}"
    data = dataset(golds, langs)
    claims: list[Claim] = []
    for claim in data.claims:
        text = texts[claim.id]
        claims.append(replace(claim, text=text))
    return data.with_claims(claims), texts


def folded(claim: Claim) -> str:
    """Return the claim's text without case and repeated white space."""
    words = claim.text.casefold().split()
    return " ".join(words)


def check_mixed(kept: Dataset, mixed: Dataset, mix: float) -> None:
    """Check that the parts share no more golds and texts than the mix allows."""
    known = seen_claims(kept, mixed)
    for claim in mixed.claims:
        if claim.id in known:
            assert set(claim.golds) <= kept.golds
    if mix > 0:
        mixed_texts = {plain_text(claim.text) for claim in mixed.claims}
        with_golds = [claim for claim in kept.claims if claim.golds]
        kept_texts = {plain_text(claim.text) for claim in with_golds}
        assert not mixed_texts & kept_texts


def several(papers: int, claims: int, prefix: str = "s", lang: str = "en") -> Dataset:
    golds: dict[str, Golds] = {}
    for i in range(papers):
        for j in range(claims):
            golds[f"{prefix}{i}-{j}"] = (f"{prefix}p{i}",)
    langs = dict.fromkeys(golds, lang)
    return dataset(golds, langs)


def test_val_at_a_declared_share_of_seen_papers() -> None:
    train = joined(
        several(60, 3),
        singles(60),
        several(30, 2, "d", "de"),
        singles(40, "de", "e"),
    )
    rest, val = carve_val(train, 0.1, 5, seen_share=0.1, mix=0.75)
    seen = seen_claims(rest, val)
    expected = {"en": 48, "de": 20}
    for lang, size in expected.items():
        of_language = [claim for claim in val.claims if claim.lang == lang]
        assert len(of_language) == size
        seen_count = sum(claim.id in seen for claim in of_language)
        assert seen_count == round(0.75 * size)
    # The rest are of papers with one claim, although others are left.
    unseen = [claim for claim in val.claims if claim.id not in seen]
    assert all(claim.id[0] in "qe" for claim in unseen)

    backwards = train.with_claims(reversed(train.claims))
    _, again = carve_val(backwards, 0.1, 5, seen_share=0.1, mix=0.75)
    assert sorted(ids(again)) == sorted(ids(val))
    _, other = carve_val(train, 0.1, 6, seen_share=0.1, mix=0.75)
    assert sorted(ids(other)) != sorted(ids(val))
    # Without seen papers it is the split by paper of the same size.
    unmixed = carve_val(train, 0.1, 5, seen_share=0.1, mix=0)
    by_paper = carve_val(train, 0.2, 5)
    assert unmixed == by_paper


def test_more_seen_papers_than_possible_are_refused_with_the_share_that_is() -> None:
    train = joined(
        singles(100),
        several(2, 3),
        several(50, 2, "d", "de"),
    )
    with refused(ConfigError, "at most 0.19", "in en") as error:
        carve_val(train, 0.1, seen_share=0.1, mix=0.89)
    assert error.value.key == "seen_share_expected"
    assert error.value.value == 0.89

    rest, val = carve_val(train, 0.1, seen_share=0.1, mix=0.19)
    english = [claim for claim in val.claims if claim.lang == "en"]
    assert len(english) == 21
    english_part = train.with_claims(english)
    seen = seen_claims(rest, english_part)
    assert len(seen) == 4

    without_seen = singles(100)
    with refused(ConfigError, "at most 0.00"):
        carve_val(without_seen, 0.1, seen_share=0.1, mix=0.5)


def test_ct25() -> None:
    folder = shared("ct25")
    train = load(folder, "train")
    dev = load(folder, "dev")
    rest, val = carve_val(train)
    assert sizes(rest, val) == (1389, 154)
    assert not rest.golds & val.golds
    assert not dev.golds & val.golds
    carved = Counter(claim.golds[0] for claim in val.claims)
    assert max(carved.values()) <= 10

    both, seen = carve_val(train, seen_share=0.1)
    assert sizes(both, seen) == (1235, 308)
    many = Counter(claim.golds[0] for claim in train.claims)
    counts = [many[claim.golds[0]] for claim in seen.claims]
    assert max(counts) > 10

    share = expected_seen_share(train)
    assert round(share, 4) == 0.8762
    rest, known = carve_val(train, seen_share=0.1, mix=0.89)
    assert sizes(rest, known) == (1234, 309)
    assert len(seen_claims(rest, known)) == 275
    assert not dev.golds & known.golds
