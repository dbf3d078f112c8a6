"""Rewritten claims, appended to what was posted: a rewriting that lost the point costs little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.core.records import Claim, Dataset
from claim2source.io.jsonl import JsonLines
from claim2source.text import ClaimForm


def read_rewrites(path: Path) -> dict[str, str]:
    """Claim id -> rewritten text, from lines {"_id": .., "text": ..}.

    Raises `InputError` with a line for each problem. Claims of other splits may be there.
    """
    problems = Problems()
    found = {row.key: row.text("text").strip() for row in JsonLines(path, problems).rows()}
    problems.raise_if_any()
    return {claim: text for claim, text in found.items() if text}


def with_rewrites(dataset: Dataset, rewrites: Mapping[str, str], form: ClaimForm) -> Dataset:
    """The same data with every claim's rewriting on a line of its own behind its text in `form`."""
    claims = [
        _appended(claim, rewrites[claim.id], form) if claim.id in rewrites else claim
        for claim in dataset.claims
    ]
    return dataset.with_claims(claims)


def _appended(claim: Claim, rewriting: str, form: ClaimForm) -> Claim:
    if form == "original" or claim.lang == "en" or not claim.translation:
        return replace(claim, text=f"{claim.text}\n{rewriting}")
    # The translation stands last in both other forms: there it is appended, once.
    return replace(claim, translation=f"{claim.translation}\n{rewriting}")
