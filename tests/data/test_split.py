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


def dataset(golds: Mapping[str, tuple[str, ...]], langs: dict[str, str] | None = None) -> Dataset:
    claims = tuple(
        Claim(key, f"text {key}", (langs or {}).get(key, "en"), golds=ids)
        for key, ids in golds.items()
    )
    pool = sorted({gold for ids in golds.values() for gold in ids} | {"spare"})
    qrels = Qrels({key: dict.fromkeys(ids, 1) for key, ids in golds.items() if ids})
    return Dataset(claims, tuple(Source(g, g) for g in pool), qrels, "train", "set")


def singles(count: int, lang: str = "en", prefix: str = "q") -> Dataset:
    golds = {f"{prefix}{i}": (f"{prefix}p{i}",) for i in range(count)}
    return dataset(golds, dict.fromkeys(golds, lang))


def joined(*parts: Dataset) -> Dataset:
    golds = {c.id: c.golds for part in parts for c in part.claims}
    return dataset(golds, {c.id: c.lang for part in parts for c in part.claims})


def ids(part: Dataset) -> list[str]:
    return [claim.id for claim in part.claims]


def test_share_counts_for_each_language() -> None:
    train = joined(singles(200, "en", "e"), singles(50, "de", "d"), singles(20, "fr", "f"))
    _, val = carve_val(train, share=0.2)
    assert Counter(claim.lang for claim in val.claims) == {"en": 40, "de": 10, "fr": 4}
    # A small language loses one claim, and a language with a single paper none.
    of_one = dataset({"f0": ("f",), "f1": ("f",)}, {"f0": "fr", "f1": "fr"})
    rest, val = carve_val(joined(singles(100), singles(3, "de", "d"), of_one))
    assert Counter(claim.lang for claim in val.claims) == {"en": 10, "de": 1}
    assert Counter(claim.lang for claim in rest.claims) == {"en": 90, "de": 2, "fr": 2}


def test_another_seed_carves_other_claims() -> None:
    train = singles(100)
    carved = {tuple(sorted(ids(carve_val(train, seed=seed)[1]))) for seed in range(10)}
    assert len(carved) == 10
    # Must never change, so that runs of different years can be compared.
    assert ids(carve_val(singles(20))[1]) == ["q13", "q19"]


def test_a_paper_with_very_many_claims_stays_in_train() -> None:
    big = dataset({f"b{i}": ("big",) for i in range(11)})
    edge = dataset({f"m{i}": ("middle",) for i in range(10)})
    train = joined(big, edge, singles(100))
    middle = set()
    for seed in range(40):
        _, val = carve_val(train, share=0.3, seed=seed)
        assert "big" not in val.golds
        middle.add("middle" in val.golds)
    assert middle == {True, False}
    seen = [carve_val(train, share=0.3, seed=s, most_claims=11)[1].golds for s in range(40)]
    assert any("big" in golds for golds in seen)


def test_claims_without_golds_are_alone_also_where_named_like_a_gold() -> None:
    rest, val = carve_val(dataset({f"q{i}": () for i in range(20)}))
    assert (len(rest.claims), len(val.claims)) == (18, 2)
    train = joined(dataset({"x": (), "y": ("x",)}), singles(18))
    sides = {tuple(c in ids(carve_val(train, seed=s)[1]) for c in "xy") for s in range(60)}
    assert {(True, False), (False, True)} <= sides


def test_a_share_out_of_bounds_or_that_leaves_a_side_empty() -> None:
    for share in (0.0, 1.0, float("nan")):
        with refused(ConfigError) as error:
            carve_val(singles(10), share=share)
        assert error.value.key == "share"
    for train in (singles(1), dataset({f"q{i}": ("one",) for i in range(5)}), dataset({})):
        with refused(ConfigError, "val claims") as error:
            carve_val(train, share=0.5)
        assert error.value.key == "share"
    with refused(ConfigError, "train claims") as error:
        carve_val(singles(3), share=0.9)
    assert error.value.key == "share"


@settings(max_examples=200, deadline=None)
@given(
    golds=st.lists(
        st.tuples(
            st.lists(st.sampled_from("pqrstu"), unique=True, max_size=2).map(tuple),
            st.sampled_from(["en", "de"]),
            st.sampled_from(["x", "X ", "y", "", "", ""]),
        ),
        min_size=3,
        max_size=40,
    ),
    seed=st.integers(0, 1000),
    seen_share=st.floats(0.05, 0.8),
    mix=st.floats(0, 1),
)
def test_no_gold_or_text_is_on_both_sides_and_papers_of_the_second_part_keep_a_claim(
    golds: list[tuple[tuple[str, ...], str, str]], seed: int, seen_share: float, mix: float
) -> None:
    data = dataset(
        {f"c{i}": row[0] for i, row in enumerate(golds)},
        {f"c{i}": row[1] for i, row in enumerate(golds)},
    )
    texts = {f"c{i}": row[2] or f"text {i}" for i, row in enumerate(golds)}
    train = data.with_claims(replace(claim, text=texts[claim.id]) for claim in data.claims)
    try:
        alone, unseen = carve_val(train, 0.2, seed)
        rest, val = carve_val(train, 0.2, seed, seen_share=seen_share)
    except ConfigError:
        assume(False)
    # The same whatever the order of the claims.
    turned = carve_val(train.with_claims(reversed(train.claims)), 0.2, seed, seen_share=seen_share)
    assert [ids(part)[::-1] for part in turned] == [ids(rest), ids(val)]
    assert not alone.golds & unseen.golds
    assert sorted(ids(alone) + ids(unseen)) == sorted(ids(rest) + ids(val)) == sorted(texts)
    seen = [claim for claim in val.claims if claim.id not in set(ids(unseen))]
    assert {claim.id for claim in seen} == seen_claims(rest, val)
    assert all(claim.golds and set(claim.golds) <= rest.golds for claim in seen)
    assert alone.golds == rest.golds
    texts_of_seen = {" ".join(claim.text.casefold().split()) for claim in seen}
    assert not texts_of_seen & {" ".join(claim.text.casefold().split()) for claim in rest.claims}
    with suppress(ConfigError):
        kept, mixed = carve_val(train, 0.2, seed, seen_share=0.2, mix=mix)
        known = seen_claims(kept, mixed)
        for claim in mixed.claims:
            assert claim.id not in known or set(claim.golds) <= kept.golds
        if mix > 0:
            assert not {plain_text(claim.text) for claim in mixed.claims} & {
                plain_text(claim.text) for claim in kept.claims if claim.golds
            }
    total = Counter(row[1] for row in golds)
    for claims, share, minimum in ((unseen.claims, 0.2, 1), (seen, seen_share, 0)):
        counter = Counter(claim.lang for claim in claims)
        assert all(counter[lang] <= max(minimum, round(share * total[lang])) for lang in total)


def several(papers: int, claims: int, prefix: str = "s", lang: str = "en") -> Dataset:
    golds = {f"{prefix}{i}-{j}": (f"{prefix}p{i}",) for i in range(papers) for j in range(claims)}
    return dataset(golds, dict.fromkeys(golds, lang))


def test_val_at_a_declared_share_of_seen_papers() -> None:
    train = joined(several(60, 3), singles(60), several(30, 2, "d", "de"), singles(40, "de", "e"))
    rest, val = carve_val(train, 0.1, 5, seen_share=0.1, mix=0.75)
    seen = seen_claims(rest, val)
    for lang, size in {"en": 48, "de": 20}.items():
        of_language = [claim for claim in val.claims if claim.lang == lang]
        assert len(of_language) == size
        assert sum(claim.id in seen for claim in of_language) == round(0.75 * size)
    # The rest are of papers with one claim, although others are left.
    assert all(claim.id[0] in "qe" for claim in val.claims if claim.id not in seen)
    _, again = carve_val(
        train.with_claims(reversed(train.claims)), 0.1, 5, seen_share=0.1, mix=0.75
    )
    assert sorted(ids(again)) == sorted(ids(val))
    _, other = carve_val(train, 0.1, 6, seen_share=0.1, mix=0.75)
    assert sorted(ids(other)) != sorted(ids(val))
    # Without seen papers it is the split by paper of the same size.
    assert carve_val(train, 0.1, 5, seen_share=0.1, mix=0) == carve_val(train, 0.2, 5)


def test_more_seen_papers_than_possible_are_refused_with_the_share_that_is() -> None:
    train = joined(singles(100), several(2, 3), several(50, 2, "d", "de"))
    with refused(ConfigError, "at most 0.19", "in en") as error:
        carve_val(train, 0.1, seen_share=0.1, mix=0.89)
    assert (error.value.key, error.value.value) == ("seen_share_expected", 0.89)
    rest, val = carve_val(train, 0.1, seen_share=0.1, mix=0.19)
    english = [claim for claim in val.claims if claim.lang == "en"]
    assert (len(english), len(seen_claims(rest, train.with_claims(english)))) == (21, 4)
    with refused(ConfigError, "at most 0.00"):
        carve_val(singles(100), 0.1, seen_share=0.1, mix=0.5)


def test_ct25() -> None:
    train, dev = (load(shared("ct25"), split) for split in ("train", "dev"))
    rest, val = carve_val(train)
    assert (len(rest.claims), len(val.claims)) == (1389, 154)
    assert not rest.golds & val.golds
    assert not dev.golds & val.golds
    assert max(Counter(claim.golds[0] for claim in val.claims).values()) <= 10
    both, seen = carve_val(train, seen_share=0.1)
    assert (len(both.claims), len(seen.claims)) == (1235, 308)
    many = Counter(claim.golds[0] for claim in train.claims)
    assert max(many[claim.golds[0]] for claim in seen.claims) > 10
    assert round(expected_seen_share(train), 4) == 0.8762
    rest, known = carve_val(train, seen_share=0.1, mix=0.89)
    assert (len(rest.claims), len(known.claims)) == (1234, 309)
    assert len(seen_claims(rest, known)) == 275
    assert not dev.golds & known.golds
