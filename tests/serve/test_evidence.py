"""Numbers of posts are found in papers, however they are written."""

from __future__ import annotations

import pytest

from claim2source.serve.evidence import compared_numbers


@pytest.mark.parametrize(
    ("post", "paper", "found"),
    [
        ("masks cut outbreaks 3,7x", "It was 3.7 times rarer.", {"3,7x": "3.7"}),
        ("1.479 Kinder", "Of 1,479 children", {"1.479": "1,479"}),
        ("dreimal so oft", "three times as often", {"dreimal": "three"}),
        ("12 % fewer", "aged 10 to 12 years", {"12 %": None}),
        ("37", "3.7", {"37": None}),
        ("une étude, 2 villes, covid-19 #50", "1, 2 and 19", {}),
    ],
)
def test_numbers_are_compared_by_value(post: str, paper: str, found: dict[str, str | None]) -> None:
    numbers = compared_numbers(post, paper)
    assert {one.post: one.paper and one.paper[1] for one in numbers} == found
