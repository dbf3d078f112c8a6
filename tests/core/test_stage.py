"""Stages: what a plain string becomes, and that any class with the methods fits."""

from claim2source.core.records import Claim
from claim2source.core.stage import as_claims


def test_plain_strings_are_claims_with_numbers_for_ids():
    assert as_claims("masks work") == [Claim("0", "masks work")]
    assert as_claims(["a", "b"]) == [Claim("0", "a"), Claim("1", "b")]
    claims = (Claim("x", "a", candidates=("s",)), Claim("y", "b"))
    assert tuple(as_claims(claims)) == claims
    assert as_claims([]) == [] and as_claims("") == [Claim("0", "")]
