"""Append rewritten claims to the posted text: a rewriting that lost the point costs little."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from claim2source.core.errors import Problems
from claim2source.core.records import Claim
from claim2source.io.jsonl import JsonLines
from claim2source.text.render import ClaimForm, claim_parts


def read_rewrites(path: Path) -> dict[str, str]:
    """Read claim id -> rewritten text, from lines {"_id": .., "text": ..}.

    Claims of other splits may be there. Raises `InputError` with a line for each problem.
    """
    problems = Problems()
    texts = {row.key: row.text("text").strip() for row in JsonLines(path, problems).rows()}
    problems.raise_if_any()
    return {claim: text for claim, text in texts.items() if text}


def rewritten(
    claims: Iterable[Claim], rewrites: Mapping[str, str], form: ClaimForm
) -> tuple[Claim, ...]:
    """Append every claim's rewriting, on its own line, to the text that `form` renders."""

    def appended(claim: Claim) -> Claim:
        if claim.id not in rewrites:
            return claim
        # The translation stands last in both other forms: there it is appended, once.
        if claim_parts(claim, form)[-1].language == claim.lang:
            return replace(claim, text=f"{claim.text}\n{rewrites[claim.id]}")
        return replace(claim, translation=f"{claim.translation}\n{rewrites[claim.id]}")

    return tuple(map(appended, claims))
