"""Claims that refer to the same paper: each rule against a slow reference."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from claim2source.core.records import Claim, Qrels
from claim2source.data.grouping import connected_groups, gold_groups, golds_by_text

GOLDS = st.lists(
    st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=3).map(tuple), max_size=12
)


def merged(items: Sequence[tuple[str, ...]]) -> list[set[int]]:
    """Positions of the items of each group: sets are joined until none share a key."""
    groups: list[tuple[set[int], set[str]]] = []
    for position, keys in enumerate(items):
        joined, all_names = {position}, set(keys)
        separate = []
        for members, names in groups:
            if names & all_names:
                joined, all_names = joined | members, all_names | names
            else:
                separate.append((members, names))
        groups = [*separate, (joined, all_names)]
    return sorted((members for members, _ in groups), key=min)


@given(GOLDS)
def test_groups_are_numbered_by_first_appearance(items: list[tuple[str, ...]]) -> None:
    numbers = connected_groups(items)
    expected = {p: number for number, members in enumerate(merged(items)) for p in members}
    assert numbers == [expected[position] for position in range(len(items))]
    # Only relevant golds join claims.
    qrels = Qrels({str(i): {**dict.fromkeys(g, 1), "none": 0} for i, g in enumerate(items)})
    assert gold_groups(qrels, qrels.claim_ids).tolist() == numbers


@given(st.lists(st.tuples(st.sampled_from(["x", " X ", "x\ty", "x y", "ß", "SS"]), GOLDS)))
def test_claims_of_one_text_share_their_golds(
    drawn: list[tuple[str, list[tuple[str, ...]]]],
) -> None:
    claims = [
        Claim(str(i), text, golds=tuple({g for golds in lists for g in golds}))
        for i, (text, lists) in enumerate(drawn)
    ]
    expected = {
        claim.id: frozenset(
            gold
            for other_claim in claims
            if other_claim.text.casefold().split() == claim.text.casefold().split()
            for gold in other_claim.golds
        )
        for claim in claims
    }
    assert golds_by_text(claims) == expected


def test_long_chains_are_one_group():
    qrels = Qrels({str(i): {f"s{i}": 1, f"s{i + 1}": 1} for i in range(3_000)})
    assert set(gold_groups(qrels, list(reversed(qrels.claim_ids))).tolist()) == {0}
